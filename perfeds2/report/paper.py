"""How do the report's figures look in a two-column paper?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfeds2.files import write_atomically
from perfeds2.report import series
from perfeds2.report.series import Activity, Group, Run, load_run
from perfeds2.report.style import DASHES_PX, LOST_COLOUR, METRICS, STATE_COLOURS, colour, short

WIDTH_IN = 3.5  # one column
SHOWN_UES = 8  # rows of the activity figure
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


def write_paper_figures(folder: Path, out: Path | None = None) -> list[Path]:
    """Draw a run's folder as PDF and PNG files, by default into its ``figures``. Returns what was written."""
    run = load_run(folder)
    out = folder / "figures" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader has in a matplotlibrc
        mpl.rcParams.update(STYLE)
        for name, figure in _figures(run).items():
            for kind, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
                path = out / f"{name}.{kind}"
                with write_atomically(path) as file:
                    figure.savefig(file, format=kind, metadata=metadata)  # no clock in the bytes
                written.append(path)
    return written


def _figures(run: Run) -> dict[str, Figure]:
    """All figures the folder has data for, by file name."""
    figures = {metric.replace("_", "-"): _curve_figure(run, metric) for metric in METRICS}
    timed = series.groups(run)
    if any(timeline.rounds for group in timed for timeline in group.timelines):
        figures |= {"activity": _activity_figure(run, timed), "staleness": _staleness_figure(run, timed)}
        figures["shares"] = _shares_figure(run, timed)
    return {name: figure for name, figure in figures.items() if figure is not None}


def _curve_figure(run: Run, metric: str) -> Figure | None:
    drawn = series.curves(run, metric)
    if not drawn:
        return None
    rows = -(-len(drawn) // 3)
    figure = Figure(figsize=(WIDTH_IN, 2.2 + 0.13 * rows), layout="constrained")
    axes = figure.subplots()
    is_accuracy = "accuracy" in metric
    scale = 100 if is_accuracy else 1
    for algorithm in run.algorithms:
        if algorithm.name in drawn:
            curve, tint = drawn[algorithm.name], _colour(run, algorithm.objective)
            dash = tuple(px / 2 for px in DASHES_PX.get(algorithm.mode, ()))
            line = (0, dash) if dash else "solid"
            label = short(algorithm.name)
            axes.step(curve.time_s, scale * curve.mean, where="post", color=tint, linestyle=line, label=label)
            if curve.low is not None and curve.high is not None:
                low, high = scale * curve.low, scale * curve.high
                axes.fill_between(curve.time_s, low, high, step="post", color=tint, alpha=0.12, linewidth=0)
    if is_accuracy:
        axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))
        if metric == "test_accuracy_personal" and run.target_accuracy is not None:
            axes.axhline(scale * run.target_accuracy, color="#444444", linewidth=0.6, linestyle=(0, (1, 2)))
    else:
        axes.set_ylim(0, series.loss_ceiling(drawn))
    axes.set_xlim(0, max(curve.time_s[-1] for curve in drawn.values()))
    axes.set_ylabel(METRICS[metric])
    _time_axis(axes, run.clock)
    figure.legend(
        loc="outside upper center", ncols=3, handlelength=2.4, columnspacing=1.0, borderpad=0.1, labelspacing=0.3
    )
    return figure


def _activity_figure(run: Run, groups: Sequence[Group]) -> Figure | None:
    """The first group of each mode, below one another in the same window of time."""
    shown = list({group.algorithms[0].mode: group for group in reversed(groups)}.values())[::-1]
    timelines = [group.timelines[0] for group in shown]
    rows = min(SHOWN_UES, timelines[0].population)
    window_s = series.activity_window_s(timelines, rows, jobs_each=3)
    if window_s == 0:
        return None
    figure = Figure(figsize=(WIDTH_IN, 0.6 + (0.3 + 0.11 * rows) * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    for axes, group, timeline in zip(panels, shown, timelines, strict=True):
        _draw_activity(axes, series.activity(timeline, window_s, rows))
        axes.set(ylim=(rows - 0.5, -0.5), xlim=(0, 1.01 * window_s), ylabel="UE")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(False)
        axes.set_title(short(group.label, 60), loc="left", fontsize=7, pad=3)  # which panel, not a title
    _time_axis(panels[-1], run.clock)
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles = {label: found[label] for label in (*STATE_COLOURS, "merged", "thrown away") if label in found}
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=5,
        handlelength=1.0, handletextpad=0.4, columnspacing=0.9, borderpad=0.1,
    )  # fmt: skip
    return figure


def _draw_activity(axes: Axes, activity: Activity) -> None:
    for state, found in activity.intervals.items():
        if len(found):
            ue, start_s, end_s = found.T
            axes.barh(
                ue, end_s - start_s, left=start_s, height=0.7, color=STATE_COLOURS[state], linewidth=0, label=state
            )
    if len(activity.merges):
        axes.plot(activity.merges[:, 1], activity.merges[:, 0], "D", color="#1D2733", markersize=1.8, label="merged")
    if len(activity.lost):
        axes.plot(
            activity.lost[:, 1],
            activity.lost[:, 0],
            "x",
            color=LOST_COLOUR,
            markersize=3,
            markeredgewidth=1,
            label="thrown away",
        )


def _staleness_figure(run: Run, groups: Sequence[Group]) -> Figure:
    largest = max(timeline.depth - 1 for group in groups for timeline in group.timelines)
    starts, labels = series.staleness_bins(largest)
    bars = [100 * series.staleness_shares(group, starts) for group in groups]
    figure, panels = _rows(run, groups, bars)
    every = -(-len(labels) // 10)
    panels[-1].set_xticks(range(0, len(labels), every), labels[::every])
    panels[-1].set_xlabel("Staleness (rounds)")
    return figure


def _shares_figure(run: Run, groups: Sequence[Group]) -> Figure:
    figure, panels = _rows(run, groups, [100 * group.timelines[0].shares for group in groups])
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.axhline(100 / run.ues, color="#D55E00", linewidth=0.8, linestyle=(0, (3, 2)))
        axes.set_ylim(0, top)
    panels[-1].set_xlabel("UE")
    return figure


def _rows(run: Run, groups: Sequence[Group], bars: Sequence[np.ndarray]) -> tuple[Figure, Sequence[Axes]]:
    """A panel of bars per group, below one another."""
    figure = Figure(figsize=(WIDTH_IN, 0.5 + 0.65 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), sharex=True, squeeze=False)[:, 0]
    for axes, group, values in zip(panels, groups, bars, strict=True):
        axes.bar(np.arange(values.size), values, width=0.8, color=_colour(run, group.objective), linewidth=0)
        axes.set_title(short(group.label, 60), loc="left", fontsize=7, pad=3)
        axes.grid(False, axis="x")
    figure.supylabel("Merged updates (%)", fontsize=8)
    return figure, list(panels)


def _time_axis(axes: Axes, clock: str) -> None:
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(f"{clock.capitalize()} (s)")


def _colour(run: Run, objective: str | None) -> str:
    return colour(objective, [algorithm.objective for algorithm in run.algorithms])
