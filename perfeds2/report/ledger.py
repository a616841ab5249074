"""What does the ledger of Section VI's claims look like: in the terminal, as markdown, as a table for others?"""

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfeds2.files import write_text
from perfeds2.paper import claims
from perfeds2.paper.claims import LEAST_SEEDS, BetterThan, Entry, Finding, Verdict
from perfeds2.paper.figures.figure import TARGET

WIDE = 120  # columns a terminal needs for everything side by side
VERDICTS: dict[Verdict, str] = {"holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}  # in order
COUNTED: dict[Verdict, tuple[str, str]] = {  # of one, of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "undecided": ("is undecided", "are undecided"),
    "not run": ("was not run", "were not run"),
}


def print_ledger(entries: Sequence[Entry]) -> None:
    """A row per claim that can be judged, a line per comparison in it, and the counts: what was not run, too."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    if shown := judged(entries):
        console.print((_wide_table if console.width >= WIDE else _narrow_table)(shown))
    console.print(f"\n[bold]{counts(entries)}[/bold]")
    console.print(f"[dim]{meaning()}[/dim]")


def judged(entries: Sequence[Entry]) -> list[Entry]:
    """What people are shown: of claims that were not run there is nothing to say but how many they are."""
    return [entry for entry in entries if entry.verdict != "not run"]


def _wide_table(entries: Sequence[Entry]) -> Table:
    table = _table("", "claim", "where", "compared", "difference\n(points)", "seconds\nto target", "verdict")
    for entry in entries:
        said = ["\n".join(map(say, entry.findings)) for say in (_versus, points, seconds)]
        claim = entry.claim
        table.add_row(
            str(claim.number), escape(claim.sentence), escape(claim.where), escape(said[0]), *said[1:], _coloured(entry)
        )
    return table


def _narrow_table(entries: Sequence[Entry]) -> Table:
    """Comparisons below their claim."""
    table = _table("", "claim", "difference\n(points)", "seconds\nto target", "verdict")
    for entry in entries:
        claim = entry.claim
        table.add_row(str(claim.number), escape(f"{claim.sentence} [{claim.where}]"), "", "", _coloured(entry))
        for finding in entry.findings:
            table.add_row("", f"[dim]{escape(_versus(finding))}[/dim]", points(finding), seconds(finding), "")
    return table


def _table(*heads: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        number = head == "" or "\n" in head
        table.add_column(head, justify="right" if number else "left", no_wrap=head not in ("claim", "where"))
    return table


def _coloured(entry: Entry) -> str:
    tint = VERDICTS[entry.verdict]
    return f"[{tint}]{entry.verdict}[/{tint}]"


def counts(entries: Sequence[Entry]) -> str:
    """The ledger in a sentence."""
    found = {verdict: sum(entry.verdict == verdict for entry in entries) for verdict in VERDICTS}
    said = [f"{found[verdict]} {COUNTED[verdict][found[verdict] != 1]}" for verdict in VERDICTS if found[verdict]]
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
    paragraph = inspect.cleandoc(claims.__doc__ or "").partition("\n\n")[2]
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
    heads = ["#", "claim", "where", "compared", "difference (points)", "seconds to target", "verdict"]
    lines = [
        counts(entries),
        "",
        f"| {' | '.join(heads)} |",
        "|--:|---|---|---|--:|--:|---|",
    ]
    for entry in judged(entries):
        claim = entry.claim
        cells = [
            str(claim.number),
            claim.sentence,
            claim.where,
            *("<br>".join(map(say, entry.findings)) for say in (_versus, points, seconds)),
            f"**{entry.verdict}**" if entry.verdict in ("holds", "fails") else entry.verdict,
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, "", meaning(), ""])


def _versus(finding: Finding) -> str:
    return versus(finding.comparison)


def write_ledger(entries: Sequence[Entry], out: Path) -> list[Path]:
    """``claims.csv``, a row per comparison, and ``claims.json``. Returns both paths."""
    import pandas as pd

    written = [out / "claims.csv", out / "claims.json"]
    rows = [_row(entry, finding) for entry in entries for finding in entry.findings]
    write_text(written[0], pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    write_text(written[1], ledger_json(entries))
    return written


def ledger_json(entries: Sequence[Entry]) -> str:
    """The ledger as JSON: the rule, the counts, and every claim with its comparisons."""
    return (
        json.dumps(
            {
                "rule": rule(),
                "least_seeds": LEAST_SEEDS,
                "counts": {verdict: sum(entry.verdict == verdict for entry in entries) for verdict in VERDICTS},
                "claims": [
                    {
                        "claim": entry.claim.number,
                        "sentence": entry.claim.sentence,
                        "where": entry.claim.where,
                        "verdict": entry.verdict,
                        "comparisons": [_measured(finding) for finding in entry.findings],
                    }
                    for entry in entries
                ],
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _row(entry: Entry, finding: Finding) -> dict[str, Any]:
    claim = entry.claim
    return {"claim": claim.number, "sentence": claim.sentence, "where": claim.where, "claim_verdict": entry.verdict} | {
        key: value for key, value in _measured(finding).items() if key != "values"
    }


def _measured(finding: Finding) -> dict[str, Any]:
    better, worse = finding.comparison.better, finding.comparison.worse
    difference = finding.difference
    return {
        **{f"better_{name}": getattr(better, name) for name in ("figure", "panel", "line")},
        **{f"worse_{name}": getattr(worse, name) for name in ("figure", "panel", "line")},
        "seeds": len(difference["values"]),
        "difference": difference["mean"],
        "low": difference["low"],
        "high": difference["high"],
        "values": difference["values"],
        "better_median_time_s": finding.times_s[0],
        "worse_median_time_s": finding.times_s[1],
        "verdict": finding.verdict,
    }
