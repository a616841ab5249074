"""What does a run's folder say, as series that can be drawn?

Everything the page and the paper's figures show is prepared here, from files to small arrays, so that both show the
same thing. Nothing here draws.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.special import stdtrit

from perfeds2.timeline.file import load_timelines
from perfeds2.timeline.timeline import LOST, MERGED, State, Timeline


@dataclass(frozen=True)
class Estimate:
    """A number over the seeds: its mean, and its 95 % interval where there are several seeds."""

    mean: float | None  # None where a seed diverged
    low: float | None
    high: float | None
    values: tuple[float | None, ...]  # one per seed

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Algorithm:
    """One row of the comparison."""

    name: str
    objective: str  # FedAvg, FedProx, PerFed, …
    mode: str  # SYN, S2 or ASY
    estimates: Mapping[str, Estimate]  # by the name it has in summary.json
    target_times_s: tuple[float | None, ...]  # when each seed reached the target accuracy; empty without a target
    target_median_s: float | None
    diverged: int  # in how many seeds

    @property
    def reached(self) -> int:
        return sum(time is not None for time in self.target_times_s)


@dataclass(frozen=True)
class Run:
    """What a run's folder holds."""

    version: str
    command: str  # compare, run, simulate or federate
    task: str | None
    ues: int
    horizon_s: float | None
    rounds: int | None
    seeds: tuple[int, ...]
    target_accuracy: float | None  # on test_accuracy_personal
    notes: tuple[str, ...]
    algorithms: tuple[Algorithm, ...]
    spec: str  # spec.toml as it stands; empty if there is none
    metrics: pd.DataFrame | None
    ue_metrics: pd.DataFrame | None
    timelines: Mapping[tuple[str, int], Timeline]  # by algorithm and seed

    @property
    def clock(self) -> str:
        """What time is called: a federation's is real."""
        return "time" if self.command == "federate" else "simulated time"


@dataclass(frozen=True)
class Curve:
    """A metric over time: the mean over seeds and its 95 % interval."""

    time_s: Float[np.ndarray, " t"]
    mean: Float[np.ndarray, " t"]
    low: Float[np.ndarray, " t"] | None  # None with one seed
    high: Float[np.ndarray, " t"] | None


@dataclass(frozen=True)
class Group:
    """Algorithms that share their timelines: when an update arrives does not depend on what is learned from it."""

    algorithms: tuple[Algorithm, ...]
    timelines: tuple[Timeline, ...]  # one per seed

    @property
    def label(self) -> str:
        return ", ".join(algorithm.name for algorithm in self.algorithms)

    @property
    def objective(self) -> str | None:
        """The objective, if it is one."""
        objectives = {algorithm.objective for algorithm in self.algorithms}
        return objectives.pop() if len(objectives) == 1 else None


@dataclass(frozen=True)
class Activity:
    """What the UEs did in the first ``window_s`` seconds of one run, one row per interval or mark."""

    window_s: float
    ues: int  # rows shown: UEs 0 to ues - 1
    intervals: Mapping[State, Float[np.ndarray, "i 3"]]  # UE, from second, to second
    merges: Float[np.ndarray, "m 2"]  # UE, second
    lost: Float[np.ndarray, "l 2"]  # jobs thrown away: UE, second


def load_run(folder: Path) -> Run:
    """Read a run's folder. Only summary.json must be there; whoever draws leaves out what is missing."""
    path = folder / "summary.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run's folder: it has no summary.json. Give the --out folder of a run.")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        algorithms = tuple(_algorithm(row) for row in summary["algorithms"])
        seeds = tuple(int(seed) for seed in summary["seeds"])
        spec = folder / "spec.toml"
        return Run(
            version=str(summary["perfeds2"]),
            command=str(summary["command"]),
            task=summary["task"],
            ues=int(summary["ues"]),
            horizon_s=_finite(summary["horizon_s"]),
            rounds=summary["rounds"],
            seeds=seeds,
            target_accuracy=_finite(summary["target_accuracy"]),
            notes=tuple(str(note) for note in summary["notes"]),
            algorithms=algorithms,
            spec=spec.read_text(encoding="utf-8") if spec.is_file() else "",
            metrics=_read_csv(folder / "metrics.csv"),
            ue_metrics=_read_csv(folder / "ue_metrics.csv"),
            timelines=_timelines(folder, algorithms, seeds),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a summary of perfeds2 ({error!r}); run again to write it anew.") from error


def _algorithm(row: dict[str, Any]) -> Algorithm:
    target = row.get("time_to_target_s") or {"values": [], "median": None}
    return Algorithm(
        name=str(row["algorithm"]),
        objective=str(row["objective"]),
        mode=str(row["mode"]),
        estimates={
            name: Estimate(
                _finite(value["mean"]),
                _finite(value["low"]),
                _finite(value["high"]),
                tuple(_finite(v) for v in value["values"]),
            )
            for name, value in row.items()
            if isinstance(value, dict) and "mean" in value
        },
        target_times_s=tuple(_finite(time) for time in target["values"]),
        target_median_s=_finite(target["median"]),
        diverged=int(row.get("diverged") or 0),
    )


def _finite(value: float | int | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _read_csv(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    table = pd.read_csv(path, converters={"algorithm": str})  # an algorithm may be called anything, also "NA"
    return table if len(table) else None


def _timelines(folder: Path, algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> dict[tuple[str, int], Timeline]:
    if not (folder / "timeline.npz").is_file():
        return {}
    timelines = load_timelines(folder)
    if list(timelines) == [""]:
        return {(algorithms[0].name, seeds[0]): timelines[""]}
    return {(name.rpartition("/")[0], int(name.rpartition("/")[2])): timeline for name, timeline in timelines.items()}


def curves(run: Run, metric: str, points: int = 240) -> dict[str, Curve]:
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
        rows = run.metrics[run.metrics["algorithm"] == algorithm.name]
        seeds = [
            (seed["time_s"].to_numpy(float), seed[metric].to_numpy(float))
            for _, seed in rows.groupby("seed", sort=True)
        ]
        if not seeds:
            continue
        end_s = grid[-1] if to_horizon else min(time_s[-1] for time_s, _ in seeds)
        time_s = grid[grid <= end_s]
        if time_s[-1] < end_s:
            time_s = np.append(time_s, end_s)
        values = np.stack([carry_forward(*seed, time_s) for seed in seeds])
        finite = np.isfinite(values).all(axis=0)
        length = time_s.size if finite.all() else int(finite.argmin())
        if length:
            mean, low, high = mean_and_interval(values[:, :length])
            found[algorithm.name] = Curve(time_s[:length], mean, low, high)
    return losses_in_view(found) if "loss" in metric else found


def carry_forward(
    time_s: Float[np.ndarray, " e"], values: Float[np.ndarray, " e"], grid_s: Float[np.ndarray, " t"]
) -> Float[np.ndarray, " t"]:
    """The value that stood at each time of the grid; not a number before the first."""
    index = np.searchsorted(time_s, grid_s, side="right") - 1
    return np.where(index >= 0, values[index], np.nan)


def mean_and_interval(
    values: Float[np.ndarray, "s t"],
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"] | None, Float[np.ndarray, " t"] | None]:
    """The mean over seeds and its 95 % interval by Student's t; no interval from one seed."""
    seeds = values.shape[0]
    mean = values.mean(axis=0)
    if seeds == 1:
        return mean, None, None
    half = stdtrit(seeds - 1, 0.975) * values.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, mean - half, mean + half


def loss_ceiling(drawn: Mapping[str, Curve]) -> float:
    """Up to where a loss is worth drawing: a diverging run must not flatten the others."""
    highest = max(float((curve.mean if curve.high is None else curve.high).max()) for curve in drawn.values())
    start = max(float(curve.mean[0]) for curve in drawn.values())
    return min(highest * 1.05, start * 1.5)


def losses_in_view(drawn: Mapping[str, Curve]) -> dict[str, Curve]:
    """Without the interval where a mean leaves the drawing: a diverging run's would cover all the others."""
    top = loss_ceiling(drawn) if drawn else 0.0
    return {
        name: replace(
            curve,
            low=None if curve.low is None else np.where(curve.mean > top, curve.mean, curve.low),
            high=None if curve.high is None else np.where(curve.mean > top, curve.mean, curve.high),
        )
        for name, curve in drawn.items()
    }


def groups(run: Run) -> list[Group]:
    """The algorithms by timeline, in the order of the table."""
    members: dict[tuple[bytes, ...], list[Algorithm]] = {}
    timelines: dict[tuple[bytes, ...], tuple[Timeline, ...]] = {}
    for algorithm in run.algorithms:
        mine = tuple(
            run.timelines[algorithm.name, seed] for seed in run.seeds if (algorithm.name, seed) in run.timelines
        )
        if mine:
            key = tuple(getattr(timeline, field.name).tobytes() for timeline in mine for field in fields(timeline))
            members.setdefault(key, []).append(algorithm)
            timelines[key] = mine
    return [Group(tuple(algorithms), timelines[key]) for key, algorithms in members.items()]


def staleness_bins(largest: int) -> tuple[Int[np.ndarray, " b"], list[str]]:
    """Where each bin starts, and what to call it: one per value as far as one can tell them apart, then wider."""
    wider = [first * 2**doubling for doubling in range(32) for first in (10, 15)]  # 10, 15, 20, 30, 40, 60, 80, …
    starts = [*range(10), *(first for first in wider if first <= largest)] if largest > 20 else [*range(largest + 1)]
    ends = [*(start - 1 for start in starts[1:]), largest]
    labels = [str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True)]
    return np.array(starts), labels


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
    intervals: dict[State, list[tuple[float, float, float]]] = {
        "computing": [],
        "sending": [],
        "waiting": [],
        "idle": [],
    }
    for ue in range(rows):
        for state, start_s, end_s in shown.activity(ue):
            if start_s < window_s:
                intervals[state].append((ue, start_s, min(end_s, window_s)))
    jobs = shown.jobs(range(rows))
    ended = jobs.end_s <= window_s
    marks = np.stack([jobs.ue.astype(float), jobs.end_s], axis=1)
    return Activity(
        window_s,
        rows,
        {state: np.array(found).reshape(-1, 3).astype(float) for state, found in intervals.items()},
        marks[ended & (jobs.outcome == MERGED)],
        marks[ended & (jobs.outcome == LOST)],
    )
