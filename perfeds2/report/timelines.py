"""Chart what UEs do over time, how stale merged updates are, and how often each UE is merged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from perfeds2.chart import Chart, ChartAxis, LineStyle, Series
from perfeds2.report.document import Part, section, with_legend
from perfeds2.report.read import AlgorithmResult, RunResults
from perfeds2.report.style import ACCURACY, ordered_styles
from perfeds2.timeline.edges import edge_staleness
from perfeds2.timeline.record import Timeline

MOST_MARKS = 2_000
UES_ON_PAGE, UES_ON_PAPER = 30, 8  # rows of the activity chart
GROUPS_ON_PAPER = 4


@dataclass(frozen=True)
class Group:
    """Algorithms with the same timelines: what is learned from an update does not affect when it arrives."""

    algorithms: tuple[AlgorithmResult, ...]
    timelines: tuple[Timeline, ...]  # one per seed

    @property
    def label(self) -> str:
        return ", ".join(algorithm.name for algorithm in self.algorithms)


def groups(run: RunResults) -> list[Group]:
    """Group the algorithms by timeline: the winner's group first, the others in the order of the table."""
    found: dict[tuple[bytes, ...], Group] = {}
    for algorithm in run.algorithms:
        mine = tuple(run.timelines[of] for seed in run.seeds if (of := (algorithm.name, seed)) in run.timelines)
        if mine:
            key = tuple(column.tobytes() for timeline in mine for column in timeline.columns.values())
            others = found[key].algorithms if key in found else ()
            found[key] = Group((*others, algorithm), mine)
    shown = [group for group in found.values() if any(timeline.rounds for timeline in group.timelines)]
    return sorted(shown, key=lambda group: run.winner not in group.algorithms)


# ---- activity of the UEs


def activity_charts(run: RunResults, shown: Sequence[Group], most_ues: int, jobs_each: int = 4) -> list[Chart]:
    """Draw what each UE did at the start of the first seed's run, with one time window for all groups."""
    rows = min(run.ues, most_ues)
    window_s = activity_window_s([group.timelines[0] for group in shown], rows, jobs_each)
    charts = [(group.label, group.timelines[0].activity_chart(window_s, rows)) for group in shown if window_s]
    return [
        replace(chart, name=f"activity-{number}", title=label, x=replace(chart.x, label=run.time_label))
        for number, (label, chart) in enumerate(charts)
    ]


def activity_window_s(timelines: Sequence[Timeline], rows: int, jobs_each: int = 4, most_jobs: int = 500) -> float:
    """Return a common time window, in seconds, in which each UE has about ``jobs_each`` jobs merged.

    The window is shortened if more than ``most_jobs`` jobs would be drawn.
    """
    window_s, cut_s = 0.0, math.inf
    for timeline in timelines:
        rounds = min(-(-jobs_each * timeline.population // timeline.quorum), timeline.rounds)
        window_s = max(window_s, float(timeline.start_s[rounds]))
        starts_s = np.sort(timeline.jobs(range(rows)).start_s)
        if starts_s.size > most_jobs:
            cut_s = min(cut_s, float(starts_s[most_jobs]))
    return min(window_s, cut_s)


# ---- staleness and shares


def merge_charts(run: RunResults, shown: Sequence[Group]) -> list[Chart]:
    """Draw the staleness of merged updates over all seeds, and each UE's share of merges in the first seed's run."""
    crowd = -(-run.ues // MOST_MARKS)  # with many UEs, a mark averages this many neighbours
    first, ages, shares = np.arange(0, run.ues, crowd), list[Series](), list[Series]()
    for group, label, style in styled(shown):
        staleness = np.concatenate([edge_staleness(timeline).ravel() for timeline in group.timelines])
        ages.append(at_most(label, style, staleness))
        merged = np.add.reduceat(100 * group.timelines[0].shares, first) / np.diff(first, append=run.ues)
        shares.append(Series(label, first, merged, style, "marks"))
    percent, equal = ChartAxis("%", unit=" %"), (100 / run.ues, "equal shares")
    return [
        Chart("staleness", "Merged updates at most this stale", ages, ChartAxis("Rounds"), percent, group="merges"),
        Chart("shares", "Merged updates by UE", shares, ChartAxis("UE"), percent, equal, group="merges"),
    ]


def styled(shown: Sequence[Group]) -> list[tuple[Group, str, LineStyle]]:
    """Return each group with its label and the style of its line."""
    styles = ordered_styles([group.label for group in shown])
    return [(group, group.label, styles[group.label]) for group in shown]


def at_most(label: str, style: LineStyle, staleness: Int[np.ndarray, " m"]) -> Series:
    """Draw which share of updates is at most how stale."""
    part = np.linspace(0.0, 1.0, 201)
    ages = np.quantile(staleness, part, method="inverted_cdf")
    return Series(label, ages, 100 * part, style, "line")


# ---- accuracy per UE


def ue_chart(run: RunResults) -> Chart | None:
    """Draw each UE's personalised accuracy at the end of training, from worst to best over all seeds."""
    table, score, lines = run.ue_metrics, run.score, list[Series]()
    if table is None:
        return None
    for name, style in run.styles.items():
        mine = table.loc[(table["algorithm"] == name) & np.isfinite(table[ACCURACY])].sort_values(by=ACCURACY)
        share = 100 * (np.arange(len(mine)) + 0.5) / max(len(mine), 1)
        line = Series(name, share, score.scale * mine[ACCURACY], style, "line")
        lines += [line] if len(mine) else []
    y = ChartAxis(score.named(ACCURACY), form=score.form, unit=score.unit)
    title = f"Personalised {score.word} per UE"
    return Chart("ues", title, lines, ChartAxis("UEs, from worst to best (%)"), y, group="ues") if lines else None


# ---- page sections


def timeline_sections(run: RunResults) -> list[list[Part]]:
    """Return the page sections on activity, staleness and merges, and accuracy per UE."""
    shown = groups(run)
    sections: list[list[Part]] = []
    charts = activity_charts(run, shown, UES_ON_PAGE)
    if charts:
        hint = f"UEs 0 to {UES_ON_PAGE - 1} of {run.ues}" if run.ues > UES_ON_PAGE else f"All {run.ues} UEs"
        hint += f" at the start of the run with seed {run.seeds[0]}."
        if len(charts) < len(run.algorithms):
            hint += " Algorithms named together share one timeline: when an update arrives does not depend on what is learned."
        sections.append(section("What every UE does", charts, hint=hint))
    if shown:
        hint = f"Staleness is how many rounds old an update's model was, over all seeds. Shares are those of seed {run.seeds[0]}."
        charts = with_legend(merge_charts(run, shown), "Algorithms shown")
        sections.append(section("Merged UEs and staleness", *charts, hint=hint))
    if (chart := ue_chart(run)) is not None:
        hint = "At the end of training, over all seeds: where a line is low on the left, some UEs are served badly."
        sections.append(section(chart.title, *with_legend([chart], "Algorithms shown"), hint=hint))
    return sections
