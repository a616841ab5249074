"""How is a chart described to plotly, for a page?

A chart is plotly's own description of it, plain data. Names come from users: plotly reads some HTML in texts, so they
are escaped here, once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from perfeds2.report.series import CurvePanel, MeanCurve, loss_ceiling, same_curves
from perfeds2.report.style import NEUTRAL, WIDTH_PX, LineStyle, line_widths

Plot = dict[str, Any]  # data and layout, as plotly.js takes them
SYMBOLS = {
    "x": "x-thin",
    "o": "circle",
    "^": "triangle-up",
    "s": "square",
    "D": "diamond",
    "v": "triangle-down",
}  # by matplotlib's


@dataclass(frozen=True)
class Chart:
    """One chart of the page, or several of which the reader chooses one."""

    name: str  # its id on the page
    title: str
    height_px: int
    plots: list[Plot]
    choices: tuple[str, ...] = ()  # what to call each plot, if there are several
    chosen: int = 0  # the one shown first


def curve_chart(
    panel: CurvePanel, numbers: Mapping[str, int], height_px: int = 330, name: str = "", title: str = ""
) -> Chart:
    """A panel's curves with their bands. ``meta`` is what the legend's buttons know a trace by: its line's number, a band."""
    widths = line_widths(same_curves(panel))
    traces = [
        trace
        for line, curve in panel.curves.items()
        for trace in _curve_traces(panel, line, curve, numbers[line], widths.get(line, WIDTH_PX))
    ]
    x = {
        "title": {"text": panel.time_label},
        "tickformat": ",",
        "unifiedhovertitle": {"text": f"after %{{x:,.1f}} {panel.unit}"},
    }
    y = {} if panel.is_accuracy else {"range": [0, loss_ceiling(panel.curves)]}
    layout = make_layout(x, y, hovermode="x unified")
    if panel.target_accuracy is not None:
        at = panel.scale * panel.target_accuracy
        layout["shapes"] = [level(at, "y", {"color": NEUTRAL, "width": 1, "dash": "2px,3px"})]
        layout["annotations"] = [
            {"xref": "paper", "x": 1, "xanchor": "right", "y": at, "yanchor": "top", "showarrow": False,
             "text": f"target {panel.score.level(panel.target_accuracy)}", "font": {"size": 11, "color": NEUTRAL}}
        ]  # fmt: skip
    words = title or panel.title
    return Chart(name or panel.metric.replace("_", "-"), words, height_px, [{"data": traces, "layout": layout}])


def line_look(style: LineStyle, width: float = WIDTH_PX) -> Plot:
    """A line's style as plotly's: colour, dash, and a few markers."""
    dash = ",".join(f"{px}px" for px in style.dash_px) or "solid"
    look: Plot = {"line": {"color": style.colour, "width": width, "dash": dash}}
    if not style.marker:
        return look | {"mode": "lines"}
    marker = {"symbol": SYMBOLS[style.marker], "size": 7, "color": style.colour, "maxdisplayed": 6}
    return look | {"mode": "lines+markers", "marker": marker | {"line": {"width": 1.5, "color": style.colour}}}


def _curve_traces(panel: CurvePanel, line: str, curve: MeanCurve, number: int, width: float) -> list[Plot]:
    """The edges of the band, then the mean."""
    style = panel.styles[line]
    shared = {"type": "scatter", "x": rounded(curve.time_s), "name": escape(line), "showlegend": False}
    traces = []
    if curve.low is not None and curve.high is not None:
        # No accuracy lies outside 0 to 1, and no loss below 0, whatever the interval says.
        bottom, top = (0.0 if panel.is_share or not panel.is_accuracy else -np.inf), 1.0 if panel.is_share else np.inf
        low, high = (rounded(panel.scale * np.clip(edge, bottom, top)) for edge in (curve.low, curve.high))
        edge = shared | {"mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip"}
        edge |= {"meta": {"line": number, "band": True}}
        traces = [edge | {"y": low}, edge | {"y": high, "fill": "tonexty", "fillcolor": f"{style.colour}22"}]
    value = "%{y:.1f} %" if panel.is_share else "%{y:.3f}"
    mean = shared | line_look(style, width) | {"y": rounded(panel.scale * curve.mean), "meta": {"line": number}}
    mean["line"]["shape"] = "hv"
    return [*traces, mean | {"hovertemplate": f"{value}<extra>%{{fullData.name}}</extra>"}]


def make_layout(x: Plot, y: Plot, **more: Any) -> Plot:
    margin = {"l": 48, "r": 12, "t": 12, "b": 44}
    return {"xaxis": x, "yaxis": y, "margin": margin, "showlegend": False, **more}


def level(at: float, axis: str, line: Plot) -> Plot:
    """A line from side to side."""
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": at, "y1": at, "line": line}


def rounded(values: Any) -> list[float | None]:
    """Five digits are more than a pixel."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, float)]
