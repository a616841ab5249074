"""Draw charts for a two-column paper and write them as PDF and PNG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from perfeds2.chart import Chart, draw, short
from perfeds2.files import write_atomically

COLUMN_IN = 3.5  # width of one column
PAGE_IN = 7.16  # width of both columns
PX_PER_IN = 155  # gives charts on paper the proportions they have on a page
LETTERS_PER_IN = 17  # of a legend's text
STYLE: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E7EC",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # embed fonts, so that text stays text
    "text.parse_math": False,  # a dollar sign in a name is not mathematics
    "savefig.dpi": 300,
}
FORMATS = {"pdf": {"CreationDate": None}, "png": {"Software": None}}  # no date or version: reproducible bytes


def figure_of(charts: Sequence[Chart], across: int = 1, width_in: float = COLUMN_IN, title: str = "") -> Figure:
    """Draw charts in rows of ``across`` below one legend. Charts in a single column share their x axis.

    ``title`` goes above the legend.
    """
    made = Figure(figsize=(width_in, 1), layout="constrained")
    rows, stacked = [charts[first : first + across] for first in range(0, len(charts), across)], across == 1
    grid = made.subplots(len(rows), min(across, len(charts)), squeeze=False, sharex=stacked)
    panels: list[Axes] = list(grid.flat)
    letters = int(1.2 * LETTERS_PER_IN * width_in / grid.shape[1])  # that fit in a chart's title
    for axes in panels[len(charts) :]:
        axes.axis("off")
    for chart, axes in zip(charts, panels, strict=False):
        draw(axes, chart)
        axes.set_ylabel(chart.y.label or chart.title)
        if len(charts) > 1 and chart.y.label:
            axes.set_title(short(chart.title, letters), loc="left", fontsize=7, pad=3)
        if stacked and chart is not charts[-1]:
            axes.set_xlabel("")
    height_px = sum(max(chart.height_px for chart in row) for row in rows)
    made.set_figheight(height_px / PX_PER_IN + 0.13 * _draw_legend(made, panels, width_in, title))
    return made


def _draw_legend(made: Figure, panels: Sequence[Axes], width_in: float, title: str) -> int:
    """Draw one legend for all panels. Return its number of rows."""
    found = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    found.sort(key=lambda pair: not isinstance(pair[0], BarContainer))
    handles = {label: handle for handle, label in found}
    if not handles:
        return 0
    longest = max(map(len, handles)) + 7  # plus the line sample and its padding
    columns = max(1, min(len(handles), int(LETTERS_PER_IN * width_in) // longest))
    spacing = {"handlelength": 2.4, "columnspacing": 1.0, "borderpad": 0.1, "labelspacing": 0.3}
    made.legend(handles.values(), handles, loc="outside upper center", ncols=columns, title=title or None, **spacing)
    return -(-len(handles) // columns) + bool(title)


def write_figures(
    out: Path, charts: Mapping[str, Sequence[Chart]], drawing: Callable[[Sequence[Chart]], Figure] = figure_of
) -> list[Path]:
    """Draw every figure that has charts and write it as PDF and PNG. Return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # ignore the user's matplotlibrc
        mpl.rcParams.update(STYLE)
        for name, figure in {name: drawing(shown) for name, shown in charts.items() if shown}.items():
            for kind, metadata in FORMATS.items():
                path = out / f"{name}.{kind}"
                with write_atomically(path) as file:
                    figure.savefig(file, format=kind, metadata=metadata)
                figure.set_layout_engine(None)  # the next format has the same layout
                written.append(path)
    return written
