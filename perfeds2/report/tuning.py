"""What did a tuning find, and what does the landscape around it look like?"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from perfeds2.learning.metrics import Score, score_of
from perfeds2.report import drawing
from perfeds2.report.tables import Cell, Column, Table, for_terminal, listed
from perfeds2.report.terminal import console as open_console
from perfeds2.report.terminal import print_prose

if TYPE_CHECKING:  # it trains, so it needs JAX
    from perfeds2.studies.tune import Best, Tuning

ACROSS = 3  # landscapes beside each other
OUTLINE = [withStroke(linewidth=1.2, foreground=drawing.INK)]  # so that numbers are read on light and dark
NUMBER: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6, "color": "white", "path_effects": OUTLINE}
CIRCLE: dict[str, Any] = {"marker": "o", "markersize": 16, "markerfacecolor": "none", "markeredgecolor": "white"}


def print_tuning(tuning: "Tuning") -> None:
    """A row per algorithm: what suits it, how much better it is, and where to search further."""
    console = open_console()
    console.print(", ".join(facts(tuning)))
    console.print(for_terminal(best_table(tuning)))
    print_prose(console, meaning(tuning), "dim")
    for line in edge_notes(tuning):
        print_prose(console, f"Note: {line}")


def facts(tuning: "Tuning") -> list[str]:
    """How much was tried."""
    search = tuning.search
    tried = sum(len(search.candidates(name)) for name in search.axes)
    return [
        f"{search.spec.task.name.label}: {tried} settings of {_counted(len(search.axes), 'algorithm')}",
        _counted(len(search.seeds), "tuning seed"),
        f"up to {search.horizons_s[-1]:.4g} simulated seconds",
    ]


def meaning(tuning: "Tuning") -> str:
    """How to read the numbers."""
    return (
        f"Personalised {score_of(tuning.search.metric).word} on data held out of the UEs' training part, mean over simulated time. "
        "Before: with the settings of the task or spec. * at the edge of what was searched."
    )


def best_table(tuning: "Tuning", *, score_first: bool = False) -> Table:
    """A row per algorithm: what was found, how good that is, and how good it was before. A page has the accuracies first."""
    score = score_of(tuning.search.metric)
    keys = list(dict.fromkeys(key for axes in tuning.search.axes.values() for key in axes))
    head = f"Validation {score.head}"
    scores = [Column(head, narrow=f"validation\n{score.head}"), Column("Before", narrow="before")]
    columns = [*scores, *map(Column, keys)] if score_first else [*map(Column, keys), *scores]
    rows: list[list[Cell]] = []
    for best in tuning.best:
        settings = [_setting(best, key) for key in keys]
        before = "–" if best.before is None else shown(score, best.before["mean"])
        found = [shown(score, best.score["mean"]), before]
        rows.append([best.algorithm, *(found + settings if score_first else settings + found)])
    return Table([Column("Algorithm", "left", wraps=score_first, narrow="algorithm"), *columns], rows)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def edge_notes(tuning: "Tuning") -> list[str]:
    """What should be searched further, and how."""
    notes = []
    for best in tuning.best:
        for key in best.edges:
            listed, value = tuning.search.axes[best.algorithm][key], best.settings[key]
            less = max(1, value // 3) if isinstance(value, int) else value / 3
            side, further = ("smallest", less) if value == listed[0] else ("largest", value * 3)
            notes.append(
                f"{best.algorithm}: {key} = {value:g} is the {side} that was tried; the best may lie beyond it: "
                f"--search {best.algorithm}.{key}={','.join(f'{each:g}' for each in sorted({value, further}))} and so on."
            )
    return notes


def headline(tuning: "Tuning") -> str:
    """Whom tuning helped most; of one algorithm, how much."""
    score, known = score_of(tuning.search.metric), list[tuple[float, "Best"]]()
    for best in tuning.best:
        if best.before is not None and best.before["mean"] is not None and best.score["mean"] is not None:
            known.append((best.score["mean"] - best.before["mean"], best))
    if not known:
        return f"Settings were found for {listed([best.algorithm for best in tuning.best])}."
    gain, most = max(known, key=lambda each: each[0])
    if gain <= 0:
        return "Nothing that was tried is better than the settings before."
    before = {} if most.before is None else most.before
    how = f"from {score.show(before.get('mean', 0.0))} to {score.show(most.score['mean'])}"
    better = sum(gain > 0 for gain, _ in known)
    if len(tuning.best) == 1:
        return f"Tuning takes {most.algorithm} {how}."
    return f"Tuning helps {better} of {len(tuning.best)} algorithms, {most.algorithm} most: {how}."


def _setting(best: "Best", key: str) -> str:
    if key not in best.settings:
        return "–"
    value = best.settings[key]
    return f"{value:g}{'*' if key in best.edges else ''}" if isinstance(value, int | float) else str(value)


def shown(score: Score, value: float | None) -> str:
    return "–" if value is None else f"{score.scale * value:{score.form}}"


def write_landscape(tuning: "Tuning", out: Path | None = None) -> list[Path]:
    """How good every setting was: tune.png and tune.pdf. Returns what was written.

    A map over the first two settings that are numbers (a line over one), the best of the others at each place. Colours are
    of the first rung, which all went through; who came to the last has its accuracy there written in.
    """
    table: Any = tuning.table
    keys = {name: numeric(axes) for name, axes in tuning.search.axes.items()}
    if table.empty or not any(keys.values()):
        return []
    return drawing.write_figures(out or tuning.path, lambda: {"tune": _draw(tuning, table, keys)})


def numeric(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The first two settings of an algorithm that are numbers, and several."""
    numbers = [key for key, listed in axes.items() if all(isinstance(each, int | float) for each in listed)]
    return [key for key in numbers if len(axes[key]) > 1][:2]


def _draw(tuning: "Tuning", table: Any, keys_of: Mapping[str, list[str]]) -> Figure:
    names = list(tuning.search.axes)
    rows = math.ceil(len(names) / ACROSS)
    figure = drawing.new_figure(1.9 * rows + 0.3, drawing.PAGE_IN)
    axes = figure.subplots(rows, min(ACROSS, len(names)), squeeze=False)
    means = table.groupby(["algorithm", "rung", "number"], as_index=False)["accuracy_mean"].mean()
    first, last = (means[means["rung"] == rung] for rung in (1, tuning.search.rungs))
    score = score_of(tuning.search.metric)
    high = score.scale * float(first["accuracy_mean"].max())
    low = 0 if score.is_share else float(first["accuracy_mean"].quantile(0.25))  # a few may be far below
    image = None
    for place, each in enumerate(axes.flat):
        if place >= len(names):
            each.axis("off")
            continue
        name, best = names[place], tuning.best[place]
        keys, settings = keys_of[name], pd.DataFrame(tuning.search.candidates(name))
        own, through = (part[part["algorithm"] == name].join(settings, on="number") for part in (first, last))
        drawing.name_panel(each, name)
        each.grid(False)
        if len(keys) == 2:
            grid = own.pivot_table(index=keys[0], columns=keys[1], values="accuracy_mean", aggfunc="max")
            image = each.imshow(
                score.scale * grid.to_numpy(), origin="lower", aspect="auto", cmap="cividis", vmin=low, vmax=high
            )
            _ticks(each, grid)
            at = {key: list(axis).index for key, axis in ((keys[0], grid.index), (keys[1], grid.columns))}
            for (y, x), mean in through.groupby(keys)["accuracy_mean"].max().items():
                each.text(at[keys[1]](x), at[keys[0]](y), shown(score, mean), **NUMBER)
            each.plot(*(at[key](best.settings[key]) for key in reversed(keys)), **CIRCLE)
            each.set_xlabel(keys[1])
            each.set_ylabel(keys[0])
        elif len(keys) == 1:
            values = own.groupby(keys[0])["accuracy_mean"].max()
            each.plot(range(len(values)), score.scale * values.to_numpy(), marker="o", markersize=3)
            each.set_xticks(range(len(values)), [f"{value:g}" for value in values.index])
            each.set_xlabel(keys[0])
            each.set_ylabel(score.head)
    if image is not None:
        figure.colorbar(
            image,
            ax=axes,
            label=f"{score.head.capitalize() if score.is_share else score.head} in the first {tuning.search.horizons_s[0]:.4g} s",
            shrink=0.8,
        )
    return figure


def _ticks(axes: Any, grid: pd.DataFrame) -> None:
    axes.set_xticks(range(grid.shape[1]), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(grid.shape[0]), [f"{value:g}" for value in grid.index])
