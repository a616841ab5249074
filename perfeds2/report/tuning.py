"""Show a tuning: the settings it found and the landscape around them."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfeds2 import __version__
from perfeds2.chart import Chart, ChartAxis, HeatMap, LineStyle, Series
from perfeds2.files import write_text
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.document import Part, document, note, quoted, section, verbatim
from perfeds2.report.on_paper import PAGE_IN, figure_of, write_figures
from perfeds2.report.read_studies import value_text
from perfeds2.report.tables import (
    Cell,
    Column,
    Table,
    capitalised,
    counted,
    for_terminal,
    listed,
    text_column,
    write_latex,
)
from perfeds2.report.terminal import open_console, print_prose

if TYPE_CHECKING:  # the module imports JAX
    from perfeds2.studies.tune import Tuning

ACROSS = 3  # landscapes per row


def write_tuning(tuning: "Tuning", paper: Path | None = None) -> list[Path]:
    """Write a tuning's ``report.html`` and landscapes; with ``paper``, the landscapes go there with a LaTeX table."""
    folder, charts = tuning.path, landscapes(tuning)
    write_text(folder / "report.html", _page(tuning, charts))
    written = [folder / "report.html"]
    written += write_figures(paper or folder, {"tune": charts}, lambda charts: figure_of(charts, ACROSS, PAGE_IN))
    if paper is not None:
        about = f"perfeds2 {__version__} tune, {', '.join(facts(tuning))}. {meaning(tuning)}"
        written.append(write_latex(paper / "tune.tex", about, best_table(tuning)))
    return written


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
        f"Colours: scores in the first {search.horizons_s[0]:.4g} s; if several settings share a cell, the best of them. "
        "Numbers: scores of settings that reached the last rung. Ring: the best setting."
    )
    tried = _tried_table(tuning)
    rungs = f"The best third of each rung continues for three times as long. {len(tried.rows)} settings, best first."
    adopt = [verbatim("perfeds2 compare --spec tuned.toml --out compared")]
    adopt += quoted(tuning.path / "tuned.toml", "the best settings of each algorithm")
    sections: list[list[Part]] = [
        section("Settings found", best_table(tuning), hint=escape(meaning(tuning))),
        section("Scores of all settings", list(charts), hint=hint),
        section("Everything that was tried", tried, hint=rungs),
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
    """Return which algorithm gained most from tuning, and how much."""
    score, gains = score_of(tuning.search.metric), list[tuple[float, str, str]]()
    for best in tuning.best:
        before, after = (best.before or {}).get("mean"), best.score["mean"]
        if before is not None and after is not None and after > before:
            gains.append((after - before, best.algorithm, f"from {score.show(before)} to {score.show(after)}"))
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
    rows: list[list[Cell]] = []
    for best in tuning.best:
        settings = [f"{value_text(best.settings.get(key, '–'))}{'*' * (key in best.edges)}" for key in keys]
        found = [_shown(score, (each or {}).get("mean")) for each in (best.score, best.before)]
        rows.append([best.algorithm, *found, *settings])
    return Table([text_column("Algorithm", "algorithm"), *scores, *map(Column, keys)], rows, kind="plain")


def _shown(score: Score, value: float | None) -> str:
    return "–" if value is None or value != value else f"{score.scale * value:{score.form}}"


def _tried_table(tuning: "Tuning") -> Table:
    """Return a row per algorithm and setting, best first, with its score on each rung it reached."""
    search, score, means = tuning.search, score_of(tuning.search.metric), _means(tuning)
    rows: list[list[Cell]] = []
    for name in search.axes:
        own = means[means["algorithm"] == name].pivot_table(index="number", columns="rung", values="accuracy_mean")
        own = own.reindex(columns=range(1, search.rungs + 1))
        ranked = own.fillna(0.0).sort_values(list(own.columns)[::-1], ascending=False, kind="stable").index
        for number in ranked:
            said = [f"{key} {value_text(value)}" for key, value in search.candidates(name)[int(number)].items()]
            rows.append([name, ", ".join(said), *(_shown(score, value) for value in own.loc[number])])
    heads = [Column(f"{score.head} in {horizon_s:.4g} s") for horizon_s in search.horizons_s]
    return Table([text_column("Algorithm"), text_column("Settings"), *heads], rows)


# ---- landscapes


def numeric(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return an algorithm's first two numeric settings that have several values."""
    numbers = [key for key, values in axes.items() if all(isinstance(each, int | float) for each in values)]
    return [key for key in numbers if len(axes[key]) > 1][:2]


def _means(tuning: "Tuning") -> Any:
    """Return the mean over seeds of each setting on each rung."""
    return tuning.table.groupby(["algorithm", "rung", "number"], as_index=False)["accuracy_mean"].mean()


def landscapes(tuning: "Tuning") -> list[Chart]:
    """Draw the score of every setting, one chart per algorithm with a numeric setting.

    Each chart is a map over the first two numeric settings (or the only one), taking the best over the others. Colours
    show the first rung, which all settings went through. A setting that reached the last rung has its score there
    written in its cell.
    """
    search, score, means = tuning.search, score_of(tuning.search.metric), _means(tuning)
    first = means[means["rung"] == 1]["accuracy_mean"]
    low = 0.0 if score.is_share else float(first.quantile(0.25))  # ignore a few outliers far below
    head = capitalised(score.head) if score.is_share else score.head
    label, limits = f"{head} in the first {search.horizons_s[0]:.4g} s", (low, score.scale * float(first.max()))
    charts = []
    for place, best in enumerate(tuning.best):
        keys = numeric(search.axes[best.algorithm])
        own = means[means["algorithm"] == best.algorithm].join(
            pd.DataFrame(search.candidates(best.algorithm)), on="number"
        )
        if not keys or own.empty:
            continue
        own, (row, column) = own.assign(**{"": 0}), keys if len(keys) == 2 else ("", keys[0])  # one setting: one row
        values = {key: sorted(set(own[key])) for key in (row, column)}
        grid, last = (
            own[own["rung"] == rung]
            .pivot_table(index=row, columns=column, values="accuracy_mean", aggfunc="max")
            .reindex(index=values[row], columns=values[column])
            .to_numpy()
            for rung in (1, search.rungs)
        )
        texts = [["" if value != value else _shown(score, value) for value in shown] for shown in last]
        y, x = (
            ChartAxis(key, ticks={n: f"{each:g}" * bool(key) for n, each in enumerate(values[key])}) for key in values
        )
        settings = {"": 0, **best.settings}
        at_x, at_y = ([values[key].index(settings[key])] for key in (column, row))
        ring = LineStyle("#FFFFFF", (), "o")
        found = Series("", at_x, at_y, ring, "marks", size_px=36, hollow=True, listed=False, hover=["what was found"])
        items = [HeatMap(score.scale * grid, texts, label, limits), found]
        charts.append(Chart(f"landscape-{place}", best.algorithm, items, x, y, height_px=320))
    return charts
