"""How is the ledger of Section VI's claims shown: in the terminal, as Markdown, on a page?

One folder's ledger, or two together: for example the same claims at Table I's values and with each algorithm tuned.
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
    Entry,
    Finding,
    Statistic,
    Verdict,
    best_fedavg,
    decide,
    ledger,
)
from perfeds2.paper.figures import TARGET, load_curves
from perfeds2.report.tables import Cell, Column, Span, Table, as_markdown, for_terminal, listed, signed, text_column
from perfeds2.report.terminal import open_console
from perfeds2.spec.resolve import read_toml

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
    """The claims as judged by one folder."""

    label: str  # what its figures were made with
    entries: Sequence[Entry]
    bests: Sequence[AgainstBest] = ()


def open_ledgers(folder: Path, beside: Path | None = None) -> list[Ledger]:
    """Open a folder's ledger, or two to be shown together."""
    check_beside(beside, _made(folder).get("scale"))
    folders = [folder] if beside is None else [folder, beside]
    labels = [label_of(each) for each in folders]
    if len(set(labels)) < len(labels):
        labels = [str(each) for each in folders]
    return [Ledger(label, ledger(each), best_fedavg(each)) for label, each in zip(labels, folders, strict=True)]


def check_beside(beside: Path | None, scale: str | None) -> None:
    """Refuse a folder without figures, or with figures of another scale."""
    if beside is not None:
        load_curves(beside)
        other = _made(beside).get("scale")
        if None not in (scale, other) and scale != other:
            raise InputError(
                f"--beside {beside} holds figures of --scale {other}; expected {scale}, as it stands beside those."
            )


def label_of(folder: Path) -> str:
    """Return what a folder's figures were made with if that is short, else the folder's name."""
    changes = changes_of(folder)
    if not _made(folder).keys() <= {"scale", "changes"} or len(changes) > LONGEST_LABEL:
        return folder.resolve().name
    return changes or NOTHING_CHANGED


def changes_of(folder: Path) -> str:
    """Return the settings that differ from the paper's; empty if none."""
    changed = _made(folder).get("changes", {})
    return ", ".join(
        f"{section}.{key} = {value}" for section, values in changed.items() for key, value in values.items()
    )


def _made(folder: Path) -> dict[str, Any]:
    path = folder / "reproduce.toml"
    return read_toml(path) if path.exists() else {}


def points(difference: Statistic | None) -> str:
    """Write a difference in percentage points ± half its interval."""
    return "".join(span.text for span in signed(difference, ".2f", 100))


def loss(finding: Finding) -> list[Span]:
    """Write the difference in training loss with its own verdict, or how many seeds diverged."""
    if any(finding.diverged):
        return [Span(f"diverged {finding.diverged[0]} / {finding.diverged[1]} of {len(finding.difference['values'])}")]
    large = finding.loss is not None and abs(finding.loss["mean"] or 0) >= 100
    number = "".join(span.text for span in signed(finding.loss, ".1e" if large else ".3f"))
    verdict = finding.verdict_by_loss
    return [Span(number)] if finding.verdict == "not run" else [Span(f"{number} "), Span(verdict, verdict)]


def seconds(finding: Finding) -> str:
    """Write the median times to the target: better / worse."""
    if finding.verdict == "not run":
        return "–"
    return " / ".join("never" if time_s is None else f"{time_s:,.1f}" for time_s in finding.times_s)


MEASURES: dict[str, Callable[[Finding], Sequence[Span]]] = {  # what is said of a comparison, by the head of its column
    "difference (points)": lambda finding: [Span(points(finding.difference))],
    "FedAvg as it is (points)": lambda finding: [Span(points(finding.as_it_is))],
    "training loss (− is better)": loss,
    "seconds to target": lambda finding: [Span(seconds(finding), "dim")],
}


def print_ledger(ledgers: Sequence[Ledger]) -> None:
    """Print every claim that can be judged, its comparisons below it, and the counts, also of what was not run."""
    console = open_console()
    if judged(ledgers):
        console.print(for_terminal(terminal_table(ledgers)))
    for line in summary(ledgers):
        console.print(f"\n{line}", style="bold", markup=False)
    for table in best_tables(ledgers):
        console.print()
        console.print(for_terminal(table))
    console.print("\n" + meaning(ledgers).replace("*", ""), style="dim", markup=False)


def judged(ledgers: Sequence[Ledger]) -> list[tuple[Entry, ...]]:
    """Return each claim's entries; claims that were run nowhere are only counted."""
    rows = zip(*(each.entries for each in ledgers), strict=True)
    return [entries for entries in rows if any(entry.verdict != "not run" for entry in entries)]


def verdict(entry: Entry, *, brief: bool = False) -> list[Span]:
    """Return the verdict and what it depends on; ``brief`` names the other measures, which have no column then."""
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


def terminal_table(ledgers: Sequence[Ledger]) -> Table:
    """Return comparisons below their claim and other measures below the comparison, so that it fits a narrow terminal."""
    rows: list[list[Cell]] = []
    for entries in judged(ledgers):
        claim, is_one = entries[0].claim, len(ledgers) == 1
        first: list[Cell] = [str(claim.number), f"{claim.sentence} [{claim.where}]", ""]
        rows.append([*first, verdict(entries[0])] if is_one else first)
        for each, entry in zip(ledgers, entries, strict=True):
            rows += [] if is_one else [["", each.label, "", verdict(entry, brief=True)]]
            for finding in entry.findings:
                rows.append(["", Span(f"  {versus(finding.comparison)}", "dim"), points(finding.difference)])
                if is_one and finding.as_it_is is not None:
                    rows.append(["", Span("    FedAvg as it is", "dim"), points(finding.as_it_is)])
                if is_one:
                    number, *decided = loss(finding)
                    rows.append(["", Span("    training loss", "dim"), number, *decided])
                    rows.append(["", Span("    seconds to target", "dim"), Span(seconds(finding), "dim")])
    points_head = Column("difference (points)", narrow="difference\n(points)")
    return Table([Column("#", narrow=""), text_column("claim"), points_head, Column("verdict", "left")], rows)


def page_table(ledgers: Sequence[Ledger]) -> Table:
    """Return a row per claim for a page and Markdown: the verdict comes early, where a phone still has room.

    One ledger shows all measures, two only the difference that decides.
    """
    names = [f"{each.label}: " for each in ledgers] if len(ledgers) > 1 else [""]
    measures = dict(list(MEASURES.items())[: 1 if len(ledgers) > 1 else None])
    rows: list[list[Cell]] = []
    for entries in judged(ledgers):
        claim = entries[0].claim
        row: list[Cell] = [f"{claim.number}. {claim.sentence}"]
        row += [verdict(entry, brief=len(ledgers) > 1) for entry in entries]
        row += [claim.where, "\n".join(versus(comparison) for comparison in claim.comparisons)]
        row += [_lines(said, entry) for entry in entries for said in measures.values()]
        rows.append(row)
    verdicts = [Column(f"{name}verdict", "left") for name in names]
    numbers = [Column(f"{name}{head}", "left" if "loss" in head else "right") for name in names for head in measures]
    columns = [text_column("claim"), *verdicts, text_column("where"), Column("compared", "left"), *numbers]
    return Table(columns, rows, kind="ledger")


def _lines(said: Callable[[Finding], Sequence[Span]], entry: Entry) -> list[Span]:
    """Return what a column says of each comparison, one below the other."""
    return [span for finding in entry.findings for span in (Span("\n"), *said(finding))][1:]


def claims_table(ledgers: Sequence[Ledger]) -> Table:
    """Return a row per comparison for a paper: who against whom, by how much, and the claim's verdict at its first."""
    rows: list[list[Cell]] = []
    for entries in judged(ledgers):
        for place, findings in enumerate(zip(*(entry.findings for entry in entries), strict=True)):
            row: list[Cell] = [str(entries[0].claim.number) * (place == 0), versus(findings[0].comparison)]
            for entry, finding in zip(entries, findings, strict=True):
                row += [points(finding.difference), entry.verdict * (place == 0)]
            rows.append(row)
    names = [f"{each.label}: " for each in ledgers] if len(ledgers) > 1 else [""]
    said = [each for name in names for each in (Column(f"{name}difference (points)"), Column(f"{name}verdict", "left"))]
    return Table([Column("#"), Column("compared", "left"), *said], rows)


def summary(ledgers: Sequence[Ledger]) -> list[str]:
    """Sum up the ledgers: a line each, and where they differ."""
    if len(ledgers) == 1:
        return [" ".join((counts(ledgers[0].entries), strictly(ledgers[0].entries))).strip()]
    lines = [f"{each.label}: {counts(each.entries)} {strictly(each.entries)}".strip() for each in ledgers]
    numbers = differing(ledgers)
    what = "verdict differs" if len(numbers) == 1 else "verdicts differ"
    which = f": {', '.join(map(str, numbers))}" if numbers else ""
    return [*lines, f"{len(numbers) or 'No'} {what}{which}."]


def differing(ledgers: Sequence[Ledger]) -> list[int]:
    """Return the claims that both ledgers judge, and differently."""
    verdicts = {entries[0].claim.number: {entry.verdict for entry in entries} for entries in judged(ledgers)}
    return [number for number, found in verdicts.items() if len(found) > 1 and "not run" not in found]


def lead(entries: Sequence[Entry], figures: Sequence[str]) -> str:
    """Return a page's headline: what can be judged by the figures that were run, or the whole ledger."""
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
    """Say how many claims need other figures; empty if none."""
    rest = sum(entry.verdict == "not run" for entry in entries)
    many = "One claim" if rest == 1 else f"{rest} claims"
    return f"{many} of Section VI need{'s' * (rest == 1)} figures that were not run." if rest else ""


def counts(entries: Sequence[Entry]) -> str:
    """Sum up a ledger in a sentence."""
    said = _tally((entry.verdict for entry in entries), tuple(VERDICTS))
    return f"Of {len(entries)} claim{'s' if len(entries) != 1 else ''}, {said or 'none was looked at'}."


def strictly(entries: Sequence[Entry]) -> str:
    """Sum up the same by other readings, if anything is decided."""
    if not any(entry.verdict in ("holds", "fails") for entry in entries):
        return ""
    said = [f"{name} {_tally(map(read, entries), ('holds', 'fails'), zeros=True)}" for name, read in READINGS.items()]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _tally(verdicts: Iterable[Verdict], of: Sequence[Verdict], *, zeros: bool = False) -> str:
    found = Counter(verdicts)
    return ", ".join(f"{found[each]} {VERDICTS[each][found[each] != 1]}" for each in of if found[each] or zeros)


def best_tables(ledgers: Sequence[Ledger]) -> list[Table]:
    """Compare PerFedS2 with the best FedAvg of any mode, a table per ledger that has the numbers."""
    columns = [text_column("data set"), text_column("measured"), Column("best FedAvg", "left", narrow="best\nFedAvg")]
    columns.append(Column("difference (points)", narrow="difference\n(points)"))
    columns.append(Column("PerFedS2 is", "left", narrow="PerFedS2\nis"))
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
    """Say what the columns mean."""
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
    """Return how verdicts are reached, from the docstring of the module that judges."""
    _, *paragraphs = inspect.cleandoc(claims_module.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).removeprefix("The rule. ")


def versus(comparison: BetterThan) -> str:
    """Name the two curves of a comparison, only as far as they differ."""
    better, worse = comparison.better, comparison.worse
    if better.figure == worse.figure and better.panel == worse.panel:
        return f"{better.line} vs {worse.line}"
    if better.panel == worse.panel and better.line == worse.line:
        return f"{better.line}: {better.figure} vs {worse.figure}"
    return " vs ".join(f"{curve.line} ({curve.figure}, {curve.panel})" for curve in (better, worse))


def ledger_markdown(ledgers: Sequence[Ledger]) -> str:
    """Return the ledger as a Markdown table of what can be judged, after the counts."""
    lines = ["\n\n".join(summary(ledgers)), "", as_markdown(page_table(ledgers)), "", meaning(ledgers), ""]
    for table in best_tables(ledgers):
        lines += [f"{table.title}:", "", as_markdown(table), ""]
    return "\n".join(lines)
