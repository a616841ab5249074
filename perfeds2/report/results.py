"""How do the algorithms compare at the end, in numbers? In the terminal, on the page and in LaTeX."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.files import write_text
from perfeds2.learning.metrics import Score
from perfeds2.report.clocks import clocks_line
from perfeds2.report.run import Outcome, Run, read_summary
from perfeds2.report.tables import Cell, Column, Span, Table, as_latex, for_terminal, in_latex
from perfeds2.report.terminal import console as open_console
from perfeds2.report.terminal import fits, print_prose
from perfeds2.runs.statistics import NO_INTERVAL

Best = Callable[[Iterable[float]], float]  # min or max


@dataclass(frozen=True)
class Measure:
    """A column that is an estimate over the seeds."""

    name: str  # in summary.json
    head: str
    narrow: str  # its head in the terminal
    form: str
    scale: int = 1
    best: Best | None = None  # of those that are shown with their interval


TIMING = (
    Measure("rounds", "Rounds", "rounds", ",.0f"),
    Measure("merges", "Merges", "merges", ",.0f"),
    Measure("staleness_mean", "Staleness, mean", "staleness\nmean", ",.2f"),
    Measure("staleness_max", "Staleness, max", "\nmax", ",.0f"),
)
LOSSES = (
    Measure("train_loss", "Train loss, global", "train loss\nglobal", ",.3f", best=min),
    Measure("train_loss_personal", "Train loss, personal", "train loss\npersonal", ",.3f", best=min),
)
WAITING = Measure("waiting_share", "UEs wait (% of time)", "UEs\nwait (%)", ".1f", 100)


def accuracies(score: Score) -> tuple[Measure, Measure]:
    """The columns of the accuracy, or of what stands for it."""
    of, scale = f"Test {score.word}", score.scale
    percent = " (%)" if score.is_share else ""
    return (
        Measure("test_accuracy", f"{of}, global{percent}", f"{score.head}\nglobal", score.form, scale, max),
        Measure(
            "test_accuracy_personal", f"{of}, personal{percent}", f"{score.head}\npersonal", score.form, scale, max
        ),
    )


Shown = tuple[Column, list[Cell]]  # a column, and a cell for every algorithm


def results_table(run: Run, *, learned_first: bool = False) -> Table:
    """A row per algorithm, with what went wrong under its name. A page has the accuracies first: a phone shows no more."""
    if learned_first and run.is_trained:
        first, *others = accuracies(run.score)[::-1]
        columns = _columns(run, [first]) + _learned(run, [*others, *LOSSES]) + _columns(run, [*TIMING, WAITING])
        return _table(run, columns)
    return _table(run, _columns(run, TIMING) + _learned(run, LOSSES + accuracies(run.score)) + _columns(run, [WAITING]))


def meaning(run: Run) -> str:
    """How to read the numbers."""
    said = []
    if len(run.seeds) > 1:
        over = ", ± half of the 95 % interval." if run.has_intervals else f". {NO_INTERVAL}"
        said.append(f"Means over seeds{over}")
    if run.is_trained and run.target_accuracy is not None:
        said.append("The time to the target is a median.")
    if run.is_trained and len(run.algorithms) > 1:
        said.append("Bold is the best of a column.")
    return " ".join(said)


def _table(run: Run, columns: Sequence[Shown]) -> Table:
    names = [[Span(algorithm.name), *_warnings(algorithm)] for algorithm in run.algorithms]
    rows = zip(names, *(cells for _, cells in columns), strict=True)
    first = Column("Algorithm", "left", wraps=True, narrow="algorithm")
    return Table([first, *(column for column, _ in columns)], [list(row) for row in rows])


def _columns(run: Run, measures: Iterable[Measure]) -> list[Shown]:
    return [
        (Column(each.head, narrow=each.narrow), [_cell(run, algorithm, each) for algorithm in run.algorithms])
        for each in measures
    ]


def _learned(run: Run, measures: Iterable[Measure]) -> list[Shown]:
    """When the target was reached and what was measured then; nothing of a run that learned nothing."""
    return [*_target_column(run), *_columns(run, measures)] if run.is_trained else []


def _warnings(algorithm: Outcome) -> list[Span]:
    said = []
    if algorithm.starved is not None:
        average = ", on average" if algorithm.seeds > 1 else ""
        many = algorithm.starved.mean or 0
        said.append(f"{many:.3g} UE{'' if many == 1 else 's'} never merged{average}")
    if algorithm.diverged:
        said.append(f"diverged in {algorithm.diverged} of {algorithm.seeds} seeds")
    return [Span(text, "warn") for text in said]


def _cell(run: Run, algorithm: Outcome, measure: Measure) -> Cell:
    estimate = algorithm.estimates.get(measure.name)
    if estimate is None or estimate.mean is None:
        return "–"
    text = format(estimate.mean * measure.scale, measure.form)
    if measure.best is None:
        return text
    means = [e.mean for a in run.algorithms if (e := a.estimates.get(measure.name)) and e.mean is not None]
    is_best = len(run.algorithms) > 1 and estimate.mean == measure.best(means)
    half = "" if estimate.half_width is None else f" ± {estimate.half_width * measure.scale:{measure.form}}"
    return [Span(text, "best" if is_best else ""), Span(half, "half")]


def _target_column(run: Run) -> list[Shown]:
    """The median over seeds, counting a seed that never got there as later than all; no column without a target."""
    if run.target_accuracy is None:
        return []
    target = run.score.level(run.target_accuracy)
    everywhere = [a.target_median_s for a in run.algorithms if a.target_median_s is not None and a.reached == a.seeds]
    cells: list[Cell] = []
    for algorithm in run.algorithms:
        median, seeds = algorithm.target_median_s, algorithm.seeds
        is_best = algorithm.reached == seeds and len(run.algorithms) > 1 and median == min(everywhere)
        text, some = time_to_target(median, algorithm.reached, seeds)
        cells.append([Span(text, "best" if is_best else ""), Span(some, "half")])
    return [(Column(f"Time to {_what(run)}{target} (s)", narrow=f"seconds\nto {_what(run)}{target}"), cells)]


def _what(run: Run) -> str:
    """What a target is of, where it does not go without saying."""
    return "" if run.score.is_share else f"{run.score.word} "


def time_to_target(median_s: float | None, reached: int, seeds: int) -> tuple[str, str]:
    """The median, and of how many seeds it is where some never got there."""
    text = "never" if not reached else "–" if median_s is None else f"{median_s:,.1f}"
    return text, f" ({reached} of {seeds})" if 0 < reached < seeds else ""


def print_summary(summary: Mapping[str, Any]) -> None:
    """What summary.json says, in the terminal. Two tables where one would be too wide."""
    run, console = read_summary(summary), open_console()
    limit = f"{run.rounds:,} rounds" if run.horizon_s is None else f"{run.horizon_s:g} simulated seconds"
    seeds = f"{len(run.seeds)} seed{'s' if len(run.seeds) > 1 else ''}"
    console.print(f"\n[bold]{run.task}: {run.ues} UEs, {limit}, {seeds}[/bold]")
    parts = [results_table(run)]
    if run.is_trained and not fits(console, for_terminal(parts[0])):
        learned = _learned(run, LOSSES + accuracies(run.score))
        parts = [_table(run, _columns(run, [*TIMING, WAITING])), _table(run, learned)]
    for part in parts:
        console.print(for_terminal(part))
    if said := meaning(run):
        print_prose(console, said, "dim")
    if run.clocks is not None:
        console.print(clocks_line(run))
    if said := energy_line(run):
        print_prose(console, said, "dim")
    if run.links is not None:
        print_prose(console, run.links.line, "dim")
        if run.links.warning is not None:
            print_prose(console, f"Warning: {run.links.warning}", "yellow")
    for note in run.notes:
        print_prose(console, f"Note: {note}", "dim")


def energy_line(run: Run) -> str:
    """What a merged update cost, in words."""
    found = [(each.name, each.estimates["joules_per_merge"].mean) for each in run.algorithms if "joules_per_merge" in each.estimates]  # fmt: skip
    costs = ", ".join(f"{name} {joules * 1000:,.3g}" for name, joules in found if joules is not None)
    return f"Energy of all UEs, mJ a merged update: {costs}." if costs else ""


def write_latex(run: Run, out: Path) -> Path:
    """``table.tex``: algorithms with their rounds, times to the target and accuracies, or what there is instead."""
    learned = _columns(run, TIMING[:1]) + _learned(run, accuracies(run.score))
    table = _table(run, learned if run.is_trained else _columns(run, [*TIMING, WAITING]))
    about = f"perfeds2 {run.version} {run.command}, {run.task}, {run.ues} UEs, seeds {', '.join(map(str, run.seeds))}. {meaning(run)}"
    path = out / "table.tex"
    write_text(path, f"% {in_latex(about)}\n{as_latex(table)}\n")
    return path
