"""How do the reproduced figures look on paper?

As the paper lays them out: one row over both columns, training loss beside test accuracy, over simulated time. What is
drawn is read from a figure's CSV here, for the page as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from perfeds2.files import write_atomically
from perfeds2.paper.figures.figure import TARGET, Figure, Panel
from perfeds2.report.paper import STYLE
from perfeds2.report.series import Curve, carry_forward, loss_ceiling, losses_in_view, mean_and_interval
from perfeds2.report.style import COLOURS, DASHES_PX, METRICS
from perfeds2.spec.fields import ALGORITHMS, InputError

WIDTH_IN = 7.16  # both columns
HEIGHT_IN = 1.95
MOST_AXES = 4  # in one row
LETTERS_AN_AXES = 30  # of a legend above it
POINTS = 121  # of a curve: every evaluation of a run's sixty, and once between
SEQUENCE = ("#5B3FC4", "#A8389F", "#DB4F62", "#EE8034", "#D4AC0D")  # ordered: darker is less
MARKERS = ("o", "s", "^", "D", "v")  # beside colour, for those who print in grey


@dataclass(frozen=True)
class Look:
    """How a line is told from the others of its panel."""

    colour: str
    dash_px: tuple[int, ...] = ()
    marker: str = ""


@dataclass(frozen=True)
class Drawn:
    """A panel with what its CSV says: per metric, a curve for every line, in the panel's order."""

    panel: Panel
    curves: dict[str, dict[str, Curve]]  # by metric, then by the line's label
    looks: dict[str, Look]  # by the line's label
    seeds: int


def write_figure(figure: Figure, csv: Path, out: Path) -> list[Path]:
    """Draw a figure's numbers as PDF and PNG into a folder. Returns what was written."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader has in a matplotlibrc
        mpl.rcParams.update(STYLE)
        drawing = _drawing(load_panels(figure, csv))
        for kind, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            path = out / f"{figure.name}.{kind}"
            with write_atomically(path) as file:
                drawing.savefig(file, format=kind, metadata=metadata)  # no clock in the bytes
            written.append(path)
    return written


def load_panels(figure: Figure, csv: Path) -> list[Drawn]:
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


def _drawn(panel: Panel, table: pd.DataFrame, metrics: Sequence[str]) -> Drawn:
    time_s = np.linspace(0.0, table["time_s"].to_numpy(float).max(), POINTS)
    curves: dict[str, dict[str, Curve]] = {metric: {} for metric in metrics}
    for line in panel.lines:
        rows = pd.DataFrame(table[table["line"] == line.label])
        for metric in metrics:
            curve = mean_curve(rows, metric, time_s) if len(rows) else None
            if curve is not None:
                curves[metric][line.label] = curve
    curves |= {metric: losses_in_view(curves[metric]) for metric in metrics if "loss" in metric}
    return Drawn(panel, curves, looks(panel), len(set(table["seed"])))


def mean_curve(rows: pd.DataFrame, metric: str, time_s: np.ndarray) -> Curve | None:
    """The mean over seeds, up to where a seed stops being finite: there is no mean of a diverged run."""
    values = np.stack(
        [
            carry_forward(seed["time_s"].to_numpy(float), seed[metric].to_numpy(float), time_s)
            for _, seed in rows.groupby("seed", sort=True)
        ]
    )
    finite = np.isfinite(values).all(axis=0)
    length = time_s.size if finite.all() else int(finite.argmin())
    return Curve(time_s[:length], *mean_and_interval(values[:, :length])) if length else None


def looks(panel: Panel) -> dict[str, Look]:
    """Algorithms look as they do everywhere; values of one setting follow an ordered scale."""
    if len({line.algorithm for line in panel.lines}) == len(panel.lines):
        found = {line.label: ALGORITHMS[line.algorithm] for line in panel.lines}
        return {label: Look(COLOURS[objective], DASHES_PX[mode]) for label, (objective, mode) in found.items()}
    tints = ordered_colours(len(panel.lines))
    return {
        line.label: Look(tint, (), MARKERS[number % len(MARKERS)])
        for number, (line, tint) in enumerate(zip(panel.lines, tints, strict=True))
    }


def ordered_colours(count: int) -> list[str]:
    """So many colours from one end of the scale to the other."""
    stops = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in SEQUENCE], float)
    places = np.linspace(0, len(SEQUENCE) - 1, count)
    channels = [np.interp(places, np.arange(len(SEQUENCE)), stops[:, channel]) for channel in range(3)]
    return ["#" + "".join(f"{round(value):02X}" for value in colour) for colour in zip(*channels, strict=True)]


def _drawing(panels: Sequence[Drawn]) -> matplotlib.figure.Figure:
    """Panels with the same lines share a legend; others have their own."""
    alike = len({tuple(drawn.looks) for drawn in panels}) == 1
    groups = [list(panels)] if alike else [[drawn] for drawn in panels]
    columns = sum(len(drawn.curves) for drawn in panels)
    drawing = matplotlib.figure.Figure(
        figsize=(WIDTH_IN * max(columns, 2) / MOST_AXES, HEIGHT_IN), layout="constrained"
    )
    letters = iter("abcdefgh")
    for part, group in zip(drawing.subfigures(1, len(groups), squeeze=False)[0], groups, strict=True):
        places = [(drawn, metric) for drawn in group for metric in drawn.curves]
        row = part.subplots(1, len(places), squeeze=False)[0]
        for axes, (drawn, metric) in zip(row, places, strict=True):
            _draw_curves(axes, drawn, metric)
            axes.set_title(f"({next(letters)}) {drawn.panel.title}", loc="left", x=-0.2, fontsize=7, pad=5)
        handles, labels = row[-1].get_legend_handles_labels()
        room = LETTERS_AN_AXES * len(places) // (max(map(len, labels)) + 7)  # 7: the line, and what is around it
        part.legend(
            handles, labels, loc="outside upper center", ncols=max(1, min(len(labels), room)),
            handlelength=2.4, columnspacing=1.2, handletextpad=0.5, borderpad=0.1, labelspacing=0.3,
        )  # fmt: skip
    return drawing


def _draw_curves(axes: Axes, drawn: Drawn, metric: str) -> None:
    is_accuracy = "accuracy" in metric
    scale = 100 if is_accuracy else 1
    curves = drawn.curves[metric]
    for number, (label, curve) in enumerate(curves.items()):
        look = drawn.looks[label]
        dash = tuple(px / 2 for px in look.dash_px)
        axes.step(
            curve.time_s, scale * curve.mean, where="post", color=look.colour, linestyle=(0, dash) if dash else "solid",
            label=label, marker=look.marker, markevery=(4 + 4 * number, POINTS // 5), markersize=2.6,
        )  # fmt: skip
        if curve.low is not None and curve.high is not None:
            low, high = scale * curve.low, scale * curve.high
            axes.fill_between(curve.time_s, low, high, step="post", color=look.colour, alpha=0.12, linewidth=0)
    if is_accuracy:
        axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))
        target = TARGET.get(drawn.panel.task)
        if target is not None and axes.get_ylim()[0] < 100 * target < axes.get_ylim()[1]:
            axes.axhline(100 * target, color="#444444", linewidth=0.6, linestyle=(0, (1, 2)))
    elif curves:
        axes.set_ylim(0, loss_ceiling(curves))
    axes.set_xlim(0, max((curve.time_s[-1] for curve in curves.values()), default=1.0))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel("Simulated time (s)")
    axes.set_ylabel(METRICS[metric].replace(" ", "\n", 1), linespacing=1.05)
