"""Describe charts as plain data, and draw them with Matplotlib.

``draw`` draws a chart for papers and notebooks; ``report/on_page.py`` draws the same description on a web page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1D2733"
NEUTRAL = "#6B7785"
POINTS_PER_PX = 0.46  # marker size; printed charts are about half the size of those on a screen
MOST_MARKS = 40  # a line through more points has only some markers
Numbers = Any  # numbers, in an array or a list


@dataclass(frozen=True)
class LineStyle:
    """The colour, dashes and marker that distinguish a line."""

    colour: str  # empty: the text colour
    dash_px: tuple[int, ...] = ()  # lengths of dashes and gaps; empty: solid
    marker: str = ""  # Matplotlib's marker code


@dataclass(frozen=True)
class Series:
    """A line, steps or markers: values over x."""

    name: str
    x: Numbers
    y: Numbers
    style: LineStyle
    kind: Literal["steps", "line", "marks"] = "steps"
    low: Numbers | None = None  # lower end of the 95 % interval
    high: Numbers | None = None
    texts: Sequence[str] = ()  # label beside each marker
    hover: Sequence[str] = ()  # hover text of each point, on a page
    size_px: float = 7.0  # marker size
    hollow: bool = False  # whether the markers are hollow
    listed: bool = True  # whether the legend shows it


@dataclass(frozen=True)
class Bars:
    """Horizontal bars in rows."""

    name: str
    at: Numbers  # row of each bar
    start: Numbers
    length: Numbers
    colour: str
    width: float = 0.7
    hover: str = ""  # Plotly hover template


@dataclass(frozen=True)
class ChartAxis:
    """One axis of a chart."""

    label: str = ""
    limits: tuple[float, float] | None = None
    within: tuple[float, float] | None = None  # clips limits that are derived from the data
    ticks: Mapping[int, str] | Mapping[float, str] | None = None
    log: bool = False
    form: str = ",.4g"  # number format on a page
    unit: str = ""


@dataclass(frozen=True)
class Chart:
    """One pair of axes and the items drawn on them."""

    name: str  # its id on a page and its file name
    title: str
    items: Sequence[Series | Bars]
    x: ChartAxis = ChartAxis()
    y: ChartAxis = ChartAxis()
    level: tuple[float, str] | None = None  # a horizontal line and its label
    height_px: int = 330
    group: str = ""  # charts in one group share a legend on a page
    legend: bool = False  # whether the chart has its own legend on a page
    is_map: bool = False  # whether both axes have the same scale

    @property
    def series(self) -> list[Series]:
        return [item for item in self.items if isinstance(item, Series)]

    @property
    def has_intervals(self) -> bool:
        return any(each.low is not None for each in self.series)


def coinciding(chart: Chart) -> list[tuple[str, ...]]:
    """Return the names of lines with identical values, grouped."""
    found: dict[bytes, list[str]] = {}
    for line in chart.series:
        if line.kind != "marks":
            found.setdefault(b"|".join(np.asarray(each, float).tobytes() for each in (line.x, line.y)), []).append(
                line.name
            )
    return [tuple(names) for names in found.values() if len(names) > 1]


def line_widths(chart: Chart, single: float, extra: float) -> dict[str, float]:
    """Return the widths of coinciding lines, by name.

    Earlier lines are wider, so that each shows on both sides of the line drawn over it.
    """
    groups = coinciding(chart)
    return {name: single + extra * (len(group) - 1 - place) for group in groups for place, name in enumerate(group)}


def short(name: str, most: int = 24) -> str:
    """Shorten a name to at most ``most`` characters, so that it fits beside an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"


# ---- Matplotlib


def draw(axes: "Axes", chart: Chart) -> "Axes":
    same = {name: group[0] for group in coinciding(chart) for name in group[1:]}
    widths = line_widths(chart, 1.1, 1.6)
    for number, item in enumerate(chart.items):
        if isinstance(item, Series):
            label = f"{short(item.name)} = {short(same[item.name])}" if item.name in same else short(item.name)
            _draw_series(axes, item, label if item.listed else "", widths.get(item.name, 1.1), number)
        else:
            look = {"height": item.width, "color": item.colour, "lw": 0, "label": item.name}
            axes.barh(item.at, item.length, left=item.start, **look)
    if chart.level is not None:
        axes.axhline(chart.level[0], color=NEUTRAL, linewidth=0.7, linestyle=(0, (1, 2)))
    _set_axis(axes, "x", chart.x)
    _set_axis(axes, "y", chart.y)
    if chart.is_map:
        axes.set_aspect("equal")
    return axes


def _draw_series(axes: "Axes", line: Series, label: str, width: float, number: int) -> None:
    style, points = line.style, len(line.x)
    colour = style.colour or INK
    dash = tuple(px / 2 for px in style.dash_px)
    look: dict[str, Any] = {"color": colour, "linewidth": width, "marker": style.marker, "label": label or "_nolegend_"}
    look |= {"linestyle": (0, dash) if dash else "solid", "markersize": POINTS_PER_PX * line.size_px}
    look |= {"markerfacecolor": "none"} if line.hollow else {}
    if line.kind == "steps" or (line.kind == "line" and points > MOST_MARKS):
        look["markevery"] = ((4 + 4 * number) % max(1, points), max(1, points // 5))
    if line.kind == "steps":
        axes.step(line.x, line.y, where="post", **look)
    else:
        look |= {"linestyle": "none"} if line.kind == "marks" else {}
        axes.plot(line.x, line.y, **look)
    if line.low is not None and line.high is not None:
        step = "post" if line.kind == "steps" else None
        axes.fill_between(line.x, line.low, line.high, step=step, color=colour, alpha=0.09, linewidth=0)
    for text, x, y in zip(line.texts, line.x, line.y, strict=False):
        axes.annotate(text, (x, y), xytext=(4, 3), textcoords="offset points", fontsize="x-small")


def _set_axis(axes: "Axes", which: Literal["x", "y"], axis: ChartAxis) -> None:
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
    low, high = axis.limits or (axes.get_xlim() if which == "x" else axes.get_ylim())
    if axis.within is not None:
        low, high = max(low, axis.within[0]), min(high, axis.within[1])
    if axis.limits or axis.within:
        axes.set(**{f"{which}lim": (low, high)})
    if axis.ticks is not None:
        axes.set(**{f"{which}ticks": list(axis.ticks), f"{which}ticklabels": list(axis.ticks.values())})
        axes.minorticks_off()
    elif which == "x" or axis.log:  # the usual labels of a log axis are markup
        axes.tick_params(which, which="minor", labelbottom=which != "x", labelleft=which != "y")
        (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter("{x:,.10g}")
    axes.set(**{f"{which}label": axis.label})
