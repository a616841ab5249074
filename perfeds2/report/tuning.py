"""What did a tuning find, and what does the landscape around it look like?"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from perfeds2.report import drawing
from perfeds2.report.tables import Cell, Column, Table, for_terminal
from perfeds2.report.terminal import console as open_console

if TYPE_CHECKING:  # it trains, so it needs JAX
    from perfeds2.runs.tune import Best, Tuning

ACROSS = 3  # landscapes beside each other


def print_tuning(tuning: "Tuning") -> None:
    """A row per algorithm: what suits it, how much better it is, and where to search further."""
    search, console = tuning.search, open_console()
    keys = list(dict.fromkeys(key for axes in search.axes.values() for key in axes))
    heads = [Column("algorithm", "left"), *map(Column, keys), Column("validation\naccuracy (%)"), Column("before")]
    rows: list[list[Cell]] = [
        [
            best.algorithm,
            *(_setting(best, key) for key in keys),
            _percent(best.score["mean"]),
            "–" if best.before is None else _percent(best.before["mean"]),
        ]
        for best in tuning.best
    ]
    tried = sum(len(search.candidates(name)) for name in search.axes)
    console.print(
        f"{search.spec.task.name.label}: {tried} settings of {len(search.axes)} algorithms, {len(search.seeds)} tuning "
        f"seeds, up to {search.horizons_s[-1]:.4g} simulated seconds"
    )
    console.print(for_terminal(Table(heads, rows)))
    console.print(
        "[dim]Personalised accuracy on data held out of the UEs' training part, mean over simulated time. "
        "Before: the settings that were there, where they came as far. * at the edge of what was searched.[/dim]"
    )
    for line in edge_notes(tuning):
        console.print(f"Note: {line}")


def edge_notes(tuning: "Tuning") -> list[str]:
    """What should be searched further, and how."""
    notes = []
    for best in tuning.best:
        for key in best.edges:
            listed, value = tuning.search.axes[best.algorithm][key], best.settings[key]
            side, further = ("smallest", value / 3) if value == listed[0] else ("largest", value * 3)
            notes.append(
                f"{best.algorithm}: {key} = {value:g} is the {side} that was tried; the best may lie beyond it: "
                f"--search {best.algorithm}.{key}={','.join(f'{each:g}' for each in sorted({value, further}))} and so on."
            )
    return notes


def _setting(best: "Best", key: str) -> str:
    if key not in best.settings:
        return "–"
    value = best.settings[key]
    return f"{value:g}{'*' if key in best.edges else ''}" if isinstance(value, int | float) else str(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def write_landscape(tuning: "Tuning") -> list[Path]:
    """How good every setting was, as far as it came: tune.png and tune.pdf. Returns what was written.

    A map over the first two settings with numbers, the best of the others at each place; a line over one setting.
    """
    table: Any = tuning.table
    numeric = [
        key
        for key in dict.fromkeys(key for axes in tuning.search.axes.values() for key in axes)
        if key in table and pd.api.types.is_numeric_dtype(table[key]) and table[key].nunique() > 1
    ]
    if table.empty or not numeric:
        return []
    return drawing.write_figures(tuning.path, lambda: {"tune": _draw(tuning, table, numeric[:2])})


def _draw(tuning: "Tuning", table: Any, keys: list[str]) -> Figure:
    names = list(tuning.search.axes)
    rows = math.ceil(len(names) / ACROSS)
    figure = drawing.new_figure(1.9 * rows + 0.3, drawing.PAGE_IN)
    axes = figure.subplots(rows, min(ACROSS, len(names)), squeeze=False)
    furthest = _furthest(table, keys)
    high = 100 * float(furthest["accuracy_mean"].max())
    image = None
    for place, each in enumerate(axes.flat):
        if place >= len(names):
            each.axis("off")
            continue
        name, best = names[place], tuning.best[place]
        own = furthest[furthest["algorithm"] == name]
        drawing.name_panel(each, name)
        each.grid(False)
        if len(keys) == 2:
            grid = own.pivot_table(index=keys[0], columns=keys[1], values="accuracy_mean", aggfunc="max")
            image = each.imshow(100 * grid.to_numpy(), origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=high)
            _ticks(each, grid)
            x, y = (
                list(axis).index(best.settings[key]) for axis, key in ((grid.columns, keys[1]), (grid.index, keys[0]))
            )
            each.plot(
                x, y, marker="o", markersize=7, markerfacecolor="none", markeredgecolor="white", markeredgewidth=1.4
            )
            each.set_xlabel(keys[1])
            each.set_ylabel(keys[0])
        else:
            values = own.groupby(keys[0])["accuracy_mean"].max()
            each.plot(range(len(values)), 100 * values.to_numpy(), marker="o", markersize=3)
            each.set_xticks(range(len(values)), [f"{value:g}" for value in values.index])
            each.set_xlabel(keys[0])
            each.set_ylabel("accuracy (%)")
    if image is not None:
        figure.colorbar(image, ax=axes, label="Validation accuracy (%), mean over time", shrink=0.8)
    return figure


def _furthest(table: Any, keys: list[str]) -> Any:  # pandas' own types say too much and too little
    """Means over seeds of each setting in the longest rung it came to."""
    others = [name for name in table.columns if name not in ("seed", "accuracy_mean", "accuracy_end", "horizon_s")]
    means = table.groupby(others, as_index=False, dropna=False)[["accuracy_mean"]].mean()
    last = means.groupby(["algorithm", *keys], dropna=False)["rung"].transform("max")
    return means[means["rung"] == last]


def _ticks(axes: Any, grid: pd.DataFrame) -> None:
    axes.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
