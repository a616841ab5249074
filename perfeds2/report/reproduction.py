"""How do the reproduced figures look on paper?

As the paper lays them out: one row over both columns, training loss beside test accuracy, over simulated time. What is
drawn is read from a figure's CSV here, for the page as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.figure
import numpy as np
import pandas as pd

from perfeds2.paper.figures.figure import TARGET, Figure, Panel
from perfeds2.report.drawing import PAGE_IN, draw_curves, labelled, legend_above, name_panel, new_figure, write_figures
from perfeds2.report.series import CurvePanel, in_view, mean_curve
from perfeds2.report.style import METRICS, LineStyle, named_styles, ordered_styles
from perfeds2.spec.fields import InputError

HEIGHT_IN = 1.95
MOST_AXES = 4  # in one row
LETTERS_AN_AXES = 30  # of a legend above it
POINTS = 121  # of a curve: every evaluation of a run's sixty, and once between


@dataclass(frozen=True)
class DrawnPanel:
    """A panel with what its CSV says: curves of every line that has numbers, loss beside accuracy."""

    panel: Panel
    parts: tuple[CurvePanel, ...]  # one a metric
    styles: dict[str, LineStyle]  # by the line's label
    seeds: int


def write_figure(figure: Figure, csv: Path, out: Path) -> list[Path]:
    """Draw a figure's numbers as PDF and PNG into a folder. Returns what was written."""
    panels = load_panels(figure, csv)
    return write_figures(out, lambda: {figure.name: _drawing(panels)})


def load_panels(figure: Figure, csv: Path) -> list[DrawnPanel]:
    """The panels that a figure's CSV has numbers for."""
    try:
        table = pd.read_csv(csv, converters={"panel": str, "line": str})
        tables = {panel.title: pd.DataFrame(table[table["panel"] == panel.title]) for panel in figure.panels}
        there = [panel for panel in figure.panels if len(tables[panel.title])]
        drawn = [_drawn(panel, tables[panel.title], _metrics(figure)) for panel in there]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{csv} holds no curves ({error}); run perfeds2 reproduce {figure.name} again.") from None
    if not drawn:
        raise InputError(f"{csv} has no panel of {figure.name}; run perfeds2 reproduce {figure.name} again.")
    return drawn


def _metrics(figure: Figure) -> tuple[str, ...]:
    """Loss and accuracy; accuracy alone where a row has no room for both."""
    both = ("train_loss_personal", "test_accuracy_personal")
    return both if 2 * len(figure.panels) <= MOST_AXES else both[1:]


def _drawn(panel: Panel, table: pd.DataFrame, metrics: Sequence[str]) -> DrawnPanel:
    time_s = np.linspace(0.0, table["time_s"].to_numpy(float).max(), POINTS)
    lines = {line.label: pd.DataFrame(table[table["line"] == line.label]) for line in panel.lines}
    styles = line_styles(panel)
    parts = []
    for metric in metrics:
        found = {label: mean_curve(rows, metric, time_s) for label, rows in lines.items() if len(rows)}
        target = TARGET.get(panel.task) if "accuracy" in metric else None
        parts.append(CurvePanel(metric, in_view(found, metric), styles, target))
    return DrawnPanel(panel, tuple(parts), styles, len(set(table["seed"])))


def line_styles(panel: Panel) -> dict[str, LineStyle]:
    """Algorithms look as they do everywhere; values of one setting follow an ordered scale."""
    labels, algorithms = [line.label for line in panel.lines], [line.algorithm for line in panel.lines]
    if len(set(algorithms)) < len(algorithms):
        return ordered_styles(labels)
    return dict(zip(labels, named_styles(algorithms).values(), strict=True))


def _drawing(panels: Sequence[DrawnPanel]) -> matplotlib.figure.Figure:
    """Panels with the same lines share a legend; others have their own."""
    alike = len({tuple(drawn.styles) for drawn in panels}) == 1
    groups = [list(panels)] if alike else [[drawn] for drawn in panels]
    columns = sum(len(drawn.parts) for drawn in panels)
    drawing = new_figure(HEIGHT_IN, PAGE_IN * max(columns, 2) / MOST_AXES)
    letters = iter("abcdefgh")
    for place, group in zip(drawing.subfigures(1, len(groups), squeeze=False)[0], groups, strict=True):
        parts = [(drawn.panel.title, part) for drawn in group for part in drawn.parts]
        row = list(place.subplots(1, len(parts), squeeze=False)[0])
        for axes, (title, part) in zip(row, parts, strict=True):
            draw_curves(axes, part)
            axes.set_ylabel(METRICS[part.metric].replace(" ", "\n", 1), linespacing=1.05)
            name_panel(axes, f"({next(letters)}) {title}", x=-0.2, pad=5)
        shown = labelled(row[-1:])
        room = LETTERS_AN_AXES * len(parts) // (max(map(len, shown)) + 7)  # 7: the line, and what is around it
        legend_above(place, max(1, min(len(shown), room)), shown, columnspacing=1.2, handletextpad=0.5)
    return drawing
