"""How is a chart drawn on a page? As Plotly's description of it.

Plotly reads some HTML in texts and names come from users, so they are escaped here.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from perfeds2.chart import NEUTRAL, Bars, Box, Chart, ChartAxis, HeatMap, Series, Values, line_widths, short

Plot = dict[str, Any]  # data and layout, as plotly.js takes them
WIDTH_PX = 2.0  # of a line
SYMBOLS = {"x": "x-thin", "o": "circle", "^": "triangle-up", "s": "square", "D": "diamond", "v": "triangle-down"}
SYMBOLS |= {"P": "cross", "X": "hexagram", "*": "star", "_": "line-ew"}  # by Matplotlib's name
LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}}


def plot(charts: Sequence[Chart]) -> Plot:
    """Draw charts below one another over the x axis of the last."""
    count, last = len(charts), charts[-1]
    x_axis = _axis(last.x) | {"anchor": f"y{count}" if count > 1 else "y"}
    kinds = {each.kind for chart in charts for each in chart.series}
    layout: Plot = {"xaxis": x_axis, "annotations": [], "shapes": [], "barmode": "overlay", "bargap": 0.15}
    layout |= {
        "hovermode": "x unified" if kinds == {"steps"} else "closest",
        "showlegend": last.legend,
        "legend": LEGEND,
    }
    layout["margin"] = {"l": 56 if last.y.label else 48, "r": 12, "t": 40 if last.legend else 12, "b": 44}
    data: list[Plot] = []
    for row, chart in enumerate(charts):
        axis = f"y{row + 1}" if row else "y"
        layout["yaxis" + axis[1:]] = _axis(chart.y)
        if count > 1:
            bottom, top = (1 - (row + part) / count for part in (0.72, 0.1))
            layout["yaxis" + axis[1:]] |= {"domain": [bottom, top], "nticks": 4, "fixedrange": True}
            layout["annotations"].append(_note(short(chart.title, 48), 0, top, "left", "bottom", yref="paper"))
        data += [trace | {"yaxis": axis} for item in chart.items for trace in _traces(chart, item)]
        if chart.level is not None:
            at, name = chart.level
            dots = {"color": chart.level_colour, "width": 1.2, "dash": "2px,3px"}
            layout["shapes"].append(
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": at, "y1": at, "line": dots}
            )
            layout["annotations"].append(_note(name, 1, at, "right", "top", yref=axis))
    return {"data": data, "layout": layout}


def _note(text: str, x: float, y: float, side: str, edge: str, yref: str) -> Plot:
    place = {"xref": "paper", "x": x, "xanchor": side, "yref": yref, "y": y, "yanchor": edge, "showarrow": False}
    return place | {"text": escape(text), "font": {"size": 11, "color": NEUTRAL}}


def _axis(axis: ChartAxis) -> Plot:
    made: Plot = {"title": {"text": escape(axis.label)}, "automargin": axis.ticks is not None}
    made |= {"unifiedhovertitle": {"text": f"after %{{x:,.1f}} {axis.unit}"}} if axis.unit else {}
    if axis.within is not None:
        made["autorangeoptions"] = dict(zip(("clipmin", "clipmax"), map(_number, axis.within), strict=True))
    if axis.limits is not None:
        made["range"] = list(np.log10(axis.limits) if axis.log else axis.limits)
    if axis.ticks is not None:
        made |= {"tickvals": list(axis.ticks), "ticktext": [escape(short(each)) for each in axis.ticks.values()]}
    else:
        made["tickformat"] = "" if axis.log else ","
    return made | ({"type": "log"} if axis.log else {})


def _traces(chart: Chart, item: Series | Bars | HeatMap | Box) -> list[Plot]:
    if isinstance(item, Series):
        return _series(chart, item)
    if isinstance(item, HeatMap):
        low, high = item.limits
        axes = [list(axis.ticks or {}) for axis in (chart.x, chart.y)]
        colours: Plot = {"type": "heatmap", "x": axes[0], "y": axes[1], "z": [rounded(row) for row in item.values]}
        colours |= {"text": item.texts, "texttemplate": "%{text}", "colorscale": "Cividis", "xgap": 2, "ygap": 2}
        colours |= {"zmin": low, "zmax": high, "hovertemplate": "%{z:.4g}<extra></extra>"}
        title = {"text": escape(item.label), "side": "right"}
        return [colours | {"colorbar": {"thickness": 10, "outlinewidth": 0, "title": title}}]
    if isinstance(item, Box):
        box = {"type": "box", "orientation": "h", "y0": item.at, "name": escape(item.name), "x": rounded(item.values)}
        box |= {"boxpoints": "all", "jitter": 0.7, "pointpos": 0, "hoveron": "points", "showlegend": False}
        box |= {"marker": {"color": item.colour, "size": 4, "opacity": 0.55}, "fillcolor": f"{item.colour}18"}
        hover = f"%{{x:{chart.x.form}}}{chart.x.unit}<br>%{{text}}<extra>%{{fullData.name}}</extra>"
        return [box | {"line": {"color": item.colour, "width": 1.2}, "text": list(item.hover), "hovertemplate": hover}]
    along, across = ("x", "y") if item.lying else ("y", "x")
    bars = {"type": "bar", "name": item.name, "orientation": "h" if item.lying else "v", "width": item.width}
    bars |= {along: rounded(item.length), across: np.asarray(item.at).tolist(), "hovertemplate": item.hover}
    bars |= {"marker": {"color": item.colour, "line": {"width": 0}}}
    return [bars if item.start is None else bars | {"base": rounded(item.start)}]


def _series(chart: Chart, line: Series) -> list[Plot]:
    """Draw the interval, then the line. ``meta`` tells the buttons of a legend what a trace belongs to."""
    style, x, y = line.style, rounded(line.x), rounded(line.y)
    colour = {"color": style.colour} if style.colour else {}
    shared: Plot = {"type": "scatter", "x": x, "name": escape(line.name), "showlegend": line.listed}
    meta = {"line": line_id(chart, line)}
    traces = []
    if line.low is not None and line.kind == "steps":
        edge = shared | {"mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip", "showlegend": False}
        edge |= {"meta": meta | {"band": True}}
        fill = {"fill": "tonexty", "fillcolor": f"{style.colour}22"}
        traces = [edge | {"y": rounded(line.low)}, edge | fill | {"y": rounded(line.high)}]
    elif line.low is not None and np.isfinite(line.low).any():
        middle, low, high = (np.asarray(each, float) for each in (line.y, line.low, line.high))
        ends = {"array": rounded(high - middle), "arrayminus": rounded(middle - low), "symmetric": False}
        bars = {"mode": "markers", "marker": {"size": 0.1, **colour}, "hoverinfo": "skip", "showlegend": False, "y": y}
        traces = [
            shared | bars | {"error_y": ends | {"thickness": 1.2, "width": 3, **colour}, "meta": meta | {"band": True}}
        ]
    symbol = SYMBOLS.get(style.marker, "circle") + "-open" * line.hollow
    marker = {"symbol": symbol, "size": line.size_px, "maxdisplayed": 6 if line.kind == "steps" else 0, **colour}
    marker |= {"line": {"width": 2 if line.hollow else 1.5, **colour}}
    dash = ",".join(f"{px}px" for px in style.dash_px) or "solid"
    width = line_widths(chart, WIDTH_PX, 3.0).get(line.name, WIDTH_PX)
    modes = ["lines"] * (line.kind != "marks") + ["markers"] * bool(style.marker) + ["text"] * bool(line.texts)
    trace = shared | {"y": y, "mode": "+".join(modes), "meta": meta}
    if line.kind != "marks":
        trace["line"] = {"width": width, "dash": dash, "shape": "hv" if line.kind == "steps" else "linear", **colour}
    trace |= {"marker": marker} if style.marker else {}
    trace |= {"text": [escape(each) for each in line.texts], "textposition": "top right"} if line.texts else {}
    if line.hover:
        trace |= {"hovertext": [escape(each) for each in line.hover], "hoverinfo": "text"}
    else:
        trace["hovertemplate"] = f"%{{y:{chart.y.form}}}{chart.y.unit}<extra>%{{fullData.name}}</extra>"
    return [*traces, trace]


def line_id(chart: Chart, line: Series) -> str:
    """Return what a line is called by its button: its name among the charts that share a legend."""
    return f"{chart.group}/{line.name}"


def rounded(values: Values) -> list[float | None]:
    """Round to five digits, which is finer than a pixel."""
    return [_number(float(f"{value:.5g}")) for value in np.asarray(values, float)]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
