"""Show a sweep as an HTML page, for a paper and in the terminal."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from perfeds2 import __version__
from perfeds2.chart import Chart, ChartAxis, LineStyle, Series
from perfeds2.privacy.accounting import ASSUMPTIONS
from perfeds2.report.answer import answer
from perfeds2.report.curves import over_seeds
from perfeds2.report.document import document, paragraph, quoted, section, verbatim, with_legend, write_html
from perfeds2.report.on_paper import write_figures
from perfeds2.report.read_studies import SweepFolder, load_sweep_folder, spans_decade
from perfeds2.report.results import LOSSES, TIMING, accuracies, results_table, to_target
from perfeds2.report.run import curves_section
from perfeds2.report.style import ACCURACY, named_styles, ordered_styles
from perfeds2.report.tables import Column, Table, counted, for_terminal, write_latex
from perfeds2.report.terminal import open_console
from perfeds2.runs.costs import COSTS, EPSILON, SECONDS
from perfeds2.runs.statistics import NO_INTERVAL
from perfeds2.spec.settings import value_text

SHOWN_ROWS = 60
MOST_LINES = 12  # as many as a reader can tell apart
OTHER_COSTS = {  # of a front beside the time: its name, axis and unit; the first one that a sweep has
    EPSILON.median: ("privacy", "ε of the worst UE", ""),
    COSTS["joules"].median: ("energy", "Joules", " J"),
}


def write_sweep(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Write a sweep's ``report.html`` and figures (to ``out``); with ``paper``, figures go there with a LaTeX table.

    ``axis`` is the x axis of the curves and the cost of the target. Returns the paths.
    """
    sweep = load_sweep_folder(folder, axis)
    figures = {"sweep": setting_charts(sweep), "front": front_charts(sweep)}
    written = [write_html(out or folder, page(sweep)), *write_figures(paper or out or folder, figures)]
    if paper is not None:
        about = f"perfeds2 {__version__} sweep over {', '.join(sweep.axes) or 'one point'}. {words(sweep)[0]}"
        written.append(write_latex(paper / "sweep.tex", about, numbers_table(sweep)))
    return written


def print_sweep(folder: Path) -> None:
    """Print a row per point and algorithm, and the time-energy front."""
    console, sweep = open_console(), load_sweep_folder(folder)
    table = numbers_table(sweep)
    console.print(for_terminal(replace(table, rows=table.rows[:SHOWN_ROWS])))
    if not sweep.run.has_intervals:
        console.print(f"[dim]{NO_INTERVAL}[/dim]")
    if front_charts(sweep):
        console.print(front_line(sweep), markup=False, soft_wrap=True)
    if len(table.rows) > SHOWN_ROWS:
        console.print(f"… and {len(table.rows) - SHOWN_ROWS:,} more rows, in {folder / 'sweep_summary.csv'}")


def page(sweep: SweepFolder) -> str:
    """Return the whole page. Sections without data are left out."""
    grid = " × ".join(f"{sweep.summary[axis].nunique()} {axis}" for axis in sweep.axes) or "1 point"
    facts = ["sweep", grid, counted(len(sweep.run.seeds), "seed"), f"perfeds2 {__version__}"]
    hint = "At the end: means over seeds, ± half of the 95 % interval. To the target: medians; a seed that never met it counts as later than all others."
    lines = f"{over_seeds(len(sweep.run.seeds), sweep.run.has_intervals)} Click a name to hide it, double-click to see it alone."
    grid_file = quoted(sweep.folder / "sweep.toml", "the grid and its base settings")
    again = "It trains what is missing and redraws this page. Every evaluation is in sweep.csv."
    sections = [
        section(f"Over {', '.join(sweep.axes[:1])}", *with_legend(setting_charts(sweep), "Lines shown"), hint=lines),
        section("In numbers", numbers_table(sweep), hint=hint),
        curves_section(sweep.run, lines),
        *(
            section(chart.title, chart, hint="A point is an algorithm at a point of the grid.")
            for chart in front_charts(sweep)
        ),
        section("Failed", verbatim(sweep.failed.to_string(index=False))) if len(sweep.failed) else [],
        section(
            "Run it again", verbatim(f"perfeds2 sweep --resume {sweep.folder.resolve().name}"), *grid_file, hint=again
        ),
    ]
    headline, paragraphs = words(sweep)
    return document(facts, headline, map(paragraph, paragraphs), sections)


# ---- in words


def words(sweep: SweepFolder) -> tuple[str, list[str]]:
    """Return the headline and paragraphs: cheapest to the target, best final accuracy, and the front."""
    headline, paragraphs = answer(sweep.run)
    return headline, [*paragraphs, front_line(sweep)] if front_charts(sweep) else paragraphs


def front_line(sweep: SweepFolder) -> str:
    """Describe the front of time and energy, or of time and privacy, in a sentence."""
    best = _on_front(sweep).to_dict("records")
    points = "; ".join(f"{sweep.label(row)} ({_costs(sweep, row)})" for row in best)
    word, *_ = OTHER_COSTS[_other_cost(sweep)]
    said = f"Time-{word} front, {len(best)} of {len(sweep.front)} that met the target: {points}."
    return f"{said} {ASSUMPTIONS}" if word == "privacy" else said


def _other_cost(sweep: SweepFolder) -> str:
    return next(cost for cost in OTHER_COSTS if cost in sweep.front)


def _costs(sweep: SweepFolder, row: Mapping[Hashable, float]) -> str:
    """Describe what a point's target cost: its seconds, and its joules or its ε."""
    cost = _other_cost(sweep)
    word, _, unit = OTHER_COSTS[cost]
    sign = "ε " if word == "privacy" else ""
    return f"{row[SECONDS.median]:,.3g} s, {sign}{row[cost]:,.3g}{unit}"


def _on_front(sweep: SweepFolder) -> pd.DataFrame:
    return pd.DataFrame(sweep.front[sweep.front["on_front"] == 1])


# ---- the table


def numbers_table(sweep: SweepFolder) -> Table:
    """Return a row per point and algorithm, with the personalised accuracy first."""
    run = sweep.run
    common, personal = accuracies(run.score)
    seeds = Column("Seeds", narrow="seeds"), [str(each.seeds) for each in run.algorithms]
    measures = [personal, to_target(run), common, LOSSES[1], TIMING[0]]
    return results_table(run, measures, [seeds], head="Algorithm, point")


# ---- charts


def setting_charts(sweep: SweepFolder) -> list[Chart]:
    """Draw the final accuracy, and the cost of the target, over the first setting of the grid.

    A line is an algorithm at one combination of the other settings. Return nothing if there are too many lines to tell
    apart.
    """
    if not sweep.axes or len(lines_of(sweep)) > MOST_LINES:
        return []
    axis, score = sweep.axes[0], sweep.score
    values = list(dict.fromkeys(sweep.summary[axis]))
    is_number = all(isinstance(value, int | float) for value in values)
    places = dict(zip(values, values if is_number else range(len(values)), strict=True))
    ticks = {places[value]: value_text(value) for value in values} if not is_number or len(values) <= 8 else None
    x = ChartAxis(axis, ticks=ticks, log=is_number and spans_decade(values))
    title, limits = f"{score.named(ACCURACY)}, at the end", (0.0, 100.0) if score.is_share else None
    ends = _setting_lines(sweep, places, ACCURACY, "mean", score.scale)
    charts = [Chart("ends", title, ends, x, ChartAxis(within=limits), group="settings")]
    cost = sweep.run.cost
    if bool(sweep.summary[cost.median].notna().any()):
        costs = _setting_lines(sweep, places, cost.to_target, "median", 1)
        charts.append(
            Chart(
                "costs",
                f"{to_target(sweep.run).head}, median",
                costs,
                x,
                ChartAxis(within=(0.0, math.inf)),
                group="settings",
            )
        )
    return charts


def lines_of(sweep: SweepFolder) -> dict[str, pd.DataFrame]:
    """Return the rows of each line in the charts over the first setting, by label."""
    lines = {}
    for _, rows in sweep.summary.groupby(["algorithm", *sweep.axes[1:]], sort=False):
        lines[replace(sweep, axes=sweep.axes[1:]).label(rows.iloc[0].to_dict())] = rows
    return lines


def _setting_lines(
    sweep: SweepFolder, places: Mapping[Hashable, float], name: str, middle: str, scale: int
) -> list[Series]:
    axis, lines = sweep.axes[0], lines_of(sweep)
    styles = (named_styles if len(sweep.axes) == 1 else ordered_styles)(list(lines))
    made = []
    for label, rows in lines.items():
        y, low, high = (scale * rows[f"{name}_{part}"].to_numpy(float) for part in (middle, "low", "high"))
        band = (low, high) if np.isfinite(low).any() else (None, None)
        hover = [f"{label}: {value:,.4g} at {axis}={value_text(at)}" for value, at in zip(y, rows[axis], strict=True)]
        style = replace(styles[label], marker=styles[label].marker or "o")
        x = [places[at] for at in rows[axis]]
        made.append(Series(label, x, y, style, "line", low=band[0], high=band[1], hover=hover, size_px=6))
    return made


def front_charts(sweep: SweepFolder) -> list[Chart]:
    """Draw seconds against joules, or with noise against ε, to the target, with the Pareto front ringed, labelled and connected.

    Return nothing unless at least two points reached the target.
    """
    if len(sweep.front) < 2:
        return []
    cost = _other_cost(sweep)
    word, label, _ = OTHER_COSTS[cost]
    styles, items = named_styles(list(dict.fromkeys(sweep.front["algorithm"]))), list[Series]()
    for algorithm, rows in sweep.front.groupby("algorithm", sort=False):
        name, records = str(algorithm), rows.to_dict("records")
        hover = [f"{sweep.label(row)}: {_costs(sweep, row)}" for row in records]
        style = replace(styles[name], marker=styles[name].marker or "o")
        items.append(Series(name, rows[SECONDS.median], rows[cost], style, "marks", hover=hover))
    best = _on_front(sweep)
    texts, look = [sweep.point(row) for row in best.to_dict("records")], LineStyle("", (7, 3), "o")
    name = f"time-{word} front"
    items.append(
        Series(name, best[SECONDS.median], best[cost], look, "line", texts=texts, hover=texts, size_px=12, hollow=True)
    )
    x, y = (
        ChartAxis(said, log=spans_decade(sweep.front[column].tolist()))
        for said, column in (("Seconds to the target, median", SECONDS.median), (label, cost))
    )
    return [Chart("front", f"Time and {word} to the target", items, x, y, height_px=400, group="front", legend=True)]
