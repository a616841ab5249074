"""What does the ledger of Section VI's claims look like: in the terminal, as markdown, as a table for others?"""

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.files import write_text
from perfeds2.paper import claims as claims_module
from perfeds2.paper.claims import LEAST_SEEDS, BetterThan, Entry, Finding, Verdict
from perfeds2.paper.figures.figure import TARGET
from perfeds2.report.tables import Cell, Column, Span, Table, as_markdown, for_terminal
from perfeds2.report.terminal import console as open_console

WIDE = 120  # columns a terminal needs for everything side by side
VERDICTS: dict[Verdict, tuple[str, str]] = {  # in order; how to say it of one, and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "undecided": ("is undecided", "are undecided"),
    "not run": ("was not run", "were not run"),
}
COLUMNS = {
    "number": Column("#", narrow=""),
    "claim": Column("claim", "left", wraps=True),
    "where": Column("where", "left", wraps=True),
    "compared": Column("compared", "left"),
    "difference": Column("difference (points)", narrow="difference\n(points)"),
    "seconds": Column("seconds to target", narrow="seconds\nto target"),
    "verdict": Column("verdict", "left"),
}


def print_ledger(entries: Sequence[Entry]) -> None:
    """A row per claim that can be judged, a line per comparison in it, and the counts: what was not run, too."""
    console = open_console()
    if judged(entries):
        console.print(for_terminal(_table(entries, COLUMNS) if console.width >= WIDE else _narrow_table(entries)))
    console.print(f"\n[bold]{counts(entries)}[/bold]")
    console.print(f"[dim]{meaning()}[/dim]")


def judged(entries: Sequence[Entry]) -> list[Entry]:
    """What people are shown: of claims that were not run there is nothing to say but how many they are."""
    return [entry for entry in entries if entry.verdict != "not run"]


def _table(entries: Sequence[Entry], columns: Mapping[str, Column]) -> Table:
    return Table(list(columns.values()), [[_cells(entry)[name] for name in columns] for entry in judged(entries)])


def _cells(entry: Entry) -> dict[str, Cell]:
    claim, findings = entry.claim, entry.findings
    return {
        "number": str(claim.number),
        "claim": claim.sentence,
        "numbered": f"{claim.number}. {claim.sentence}",
        "where": claim.where,
        "compared": "\n".join(versus(finding.comparison) for finding in findings),
        "difference": "\n".join(map(points, findings)),
        "seconds": "\n".join(map(seconds, findings)),
        "verdict": Span(entry.verdict, entry.verdict),
    }


def page_table(entries: Sequence[Entry]) -> Table:
    """As a page shows it: the verdict comes early, where a phone still has room."""
    order = ("verdict", "where", "compared", "difference", "seconds")
    return _table(entries, {"numbered": COLUMNS["claim"]} | {name: COLUMNS[name] for name in order})


def _narrow_table(entries: Sequence[Entry]) -> Table:
    """Comparisons below their claim."""
    rows: list[list[Cell]] = []
    for entry in judged(entries):
        claim, verdict = entry.claim, Span(entry.verdict, entry.verdict)
        rows.append([str(claim.number), f"{claim.sentence} [{claim.where}]", "", "", verdict])
        for each in entry.findings:
            rows.append(["", Span(versus(each.comparison), "dim"), points(each), seconds(each)])
    return Table([COLUMNS[name] for name in ("number", "claim", "difference", "seconds", "verdict")], rows)


def counts(entries: Sequence[Entry]) -> str:
    """The ledger in a sentence."""
    found = Counter(entry.verdict for entry in entries)
    said = [f"{found[verdict]} {VERDICTS[verdict][found[verdict] != 1]}" for verdict in VERDICTS if found[verdict]]
    return f"Of {len(entries)} claim{'s' if len(entries) != 1 else ''}, {', '.join(said) or 'none was looked at'}."


def meaning() -> str:
    """What the columns say."""
    targets = ", ".join(f"{100 * target:g} % on {task}" for task, target in TARGET.items())
    return (
        f"Difference: percentage points of personalised test accuracy, mean over the horizon, ± half of the 95 % interval "
        f"over seeds. Seconds to target: medians of both ({targets}); they decide nothing. Fewer than five seeds leave a claim undecided."
    )


def rule() -> str:
    """How verdicts come about, as the module that gives them says it."""
    paragraph = inspect.cleandoc(claims_module.__doc__ or "").partition("\n\n")[2]
    return " ".join(paragraph.removeprefix("The rule. ").split())


def versus(comparison: BetterThan) -> str:
    """Who is compared with whom, naming only what differs."""
    better, worse = comparison.better, comparison.worse
    if better.figure == worse.figure and better.panel == worse.panel:
        return f"{better.line} vs {worse.line}"
    if better.panel == worse.panel and better.line == worse.line:
        return f"{better.line}: {better.figure} vs {worse.figure}"
    return " vs ".join(f"{curve.line} ({curve.figure}, {curve.panel})" for curve in (better, worse))


def points(finding: Finding) -> str:
    """The difference in percentage points, ± half its interval."""
    mean, low, high = (finding.difference[name] for name in ("mean", "low", "high"))
    if mean is None:
        return "–"
    signed = f"{100 * mean:+.2f}".replace("-", "−")
    return signed if low is None else f"{signed} ± {50 * (high - low):.2f}"


def seconds(finding: Finding) -> str:
    """The median times to the target, better and worse."""
    if finding.verdict == "not run":
        return "–"
    return " / ".join("never" if time_s is None else f"{time_s:,.1f}" for time_s in finding.times_s)


def ledger_markdown(entries: Sequence[Entry]) -> str:
    """The ledger as a markdown table of what can be judged, with the counts before it."""
    return "\n".join([counts(entries), "", as_markdown(_table(entries, COLUMNS)), "", meaning(), ""])


def write_ledger(entries: Sequence[Entry], out: Path) -> list[Path]:
    """``claims.csv``, a row per comparison, and ``claims.json``. Returns both paths."""
    written = [out / "claims.csv", out / "claims.json"]
    rows = [
        _about(entry) | {"claim_verdict": entry.verdict} | _measured(finding)
        for entry in entries
        for finding in entry.findings
    ]
    table = pd.DataFrame(rows).drop(columns="values", errors="ignore")
    write_text(written[0], table.to_csv(index=False, lineterminator="\n"))
    write_text(written[1], ledger_json(entries))
    return written


def ledger_json(entries: Sequence[Entry]) -> str:
    """The ledger as JSON: the rule, the counts, and every claim with its comparisons."""
    claims = [
        _about(entry) | {"verdict": entry.verdict, "comparisons": [_measured(finding) for finding in entry.findings]}
        for entry in entries
    ]
    found = Counter(entry.verdict for entry in entries)
    tally = {verdict: found[verdict] for verdict in VERDICTS}
    whole = {"rule": rule(), "least_seeds": LEAST_SEEDS, "counts": tally, "claims": claims}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _about(entry: Entry) -> dict[str, Any]:
    return {"claim": entry.claim.number, "sentence": entry.claim.sentence, "where": entry.claim.where}


def _measured(finding: Finding) -> dict[str, Any]:
    difference = finding.difference
    return {
        **{f"better_{name}": value for name, value in asdict(finding.comparison.better).items()},
        **{f"worse_{name}": value for name, value in asdict(finding.comparison.worse).items()},
        "seeds": len(difference["values"]),
        "difference": difference["mean"],
        **{name: difference[name] for name in ("low", "high", "values")},
        "better_median_time_s": finding.times_s[0],
        "worse_median_time_s": finding.times_s[1],
        "verdict": finding.verdict,
    }
