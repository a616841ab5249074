"""How far is a sweep, and what came out of it? On the terminal, and as one chart."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Group as RichGroup
from rich.text import Text

from perfeds2.learning.metrics import Score, score_of
from perfeds2.report import drawing
from perfeds2.report.results import time_to_target
from perfeds2.report.style import LineStyle, named_styles, ordered_styles
from perfeds2.report.tables import Cell, Column, Span, Table, for_terminal
from perfeds2.report.terminal import LinePace, clock, live
from perfeds2.report.terminal import console as open_console
from perfeds2.runs.statistics import INTERVAL_SEEDS, NO_INTERVAL

if TYPE_CHECKING:  # it trains, so it needs JAX
    from perfeds2.runs.crew import Failure, Standing
    from perfeds2.runs.sweep import Sweep

SHOWN_WORKERS = 16
SHOWN_ROWS = 60
SHOWN_FRONT = 8
FRONT_COSTS = ("time_to_target_s_median", "joules_to_target_median")
MOST_LINES = 12  # that a reader can tell apart
COSTS = {  # what a target is drawn against: the name it has in the summary, and in words
    "seconds": ("time_to_target_s", "Seconds"),
    "rounds": ("rounds_to_target", "Rounds"),
    "joules": ("joules_to_target", "Joules"),
    "bits": ("bits_to_target", "Uploaded bits"),
}


def progress(quiet: bool) -> "AbstractContextManager[Callable[[Standing], None] | None]":
    """A table on stderr that keeps up; plain lines where there is no terminal."""
    return live(quiet, board, StandingLines())


class StandingLines:
    """What a log is told of a sweep: every failure, how far it is now and then, and the end."""

    def __init__(self) -> None:
        self._pace, self._said = LinePace(), 0

    def __call__(self, now: "Standing") -> Iterator[str]:
        from perfeds2.runs.crew import Failed

        if isinstance(now.event, Failed):
            yield f"{now.event.job.label}: {now.event.error}"
        over = now.done + now.failed
        if over != self._said and (over == now.total or self._pace.is_due()):
            self._said = over
            yield _heading(now)


def board(latest: "Standing", age_s: float) -> RichGroup:
    """The latest standing. Its clock goes on while nothing happens."""
    now = replace(latest, elapsed_s=latest.elapsed_s + age_s)
    rows = [[str(worker), label, f"{share:.0%}"] for worker, (label, share) in sorted(now.workers.items())]
    if (more := len(rows) - SHOWN_WORKERS) > 0:
        rows = [*rows[:SHOWN_WORKERS], ["…", f"and {more} more"]]
    workers = Table([Column("worker"), Column("at", "left"), Column("done")], rows)
    return RichGroup(Text(_heading(now), style="bold"), for_terminal(workers))


def _heading(now: "Standing") -> str:
    failed = f", {now.failed:,} failed" if now.failed else ""
    retried = f", {now.retried:,} tried again" if now.retried else ""
    left = f", about {clock(now.left_s)} left" if now.left_s else ""
    running = f"{now.done:,} of {now.total:,} runs done, {len(now.workers)} running"
    return f"{running}{failed}{retried}, {clock(now.elapsed_s)} so far{left}"


def print_sweep(sweep: "Sweep") -> None:
    """A row per point and algorithm, and what failed."""
    console, summary = open_console(), sweep.summary
    axes = [axis.name for axis in sweep.grid.axes]
    if len(summary):
        console.print(for_terminal(_results(summary, axes, score_in(summary))))
        if min(summary["seeds"]) < INTERVAL_SEEDS:
            console.print(f"[dim]{NO_INTERVAL}[/dim]")
    if (ahead := sweep.front) is not None and len(ahead) > 1:
        console.print(front_line(ahead, axes), markup=False, soft_wrap=True)
    if len(summary) > SHOWN_ROWS:
        console.print(f"… and {len(summary) - SHOWN_ROWS:,} more rows, in {sweep.path / 'sweep_summary.csv'}")
    print_failures(sweep.failures)


def _results(summary: pd.DataFrame, axes: Sequence[str], score: Score) -> Table:
    heads = ("seeds", "seconds\nto target", "train loss\npersonal", f"test {score.word}\npersonal", "rounds")
    form = ".1%" if score.is_share else score.form
    rows: list[list[Cell]] = []
    for row in summary.head(SHOWN_ROWS).to_dict("records"):
        name = [Span(str(row["algorithm"])), Span(" (diverged)" if row["diverged"] else "", "fails")]
        median_s, seeds = row["time_to_target_s_median"], row["seeds"]
        time_s = time_to_target(None if median_s != median_s else median_s, seeds - row["censored"], seeds)
        learned = [
            _with_interval(row, "train_loss_personal", ".3f"),
            _with_interval(row, "test_accuracy_personal", form),
        ]
        where, rounds = [value_of(row[axis]) for axis in axes], f"{row['rounds_mean']:,.0f}"
        rows.append([*where, name, str(seeds), "".join(time_s), *learned, rounds])
    return Table([*map(Column, axes), Column("algorithm", "left"), *map(Column, heads)], rows)


def print_failures(failures: "Sequence[Failure]") -> None:
    """Which runs were given up, and why; on stderr, so also where all else is quiet."""
    if not failures:
        return
    rows = [[failure.label, str(failure.attempts), failure.error] for failure in failures[:SHOWN_ROWS]]
    if len(failures) > SHOWN_ROWS:
        rows.append(["…", "", f"and {len(failures) - SHOWN_ROWS:,} more, in failed.csv"])
    columns = [Column(head, "left", wraps=True) for head in ("run", "attempts", "error")]
    open_console(stderr=True).print(for_terminal(Table(columns, rows, "Failed")))


def score_in(summary: pd.DataFrame) -> Score:
    """What is called accuracy in a sweep's summary; where points differ in it, it has no one name."""
    names = set(summary["metric"]) if "metric" in summary else {"accuracy"}
    return score_of(names.pop()) if len(names) == 1 else Score("metric")


def value_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_interval(row: dict[str, Any], name: str, form: str) -> str:
    mean, low, high = (row[f"{name}_{part}"] for part in ("mean", "low", "high"))
    if mean != mean:  # no number: a seed diverged
        return "–"
    if low != low or row["seeds"] < INTERVAL_SEEDS:
        return format(mean, form)
    return f"{format(mean, form)} ± {format((high - low) / 2, form).rstrip('%')}"


def write_chart(sweep: "Sweep", cost: str = "seconds", out: Path | None = None) -> list[Path]:
    """Final accuracy and what it cost to the target against the first axis, and the time-energy front. Returns what was written.

    sweep.png and sweep.pdf have a line per algorithm and combination of the other axes; intervals are 95 % over seeds. Nothing
    for a grid without axes. front.png and front.pdf are there where two points met the target. They go into the sweep's folder,
    unless told otherwise.
    """
    summary, ahead, path = sweep.summary, sweep.front, sweep.path
    axes, figures = [axis.name for axis in sweep.grid.axes], dict[str, Callable[[], Figure]]()
    if axes and len(summary) and len(lines_of(summary, axes)) <= MOST_LINES:
        if f"{COSTS[cost][0]}_median" not in summary:
            raise ValueError(
                f"sweep_summary.csv has no {COSTS[cost][0]}; perfeds2 sweep --resume {path} writes it again."
            )
        figures["sweep"] = lambda: draw_chart(drawing.new_figure(3.8), summary, axes, cost)
    if ahead is not None and len(ahead) > 1:
        figures["front"] = lambda: draw_front(drawing.new_figure(2.6), ahead, axes)
    drawn = lambda: {name: draw() for name, draw in figures.items()}  # noqa: E731
    return drawing.write_figures(out or path, drawn) if figures else []


def draw_front(figure: Figure, ahead: pd.DataFrame, axes: Sequence[str]) -> Figure:
    """Seconds against joules to the target, a point each; those that nothing beats are ringed, named and joined."""
    panel, styles = figure.subplots(), named_styles(list(dict.fromkeys(ahead["algorithm"])))
    for algorithm, rows in ahead.groupby("algorithm", sort=False):
        look = {"color": styles[str(algorithm)].colour, "marker": styles[str(algorithm)].marker or "o", "markersize": 3}
        panel.plot(*(rows[cost] for cost in FRONT_COSTS), linestyle="none", label=str(algorithm), **look)
    best = pd.DataFrame(ahead[ahead["on_front"] == 1])
    seconds, joules = (best[cost] for cost in FRONT_COSTS)
    panel.step(
        seconds, joules, where="post", color=drawing.INK, linewidth=0.7, label="nothing is sooner with less energy"
    )
    panel.plot(seconds, joules, "o", color=drawing.INK, fillstyle="none", markersize=6, markeredgewidth=0.7)
    for row in best.to_dict("records"):
        name = ", ".join(f"{axis}={value_of(row[axis])}" for axis in axes)
        place = (row[FRONT_COSTS[0]], row[FRONT_COSTS[1]])
        panel.annotate(name, place, xytext=(4, 4), textcoords="offset points", fontsize=6)
    for cost, scale in zip(FRONT_COSTS, (panel.set_xscale, panel.set_yscale), strict=True):
        low, *_, high = sorted(ahead[cost].tolist())
        if low > 0 and high >= 10 * low:
            scale("log")
    panel.set(xlabel="Seconds to the target, median", ylabel="Joules to the target, median")
    drawing.legend_above(figure, 2, drawing.labelled([panel]))
    return figure


def front_line(ahead: pd.DataFrame, axes: Sequence[str]) -> str:
    """The time-energy front in a sentence."""
    best = pd.DataFrame(ahead[ahead["on_front"] == 1]).to_dict("records")
    points = [
        f"{', '.join([str(row['algorithm']), *(f'{axis}={value_of(row[axis])}' for axis in axes)])} "
        f"({row[FRONT_COSTS[0]]:.3g} s, {row[FRONT_COSTS[1]]:.3g} J)"
        for row in best[:SHOWN_FRONT]
    ]
    more = f"; … {len(best) - SHOWN_FRONT} more" if len(best) > SHOWN_FRONT else ""
    return f"Time-energy front, {len(best)} of {len(ahead)} that met the target: {'; '.join(points)}{more}."


def lines_of(summary: pd.DataFrame, axes: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of each line of the chart, by its label."""
    keys, lines = ["algorithm", *axes[1:]], {}
    for _, rows in summary.groupby(keys, sort=False):
        algorithm, *others = rows[keys].iloc[0]
        label = [algorithm, *(f"{name}={value_of(value)}" for name, value in zip(axes[1:], others, strict=True))]
        lines[", ".join(label)] = rows
    return lines


def styles_of(lines: Iterable[str], axes: Sequence[str]) -> dict[str, LineStyle]:
    """How the lines of a chart look: those of algorithms as everywhere, those of settings in order."""
    return (named_styles if len(axes) == 1 else ordered_styles)(list(lines))


def draw_chart(figure: Figure, summary: pd.DataFrame, axes: Sequence[str], cost: str = "seconds") -> Figure:
    """Draw a sweep's lines into a figure, and return it. ``cost`` is what is counted to the target."""
    score, (spent, spent_name) = score_in(summary), COSTS[cost]
    reached = bool(summary[f"{spent}_median"].notna().any())  # else there is no second panel to draw
    panels = drawing.stacked_axes(figure, 1 + reached)
    values = list(dict.fromkeys(summary[axes[0]]))
    numbers = all(isinstance(value, int | float) for value in values)
    place = {value: value if numbers else number for number, value in enumerate(values)}
    lines = lines_of(summary, axes)
    styles = styles_of(lines, axes)
    for label, rows in lines.items():
        style = styles[label]
        at, enough = [place[value] for value in rows[axes[0]]], rows["seeds"] >= INTERVAL_SEEDS
        look = drawing.in_matplotlib(style) | {"marker": style.marker or "o", "markersize": 2.5}
        for panel, name, scale in zip(panels, ("test_accuracy_personal", spent), (score.scale, 1), strict=False):
            middle = rows[f"{spent}_median"] if name == spent else scale * rows[f"{name}_mean"]
            panel.plot(at, middle, label=label, **look)
            low, high = (scale * rows[f"{name}_{end}"].where(enough) for end in ("low", "high"))
            panel.vlines(at, low, high, color=style.colour, linewidth=0.7, alpha=0.6)
    if score.is_share:
        drawing.keep_in_percent(panels[0])
    panels[0].set_ylabel(score.named("test_accuracy_personal"))
    if reached:
        targets = sorted({f"{score.scale * value:g}" for value in summary["target_accuracy"]})
        panels[1].set_ylabel(f"{spent_name} to {' or '.join(targets)}{score.unit}, median")
        panels[1].set_ylim(bottom=0)
    bottom = panels[-1]
    if numbers and min(values) > 0 and max(values) >= 10 * min(values):
        bottom.set_xscale("log")
    if numbers and len(values) <= 8:
        bottom.set_xticks(values, [value_of(value) for value in values], minor=False)
        bottom.minorticks_off()
    elif not numbers:
        bottom.set_xticks(range(len(values)), [str(value) for value in values])
    bottom.set_xlabel(axes[0])
    drawing.legend_above(figure, drawing.columns_for(lines), drawing.labelled(panels[:1]))
    return figure
