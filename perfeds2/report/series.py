"""What of a run is drawn? From tables and timelines to small arrays, so that page and paper show the same thing.

Nothing here draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from perfeds2.learning.metrics import ACCURACY, Score
from perfeds2.report.run import Outcome, Run
from perfeds2.report.style import METRICS, NEUTRAL, STATE_COLOURS, LineStyle
from perfeds2.report.tables import listed
from perfeds2.runs.statistics import mean_and_interval
from perfeds2.timeline.timeline import LOST, MERGED, State, Timeline

MOST_BARS = 2_000


@dataclass(frozen=True)
class MeanCurve:
    """A metric over time: the mean over seeds and its 95 % interval."""

    time_s: Float[np.ndarray, " t"]
    mean: Float[np.ndarray, " t"]
    low: Float[np.ndarray, " t"] | None  # None with one or two seeds
    high: Float[np.ndarray, " t"] | None


@dataclass(frozen=True)
class CurvePanel:
    """One pair of axes: a metric over time with a curve for every line. Drawn on paper and traced on the page."""

    metric: str
    curves: Mapping[str, MeanCurve]  # by the line's name
    styles: Mapping[str, LineStyle]
    target_accuracy: float | None = None  # where a line shows it
    time_label: str = "Simulated time (s)"
    score: Score = ACCURACY  # what is called accuracy there
    unit: str = "s"  # of what it is drawn over

    @property
    def is_accuracy(self) -> bool:
        """Or what stands for it."""
        return "accuracy" in self.metric

    @property
    def is_share(self) -> bool:
        return self.is_accuracy and self.score.is_share

    @property
    def scale(self) -> int:
        """Shares are shown in per cent."""
        return self.score.scale if self.is_accuracy else 1

    @property
    def title(self) -> str:
        return self.score.named(self.metric)


@dataclass(frozen=True)
class Group:
    """Algorithms that share their timelines: when an update arrives does not depend on what is learned from it."""

    algorithms: tuple[Outcome, ...]
    timelines: tuple[Timeline, ...]  # one per seed

    @property
    def label(self) -> str:
        return ", ".join(algorithm.name for algorithm in self.algorithms)


@dataclass(frozen=True)
class BarRows:
    """Per cent of the merged updates: a row of bars for every group of algorithms, over one x axis."""

    names: list[str]  # of the groups
    colours: list[str]
    x: list[Any]  # what each bar stands for
    percent: list[Float[np.ndarray, " b"]]  # a row each
    x_title: str
    equal: float | None = None  # the level to compare with
    crowd: int = 1  # how many UEs a bar is the mean of


@dataclass(frozen=True)
class Activity:
    """What the UEs did in the first ``window_s`` seconds of one run, one row per interval or mark."""

    window_s: float
    ues: int  # rows shown: UEs 0 to ues - 1
    intervals: Mapping[State, Float[np.ndarray, "i 3"]]  # UE, from second, to second
    merges: Float[np.ndarray, "m 2"]  # UE, second
    lost: Float[np.ndarray, "l 2"]  # jobs thrown away: UE, second


def curve_panels(run: Run) -> list[CurvePanel]:
    """Loss and accuracy over time, as far as the run has them."""
    panels = []
    for metric in METRICS:
        if drawn := curves(run, metric):
            target = run.target_accuracy if metric == "test_accuracy_personal" else None
            unit = "s" if run.axis is None else run.axis.unit
            panels.append(CurvePanel(metric, drawn, run.styles, target, run.time_label, run.score, unit))
    return panels


def coinciding(lines: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Names of lines that are the same to the last digit, in groups: drawn, one would hide the others.

    A line is its arrays, one or several.
    """
    found: dict[bytes, list[str]] = {}
    for name, arrays in lines.items():
        found.setdefault(b"|".join(np.asarray(array).tobytes() for array in arrays), []).append(name)
    return [tuple(names) for names in found.values() if len(names) > 1]


def has_bands(panels: Sequence[CurvePanel]) -> bool:
    """Whether there are intervals to switch off."""
    return any(curve.low is not None for panel in panels for curve in panel.curves.values())


def same_curves(panel: CurvePanel) -> list[tuple[str, ...]]:
    """The lines of a panel that coincide."""
    return coinciding({name: (curve.time_s, curve.mean) for name, curve in panel.curves.items()})


def said_to_coincide(panels: Sequence[CurvePanel]) -> list[str]:
    """What coincides, in sentences: once of what does everywhere, and with its name where it is one metric alone."""
    by_panel = {panel.title: same_curves(panel) for panel in panels}
    everywhere = [group for group in next(iter(by_panel.values()), []) if all(group in each for each in by_panel.values())]  # fmt: skip
    said = [coincidence(group) for group in everywhere]
    for title, found in by_panel.items():
        said += [f"{title}: {coincidence(group)}" for group in found if group not in everywhere]
    return said


def coincidence(group: Sequence[str]) -> str:
    """FedProxS2 coincides with FedAvgS2 to the last digit."""
    first, *others = group
    return f"{listed(others)} coincide{'s' * (len(others) == 1)} with {first} to the last digit."


def curves(run: Run, metric: str, points: int = 240) -> dict[str, MeanCurve]:
    """A metric over time for every algorithm that has it, on one grid.

    Between evaluations the last value stands. A curve ends where its shortest seed ends (at the horizon, if that is
    what ended the run), or where a seed stops being finite: there is no mean of a diverged run.
    """
    if run.metrics is None or metric not in run.metrics:
        return {}
    grid = np.linspace(0.0, max(run.metrics["time_s"].to_numpy(float).max(), run.horizon_s or 0.0), points)
    to_horizon = run.horizon_s is not None and run.rounds is None
    found = {}
    for algorithm in run.algorithms:
        rows = pd.DataFrame(run.metrics[run.metrics["algorithm"] == algorithm.name])
        if len(rows):
            found[algorithm.name] = mean_curve(rows, metric, grid if to_horizon else until_shortest(rows, grid))
    return in_view(found, metric)


def until_shortest(rows: pd.DataFrame, grid: Float[np.ndarray, " g"]) -> Float[np.ndarray, " t"]:
    """The grid as far as all seeds go: beyond that there is no mean over them."""
    end = min(float(times.iloc[-1]) for _, times in rows.groupby("seed")["time_s"])
    inside = grid[grid <= end]
    return inside if inside[-1] == end else np.append(inside, end)


def mean_curve(rows: pd.DataFrame, metric: str, time_s: Float[np.ndarray, " t"]) -> MeanCurve | None:
    """The mean over seeds, up to where a seed stops being finite: there is no mean of a diverged run."""
    values = np.stack(
        [
            carry_forward(seed["time_s"].to_numpy(float), seed[metric].to_numpy(float), time_s)
            for _, seed in rows.groupby("seed", sort=True)
        ]
    )
    finite = np.isfinite(values).all(axis=0)
    length = time_s.size if finite.all() else int(finite.argmin())
    return MeanCurve(time_s[:length], *mean_and_interval(values[:, :length])) if length else None


def in_view(found: Mapping[str, MeanCurve | None], metric: str) -> dict[str, MeanCurve]:
    """The curves that there are; of a loss without the interval where a mean leaves the drawing.

    A diverging run's would cover all the others.
    """
    there = {name: curve for name, curve in found.items() if curve is not None}
    top = loss_ceiling(there) if there and "loss" in metric else math.inf
    return {
        name: replace(
            curve,
            low=None if curve.low is None else np.where(curve.mean > top, curve.mean, curve.low),
            high=None if curve.high is None else np.where(curve.mean > top, curve.mean, curve.high),
        )
        for name, curve in there.items()
    }


def carry_forward(
    time_s: Float[np.ndarray, " e"], values: Float[np.ndarray, " e"], grid_s: Float[np.ndarray, " t"]
) -> Float[np.ndarray, " t"]:
    """The value that stood at each time of the grid; not a number before the first."""
    index = np.searchsorted(time_s, grid_s, side="right") - 1
    return np.where(index >= 0, values[index], np.nan)


def loss_ceiling(drawn: Mapping[str, MeanCurve]) -> float:
    """Up to where a loss is worth drawing: a diverging run must not flatten the others."""
    highest = max(float((curve.mean if curve.high is None else curve.high).max()) for curve in drawn.values())
    start = max(float(curve.mean[0]) for curve in drawn.values())
    return min(highest * 1.05, start * 1.5)


def groups(run: Run) -> list[Group]:
    """The algorithms by timeline, in the order of the table."""
    found: dict[tuple[bytes, ...], Group] = {}
    for algorithm in run.algorithms:
        mine = tuple(run.timelines[of] for seed in run.seeds if (of := (algorithm.name, seed)) in run.timelines)
        if mine:
            key = tuple(column.tobytes() for timeline in mine for column in timeline.columns.values())
            others = found[key].algorithms if key in found else ()
            found[key] = Group((*others, algorithm), mine)
    return list(found.values())


def staleness_bins(largest: int) -> tuple[Int[np.ndarray, " b"], list[str]]:
    """Where each bin starts, and what to call it: one per value as far as one can tell them apart, then wider."""
    wider = [first * 2**doubling for doubling in range(32) for first in (10, 15)]  # 10, 15, 20, 30, 40, 60, 80, …
    starts = [*range(10), *(first for first in wider if first <= largest)] if largest > 20 else [*range(largest + 1)]
    ends = [*(start - 1 for start in starts[1:]), largest]
    labels = [str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True)]
    return np.array(starts), labels


def staleness_rows(run: Run, groups: Sequence[Group]) -> BarRows | None:
    """How stale the merged updates were, over all seeds."""
    timelines = [timeline for group in groups for timeline in group.timelines]
    if not any(timeline.rounds for timeline in timelines):
        return None
    starts, labels = staleness_bins(max(timeline.depth - 1 for timeline in timelines))
    percent = [100 * staleness_shares(group, starts) for group in groups]
    return BarRows(*_names_and_colours(run, groups), labels, percent, "Staleness (rounds)")


def shares_rows(run: Run, groups: Sequence[Group]) -> BarRows | None:
    """Who took part how often in the first seed's run, against equal shares."""
    shares = [100 * group.timelines[0].shares for group in groups]
    if not any(share.any() for share in shares):
        return None
    crowd = -(-run.ues // MOST_BARS)  # of many UEs, a bar shows the mean of so many successive ones
    first = np.arange(0, run.ues, crowd)
    percent = [np.add.reduceat(share, first) / np.diff(first, append=run.ues) for share in shares]
    return BarRows(*_names_and_colours(run, groups), first.tolist(), percent, "UE", 100 / run.ues, crowd)


def _names_and_colours(run: Run, groups: Sequence[Group]) -> tuple[list[str], list[str]]:
    tints = [{run.styles[algorithm.name].colour for algorithm in group.algorithms} for group in groups]
    return [group.label for group in groups], [tint.pop() if len(tint) == 1 else NEUTRAL for tint in tints]


def staleness_shares(group: Group, starts: Int[np.ndarray, " b"]) -> Float[np.ndarray, " b"]:
    """The share of merged updates in each bin of staleness, over all seeds."""
    staleness = np.concatenate([timeline.staleness.ravel() for timeline in group.timelines])
    counts = np.bincount(np.searchsorted(starts, staleness, side="right") - 1, minlength=starts.size)
    return counts / max(staleness.size, 1)


def activity_window_s(timelines: Sequence[Timeline], rows: int, jobs_each: int = 4, most_jobs: int = 500) -> float:
    """One window for all: long enough that half of the UEs get a few jobs merged, short enough to be drawn."""
    window_s, cut_s = 0.0, math.inf
    for timeline in timelines:
        merges, served, round_ = np.zeros(timeline.population, int), 0, 0
        # A median takes long in a crowd: first see whether half of the UEs are there.
        while round_ < timeline.rounds and (2 * served < merges.size or np.median(merges) < jobs_each):
            merges[timeline.ues[round_]] += 1
            served += np.count_nonzero(merges[timeline.ues[round_]] == jobs_each)
            round_ += 1
        window_s = max(window_s, float(timeline.start_s[round_]))
        starts_s = np.sort(timeline.jobs(range(rows)).start_s)
        if starts_s.size > most_jobs:
            cut_s = min(cut_s, float(starts_s[most_jobs]))
    return min(window_s, cut_s)


def activity(timeline: Timeline, window_s: float, rows: int) -> Activity:
    """What the first UEs did in the window: intervals by state, and where jobs were merged or thrown away."""
    shown = timeline.prefix(min(timeline.until(window_s) + 1, timeline.rounds))
    rows = min(rows, timeline.population)
    intervals: dict[State, list[tuple[float, float, float]]] = {state: [] for state in STATE_COLOURS}
    for ue in range(rows):
        for state, start_s, end_s in shown.activity(ue):
            if start_s < window_s:
                intervals[state].append((ue, start_s, min(end_s, window_s)))
    jobs = shown.jobs(range(rows))
    ended = (jobs.end_s <= window_s) & (jobs.round >= 0)
    marks = np.stack([jobs.ue.astype(float), jobs.end_s], axis=1)
    return Activity(
        window_s,
        rows,
        {state: np.array(found).reshape(-1, 3).astype(float) for state, found in intervals.items()},
        marks[ended & (jobs.outcome == MERGED)],
        marks[ended & (jobs.outcome == LOST)],
    )
