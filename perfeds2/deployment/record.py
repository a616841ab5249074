"""The append-only record of a federation, from which its run folder is written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfeds2.deployment.status import ClosedRound
from perfeds2.files import write_text
from perfeds2.learning.metrics import METRICS
from perfeds2.runs.store import Row
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder

LAPS = "laps.csv"  # in a run's folder: one row per answered job
LAP_COLUMNS = {"ue": int, "version": int, "took_s": float, "compute_s": float, "scale": float}


class MergedUpdate(NamedTuple):
    """An update that was merged into the model."""

    round: int
    ue: int
    version: int
    ticket: int
    arrival_s: float


class Loss(NamedTuple):
    """A job that ended without a merge."""

    ue: int
    version: int
    round: int  # when this round closed, its UE was handed another model
    arrival_s: float  # infinite if it never arrived


class Evaluation(NamedTuple):
    """The metrics that a device reported for a model on its own data."""

    ue: int
    version: int
    values: list[float]  # in the order of METRICS


class Lap(NamedTuple):
    """Duration of a job, from handing out the model to receiving the update, and the computing time in it."""

    ue: int
    took_s: float
    compute_s: float
    version: int  # of the model
    scale: float = 1.0  # that the server multiplied the update by, to clip it; 0: a member of its round was gone


class Adoption(NamedTuple):
    """A model of the cloud that replaced an edge's own."""

    round: int  # of the edge, whose first job started from it
    version: int  # of the cloud
    time_s: float


KINDS = {"merges": MergedUpdate, "losses": Loss, "evaluations": Evaluation, "laps": Lap, "adoptions": Adoption}


@dataclass
class Record:
    """Everything that has happened in a federation so far."""

    merges: list[MergedUpdate] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    adoptions: list[Adoption] = field(default_factory=list)
    closed_s: list[float] = field(default_factory=list)  # when each round closed
    accuracies: list[float | None] = field(default_factory=list)  # mean of the latest personal accuracies by then

    def lengths(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in vars(self).items()}

    def since(self, lengths: Mapping[str, int]) -> dict[str, list]:
        """Return the rows added since the lists had these lengths."""
        return {name: rows[lengths.get(name, 0) :] for name, rows in vars(self).items()}

    def extend(self, added: Mapping[str, list]) -> None:
        """Append rows returned by ``since``, after a round trip through JSON."""
        for name, rows in vars(self).items():
            kind = KINDS.get(name)
            new = added.get(name, [])
            rows += new if kind is None else [kind(*row) for row in new]

    def sentence(self, number: int, quorum: int) -> str:
        """Return the line of events.log about a closed round."""
        merges = self.merges[number * quorum : (number + 1) * quorum]
        who = ", ".join(f"UE {m.ue} (version {m.version}, ticket {m.ticket})" for m in merges)
        return f"round {number} closed at {self.closed_s[number]:.3f} s: merged {who}"

    def closed_round(self, number: int, quorum: int) -> ClosedRound:
        """Return the row of the live table about a closed round."""
        time_s = self.closed_s[number]
        return ClosedRound(
            round=number,
            time_s=time_s,
            took_s=time_s - (self.closed_s[number - 1] if number else 0.0),
            ues=[merge.ue for merge in self.merges[number * quorum : (number + 1) * quorum]],
            accuracy=self.accuracies[number],
        )

    def timeline(self, ues: int, quorum: int, open_version: np.ndarray, open_arrival_s: np.ndarray) -> Timeline:
        """Return the timeline that the simulator would have recorded for these rounds.

        Args:
            ues: Number of devices, n.
            quorum: Updates per round, A.
            open_version: Version of each UE's open job, shape (n,).
            open_arrival_s: When the update of that job arrived, in seconds, shape (n,); infinite if it has not.
        """
        merged, lost = _columns(self.merges, 5).reshape(5, -1, quorum), _columns(self.losses, 4)
        rounds, merged_ues, versions = merged[:3].astype(np.int64)
        closed_s, recorder = np.array(self.closed_s, float), Recorder(self._compute_s(ues), quorum)
        lost_ues, lost_versions, lost_rounds = lost[:3].astype(np.int64)
        ended = lost_ues, lost_versions, lost_rounds, lost[-1], np.ones_like(lost_ues), np.zeros(lost_ues.size)
        recorder.add_rounds((merged_ues, rounds - versions, merged[-1], closed_s, np.zeros(merged_ues.shape)), ended)
        return recorder.timeline(open_version, open_arrival_s)

    def _compute_s(self, ues: int) -> np.ndarray:
        """Return each device's median computing time in seconds, shape (n,); 0 if it never computed."""
        own: dict[int, list[float]] = defaultdict(list)
        for lap in self.laps:
            if lap.scale:
                own[lap.ue].append(lap.compute_s)
        return np.array([float(np.median(own[ue])) if ue in own else 0.0 for ue in range(ues)])

    def metric_rows(self, algorithm: str, seed: int) -> list[Row]:
        """Return a row of metrics per model: the mean over devices of each one's latest evaluation by that version.

        Devices evaluate the model they are handed, so a new model is first evaluated by the A devices of its round.
        Every reachable device evaluates the last model.
        """
        rows, latest = [], {}
        by_version: dict[int, dict[int, list[float]]] = defaultdict(dict)
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
        """Return a row per device: its metrics for the newest model it evaluated, and its number of merges."""
        newest = {seen.ue: seen for seen in sorted(self.evaluations, key=lambda seen: seen.version)}
        merges = np.bincount([merge.ue for merge in self.merges], minlength=ues).tolist()
        return [
            {"algorithm": algorithm, "seed": seed, "ue": ue, "samples": 0, "merges": merges[ue]}
            | dict(zip(METRICS, newest[ue].values, strict=True))
            for ue in sorted(newest)
        ]


def _columns(rows: Sequence[tuple[float, ...]], width: int) -> np.ndarray:
    return np.array(rows, float).reshape(-1, width).T


def write_laps(folder: Path, laps: Sequence[Lap]) -> None:
    """Write one row per answered job."""
    lines = [f"{lap.ue},{lap.version},{lap.took_s:.6g},{lap.compute_s:.6g},{lap.scale!r}" for lap in laps]
    write_text(folder / LAPS, "\n".join([",".join(LAP_COLUMNS), *lines, ""]))
