"""What does every UE do, how stale are merged updates, and who is merged how often? As charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from perfeds2.chart import INK, NEUTRAL, Bars, Box, Chart, ChartAxis
from perfeds2.report.document import Alternatives, Part, Stack, section
from perfeds2.report.read import AlgorithmResult, RunResults
from perfeds2.report.style import ACCURACY, DASHES_PX
from perfeds2.shown import activity_chart
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.record import Timeline

MOST_BARS = 2_000
UES_ON_PAGE, UES_ON_PAPER = 30, 8  # rows of the activity chart


@dataclass(frozen=True)
class Group:
    """Algorithms that share their timelines: when an update arrives does not depend on what is learned from it."""

    algorithms: tuple[AlgorithmResult, ...]
    timelines: tuple[Timeline, ...]  # one per seed

    @property
    def label(self) -> str:
        return ", ".join(algorithm.name for algorithm in self.algorithms)


def groups(run: RunResults) -> list[Group]:
    """Group the algorithms by timeline, in the order of the table."""
    found: dict[tuple[bytes, ...], Group] = {}
    for algorithm in run.algorithms:
        mine = tuple(run.timelines[of] for seed in run.seeds if (of := (algorithm.name, seed)) in run.timelines)
        if mine:
            key = tuple(column.tobytes() for timeline in mine for column in timeline.columns.values())
            others = found[key].algorithms if key in found else ()
            found[key] = Group((*others, algorithm), mine)
    return [group for group in found.values() if any(timeline.rounds for timeline in group.timelines)]


# ---- what every UE does


def activity_charts(run: RunResults, shown: Sequence[Group], most_ues: int, jobs_each: int = 4) -> list[Chart]:
    """Draw what each UE did at the start of the first seed's run, in one window of time for all groups."""
    rows = min(run.ues, most_ues)
    window_s = activity_window_s([group.timelines[0] for group in shown], rows, jobs_each)
    return [activity(group.timelines[0], window_s, rows, group.label, run.time_label) for group in shown if window_s]


def on_paper(shown: Sequence[Group]) -> list[Group]:
    """Return the first group of each mode, and every user's own algorithm."""
    modes = [group.algorithms[0].mode for group in shown]
    kinds = [mode if mode in DASHES_PX else group.label for mode, group in zip(modes, shown, strict=True)]
    return [group for number, group in enumerate(shown) if kinds.index(kinds[number]) == number]


def activity_window_s(timelines: Sequence[Timeline], rows: int, jobs_each: int = 4, most_jobs: int = 500) -> float:
    """Return one window for all: half of the UEs get a few jobs merged, and not too many jobs are drawn."""
    window_s, cut_s = 0.0, math.inf
    for timeline in timelines:
        merges, served, round_ = np.zeros(timeline.population, int), 0, 0
        # A median is slow with many UEs, so first see whether half of them are served.
        while round_ < timeline.rounds and (2 * served < merges.size or np.median(merges) < jobs_each):
            merges[timeline.ues[round_]] += 1
            served += np.count_nonzero(merges[timeline.ues[round_]] == jobs_each)
            round_ += 1
        window_s = max(window_s, float(timeline.start_s[round_]))
        starts_s = np.sort(timeline.jobs(range(rows)).start_s)
        if starts_s.size > most_jobs:
            cut_s = min(cut_s, float(starts_s[most_jobs]))
    return min(window_s, cut_s)


def activity(timeline: Timeline, window_s: float, rows: int, title: str = "", time_label: str = "") -> Chart:
    """Draw what the first UEs did in the window, and where their jobs were merged or thrown away."""
    shown = timeline.prefix(min(timeline.until(window_s) + 1, timeline.rounds))
    ues = range(min(rows, timeline.population))
    jobs = shown.jobs(ues)
    ended = (jobs.end_s <= window_s) & (jobs.round >= 0)
    merged, lost = (
        (jobs.ue[chosen], jobs.end_s[chosen]) for chosen in (ended & (jobs.outcome == end) for end in (MERGED, LOST))
    )
    return activity_chart([shown.activity(ue) for ue in ues], merged, lost, window_s, title, time_label)


# ---- how stale, and how often


def staleness_bins(largest: int) -> tuple[Int[np.ndarray, " b"], list[str]]:
    """Return where each bin starts and its name: one per value while they can be told apart, then wider."""
    wider = [first * 2**doubling for doubling in range(32) for first in (10, 15)]  # 10, 15, 20, 30, 40, 60, 80, …
    starts = [*range(10), *(first for first in wider if first <= largest)] if largest > 20 else [*range(largest + 1)]
    ends = [*(start - 1 for start in starts[1:]), largest]
    labels = [str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True)]
    return np.array(starts), labels


def staleness_shares(group: Group, starts: Int[np.ndarray, " b"]) -> Float[np.ndarray, " b"]:
    """Return the share of merged updates in each bin of staleness, over all seeds."""
    staleness = np.concatenate([timeline.staleness.ravel() for timeline in group.timelines])
    counts = np.bincount(np.searchsorted(starts, staleness, side="right") - 1, minlength=starts.size)
    return counts / max(staleness.size, 1)


def staleness_chart(run: RunResults, shown: Sequence[Group]) -> Stack:
    """Draw how stale the merged updates were, over all seeds."""
    starts, labels = staleness_bins(max(timeline.depth - 1 for group in shown for timeline in group.timelines))
    every = -(-len(labels) // 12)  # labels that fit
    x = ChartAxis(
        "Staleness (rounds)", ticks={place: label for place, label in enumerate(labels) if place % every == 0}
    )
    hover = "%{y:.1f} % of merged updates<extra></extra>"
    percent = [100 * staleness_shares(group, starts) for group in shown]
    charts = _bars(run, shown, np.arange(len(labels)), percent, x, hover)
    return Stack("staleness", "Merged updates by staleness (%)", charts)


def shares_chart(run: RunResults, shown: Sequence[Group]) -> Stack:
    """Draw how often each UE was merged in the first seed's run, against equal shares."""
    crowd = -(-run.ues // MOST_BARS)  # of many UEs, a bar is the mean of so many neighbours
    first = np.arange(0, run.ues, crowd)
    whose = "UE %{x}" if crowd == 1 else f"{crowd:,} UEs from %{{x}} on, each"
    hover = f"{whose}: %{{y:{'.1f' if crowd == 1 else '.2g'}}} % of merged updates<extra></extra>"
    shares = [100 * group.timelines[0].shares for group in shown]
    percent = [np.add.reduceat(share, first) / np.diff(first, append=run.ues) for share in shares]
    charts = _bars(run, shown, first, percent, ChartAxis("UE"), hover, 100 / run.ues, crowd)
    return Stack("shares", "Merged updates by UE (%)", charts)


def _bars(
    run: RunResults,
    shown: Sequence[Group],
    at: Int[np.ndarray, " b"],
    percent: Sequence[Float[np.ndarray, " b"]],
    x: ChartAxis,
    hover: str,
    equal: float | None = None,
    crowd: int = 1,
) -> list[Chart]:
    """Draw a row of bars for each group; where there is an equal share to compare with, on one scale."""
    top = 1.08 * max(float(values.max()) for values in percent)
    y = ChartAxis("%", limits=None if equal is None else (0.0, top))
    level = None if equal is None else (equal, "")
    charts = []
    for group, values in zip(shown, percent, strict=True):
        tints = {run.styles[algorithm.name].colour for algorithm in group.algorithms}
        bars = Bars("", at, values, tints.pop() if len(tints) == 1 else NEUTRAL, width=0.8 * crowd, hover=hover)
        charts.append(Chart("", group.label, [bars], x, y, level, INK, height_px=105))
    return charts


# ---- how good for each UE


def ue_chart(run: RunResults) -> Chart | None:
    """Draw each UE's personalised accuracy at the end of training, a box per algorithm over UEs and seeds."""
    table, score = run.ue_metrics, run.score
    if table is None:
        return None
    boxes: list[Box] = []
    for algorithm in run.algorithms:
        mine = table[(table["algorithm"] == algorithm.name) & np.isfinite(table[ACCURACY])]
        if len(mine):
            points = zip(mine["ue"], mine["seed"], mine["merges"], strict=True)
            hover = [f"UE {ue:.0f}, seed {seed:.0f}, merged {merges:,.0f} times" for ue, seed, merges in points]
            colour = run.styles[algorithm.name].colour
            boxes.append(Box(algorithm.name, len(boxes), score.scale * mine[ACCURACY], colour, hover))
    if not boxes:
        return None
    ticks = {box.at: box.name for box in boxes}
    label = f"Personalised test {score.word} of a UE{' (%)' * score.is_share}"
    x = ChartAxis(label, form=score.form, unit=score.unit)
    y = ChartAxis(ticks=ticks, limits=(len(boxes) - 0.4, -0.6))
    return Chart("ues", f"Personalised {score.word} per UE", boxes, x, y, height_px=90 + 40 * len(boxes))


# ---- on a page


def timeline_sections(run: RunResults) -> list[list[Part]]:
    """Return the sections of a page about who did what, and about every UE."""
    shown = groups(run)
    sections: list[list[Part]] = []
    charts = activity_charts(run, shown, UES_ON_PAGE)
    if charts:
        hint = f"UEs 0 to {UES_ON_PAGE - 1} of {run.ues}" if run.ues > UES_ON_PAGE else f"All {run.ues} UEs"
        hint += f" at the start of the run with seed {run.seeds[0]}."
        if len(charts) < len(run.algorithms):
            hint += " Algorithms named together have one timeline: when an update arrives does not depend on what is learned."
        chosen = next((place for place, group in enumerate(shown) if group.algorithms[0].mode == "S2"), 0)
        sections.append(section("What every UE does", Alternatives(charts, "Algorithm shown", chosen), hint=hint))
    if shown:
        hint = (
            "Staleness is how many rounds old the model was that an update started from; over all seeds, each row on its own "
            f"scale. Shares are those of seed {run.seeds[0]}; the dotted line is an equal share, {100 / run.ues:.3g} %."
        )
        sections.append(
            section("Who is merged, and how late", [staleness_chart(run, shown), shares_chart(run, shown)], hint=hint)
        )
    if (chart := ue_chart(run)) is not None:
        over = " and seed" if len(run.seeds) > 1 else ""
        hint = f"At the end of training. A point is one UE{over}; a box holds the middle half of them and shows the median."
        sections.append(section(chart.title, chart, hint=hint))
    return sections
