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
        table = (len(self.closed_s), quorum)
        rounds = np.array([m.round for m in self.merges], np.int64).reshape(table)
        versions = np.array([m.version for m in self.merges], np.int64).reshape(table)
        return Timeline(
            np.array([m.ue for m in self.merges], np.int64).reshape(table),
            rounds - versions,
            np.array([m.arrival_s for m in self.merges], float).reshape(table),
            np.array(self.closed_s, float),
            np.array([self._compute_s(ue) for ue in range(ues)]),
            np.array([loss.ue for loss in self.losses], np.int64),
            np.array([loss.version for loss in self.losses], np.int64),
            np.array([loss.round for loss in self.losses], np.int64),
            np.array([loss.arrival_s for loss in self.losses], float),
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
            name: {"median": float(np.median(values)), "p90": float(np.quantile(values, 0.9))}
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
                rows.append(
                    {"algorithm": algorithm, "seed": seed, "round": version, "time_s": time_s}
                    | {name: float(value) for name, value in zip(METRICS, means, strict=True)}
                )
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
        """For a checkpoint."""
        return {
            "merges": np.array([(m.round, m.ue, m.version, m.ticket) for m in self.merges], np.int64).reshape(-1, 4),
            "merges_s": np.array([m.arrival_s for m in self.merges], float),
            "losses": np.array([(x.ue, x.version, x.round) for x in self.losses], np.int64).reshape(-1, 3),
            "losses_s": np.array([x.arrival_s for x in self.losses], float),
            "looks": np.array([(x.ue, x.version) for x in self.evaluations], np.int64).reshape(-1, 2),
            "looks_values": np.array([x.values for x in self.evaluations], float).reshape(-1, len(METRICS)),
            "closed_s": np.array(self.closed_s, float),
            "laps": np.array([lap.ue for lap in self.laps], np.int64),
            "laps_s": np.array([(lap.took_s, lap.compute_s) for lap in self.laps], float).reshape(-1, 2),
            "turns_s": np.array(self.turns_s, float),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Record":
        merges = zip(*arrays["merges"].T.tolist(), arrays["merges_s"].tolist(), strict=True)
        losses = zip(*arrays["losses"].T.tolist(), arrays["losses_s"].tolist(), strict=True)
        looks = zip(*arrays["looks"].T.tolist(), map(tuple, arrays["looks_values"].tolist()), strict=True)
        laps = zip(arrays["laps"].tolist(), *arrays["laps_s"].T.tolist(), strict=True)
        return cls(
            [Merge(*row) for row in merges],
            [Loss(*row) for row in losses],
            [Evaluation(*row) for row in looks],
            arrays["closed_s"].tolist(),
            [Lap(*row) for row in laps],
            arrays["turns_s"].tolist(),
        )
