"""What of a run is drawn for a two-column paper?"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfeds2.report import drawing, series
from perfeds2.report.results import write_latex
from perfeds2.report.run import Run, load_run, over
from perfeds2.report.series import Activity, BarRows, CurvePanel, Group
from perfeds2.report.style import DASHES_PX, LOST_COLOUR, MARK, STATE_COLOURS, short

SHOWN_UES = 8  # rows of the activity figure


def write_paper_figures(folder: Path | str, out: Path | str | None = None, axis: str = "seconds") -> list[Path]:
    """Draw a run's folder as PDF and PNG files and tabulate it in ``table.tex``, by default in its ``figures``.

    Returns what was written.
    """
    return write_run_figures(load_run(folder), Path(folder) / "figures" if out is None else Path(out), axis)


def write_run_figures(run: Run, out: Path, axis: str = "seconds") -> list[Path]:
    """The same of a run that was read."""
    return [*drawing.write_figures(out, lambda: _figures(run, axis)), write_latex(run, out)]


def _figures(run: Run, axis: str = "seconds") -> dict[str, Figure]:
    """All figures the folder has data for, by file name."""
    figures: dict[str, Figure | None] = {
        panel.metric.replace("_", "-"): curve_figure(panel) for panel in series.curve_panels(over(run, axis))
    }
    timed = series.groups(run)
    if any(timeline.rounds for group in timed for timeline in group.timelines):
        figures["activity"] = _activity_figure(run, timed)
        bars = {"staleness": series.staleness_rows(run, timed), "shares": series.shares_rows(run, timed)}
        figures |= {name: _bars_figure(rows) for name, rows in bars.items() if rows is not None}
    return {name: figure for name, figure in figures.items() if figure is not None}


def curve_figure(panel: CurvePanel) -> Figure:
    figure = drawing.new_figure(2.2)
    drawing.draw_curves(figure.subplots(), panel)
    lines = drawing.labelled(figure.axes)
    columns = drawing.columns_for(lines)
    figure.set_figheight(2.2 + 0.13 * -(-len(lines) // columns))
    drawing.legend_above(figure, columns, lines)
    return figure


def _activity_figure(run: Run, groups: Sequence[Group]) -> Figure | None:
    """The first group of each mode, and every own algorithm, below one another in the same window of time."""
    modes = [group.algorithms[0].mode for group in groups]
    kinds = [mode if mode in DASHES_PX else group.label for mode, group in zip(modes, groups, strict=True)]
    shown = [group for number, group in enumerate(groups) if kinds.index(kinds[number]) == number]
    timelines = [group.timelines[0] for group in shown]
    rows = min(SHOWN_UES, timelines[0].population)
    window_s = series.activity_window_s(timelines, rows, jobs_each=3)
    if window_s == 0:
        return None
    figure = drawing.new_figure(0.6 + (0.3 + 0.11 * rows) * len(shown))
    panels = drawing.stacked_axes(figure, len(shown))
    for axes, group, timeline in zip(panels, shown, timelines, strict=True):
        _draw_activity(axes, series.activity(timeline, window_s, rows))
        axes.set(ylim=(rows - 0.5, -0.5), xlim=(0, 1.01 * window_s), ylabel="UE")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(False)
        drawing.name_panel(axes, short(group.label, 60))
    drawing.time_axis(panels[-1], run.time_label)
    found = drawing.labelled(panels)
    handles = {label: found[label] for label in (*STATE_COLOURS, "merged", "thrown away") if label in found}
    drawing.legend_above(figure, 5, handles, handlelength=1.0, handletextpad=0.4, columnspacing=0.9)
    return figure


def _draw_activity(axes: Axes, activity: Activity) -> None:
    for state, found in activity.intervals.items():
        if len(found):
            ue, from_s, to_s = found.T
            axes.barh(ue, to_s - from_s, left=from_s, height=0.7, color=STATE_COLOURS[state], linewidth=0, label=state)
    if len(activity.merges):
        axes.plot(activity.merges[:, 1], activity.merges[:, 0], "D", color=drawing.INK, markersize=1.8, label="merged")
    if len(activity.lost):
        cross = {"color": LOST_COLOUR, "markersize": 3, "markeredgewidth": 1, "label": "thrown away"}
        axes.plot(activity.lost[:, 1], activity.lost[:, 0], "x", **cross)


def _bars_figure(rows: BarRows) -> Figure:
    """A panel of bars per group, below one another."""
    figure = drawing.new_figure(0.5 + 0.65 * len(rows.names))
    panels = drawing.stacked_axes(figure, len(rows.names))
    at = [place if isinstance(x, str) else x for place, x in enumerate(rows.x)]
    for axes, name, colour, values in zip(panels, rows.names, rows.colours, rows.percent, strict=True):
        axes.bar(at, values, width=0.8 * rows.crowd, color=colour, linewidth=0)
        drawing.name_panel(axes, short(name, 60))
        axes.grid(False, axis="x")
    if rows.equal is not None:  # to be compared, so on one scale
        top = max(axes.get_ylim()[1] for axes in panels)
        for axes in panels:
            axes.axhline(rows.equal, color=MARK, linewidth=0.8, linestyle=(0, (3, 2)))
            axes.set_ylim(0, top)
    if isinstance(rows.x[0], str):
        every = -(-len(rows.x) // 10)
        panels[-1].set_xticks(at[::every], rows.x[::every])
    panels[-1].set_xlabel(rows.x_title)
    figure.supylabel("Merged updates (%)", fontsize=8)
    return figure
