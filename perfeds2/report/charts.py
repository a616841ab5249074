"""Which charts does the page of a run show beside its curves: who does what, how late, how often, how well?"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from perfeds2.report import series
from perfeds2.report.run import Run
from perfeds2.report.series import BarRows, Group
from perfeds2.report.style import LOST_COLOUR, MARK, STATE_COLOURS, short
from perfeds2.report.traces import Chart, Plot, level, make_layout, rounded

SHOWN_UES = 30  # rows of the activity chart that can still be told apart


def activity_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    """What each UE did at the start of the first seed's run, in one window of time for all algorithms."""
    window_s = series.activity_window_s([group.timelines[0] for group in groups], SHOWN_UES) if groups else 0.0
    if window_s == 0:
        return None
    rows = min(run.ues, SHOWN_UES)
    plots = [_activity_plot(series.activity(group.timelines[0], window_s, rows), run.time_label) for group in groups]
    chosen = next((i for i, group in enumerate(groups) if group.algorithms[0].mode == "S2"), 0)
    choices = tuple(group.label for group in groups)
    return Chart("activity", "What every UE does", 150 + 20 * rows, plots, choices, chosen)


def _activity_plot(activity: series.Activity, time_label: str) -> Plot:
    traces: list[Plot] = []
    for state, found in activity.intervals.items():
        if len(found):
            ue, start_s, end_s = found.T
            traces.append(
                {"type": "bar", "orientation": "h", "name": state, "width": 0.7, "y": _whole(ue), "base": rounded(start_s),
                 "x": rounded(end_s - start_s), "marker": {"color": STATE_COLOURS[state], "line": {"width": 0}},
                 "hovertemplate": f"UE %{{y}} {state}<br>%{{base:,.2f}} s to %{{x:,.2f}} s<extra></extra>"}
            )  # fmt: skip
    marks = [("update merged", activity.merges, {"symbol": "diamond", "size": 6}),
             ("job thrown away", activity.lost, {"symbol": "x", "size": 6, "color": LOST_COLOUR})]  # fmt: skip
    for name, found, marker in marks:
        if len(found):
            traces.append(
                {"type": "scatter", "mode": "markers", "name": name, "y": _whole(found[:, 0]), "x": rounded(found[:, 1]),
                 "marker": marker, "hovertemplate": f"UE %{{y}}: {name}<br>%{{x:,.2f}} s<extra></extra>"}
            )  # fmt: skip
    x = {"title": {"text": time_label}, "tickformat": ",", "range": [0, 1.01 * activity.window_s]}
    y = {"title": {"text": "UE"}, "range": [activity.ues - 0.5, -0.5], "dtick": 1 if activity.ues <= 20 else 5}
    layout = make_layout(x, y)
    layout |= {"barmode": "overlay", "hovermode": "closest", "showlegend": True}
    layout["margin"] |= {"t": 40, "l": 44}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}}
    return {"data": traces, "layout": layout}


def staleness_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    hover = "staleness %{x}: %{y:.1f} % of merged updates<extra></extra>"
    rows = series.staleness_rows(run, groups)
    return rows and _rows_chart("staleness", "Merged updates by staleness (%)", rows, hover)


def shares_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    rows = series.shares_rows(run, groups)
    if rows is None:
        return None
    whose = "UE %{x}" if rows.crowd == 1 else f"{rows.crowd:,} UEs from %{{x}} on, each"
    hover = f"{whose}: %{{y:{'.1f' if rows.crowd == 1 else '.2g'}}} % of merged updates<extra></extra>"
    return _rows_chart("shares", "Merged updates by UE (%)", rows, hover)


def _rows_chart(name: str, title: str, rows: BarRows, hover: str) -> Chart:
    """Bars below one another on the same x axis; where there is a level to compare with, on the same scale too."""
    count = len(rows.names)
    x_axis = {"title": {"text": rows.x_title}, "anchor": f"y{count}", "showgrid": False, "tickangle": 0}
    layout = make_layout(x_axis | ({"type": "category", "nticks": 12} if isinstance(rows.x[0], str) else {}), {})
    layout |= {"bargap": 0.15, "annotations": [], "shapes": []}
    top = 1.08 * max(float(values.max()) for values in rows.percent)
    traces = []
    for row, (label, colour, values) in enumerate(zip(rows.names, rows.colours, rows.percent, strict=True)):
        axis = f"y{row + 1}" if row else "y"
        bottom, roof = (1 - row / count - part / count for part in (0.72, 0.1))
        layout["yaxis" + axis[1:]] = {"domain": [bottom, roof], "nticks": 4, "rangemode": "tozero", "fixedrange": True}
        traces.append(
            {"type": "bar", "x": rows.x, "y": rounded(values), "yaxis": axis, "showlegend": False, "hovertemplate": hover,
             "marker": {"color": colour, "line": {"width": 0}}}
        )  # fmt: skip
        layout["annotations"].append(
            {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": roof, "yanchor": "bottom",
             "showarrow": False, "align": "left", "text": escape(short(label, 48)), "font": {"size": 11}}
        )  # fmt: skip
        if rows.equal is not None:
            layout["shapes"].append(level(rows.equal, axis, {"color": MARK, "width": 1.5, "dash": "4px,3px"}))
            layout["yaxis" + axis[1:]]["range"] = [0, top]
    return Chart(name, title, 60 + 105 * count, [{"data": traces, "layout": layout}])


def ue_chart(run: Run) -> Chart | None:
    """Each UE's personalised accuracy, or what stands for it, at the end of training, a box per algorithm over UEs and seeds."""
    table = run.ue_metrics
    if table is None:
        return None
    traces, labels = [], []
    for algorithm in run.algorithms:
        mine = table[(table["algorithm"] == algorithm.name) & np.isfinite(table["test_accuracy_personal"])]
        if len(mine):
            tint = run.styles[algorithm.name].colour
            points = zip(mine["ue"], mine["seed"], mine["merges"], strict=True)
            traces.append(
                {"type": "box", "orientation": "h", "y0": len(labels), "name": escape(algorithm.name),
                 "x": rounded(run.score.scale * mine["test_accuracy_personal"]),
                 "boxpoints": "all", "jitter": 0.7, "pointpos": 0, "hoveron": "points", "showlegend": False,
                 "marker": {"color": tint, "size": 4, "opacity": 0.55}, "line": {"color": tint, "width": 1.2},
                 "fillcolor": f"{tint}18",
                 "text": [f"UE {ue:.0f}, seed {seed:.0f}, merged {merges:,.0f} times" for ue, seed, merges in points],
                 "hovertemplate": f"%{{x:{run.score.form}}}{run.score.unit}<br>%{{text}}<extra>%{{fullData.name}}</extra>"}
            )  # fmt: skip
            labels.append(escape(short(algorithm.name)))
    if not traces:
        return None
    places = {"tickvals": list(range(len(labels))), "ticktext": labels, "range": [len(labels) - 0.4, -0.6]}
    places |= {"showgrid": False, "automargin": True, "fixedrange": True}
    layout = make_layout(
        {"title": {"text": f"Personalised test {run.score.word} of a UE{' (%)' * run.score.is_share}"}}, places
    )
    return Chart(
        "ues", f"Personalised {run.score.word} per UE", 90 + 40 * len(traces), [{"data": traces, "layout": layout}]
    )


def _whole(values: Any) -> list[int]:
    return np.asarray(values).astype(int).tolist()
