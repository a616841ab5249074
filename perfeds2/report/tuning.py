"""Show a tuning: the settings it found and the landscape around them."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from perfeds2 import __version__
from perfeds2.chart import Chart, ChartAxis, LineStyle, Series
from perfeds2.errors import InputError
from perfeds2.learning.metrics import NEW_UES_METRICS, NEW_UES_STEPS, Score, score_of
from perfeds2.report.document import Part, document, note, quoted, section, verbatim, write_html
from perfeds2.report.on_paper import PAGE_IN, figure_of, write_figures
from perfeds2.report.read_studies import spans_decade
from perfeds2.report.style import ordered_styles
from perfeds2.report.tables import (
    Cell,
    Column,
    Rows,
    Table,
    capitalised,
    counted,
    estimate,
    for_terminal,
    listed,
    text_column,
    write_latex,
)
from perfeds2.report.terminal import open_console, print_prose
from perfeds2.runs.statistics import Statistic
from perfeds2.spec.settings import value_text

if TYPE_CHECKING:  # the module imports JAX
    from perfeds2.studies.tune import Tuning

ACROSS = 3  # landscapes per row


def write_tuning(tuning: "Tuning", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Write a tuning's ``report.html`` and landscapes (to ``out``); with ``paper``, the landscapes go there with a LaTeX table."""
    folder, charts = out or tuning.path, landscapes(tuning)
    written = [write_html(folder, _page(tuning, charts))]
    written += write_figures(paper or folder, {"tune": charts}, lambda charts: figure_of(charts, ACROSS, PAGE_IN))
    if paper is not None:
        about = f"perfeds2 {__version__} tune, {', '.join(facts(tuning))}. {meaning(tuning)}"
        written.append(write_latex(paper / "tune.tex", about, best_table(tuning)))
    return written


def draw_tuning(folder: Path, axis: str = "seconds", paper: Path | None = None, out: Path | None = None) -> list[Path]:
    """Draw the tuning in a folder as ``write_tuning`` does."""
    if axis != "seconds":
        raise InputError(f"--x {axis}: a tuning stores one number per training, its mean over time, and no curves.")
    return write_tuning(_load(folder), paper, out)


def show_tuning(folder: Path) -> None:
    """Print the tuning in a folder."""
    print_tuning(_load(folder))


def _load(folder: Path) -> "Tuning":
    from perfeds2.studies.tune import load_tuning  # imports JAX

    return load_tuning(folder)


def print_tuning(tuning: "Tuning") -> None:
    """Print a row per algorithm with its best settings and their gain, and notes on where to search further."""
    console = open_console()
    console.print(", ".join(facts(tuning)))
    console.print(for_terminal(best_table(tuning)))
    print_prose(console, meaning(tuning), "dim")
    for line in edge_notes(tuning):
        print_prose(console, f"Note: {line}")


def _page(tuning: "Tuning", charts: Sequence[Chart]) -> str:
    search = tuning.search
    hint = (
        f"Scores in the first {search.horizons_s[0]:.4g} s; a point is the best over all other settings. Star: the best "
        "setting. tune.csv has every score on every rung."
    )
    adopt = [verbatim("perfeds2 compare --spec tuned.toml --out compared")]
    adopt += quoted(tuning.path / "tuned.toml", "the best settings of each algorithm")
    sections: list[list[Part]] = [
        section("Settings found", best_table(tuning), hint=escape(meaning(tuning))),
        section("Scores of all settings", list(charts), hint=hint),
        section("Adopt it", *adopt, hint="In this folder."),
    ]
    about = ["tuning", *facts(tuning), f"perfeds2 {__version__}"]
    return document(about, headline(tuning), map(note, edge_notes(tuning)), sections)


# ---- in words


def facts(tuning: "Tuning") -> list[str]:
    """Return how much was tried, as short phrases."""
    search = tuning.search
    tried = sum(len(search.candidates(name)) for name in search.axes)
    return [
        f"{search.spec.task.name.label}: {tried} settings of {counted(len(search.axes), 'algorithm')}",
        counted(len(search.seeds), "tuning seed"),
        f"up to {search.horizons_s[-1]:.4g} simulated seconds",
    ]


def meaning(tuning: "Tuning") -> str:
    """Describe how to read the numbers."""
    return (
        f"Personalised {score_of(tuning.search.metric).word} on data held out of the UEs' training part, mean over simulated time. "
        "Before: with the settings of the task or spec. * at the edge of what was searched."
    )


def edge_notes(tuning: "Tuning") -> list[str]:
    """Return a note for each best value at the edge of its search range."""
    return [
        f"{best.algorithm}: {key} = {value_text(best.settings[key])} is at the edge of what was tried; the best may lie beyond it. "
        f"Search further with --search {best.algorithm}.{key}=VALUES."
        for best in tuning.best
        for key in best.edges
    ]


def headline(tuning: "Tuning") -> str:
    """Return which algorithm gained most from tuning, and how much; the best if the scores before are unknown."""
    score, gains = score_of(tuning.search.metric), list[tuple[float, str, str]]()
    for best in tuning.best:
        before, after = (best.before or {}).get("mean"), best.score["mean"]
        if before is not None and after is not None and after > before:
            gains.append((after - before, best.algorithm, f"from {score.show(before)} to {score.show(after)}"))
    if not gains and any(best.before is None for best in tuning.best):
        best = max(tuning.best, key=lambda best: best.score["mean"] or 0.0)
        return f"With the settings found, {best.algorithm} scores highest: {score.show(best.score['mean'] or 0.0)}."
    if not gains:
        return f"Nothing better than before was found for {listed([best.algorithm for best in tuning.best])}."
    _, most, how = max(gains)
    return f"Tuning helps {len(gains)} of {counted(len(tuning.best), 'algorithm')}, {most} most: {how}."


# ---- tables


def best_table(tuning: "Tuning") -> Table:
    """Return a row per algorithm: validation score found, score before, and the settings found."""
    score = score_of(tuning.search.metric)
    keys = list(dict.fromkeys(key for axes in tuning.search.axes.values() for key in axes))
    scores = [Column(f"Validation {score.head}", narrow=f"validation\n{score.head}"), Column("Before", narrow="before")]
    steps = dict(zip(NEW_UES_METRICS, NEW_UES_STEPS, strict=True))
    new = [name for name in steps if name in tuning.best[0].new_ues]
    columns = [
        Column(f"New UEs, {counted(steps[name], 'step')}", narrow=f"new UEs\n{steps[name]} steps") for name in new
    ]
    rows: Rows = []
    for best in tuning.best:
        settings = [f"{value_text(best.settings.get(key, '–'))}{'*' * (key in best.edges)}" for key in keys]
        found = [_shown(score, (each or {}).get("mean")) for each in (best.score, best.before)]
        after = [_with_interval(score, best.new_ues[name]) for name in new]
        rows.append([best.algorithm, *found, *after, *settings])
    return Table([text_column("Algorithm", "algorithm"), *scores, *columns, *map(Column, keys)], rows, kind="plain")


def _with_interval(score: Score, found: Statistic) -> Cell:
    half = None if found["low"] is None else (found["high"] - found["low"]) / 2
    return estimate(found["mean"], half, score.form, score.scale)


def _shown(score: Score, value: float | None) -> str:
    return "–" if value is None or value != value else f"{score.scale * value:{score.form}}"


# ---- landscapes


def numeric(axes: Mapping[str, Sequence[object]]) -> list[str]:
    """Return an algorithm's first two numeric settings that have several values."""
    numbers = [key for key, values in axes.items() if all(isinstance(each, int | float) for each in values)]
    return [key for key in numbers if len(axes[key]) > 1][:2]


def landscapes(tuning: "Tuning") -> list[Chart]:
    """Draw the score of every setting on the first rung, one chart per algorithm with a numeric setting.

    The score is drawn over the first numeric setting, with a line for each value of the second. A point is the best
    over all other settings. The star is what was found.
    """
    search, score, table = tuning.search, score_of(tuning.search.metric), tuning.table
    groups = table[table["rung"] == 1].groupby(["algorithm", "number"])["accuracy_mean"]
    first = pd.DataFrame({"accuracy_mean": groups.mean()}).reset_index()
    lowest = (
        0.0 if score.is_share else float(np.nanquantile(first["accuracy_mean"].to_numpy(float), 0.25))
    )  # ignore outliers far below
    label = f"{capitalised(score.head)} in the first {search.horizons_s[0]:.4g} s"
    y = ChartAxis(label, within=(score.scale * lowest, math.inf), form=score.form, unit=score.unit)
    charts = []
    for place, best in enumerate(tuning.best):
        name, keys = best.algorithm, numeric(search.axes[best.algorithm])
        own = first[first["algorithm"] == name].join(pd.DataFrame(search.candidates(name)), on="number")
        if not keys or own.empty:
            continue
        key, line = (*keys, "algorithm")[:2]
        grid = score.scale * own.pivot_table(index=key, columns=line, values="accuracy_mean", aggfunc="max")
        labels = {value: f"{line} {value_text(value)}" if line in keys else name for value in grid.columns}
        styles = ordered_styles(list(labels.values()))
        lines = [
            Series(label, grid.index, grid[value], styles[label], "line", size_px=6) for value, label in labels.items()
        ]
        at = best.settings[key]
        height = grid.loc[at, best.settings[line] if line in keys else name]
        lines.append(Series("found", [at], [height], LineStyle("", (), "*"), "marks", size_px=14))
        ticks = {value: value_text(value) for value in grid.index}
        x = ChartAxis(key, ticks=ticks, log=spans_decade(list(ticks)))
        charts.append(Chart(f"landscape-{place}", name, lines, x, y, legend=True))
    return charts
