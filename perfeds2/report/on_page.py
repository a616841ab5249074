"""Convert a chart to Plotly's JSON.

Plotly interprets some HTML in texts, and names come from users, so both are escaped here.
"""

from html import escape
from typing import Any

import numpy as np

from perfeds2.chart import MOST_MARKS, NEUTRAL, Bars, Chart, ChartAxis, Numbers, Series, line_widths, short

Plot = dict[str, Any]  # data and layout for plotly.js
WIDTH_PX = 2.0  # line width
SYMBOLS = {"x": "x-thin", "o": "circle", "^": "triangle-up", "s": "square", "D": "diamond", "v": "triangle-down"}
SYMBOLS |= {"P": "cross", "X": "hexagram", "*": "star", "_": "line-ew"}  # keys are Matplotlib's names
LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}}


def plot(chart: Chart) -> Plot:
    """Describe a chart for plotly.js."""
    unified = {each.kind for each in chart.series} == {"steps"}
    layout: Plot = {"xaxis": _axis(chart.x), "yaxis": _axis(chart.y), "barmode": "overlay", "bargap": 0.15}
    layout["yaxis"] |= {"scaleanchor": "x"} if chart.is_map else {}
    layout |= {"hovermode": "x unified" if unified else "closest", "showlegend": chart.legend, "legend": LEGEND}
    layout["margin"] = {"l": 56 if chart.y.label else 48, "r": 12, "t": 40 if chart.legend else 12, "b": 44}
    if chart.level is not None:
        at, name = chart.level
        dots = {"color": NEUTRAL, "width": 1.2, "dash": "2px,3px"}
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": dots}]
        note = {"xref": "paper", "x": 1, "xanchor": "right", "y": at, "yanchor": "top", "showarrow": False}
        layout["annotations"] = [note | {"text": escape(name), "font": {"size": 11, "color": NEUTRAL}}]
    return {"data": [trace for item in chart.items for trace in _traces(chart, item)], "layout": layout}


def _axis(axis: ChartAxis) -> Plot:
    made: Plot = {"title": {"text": escape(axis.label)}, "automargin": axis.ticks is not None}
    if axis.within is not None:
        made["autorangeoptions"] = dict(zip(("clipmin", "clipmax"), map(_number, axis.within), strict=True))
    if axis.limits is not None:
        made["range"] = list(np.log10(axis.limits) if axis.log else axis.limits)
    if axis.ticks is not None:
        made |= {"tickvals": list(axis.ticks), "ticktext": [escape(short(each)) for each in axis.ticks.values()]}
    else:
        made["tickformat"] = "" if axis.log else ","
    return made | ({"type": "log"} if axis.log else {})


def _traces(chart: Chart, item: Series | Bars) -> list[Plot]:
    if isinstance(item, Series):
        return _series(chart, item)
    bars: Plot = {
        "type": "bar",
        "name": item.name,
        "orientation": "h",
        "width": item.width,
        "base": rounded(item.start),
    }
    bars |= {"x": rounded(item.length), "y": np.asarray(item.at).tolist(), "hovertemplate": item.hover}
    return [bars | {"marker": {"color": item.colour, "line": {"width": 0}}}]


def _series(chart: Chart, line: Series) -> list[Plot]:
    """Draw the interval, then the line. ``meta`` links each trace to its legend button."""
    style, meta = line.style, {"line": line_id(chart, line)}
    colour = {"color": style.colour} if style.colour else {}
    shape = "hv" if line.kind == "steps" else "linear"
    shared: Plot = {"type": "scatter", "x": rounded(line.x), "name": escape(line.name), "showlegend": line.listed}
    traces = []
    if line.low is not None:
        edge = shared | {
            "mode": "lines",
            "line": {"width": 0, "shape": shape},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        edge |= {"meta": meta | {"band": True}}
        fill = {"fill": "tonexty", "fillcolor": f"{style.colour}22"}
        traces = [edge | {"y": rounded(line.low)}, edge | fill | {"y": rounded(line.high)}]
    modes = ["lines"] * (line.kind != "marks") + ["markers"] * bool(style.marker) + ["text"] * bool(line.texts)
    trace = shared | {"y": rounded(line.y), "mode": "+".join(modes), "meta": meta}
    if line.kind != "marks":
        dash = ",".join(f"{px}px" for px in style.dash_px) or "solid"
        width = line_widths(chart, WIDTH_PX, 3.0).get(line.name, WIDTH_PX)
        trace["line"] = {"width": width, "dash": dash, "shape": shape, **colour}
    if style.marker:
        symbol = SYMBOLS.get(style.marker, "circle") + "-open" * line.hollow
        many = line.kind == "steps" or (line.kind == "line" and len(line.x) > MOST_MARKS)
        some = {"maxdisplayed": 6} if many else {}
        trace["marker"] = {"symbol": symbol, "size": line.size_px, "line": {"width": 1.5, **colour}, **some, **colour}
    if line.texts:
        trace |= {"text": list(map(escape, line.texts)), "textposition": "top right"}
    if line.hover:
        return [*traces, trace | {"hovertext": list(map(escape, line.hover)), "hoverinfo": "text"}]
    hover = f"%{{y:{chart.y.form}}}{chart.y.unit}<extra>%{{fullData.name}}</extra>"
    return [*traces, trace | {"hovertemplate": hover}]


def line_id(chart: Chart, line: Series) -> str:
    """Return the id that links a line to its legend button: its name, unique among charts that share a legend."""
    return f"{chart.group}/{line.name}"


def rounded(values: Numbers) -> list[float | None]:
    """Round to five significant digits, which is finer than a pixel."""
    return [_number(float(f"{value:.5g}")) for value in np.asarray(values, float)]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
