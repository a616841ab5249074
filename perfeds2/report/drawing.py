"""How does a drawing look in a two-column paper, and how is it written?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from perfeds2.files import write_atomically
from perfeds2.report.series import CurvePanel, loss_ceiling, same_curves
from perfeds2.report.style import LineStyle, line_widths, short

COLUMN_IN = 3.5  # one column
PAGE_IN = 7.16  # both columns
INK = "#1D2733"
LETTERS_AN_IN = 17  # of a legend
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
    "pdf.fonttype": 42,  # real fonts: the text stays text
    "text.parse_math": False,  # a dollar in a name is a dollar
    "savefig.dpi": 300,
}
FORMATS = {"pdf": {"CreationDate": None}, "png": {"Software": None}}  # no clock in the bytes


def write_figures(out: Path, draw: Callable[[], Mapping[str, Figure]]) -> list[Path]:
    """Call ``draw`` in our style and write every figure, by its name, as PDF and PNG. Returns what was written."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader has in a matplotlibrc
        mpl.rcParams.update(STYLE)
        for name, figure in draw().items():
            for kind, metadata in FORMATS.items():
                path = out / f"{name}.{kind}"
                with write_atomically(path) as file:
                    figure.savefig(file, format=kind, metadata=metadata)
                written.append(path)
    return written


def new_figure(height_in: float, width_in: float = COLUMN_IN) -> Figure:
    return Figure(figsize=(width_in, height_in), layout="constrained")


def stacked_axes(figure: Figure, count: int) -> list[Axes]:
    """So many axes below one another, over one x axis."""
    return list(figure.subplots(count, sharex=True, squeeze=False)[:, 0])


def in_matplotlib(style: LineStyle) -> dict[str, Any]:
    """A line's style as matplotlib's keywords; on paper dashes are half as long as on a screen."""
    dash = tuple(px / 2 for px in style.dash_px)
    return {"color": style.colour, "linestyle": (0, dash) if dash else "solid", "marker": style.marker}


def draw_curves(axes: Axes, panel: CurvePanel) -> None:
    """Every curve with its band, the target, and the axes."""
    same = {name: group[0] for group in same_curves(panel) for name in group[1:]}
    widths = line_widths(same_curves(panel), 1.1, 1.6)
    for number, (name, curve) in enumerate(panel.curves.items()):
        style, scale = panel.styles[name], panel.scale
        label = f"{short(name)} = {short(same[name])}" if name in same else short(name)
        axes.step(
            curve.time_s, scale * curve.mean, where="post", label=label, linewidth=widths.get(name, 1.1), **in_matplotlib(style),
            markevery=(4 + 4 * number, max(1, curve.time_s.size // 5)), markersize=3.2,
        )  # fmt: skip
        if curve.low is not None and curve.high is not None:
            low, high = scale * curve.low, scale * curve.high
            axes.fill_between(curve.time_s, low, high, step="post", color=style.colour, alpha=0.09, linewidth=0)
    if panel.is_share:
        keep_in_percent(axes)
    elif panel.curves and not panel.is_accuracy:
        axes.set_ylim(0, loss_ceiling(panel.curves))
    if panel.target_accuracy is not None:
        axes.axhline(panel.scale * panel.target_accuracy, color="#444444", linewidth=0.6, linestyle=(0, (1, 2)))
    axes.set_xlim(0, max((curve.time_s[-1] for curve in panel.curves.values()), default=1.0))
    axes.set_ylabel(panel.title)
    time_axis(axes, panel.time_label)


def keep_in_percent(axes: Axes) -> None:
    """No accuracy lies outside 0 to 100, whatever an interval says."""
    axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))


def time_axis(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(label)


def name_panel(axes: Axes, name: str, **place: Any) -> None:
    """Which panel it is: small, at the left, and no title."""
    axes.set_title(name, **{"loc": "left", "fontsize": 7, "pad": 3} | place)


def legend_above(figure: FigureBase, columns: int, handles: Mapping[str, Any], **spacing: Any) -> None:
    """One legend for all axes of a figure: handles by their label."""
    spaces = {"handlelength": 2.4, "columnspacing": 1.0, "borderpad": 0.1, "labelspacing": 0.3} | spacing
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=columns, **spaces)


def columns_for(labels: Iterable[str], width_in: float = COLUMN_IN, most: int = 3) -> int:
    """How many columns of a legend fit above a figure."""
    longest = max(map(len, labels), default=1) + 7  # the line, and what is around it
    return max(1, min(most, int(LETTERS_AN_IN * width_in) // longest))


def labelled(panels: Sequence[Axes]) -> dict[str, Any]:
    """What has a label in any of the axes, once."""
    return {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
