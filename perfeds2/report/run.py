"""What does a run's folder hold?"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfeds2.learning.metrics import ACCURACY, Score, score_of
from perfeds2.report.style import LineStyle, algorithm_styles
from perfeds2.runs.statistics import INTERVAL_SEEDS
from perfeds2.timeline.file import load_timelines
from perfeds2.timeline.timeline import Timeline


@dataclass(frozen=True)
class Estimate:
    """A number over the seeds: its mean, and its 95 % interval where there are at least three."""

    mean: float | None  # None where a seed diverged
    low: float | None
    high: float | None
    values: tuple[float | None, ...]  # one per seed

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Outcome:
    """One algorithm, and what came out of it."""

    name: str
    objective: str  # FedAvg, FedProx, PerFed, …
    mode: str  # SYN, S2 or ASY; something else for an algorithm of one's own
    estimates: Mapping[str, Estimate]  # by the name it has in summary.json
    target_times_s: tuple[float | None, ...]  # when each seed reached the target accuracy; empty without a target
    target_median_s: float | None
    diverged: int  # in how many seeds

    @property
    def seeds(self) -> int:
        """How many it was run with."""
        return max((len(each.values) for each in self.estimates.values()), default=0)

    @property
    def reached(self) -> int:
        return sum(time is not None for time in self.target_times_s)

    @property
    def starved(self) -> Estimate | None:
        """UEs that were never merged, if there are any."""
        found = self.estimates.get("starved")
        return found if found is not None and any(found.values) else None


@dataclass(frozen=True)
class Clocks:
    """When each round of a federation closed, really and on the simulator's clock."""

    real_s: tuple[float, ...]
    simulated_s: tuple[float, ...]
    compute_s: float  # of a job, in the median
    beyond_s: float  # and what it took besides


@dataclass(frozen=True)
class Links:
    """How good the simulated links are: (10th percentile, median, 90th percentile), each UE on an equal part of the band."""

    radio: str
    snr_db: tuple[float, float, float]
    bits_per_s_hz: tuple[float, float, float]
    warning: str | None
    capped: float = 0.0

    @property
    def line(self) -> str:
        """In a sentence."""
        snr, carried = (f"{mid:.3g} ({low:.3g} to {high:.3g})" for low, mid, high in (self.snr_db, self.bits_per_s_hz))
        most = f" {self.capped:.0%} of them carry all that modulation can." if self.capped else ""
        return f"Radio {self.radio}: SNR {snr} dB, {carried} bit/s/Hz: median (10th to 90th percentile) of UEs on equal parts of the band.{most}"


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
    algorithms: tuple[Outcome, ...]
    clocks: Clocks | None = None  # of a federation
    links: Links | None = None  # of a simulation
    axis: "Axis | None" = None  # what curves are drawn over; None: time
    looks: Mapping[str, LineStyle] = field(default_factory=dict)  # of each algorithm; empty: as everywhere
    score: Score = ACCURACY  # what is called accuracy in all of it
    spec: str = ""  # spec.toml as it stands; empty if there is none
    metrics: pd.DataFrame | None = None
    ue_metrics: pd.DataFrame | None = None
    timelines: Mapping[tuple[str, int], Timeline] = field(default_factory=dict)  # by algorithm and seed

    @property
    def clock(self) -> str:
        """What time is called: a federation's is real."""
        return "time" if self.command == "federate" else "simulated time"

    @property
    def time_label(self) -> str:
        """What stands at an axis of time, or of what curves are drawn over instead."""
        return f"{self.clock.capitalize()} (s)" if self.axis is None else self.axis.label

    @property
    def is_trained(self) -> bool:
        """Whether there is something learned, not just timed."""
        return any("test_accuracy_personal" in algorithm.estimates for algorithm in self.algorithms)

    @property
    def has_intervals(self) -> bool:
        return len(self.seeds) >= INTERVAL_SEEDS

    @cached_property
    def styles(self) -> Mapping[str, LineStyle]:
        """How each algorithm's line is drawn."""
        return self.looks or algorithm_styles([(each.name, each.objective, each.mode) for each in self.algorithms])


@dataclass(frozen=True)
class Axis:
    """What curves are drawn over instead of time."""

    column: str  # of metrics.csv
    label: str
    words: str
    unit: str


AXES = {
    "seconds": None,
    "rounds": Axis("round", "Rounds", "rounds", "rounds"),
    "joules": Axis("joules", "Energy of all UEs (J)", "energy", "J"),
    "bits": Axis("merged_bits", "Merged uploads (bit)", "uploaded bits", "bit"),
}


def over(run: Run, name: str) -> Run:
    """The same run with its curves over something else."""
    axis = AXES[name]
    if axis is None or run.metrics is None:
        return run
    return replace(run, metrics=along(run.metrics, axis, "metrics.csv"), horizon_s=None, axis=axis)


def along(metrics: pd.DataFrame, axis: Axis | None, file: str) -> pd.DataFrame:
    """A table of evaluations over something else: what had been spent of it stands in the place of the time."""
    if axis is None:
        return metrics
    if axis.column not in metrics or np.isnan(metrics[axis.column].to_numpy(float)).any():
        raise ValueError(
            f"{file} does not have all {axis.column}; it was made without. Run it again, or use --x seconds."
        )
    return metrics.assign(time_s=metrics[axis.column])


def load_run(folder: Path | str) -> Run:
    """Read a run's folder. Only summary.json must be there; whoever draws leaves out what is missing."""
    folder = Path(folder)
    path = folder / "summary.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run's folder: it has no summary.json. Give the --out folder of a run.")
    try:
        run = read_summary(json.loads(path.read_text(encoding="utf-8")))
        spec = folder / "spec.toml"
        return replace(
            run,
            spec=spec.read_text(encoding="utf-8") if spec.is_file() else "",
            metrics=_read_csv(folder / "metrics.csv"),
            ue_metrics=_read_csv(folder / "ue_metrics.csv"),
            timelines=_timelines(folder, run),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a summary of perfeds2 ({error!r}); run again to write it anew.") from error


def read_summary(summary: Mapping[str, Any]) -> Run:
    """What summary.json alone says of a run."""
    return Run(
        version=str(summary["perfeds2"]),
        command=str(summary["command"]),
        task=summary["task"],
        ues=int(summary["ues"]),
        horizon_s=_finite(summary["horizon_s"]),
        rounds=summary["rounds"],
        seeds=tuple(int(seed) for seed in summary["seeds"]),
        target_accuracy=_finite(summary["target_accuracy"]),
        score=score_of(str(summary.get("metric") or "accuracy")),
        notes=tuple(str(note) for note in summary["notes"]),
        algorithms=tuple(_outcome(row) for row in summary["algorithms"]),
        clocks=_clocks(summary.get("clocks")),
        links=_links(summary.get("radio")),
    )


def _clocks(found: Mapping[str, Any] | None) -> Clocks | None:
    if not found or not found["real_s"] or len(found["real_s"]) != len(found["simulated_s"]):
        return None
    real_s, simulated_s = (tuple(map(float, found[name])) for name in ("real_s", "simulated_s"))
    return Clocks(real_s, simulated_s, float(found["compute_s"]), float(found["beyond_s"]))


def _links(found: Mapping[str, Any] | None) -> Links | None:
    if not found:
        return None
    snr_db, carried = (
        (float(found[name]["low"]), float(found[name]["median"]), float(found[name]["high"]))
        for name in ("snr_db", "bits_per_s_hz")
    )
    warning = None if found["warning"] is None else str(found["warning"])
    return Links(str(found["name"]), snr_db, carried, warning, float(found.get("capped", 0.0)))


def _outcome(row: Mapping[str, Any]) -> Outcome:
    target = row.get("time_to_target_s") or {"values": [], "median": None}
    return Outcome(
        name=str(row["algorithm"]),
        objective=str(row["objective"]),
        mode=str(row["mode"]),
        estimates={name: _estimate(v) for name, v in row.items() if isinstance(v, dict) and "mean" in v},
        target_times_s=tuple(map(_finite, target["values"])),
        target_median_s=_finite(target["median"]),
        diverged=int(row.get("diverged") or 0),
    )


def _estimate(found: Mapping[str, Any]) -> Estimate:
    values = tuple(map(_finite, found["values"]))
    low, high = (_finite(found[end]) if len(values) >= INTERVAL_SEEDS else None for end in ("low", "high"))
    return Estimate(_finite(found["mean"]), low, high, values)


def _finite(value: float | int | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _read_csv(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    table = pd.read_csv(path, converters={"algorithm": str})  # an algorithm may be called anything, also "NA"
    return table if len(table) else None


def _timelines(folder: Path, run: Run) -> dict[tuple[str, int], Timeline]:
    if not (folder / "timeline.npz").is_file():
        return {}
    timelines = load_timelines(folder)
    if list(timelines) == [""]:
        return {(run.algorithms[0].name, run.seeds[0]): timelines[""]}
    return {(name.rpartition("/")[0], int(name.rpartition("/")[2])): timeline for name, timeline in timelines.items()}
