"""Show the ledger of Section VI's claims, and write it for other programs.

A ledger belongs to one folder. Two can be shown together, for example at Table I's values and with each algorithm
tuned. The same table is printed, put on a page, and written as LaTeX; claims.csv and claims.json hold
every number.
"""

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.paper import claims as claims_module
from perfeds2.paper.claims import (
    LEAST_SEEDS,
    LEVEL,
    SMALLEST_OF_NOTE,
    AgainstBest,
    BetterThan,
    Entry,
    Finding,
    Statistic,
    Verdict,
    best_fedavg,
    decide,
    distinct_tests,
    ledger,
)
from perfeds2.paper.figures import TARGET, load_curves
from perfeds2.report.tables import (
    Cell,
    Column,
    Rows,
    Span,
    Table,
    for_terminal,
    listed,
    signed,
    text_column,
)
from perfeds2.report.terminal import open_console
from perfeds2.spec.resolve import flattened, read_toml

LONGEST_LABEL = 30
SMALL = f"{100 * SMALLEST_OF_NOTE:g} points"
VERDICTS: dict[Verdict, tuple[str, str]] = {  # in display order; singular and plural wording
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "undecided": ("is undecided", "are undecided"),
    "not run": ("was not run", "were not run"),
}
READINGS = {  # other ways to judge a claim or comparison, by property of ``Finding``
    "after_holm": "after Holm's correction",
    "of_note": f"by differences of at least {SMALL}",
    "verdict_as_it_is": "if FedAvg gets no personal step",
    "verdict_by_loss": "by training loss",
}
IN_WORDS: dict[Verdict, str] = {"holds": "ahead", "fails": "behind"}  # PerFedS2 relative to the best FedAvg
MEANING = (
    "Below each claim is what it compares. Difference: percentage points of personalised test accuracy, mean over the horizon, ± half "
    "of the 95 % interval over seeds. Without the step: the same if FedAvg and FedProx get no personal step in the evaluation. Training "
    "loss: the difference of the personalised one with its own verdict, or how many seeds diverged. Seconds to target: medians of both "
    f"({', '.join(f'{100 * target:g} % on {task}' for task, target in TARGET.items())}); they do not affect verdicts. Fewer than five seeds "
    "leave a claim undecided. A verdict is *not after Holm* if it disappears when p-values are adjusted for all comparisons, and *below "
    f"{SMALL}* if it disappears when smaller differences do not count. *Nothing learned*: neither curve of a comparison gets above "
    "both its initial accuracy and the frequency of the most frequent label."
)


@dataclass(frozen=True)
class Ledger:
    """The claims as judged by one folder's figures."""

    label: str  # the settings behind its figures
    entries: Sequence[Entry]
    bests: Sequence[AgainstBest] = ()


def open_ledgers(folder: Path, beside: Path | None = None) -> list[Ledger]:
    """Open a folder's ledger, or two ledgers to show together."""
    check_beside(beside, _made(folder).get("scale"))
    folders = [folder] if beside is None else [folder, beside]
    labels = [label_of(each) for each in folders]
    if len(set(labels)) < len(labels):
        labels = [str(each) for each in folders]
    return [Ledger(label, ledger(each), best_fedavg(each)) for label, each in zip(labels, folders, strict=True)]


def check_beside(beside: Path | None, scale: str | None) -> None:
    """Reject a folder without figures, or with figures of another scale."""
    if beside is not None:
        load_curves(beside)
        other = _made(beside).get("scale")
        if None not in (scale, other) and scale != other:
            raise InputError(f"--beside {beside} holds figures of --scale {other}; expected {scale}.")


def label_of(folder: Path) -> str:
    """Return the settings behind a folder's figures if they are short, otherwise the folder's name."""
    changes = changes_of(folder)
    if not _made(folder).keys() <= {"scale", "changes"} or len(changes) > LONGEST_LABEL:
        return folder.resolve().name
    return changes or "Table I"


def changes_of(folder: Path) -> str:
    """Return the settings that differ from the paper's; empty if none do."""
    changed = flattened(_made(folder).get("changes", {}))
    return ", ".join(f"{name} = {value}" for name, value in changed.items())


def _made(folder: Path) -> dict[str, Any]:
    path = folder / "reproduce.toml"
    return read_toml(path) if path.exists() else {}


# ---- the table


def ledger_table(ledgers: Sequence[Ledger]) -> Table:
    """Return a row per judged claim with a verdict per ledger, and below it rows with its comparisons."""
    rows: Rows = []
    for entries in judged(ledgers):
        claim = entries[0].claim
        rows.append([f"{claim.number}. {claim.sentence} [{claim.where}]", *map(verdict, entries)])
        for findings in zip(*(entry.findings for entry in entries), strict=True):
            measured = {
                f"  {versus(findings[0].comparison)}": [points(each.difference) for each in findings],
                "    FedAvg without the step": [points(each.as_it_is) for each in findings],
                "    training loss": [loss(each) for each in findings],
                "    seconds to target": [seconds(each) for each in findings],
            }
            rows += [[Span(name, "dim"), *cells] for name, cells in measured.items() if set(map(str, cells)) != {"–"}]
    columns = [Column(each.label, "left") for each in ledgers]
    return Table([text_column("claim"), *columns], rows, kind="ledger")


def judged(ledgers: Sequence[Ledger]) -> list[tuple[Entry, ...]]:
    """Return each claim's entries, one per ledger; claims that no ledger ran are left out."""
    rows = zip(*(each.entries for each in ledgers), strict=True)
    return [entries for entries in rows if any(entry.verdict != "not run" for entry in entries)]


def verdict(entry: Entry) -> list[Span]:
    """Return the verdict and the conditions it depends on."""
    said = []
    if entry.verdict in ("holds", "fails"):
        said += ["not after Holm"] * (entry.by(attrgetter("after_holm")) != entry.verdict)
        said += [f"below {SMALL}"] * (entry.by(attrgetter("of_note")) != entry.verdict)
    if entry.verdict != "not run" and not entry.learned:
        said.append("nothing learned")
    return [Span(entry.verdict, entry.verdict), *(Span(f"\n{text}", "dim") for text in said)]


def versus(comparison: BetterThan) -> str:
    """Name the two curves of a comparison by what distinguishes them."""
    better, worse = comparison.better, comparison.worse
    if better.figure == worse.figure and better.panel == worse.panel:
        return f"{better.line} vs {worse.line}"
    if better.panel == worse.panel and better.line == worse.line:
        return f"{better.line}: {better.figure} vs {worse.figure}"
    return " vs ".join(f"{curve.line} ({curve.figure}, {curve.panel})" for curve in (better, worse))


def points(difference: Statistic | None) -> str:
    """Format a difference in percentage points ± half its interval."""
    return "".join(span.text for span in signed(difference, ".2f", 100))


def loss(finding: Finding) -> Cell:
    """Format the difference in training loss with its own verdict, or the number of diverged seeds."""
    if any(finding.diverged):
        return f"diverged {finding.diverged[0]} / {finding.diverged[1]} of {len(finding.difference['values'])}"
    if finding.loss is None or finding.verdict == "not run":
        return "–"
    large = abs(finding.loss["mean"] or 0) >= 100
    number = "".join(span.text for span in signed(finding.loss, ".1e" if large else ".3f"))
    return [Span(f"{number} "), Span(finding.verdict_by_loss, finding.verdict_by_loss)]


def seconds(finding: Finding) -> str:
    """Format the median times to the target of the better and the worse curve."""
    if finding.verdict == "not run":
        return "–"
    return " / ".join("never" if time_s is None else f"{time_s:,.1f}" for time_s in finding.times_s)


def best_table(ledgers: Sequence[Ledger]) -> Table:
    """Compare PerFedS2 with the best FedAvg of any mode; no rows if that was not run."""
    columns = [text_column("data set"), text_column("measured"), Column("best FedAvg", "left", narrow="best\nFedAvg")]
    columns.append(Column("difference (points)", narrow="difference\n(points)"))
    columns.append(Column("PerFedS2 is", "left", narrow="PerFedS2\nis"))
    rows: Rows = []
    for each in ledgers:
        label = f", {each.label}" * (len(ledgers) > 1)
        for best in each.bests:
            said = decide(best.difference)
            place = f"{best.place.panel} ({best.place.figure}{label})"
            rows.append(
                [place, best.measured, best.rival, points(best.difference), Span(IN_WORDS.get(said, said), said)]
            )
    return Table(columns, rows, title="PerFedS2 against the best FedAvg of any mode")


# ---- in words


def summary(ledgers: Sequence[Ledger]) -> list[str]:
    """Summarise the ledgers: one line each, and where they differ."""
    lines = [" ".join(filter(None, (counts(each.entries), strictly(each.entries)))) for each in ledgers]
    if len(ledgers) == 1:
        return lines
    lines = [f"{each.label}: {line}" for each, line in zip(ledgers, lines, strict=True)]
    return [*lines, f"Verdicts that differ: {', '.join(map(str, differing(ledgers))) or 'none'}."]


def differing(ledgers: Sequence[Ledger]) -> list[int]:
    """Return the numbers of the claims that both ledgers judge, with different verdicts."""
    verdicts = {entries[0].claim.number: {entry.verdict for entry in entries} for entries in judged(ledgers)}
    return [number for number, found in verdicts.items() if len(found) > 1 and "not run" not in found]


def lead(entries: Sequence[Entry], figures: Sequence[str]) -> str:
    """Return a page's headline: the verdicts of the figures that were run, or of the whole ledger."""
    seen = [entry for entry in entries if entry.verdict != "not run"]
    if not figures or len(seen) == len(entries):
        return counts(entries)
    return f"{listed(figures)}: {counts(seen)}"


def counts(entries: Sequence[Entry]) -> str:
    """Summarise a ledger in a sentence."""
    said = _tally((entry.verdict for entry in entries), tuple(VERDICTS))
    return f"Of {len(entries)} claims, {said or 'none can be judged'}."


def strictly(entries: Sequence[Entry]) -> str:
    """Count the verdicts under the other readings; empty if no claim is decided."""
    if not any(entry.verdict in ("holds", "fails") for entry in entries):
        return ""
    said = [
        f"{words} {_tally((entry.by(attrgetter(name)) for entry in entries), ('holds', 'fails'), zeros=True)}"
        for name, words in READINGS.items()
    ]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _tally(verdicts: Iterable[Verdict], of: Sequence[Verdict], *, zeros: bool = False) -> str:
    found = Counter(verdicts)
    return ", ".join(f"{found[each]} {VERDICTS[each][found[each] != 1]}" for each in of if found[each] or zeros)


def rule() -> str:
    """Return the rule for verdicts, taken from the docstring of ``perfeds2.paper.claims``."""
    _, *paragraphs = inspect.cleandoc(claims_module.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).removeprefix("The rule. ")


# ---- in the terminal and for other programs


def print_ledger(ledgers: Sequence[Ledger]) -> None:
    """Print every judged claim with its comparisons, and the counts, including claims that were not run."""
    console = open_console()
    tables = [table for table in (ledger_table(ledgers), best_table(ledgers)) if table.rows]
    for table in tables[:1]:
        console.print(for_terminal(table))
    for line in summary(ledgers):
        console.print(f"\n{line}", style="bold", markup=False)
    for table in tables[1:]:
        console.print("", for_terminal(table), sep="\n")
    console.print("\n" + MEANING.replace("*", ""), style="dim", markup=False)


def write_ledger(ledgers: Sequence[Ledger], out: Path) -> list[Path]:
    """Write ``claims.csv``, with a row per comparison, and ``claims.json``. Return both paths."""
    rows = [
        {"ledger": each.label} | _about(entry) | _judged(entry, "claim_") | _measured(finding)
        for each in ledgers
        for entry in each.entries
        for finding in entry.findings
    ]
    table = pd.DataFrame(rows).drop(columns="values", errors="ignore")
    write_text(out / "claims.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text(out / "claims.json", ledger_json(ledgers))
    return [out / "claims.csv", out / "claims.json"]


def ledger_json(ledgers: Sequence[Ledger]) -> str:
    """Return the ledger as JSON: the rule, the counts and the claims; ``beside`` holds the second ledger."""
    rules = {"rule": rule(), "least_seeds": LEAST_SEEDS, "level": LEVEL, "smallest_of_note": SMALLEST_OF_NOTE}
    whole = rules | _as_data(ledgers[0])
    if len(ledgers) > 1:
        whole |= {"verdicts_differ": differing(ledgers), "beside": _as_data(ledgers[1])}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _as_data(one: Ledger) -> dict[str, object]:
    found = Counter(entry.verdict for entry in one.entries)
    return {
        "label": one.label,
        "counts": {verdict: found[verdict] for verdict in VERDICTS},
        "tests": len(distinct_tests(finding for entry in one.entries for finding in entry.findings)),
        "claims": [
            _about(entry) | _judged(entry) | {"comparisons": [_measured(finding) for finding in entry.findings]}
            for entry in one.entries
        ],
        "best_fedavg": [
            {**asdict(best.place), "measured": best.measured, "best_fedavg": best.rival, **_numbers(best.difference)}
            for best in one.bests
        ],
    }


def _about(entry: Entry) -> dict[str, object]:
    return {"claim": entry.claim.number, "sentence": entry.claim.sentence, "where": entry.claim.where}


def _judged(judged: Entry | Finding, prefix: str = "") -> dict[str, object]:
    """Return all verdicts on a claim or comparison."""
    readings = {name: attrgetter(name) for name in ("verdict", *READINGS)}
    by = {name: judged.by(read) if isinstance(judged, Entry) else read(judged) for name, read in readings.items()}
    return {f"{prefix}{name}": said for name, said in (by | {"learned": judged.learned}).items()}


def _measured(finding: Finding) -> dict[str, object]:
    difference = finding.difference
    return {
        **{f"better_{name}": value for name, value in asdict(finding.comparison.better).items()},
        **{f"worse_{name}": value for name, value in asdict(finding.comparison.worse).items()},
        "seeds": len(difference["values"]),
        **_numbers(difference),
        "values": difference["values"],
        "p": finding.p,
        "p_holm": finding.p_holm,
        **_numbers(finding.as_it_is, "as_it_is_"),
        **_numbers(finding.loss, "loss_"),
        "better_diverged": finding.diverged[0],
        "worse_diverged": finding.diverged[1],
        "better_median_time_s": finding.times_s[0],
        "worse_median_time_s": finding.times_s[1],
        **_judged(finding),
    }


def _numbers(difference: Statistic | None, prefix: str = "") -> dict[str, float | None]:
    names = {"difference": "mean", "low": "low", "high": "high"}
    return {f"{prefix}{name}": None if difference is None else difference[key] for name, key in names.items()}
