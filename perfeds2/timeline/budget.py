"""Who has spent its energy, and is handed nothing any more?

A UE looks at what it has left when it would be handed a model: a job that it has begun it finishes. So a UE spends more than its
budget by less than one job.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.cell import Cell
from perfeds2.network.energy import EnergyModel
from perfeds2.timeline.protocol import IDLE, Protocol, oldest_version

PerUe = Float[np.ndarray, " n"]
ALL_BUT = 1 - 1e-9  # who has spent so much of its budget has spent it: sums are rounded


@dataclass(frozen=True)
class Work:
    """What everybody has left to do at a second."""

    time_s: float
    compute_s: PerUe
    bits: PerUe


@dataclass(frozen=True)
class Budget:
    """What each UE may spend, and what its work takes."""

    joules: PerUe | float  # infinite for a UE without a budget
    computing_w: PerUe
    sending_w: PerUe
    joules_per_bit: float
    computing_s: PerUe  # of one job, with its model there

    @classmethod
    def of(cls, joules: PerUe | float, model: EnergyModel, cell: Cell, samples: float) -> "Budget":
        computing_s = cell.compute_s(samples) - cell.downlink_s
        return cls(joules, model.computing_w(cell), model.radio_w(cell), model.joules_per_bit, computing_s)

    def spent(self, before: Work, after: Work, arrival_s: PerUe, job_s: PerUe | None = None) -> PerUe:
        """Joules between two seconds with no new jobs between them; ``arrival_s`` is when updates are complete.

        ``job_s`` is how long everybody's job computes, where jobs of a UE differ.
        """
        job_s = self.computing_s if job_s is None else job_s
        computed_s = np.minimum(before.compute_s, job_s) - np.minimum(after.compute_s, job_s)
        began_s, ended_s = before.time_s + before.compute_s, np.minimum(arrival_s, after.time_s)
        sent_s = np.where(before.bits > 0, np.maximum(ended_s - began_s, 0.0), 0.0)
        bits_j = self.joules_per_bit * (before.bits - after.bits)
        return self.computing_w * computed_s + self.sending_w * sent_s + bits_j

    def gone(self, spent_j: PerUe) -> Bool[np.ndarray, " n"]:
        return spent_j >= self.joules * ALL_BUT


def too_few(
    versions: Int[np.ndarray, " n"], round_: int, protocol: Protocol, has_energy: Bool[np.ndarray, " n"] | None = None
) -> bool:
    """Whether fewer than A UEs have a job that this round could merge, so that it cannot close any more.

    Where UEs come and go, who has none and has energy may still get one.
    """
    can = versions >= oldest_version(round_, protocol)
    can = can if has_energy is None else can | (has_energy & (versions == IDLE))
    return int(np.count_nonzero(can)) < protocol.quorum
