"""Which charts does the page of a run show beside its curves: who does what, how late, how often, how well?"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from perfeds2.report import series
from perfeds2.report.run import Run
from perfeds2.report.series import Group
from perfeds2.report.style import LOST_COLOUR, MARK, STATE_COLOURS, short
from perfeds2.report.traces import Chart, Plot, level, make_layout, rounded

MOST_BARS = 2_000
SHOWN_UES = 30  # rows of the activity chart that can still be told apart


def activity_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    """What each UE did at the start of the first seed's run, in one window of time for all algorithms."""
    window_s = series.activity_window_s([group.timelines[0] for group in groups], SHOWN_UES) if groups else 0.0
    if window_s == 0:
        return None
    rows = min(run.ues, SHOWN_UES)
    plots = [_activity_plot(series.activity(group.timelines[0], window_s, rows), run.clock) for group in groups]
    chosen = next((i for i, group in enumerate(groups) if group.algorithms[0].mode == "S2"), 0)
    return Chart(
        "activity", "What every UE does", 150 + 20 * rows, plots, tuple(group.label for group in groups), chosen
    )


def _activity_plot(activity: series.Activity, clock: str) -> Plot:
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
    layout = make_layout(
        {"title": {"text": f"{clock.capitalize()} (s)"}, "tickformat": ",", "range": [0, 1.01 * activity.window_s]},
        {"title": {"text": "UE"}, "range": [activity.ues - 0.5, -0.5], "dtick": 1 if activity.ues <= 20 else 5},
    )
    layout |= {"barmode": "overlay", "hovermode": "closest", "showlegend": True}
    layout["margin"] |= {"t": 40, "l": 44}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}}
    return {"data": traces, "layout": layout}


def staleness_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    """How stale the merged updates were, over all seeds."""
    merged = sum(timeline.ues.size for group in groups for timeline in group.timelines)
    if not merged:
        return None
    labels, bars = series.staleness_bars(groups)
    hover = "staleness %{x}: %{y:.1f} % of merged updates<extra></extra>"
    figure = _rows_plot(run, groups, labels, bars, "Staleness (rounds)", hover)
    return Chart("staleness", "Merged updates by staleness (%)", _rows_height_px(groups), [figure])


def shares_chart(run: Run, groups: Sequence[Group]) -> Chart | None:
    """Who took part how often in the first seed's run, against equal shares."""
    shares = [100 * group.timelines[0].shares for group in groups]
    if not any(share.any() for share in shares):
        return None
    each = -(-run.ues // MOST_BARS)  # of a crowd, a bar shows the mean of so many successive UEs
    first = np.arange(0, run.ues, each)
    shares = [np.add.reduceat(share, first) / np.diff(first, append=run.ues) for share in shares]
    whose = "UE %{x}" if each == 1 else f"{each:,} UEs from %{{x}} on, each"
    hover = f"{whose}: %{{y:{'.1f' if each == 1 else '.2g'}}} % of merged updates<extra></extra>"
    figure = _rows_plot(run, groups, first.tolist(), shares, "UE", hover, line=100 / run.ues)
    top = 1.08 * max(float(share.max()) for share in shares)
    for key in [key for key in figure["layout"] if key.startswith("yaxis")]:
        figure["layout"][key]["range"] = [0, top]
    return Chart("shares", "Merged updates by UE (%)", _rows_height_px(groups), [figure])


def _rows_plot(
    run: Run,
    groups: Sequence[Group],
    x: Sequence[Any],
    bars: Sequence[Any],
    x_title: str,
    hover: str,
    line: float = 0.0,
) -> Plot:
    """One row of bars per group, below one another on the same x axis, with a level line where one is given."""
    x_axis = {"title": {"text": x_title}, "anchor": f"y{len(groups)}", "showgrid": False, "tickangle": 0}
    layout = make_layout(x_axis | ({"type": "category", "nticks": 12} if isinstance(x[0], str) else {}), {})
    layout |= {"bargap": 0.15, "annotations": [], "shapes": []}
    traces = []
    for row, (group, values) in enumerate(zip(groups, bars, strict=True)):
        axis = f"y{row + 1}" if row else "y"
        top = 1 - row / len(groups)
        layout["yaxis" + axis[1:]] = {
            "domain": [top - 0.72 / len(groups), top - 0.1 / len(groups)], "nticks": 4,
            "rangemode": "tozero", "fixedrange": True,
        }  # fmt: skip
        traces.append(
            {"type": "bar", "x": list(x), "y": rounded(values), "yaxis": axis, "showlegend": False, "hovertemplate": hover,
             "marker": {"color": group.colour(run), "line": {"width": 0}}}
        )  # fmt: skip
        layout["annotations"].append(
            {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top - 0.1 / len(groups), "yanchor": "bottom",
             "showarrow": False, "align": "left", "text": escape(short(group.label, 48)), "font": {"size": 11}}
        )  # fmt: skip
        if line:
            layout["shapes"].append(level(line, axis, {"color": MARK, "width": 1.5, "dash": "4px,3px"}))
    return {"data": traces, "layout": layout}


def _rows_height_px(groups: Sequence[Group]) -> int:
    return 60 + 105 * len(groups)


def ue_chart(run: Run) -> Chart | None:
    """Each UE's personalised accuracy at the end of training, a box per algorithm over UEs and seeds."""
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
                 "x": rounded(100 * mine["test_accuracy_personal"]),
                 "boxpoints": "all", "jitter": 0.7, "pointpos": 0, "hoveron": "points", "showlegend": False,
                 "marker": {"color": tint, "size": 4, "opacity": 0.55}, "line": {"color": tint, "width": 1.2},
                 "fillcolor": f"{tint}18",
                 "text": [f"UE {ue:.0f}, seed {seed:.0f}, merged {merges:,.0f} times" for ue, seed, merges in points],
                 "hovertemplate": "%{x:.1f} %<br>%{text}<extra>%{fullData.name}</extra>"}
            )  # fmt: skip
            labels.append(escape(short(algorithm.name)))
    if not traces:
        return None
    layout = make_layout(
        {"title": {"text": "Personalised test accuracy of a UE (%)"}},
        {
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [len(labels) - 0.4, -0.6],
            "showgrid": False,
        }
        | {"automargin": True, "fixedrange": True},
    )
    return Chart("ues", "Personalised accuracy per UE", 90 + 40 * len(traces), [{"data": traces, "layout": layout}])


def _whole(values: Any) -> list[int]:
    return np.asarray(values).astype(int).tolist()
