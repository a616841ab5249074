"""What does the ledger of Section VI's claims look like: in the terminal, as markdown, on a page?

One folder's ledger, or two side by side: the same claims at Table I's values, say, and with each algorithm tuned.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.paper import claims as claims_module
from perfeds2.paper.claims import (
    SMALLEST_OF_NOTE,
    AgainstBest,
    BetterThan,
    Claim,
    Entry,
    Finding,
    Statistic,
    Verdict,
    best_fedavg,
    decide,
    ledger,
)
from perfeds2.paper.figures import TARGET, load_curves
from perfeds2.report.tables import Cell, Column, Span, Table, as_markdown, for_terminal, listed
from perfeds2.report.terminal import console as open_console
from perfeds2.spec.resolve import read_toml

WIDE = 110  # columns a terminal needs for everything side by side
LONGEST_LABEL = 30
NOTHING_CHANGED = "Table I"
SMALL = f"{100 * SMALLEST_OF_NOTE:g} points"
VERDICTS: dict[Verdict, tuple[str, str]] = {  # in order; how to say it of one, and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "undecided": ("is undecided", "are undecided"),
    "not run": ("was not run", "were not run"),
}
READINGS: dict[str, Callable[[Entry], Verdict]] = {  # what else could be counted
    "after Holm's correction": lambda entry: entry.after_holm,
    f"by differences of at least {SMALL}": lambda entry: entry.of_note,
    "if FedAvg gets no personal step": lambda entry: entry.verdict_as_it_is,
    "by training loss": lambda entry: entry.verdict_by_loss,
}
IN_WORDS: dict[Verdict, str] = {"holds": "ahead", "fails": "behind"}  # of PerFedS2 against the best FedAvg


@dataclass(frozen=True)
class Ledger:
    """The claims as one folder decides them."""

    label: str  # what its figures were made with
    entries: Sequence[Entry]
    bests: Sequence[AgainstBest] = ()


def open_ledgers(folder: Path, beside: Path | None = None) -> list[Ledger]:
    """A folder's ledger, or two to stand side by side."""
    check_beside(beside, _made(folder).get("scale"))
    folders = [folder] if beside is None else [folder, beside]
    labels = [label_of(each) for each in folders]
    if len(set(labels)) < len(labels):
        labels = [str(each) for each in folders]
    return [Ledger(label, ledger(each), best_fedavg(each)) for label, each in zip(labels, folders, strict=True)]


def check_beside(beside: Path | None, scale: str | None) -> None:
    """Refuse what cannot stand beside figures of a scale: no figures, or curves of another length."""
    if beside is not None:
        load_curves(beside)
        other = _made(beside).get("scale")
        if None not in (scale, other) and scale != other:
            raise InputError(
                f"--beside {beside} holds figures of --scale {other}; expected {scale}, as it stands beside those."
            )


def label_of(folder: Path) -> str:
    """What a folder's figures were made with, if that is short; else the folder's name."""
    changes = changes_of(folder)
    if not _made(folder).keys() <= {"scale", "changes"} or len(changes) > LONGEST_LABEL:
        return folder.resolve().name
    return changes or NOTHING_CHANGED


def changes_of(folder: Path) -> str:
    """What the figures in a folder were made with instead of the paper's settings; empty for nothing."""
    changed = _made(folder).get("changes", {})
    return ", ".join(
        f"{section}.{key} = {value}" for section, values in changed.items() for key, value in values.items()
    )


def _made(folder: Path) -> dict[str, Any]:
    path = folder / "reproduce.toml"
    return read_toml(path) if path.exists() else {}


@dataclass(frozen=True)
class Part:
    """What a column says of a comparison."""

    column: Column
    said: Callable[[Finding], Sequence[Span]]


NUMBER = Column("#", narrow="")
CLAIM = Column("claim", "left", wraps=True)
WHERE = Column("where", "left", wraps=True)
COMPARED = Column("compared", "left")
VERDICT = Column("verdict", "left")


def points(difference: Statistic | None) -> str:
    """A difference in percentage points, ± half its interval."""
    return _signed(difference, lambda value: f"{100 * value:.2f}")


def loss(finding: Finding) -> list[Span]:
    """The difference in training loss with its own verdict, or who diverged."""
    seeds = len(finding.difference["values"])
    if any(finding.diverged):
        return [Span(f"diverged {finding.diverged[0]} / {finding.diverged[1]} of {seeds}")]
    large = finding.loss is not None and abs(finding.loss["mean"] or 0) >= 100
    number = _signed(finding.loss, lambda value: f"{value:.1e}" if large else f"{value:.3f}")
    verdict = finding.verdict_by_loss
    return [Span(number)] if finding.verdict == "not run" else [Span(f"{number} "), Span(verdict, verdict)]


def _signed(difference: Statistic | None, written: Callable[[float], str]) -> str:
    if difference is None or difference["mean"] is None:
        return "–"
    mean, low, high = (difference[name] for name in ("mean", "low", "high"))
    signed = ("−" if mean < 0 else "+") + written(abs(mean))
    return signed if low is None else f"{signed} ± {written((high - low) / 2)}"


def seconds(finding: Finding) -> str:
    """The median times to the target, better and worse."""
    if finding.verdict == "not run":
        return "–"
    return " / ".join("never" if time_s is None else f"{time_s:,.1f}" for time_s in finding.times_s)


DIFFERENCE = Part(
    Column("difference (points)", narrow="difference\n(points)"), lambda finding: [Span(points(finding.difference))]
)
AS_IT_IS = Part(
    Column("FedAvg as it is (points)", narrow="FedAvg as\nit is (points)"),
    lambda finding: [Span(points(finding.as_it_is))],
)
LOSS = Part(Column("training loss (− is better)", "left", narrow="training loss\n(− is better)"), loss)
SECONDS = Part(
    Column("seconds to target", narrow="seconds\nto target"), lambda finding: [Span(seconds(finding), "dim")]
)


def parts_of(ledgers: Sequence[Ledger]) -> list[Part]:
    """What there is room for: of one ledger everything, of two the difference that decides."""
    return [DIFFERENCE, AS_IT_IS, LOSS, SECONDS] if len(ledgers) == 1 else [DIFFERENCE]


def print_ledger(ledgers: Sequence[Ledger]) -> None:
    """A row per claim that can be judged, its comparisons below it, and the counts: what was not run, too."""
    console = open_console()
    if judged(ledgers):
        console.print(for_terminal(_wide_table(ledgers) if console.width >= WIDE else _narrow_table(ledgers)))
    for line in summary(ledgers):
        console.print(f"\n{line}", style="bold", markup=False)
    for table in best_tables(ledgers):
        console.print()
        console.print(for_terminal(table))
    console.print("\n" + meaning(ledgers).replace("*", ""), style="dim", markup=False)


def judged(ledgers: Sequence[Ledger]) -> list[tuple[Entry, ...]]:
    """What people are shown of each claim. Of those that were run nowhere there is nothing to say but how many they are."""
    rows = zip(*(each.entries for each in ledgers), strict=True)
    return [entries for entries in rows if any(entry.verdict != "not run" for entry in entries)]


def _columns(ledgers: Sequence[Ledger]) -> list[Column]:
    columns = [*(part.column for part in parts_of(ledgers)), VERDICT]
    if len(ledgers) == 1:
        return columns
    return [
        Column(f"{each.label}: {column.head}", column.side, narrow=f"{each.label}:\n{column.head.split()[0]}")
        for each in ledgers
        for column in columns
    ]


def verdict(entry: Entry, *, brief: bool = False) -> list[Span]:
    """The verdict, and below it on what it depends; ``brief`` where the other measures have no column of their own."""
    said = []
    if entry.verdict in ("holds", "fails"):
        said += ["not after Holm"] * (entry.after_holm != entry.verdict)
        said += [f"below {SMALL}"] * (entry.of_note != entry.verdict)
    if entry.verdict != "not run":
        said += ["nothing learned"] * (not entry.learned)
    if brief and entry.verdict != "not run":
        diverged = any(any(finding.diverged) for finding in entry.findings)
        by_loss = "diverged" if diverged and entry.verdict_by_loss == "undecided" else entry.verdict_by_loss
        others = {"as it is": entry.verdict_as_it_is, "by loss": by_loss}
        said += [f"{name}: {other}" for name, other in others.items() if other != entry.verdict]
    return [Span(entry.verdict, entry.verdict), *(Span(f"\n{text}", "dim") for text in said)]


def _wide_table(ledgers: Sequence[Ledger]) -> Table:
    """Comparisons below their claim, so that both need only one column."""
    parts, rows = parts_of(ledgers), []
    blank: list[Cell] = [""] * len(parts)
    for entries in judged(ledgers):
        row = _first(entries[0].claim)
        for entry in entries:
            row += [*blank, verdict(entry, brief=len(ledgers) > 1)]
        rows.append(row)
        for findings in zip(*(entry.findings for entry in entries), strict=True):
            row = ["", Span(versus(findings[0].comparison), "dim")]
            for finding in findings:
                row += [*(part.said(finding) for part in parts), ""]
            rows.append(row)
    return Table([NUMBER, CLAIM, *_columns(ledgers)], rows)


def _first(claim: Claim) -> list[Cell]:
    return [str(claim.number), f"{claim.sentence} [{claim.where}]"]


def _narrow_table(ledgers: Sequence[Ledger]) -> Table:
    """Comparisons below their claim, and other measures below the comparison."""
    rows: list[list[Cell]] = []
    for entries in judged(ledgers):
        if len(ledgers) == 1:
            rows.append([*_first(entries[0].claim), "", "", verdict(entries[0])])
            for finding in entries[0].findings:
                compared = Span(versus(finding.comparison), "dim")
                rows.append(["", compared, points(finding.difference), Span(seconds(finding), "dim")])
                if finding.as_it_is is not None:
                    rows.append(["", Span("  FedAvg as it is", "dim"), points(finding.as_it_is)])
                rows.append(["", Span("  training loss", "dim"), *_split(loss(finding))])
        else:
            rows.append(_first(entries[0].claim))
            for each, entry in zip(ledgers, entries, strict=True):
                rows.append(["", each.label, "", verdict(entry, brief=True)])
                for finding in entry.findings:
                    rows.append(["", Span(f"  {versus(finding.comparison)}", "dim"), points(finding.difference)])
    seconds_to_target = [SECONDS.column] * (len(ledgers) == 1)
    return Table([NUMBER, CLAIM, DIFFERENCE.column, *seconds_to_target, VERDICT], rows)


def _split(spans: Sequence[Span]) -> list[Cell]:
    """A number into its column, its verdict into that of verdicts."""
    return [spans[0], "", *spans[1:]]


def whole_table(ledgers: Sequence[Ledger]) -> Table:
    """A row a claim, as Markdown has it."""
    parts, rows = parts_of(ledgers), []
    for entries in judged(ledgers):
        claim = entries[0].claim
        row: list[Cell] = [str(claim.number), claim.sentence, claim.where, _compared(claim)]
        for entry in entries:
            row += [*(_lines(part, entry) for part in parts), verdict(entry, brief=len(ledgers) > 1)]
        rows.append(row)
    return Table([NUMBER, CLAIM, WHERE, COMPARED, *_columns(ledgers)], rows)


def claims_table(ledgers: Sequence[Ledger]) -> Table:
    """A row a comparison, as a paper has room for it: who against whom, by how much, and the claim's verdict at its first."""
    rows: list[list[Cell]] = []
    for entries in judged(ledgers):
        for place, findings in enumerate(zip(*(entry.findings for entry in entries), strict=True)):
            row: list[Cell] = [str(entries[0].claim.number) if place == 0 else "", versus(findings[0].comparison)]
            for entry, finding in zip(entries, findings, strict=True):
                row += [points(finding.difference), entry.verdict if place == 0 else ""]
            rows.append(row)
    names = [f"{each.label}: " for each in ledgers] if len(ledgers) > 1 else [""]
    said = [Column(f"{name}{column.head}", column.side) for name in names for column in (DIFFERENCE.column, VERDICT)]
    return Table([NUMBER, COMPARED, *said], rows)


def _compared(claim: Claim) -> str:
    return "\n".join(versus(comparison) for comparison in claim.comparisons)


def _lines(part: Part, entry: Entry) -> list[Span]:
    """What a column says of each comparison, one below the other."""
    lines = [span for finding in entry.findings for span in (Span("\n"), *part.said(finding))]
    return lines[1:]


def page_table(ledgers: Sequence[Ledger]) -> Table:
    """As a page shows it: the verdict comes early, where a phone still has room."""
    parts, rows = parts_of(ledgers), []
    for entries in judged(ledgers):
        claim = entries[0].claim
        row: list[Cell] = [f"{claim.number}. {claim.sentence}"]
        row += [verdict(entry, brief=len(ledgers) > 1) for entry in entries]
        row += [claim.where, _compared(claim)]
        row += [_lines(part, entry) for entry in entries for part in parts]
        rows.append(row)
    columns, width = _columns(ledgers), len(parts) + 1
    verdicts = [column for number, column in enumerate(columns, 1) if number % width == 0]
    others = [column for number, column in enumerate(columns, 1) if number % width]
    return Table([CLAIM, *verdicts, WHERE, COMPARED, *others], rows)


def summary(ledgers: Sequence[Ledger]) -> list[str]:
    """The ledgers in sentences: a line each, and where they differ."""
    if len(ledgers) == 1:
        return [" ".join((counts(ledgers[0].entries), strictly(ledgers[0].entries))).strip()]
    lines = [f"{each.label}: {counts(each.entries)} {strictly(each.entries)}".strip() for each in ledgers]
    numbers = differing(ledgers)
    what = "verdict differs" if len(numbers) == 1 else "verdicts differ"
    which = f": {', '.join(map(str, numbers))}" if numbers else ""
    return [*lines, f"{len(numbers) or 'No'} {what}{which}."]


def differing(ledgers: Sequence[Ledger]) -> list[int]:
    """The claims that were judged in both ledgers, and differently."""
    verdicts = {entries[0].claim.number: {entry.verdict for entry in entries} for entries in judged(ledgers)}
    return [number for number, found in verdicts.items() if len(found) > 1 and "not run" not in found]


def lead(entries: Sequence[Entry], figures: Sequence[str]) -> str:
    """What a page begins with: of figures that were run alone, what is judged by them; else the whole ledger."""
    seen = [entry for entry in entries if entry.verdict != "not run"]
    if not figures or len(seen) == len(entries):
        return counts(entries)
    names = listed(figures) if len(figures) <= 3 else f"{len(figures)} figures of Section VI"
    if not seen:
        return f"{names}: no claim can be judged by what was run."
    said = _tally((entry.verdict for entry in seen), tuple(VERDICTS))
    whose = "its" if len(figures) == 1 else "their"
    if len({entry.verdict for entry in seen}) == 1:
        many = f"{whose} one claim" if len(seen) == 1 else f"all {len(seen)} of {whose} claims"
        return f"{names}: {many} {VERDICTS[seen[0].verdict][len(seen) > 1]}."
    return f"{names}: of {whose} {len(seen)} claims, {said}."


def not_run(entries: Sequence[Entry]) -> str:
    """How many claims need other figures; empty if none."""
    rest = sum(entry.verdict == "not run" for entry in entries)
    many = "One claim" if rest == 1 else f"{rest} claims"
    return f"{many} of Section VI need{'s' * (rest == 1)} figures that were not run." if rest else ""


def counts(entries: Sequence[Entry]) -> str:
    """The ledger in a sentence."""
    said = _tally((entry.verdict for entry in entries), tuple(VERDICTS))
    return f"Of {len(entries)} claim{'s' if len(entries) != 1 else ''}, {said or 'none was looked at'}."


def strictly(entries: Sequence[Entry]) -> str:
    """The same by other readings, as far as anything is decided."""
    if not any(entry.verdict in ("holds", "fails") for entry in entries):
        return ""
    said = [f"{name} {_tally(map(read, entries), ('holds', 'fails'), zeros=True)}" for name, read in READINGS.items()]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _tally(verdicts: Iterable[Verdict], of: Sequence[Verdict], *, zeros: bool = False) -> str:
    found = Counter(verdicts)
    return ", ".join(f"{found[each]} {VERDICTS[each][found[each] != 1]}" for each in of if found[each] or zeros)


def best_tables(ledgers: Sequence[Ledger]) -> list[Table]:
    """PerFedS2 against the best FedAvg of any mode, a table for each ledger that can say it."""
    columns = [
        Column("data set", "left", wraps=True),
        Column("measured", "left", wraps=True),
        Column("best FedAvg", "left", narrow="best\nFedAvg"),
        Column("difference (points)", narrow="difference\n(points)"),
        Column("PerFedS2 is", "left", narrow="PerFedS2\nis"),
    ]
    tables = []
    for each in ledgers:
        title = "PerFedS2 against the best FedAvg of any mode" + f" ({each.label})" * (len(ledgers) > 1)
        rows: list[list[Cell]] = []
        for best in each.bests:
            for measured, (rival, difference) in measures(best).items():
                said = decide(difference)
                place = f"{best.place.panel} ({best.place.figure})"
                rows.append([place, measured, rival, points(difference), Span(IN_WORDS.get(said, said), said)])
        if rows:
            tables.append(Table(columns, rows, title=title))
    return tables


def measures(best: AgainstBest) -> dict[str, tuple[str, Statistic]]:
    return {"over the horizon": best.over_horizon, "at its end": best.at_end}


def meaning(ledgers: Sequence[Ledger]) -> str:
    """What the columns say."""
    targets = ", ".join(f"{100 * target:g} % on {task}" for task, target in TARGET.items())
    no_step = "if FedAvg and FedProx get no personal step in the evaluation"
    others = (
        f"FedAvg as it is: the same {no_step}. Training loss: the difference of the personalised one with its own verdict, "
        f"or how many seeds diverged. Seconds to target: medians of both ({targets}); they decide nothing."
    )
    if len(ledgers) > 1:
        others = (
            f"As it is: the verdict {no_step}; by loss: the verdict by the personalised training loss, which a run that "
            f"diverges has not. Both stand only where they differ."
        )
    return (
        f"Difference: percentage points of personalised test accuracy, mean over the horizon, ± half of the 95 % interval "
        f"over seeds. {others} Fewer than five seeds leave a claim undecided. A verdict is *not after Holm* if it goes away "
        f"when p-values are adjusted for all comparisons, and *below {SMALL}* if it goes away when smaller differences do not "
        f"count. *Nothing learned*: neither curve of a comparison gets beyond its start and the most frequent label."
    )


def rule() -> str:
    """How verdicts come about, as the module that gives them says it, in paragraphs."""
    _, *paragraphs = inspect.cleandoc(claims_module.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).removeprefix("The rule. ")


def versus(comparison: BetterThan) -> str:
    """Who is compared with whom, naming only what differs."""
    better, worse = comparison.better, comparison.worse
    if better.figure == worse.figure and better.panel == worse.panel:
        return f"{better.line} vs {worse.line}"
    if better.panel == worse.panel and better.line == worse.line:
        return f"{better.line}: {better.figure} vs {worse.figure}"
    return " vs ".join(f"{curve.line} ({curve.figure}, {curve.panel})" for curve in (better, worse))


def ledger_markdown(ledgers: Sequence[Ledger]) -> str:
    """The ledger as a markdown table of what can be judged, with the counts before it."""
    lines = ["\n\n".join(summary(ledgers)), "", as_markdown(whole_table(ledgers)), "", meaning(ledgers), ""]
    for table in best_tables(ledgers):
        lines += [f"{table.title}:", "", as_markdown(table), ""]
    return "\n".join(lines)
