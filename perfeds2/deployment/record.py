"""What happened so far? Everything a run folder is made of, and nothing else; it goes into every checkpoint."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.learning.metrics import METRICS
from perfeds2.timeline.timeline import Timeline

Row = dict[str, Any]  # one line of metrics.csv


@dataclass(frozen=True)
class Merge:
    """One update that went into the model."""

    round: int
    ue: int
    version: int
    ticket: int
    arrival_s: float


@dataclass(frozen=True)
class Loss:
    """One job that ended without a merge."""

    ue: int
    version: int
    round: int  # at the close of which its UE was handed another model
    arrival_s: float  # infinite if it never arrived


@dataclass(frozen=True)
class Evaluation:
    """What a device said of a model on its own data."""

    ue: int
    version: int
    values: tuple[float, ...]  # in the order of METRICS


@dataclass(frozen=True)
class Lap:
    """How long a job took, from handing out the model to having the update, and how much of it was computing."""

    ue: int
    took_s: float
    compute_s: float


@dataclass
class Record:
    """Grows while a federation runs."""

    merges: list[Merge] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    closed_s: list[float] = field(default_factory=list)  # when each round closed
    laps: list[Lap] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)  # from closing a round to having handed out the new model

    def timeline(self, ues: int, quorum: int, open_version: np.ndarray, open_arrival_s: np.ndarray) -> Timeline:
        """The rounds as the simulator would have left them, with the jobs that were still open."""
        arrays = self.to_arrays()
        rounds, merged_ues, versions, _ = arrays["merges"].T.reshape(4, -1, quorum)
        lost_ues, lost_versions, lost_rounds = arrays["losses"].T
        return Timeline(
            merged_ues,
            rounds - versions,
            arrays["merges_s"].reshape(-1, quorum),
            arrays["closed_s"],
            np.array([self._compute_s(ue) for ue in range(ues)]),
            lost_ues,
            lost_versions,
            lost_rounds,
            arrays["losses_s"],
            open_version,
            open_arrival_s,
        )

    def _compute_s(self, ue: int) -> float:
        own = [lap.compute_s for lap in self.laps if lap.ue == ue]
        return float(np.median(own)) if own else 0.0

    def merges_by_ue(self, ues: int) -> list[int]:
        return np.bincount([merge.ue for merge in self.merges], minlength=ues).tolist()

    def overhead(self) -> dict[str, dict[str, float]]:
        """What a job and a round take beyond computing: median and 90th percentile."""
        parts = {"job_s": [lap.took_s - lap.compute_s for lap in self.laps], "round_s": self.turns_s}
        return {
            name: dict(zip(("median", "p90"), np.quantile(values, (0.5, 0.9)).tolist(), strict=True))
            for name, values in parts.items()
            if values
        }

    def metric_rows(self, algorithm: str, seed: int) -> list[Row]:
        """For each model, the mean of what each device said last: of this model, or of the newest it had seen by then.

        Devices look at the model they are handed, so a new model is seen by the A of its round first; the last one is
        seen by everybody.
        """
        rows, latest = [], {}
        by_version: dict[int, dict[int, tuple[float, ...]]] = defaultdict(dict)
        for seen in self.evaluations:
            by_version[seen.version][seen.ue] = seen.values
        for version, time_s in enumerate([0.0, *self.closed_s]):
            latest |= by_version[version]
            if latest:
                means = np.mean([latest[ue] for ue in sorted(latest)], axis=0)
                row = {"algorithm": algorithm, "seed": seed, "round": version, "time_s": time_s}
                rows.append(row | dict(zip(METRICS, means.tolist(), strict=True)))
        return rows

    def ue_rows(self, algorithm: str, seed: int, ues: int) -> list[Row]:
        """How the newest model each device saw serves it."""
        newest = {seen.ue: seen for seen in sorted(self.evaluations, key=lambda seen: seen.version)}
        merges = self.merges_by_ue(ues)
        return [
            {"algorithm": algorithm, "seed": seed, "ue": ue, "samples": 0, "merges": merges[ue]}
            | dict(zip(METRICS, newest[ue].values, strict=True))
            for ue in sorted(newest)
        ]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint: of each list the whole numbers and the others."""
        merges, losses, seen, laps = self.merges, self.losses, self.evaluations, self.laps
        return {
            "merges": _whole([(m.round, m.ue, m.version, m.ticket) for m in merges], 4),
            "merges_s": np.array([m.arrival_s for m in merges], float),
            "losses": _whole([(loss.ue, loss.version, loss.round) for loss in losses], 3),
            "losses_s": np.array([loss.arrival_s for loss in losses], float),
            "looks": _whole([(e.ue, e.version) for e in seen], 2),
            "looks_values": np.array([e.values for e in seen], float).reshape(-1, len(METRICS)),
            "closed_s": np.array(self.closed_s, float),
            "laps": np.array([lap.ue for lap in laps], np.int64),
            "laps_s": np.array([(lap.took_s, lap.compute_s) for lap in laps], float).reshape(-1, 2),
            "turns_s": np.array(self.turns_s, float),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Record":
        lists: dict[str, Any] = {name: values.tolist() for name, values in arrays.items()}
        return cls(
            [Merge(*whole, arrival_s=s) for whole, s in zip(lists["merges"], lists["merges_s"], strict=True)],
            [Loss(*whole, arrival_s=s) for whole, s in zip(lists["losses"], lists["losses_s"], strict=True)],
            [
                Evaluation(*whole, values=tuple(v))
                for whole, v in zip(lists["looks"], lists["looks_values"], strict=True)
            ],
            lists["closed_s"],
            [Lap(ue, *s) for ue, s in zip(lists["laps"], lists["laps_s"], strict=True)],
            lists["turns_s"],
        )


def _whole(rows: list[tuple[int, ...]], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)
