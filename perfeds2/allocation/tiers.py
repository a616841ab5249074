"""Who is about equally fast, and whose turn is it?

FedAT and TiFL sort the UEs by how long a job takes them into tiers of equal size, so that nobody waits for one much slower than
itself. TiFL lets one tier work at a time, FedAT all of them at once, each in its own rounds. In both, those of a tier who are
not chosen rest: these schedules are for rounds with ``Protocol(…, rests=True)``.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from perfeds2.allocation.schedulers import Chosen, Moment
from perfeds2.allocation.shares import distance_shares
from perfeds2.network.cell import Cell


@dataclass(frozen=True)
class Tiers:
    """Which tier each UE is in; 0 is the fastest."""

    of: tuple[int, ...]

    @property
    def count(self) -> int:
        return max(self.of) + 1

    @cached_property
    def members(self) -> list[Int[np.ndarray, " m"]]:
        return [np.flatnonzero(np.array(self.of) == tier) for tier in range(self.count)]

    @property
    def smallest(self) -> int:
        """As many as every tier has."""
        return min(own.size for own in self.members)


def tiers_by_latency(cell: Cell, payload_bits: float, samples: float, count: int, quorum: int = 1) -> Tiers:
    """Tiers of equal size, as far as n allows it, by the expected seconds of a job on an equal share of the band."""
    slowest_last = np.argsort(-distance_shares(cell, payload_bits, samples, quorum), kind="stable")
    of = np.empty(cell.ues, int)
    for tier, own in enumerate(np.array_split(slowest_last, min(count, cell.ues))):
        of[own] = tier
    return Tiers(tuple(of.tolist()))


@dataclass(frozen=True)
class OneTier:
    """TiFL (Chai et al. 2020) with its static, uniform choice: each round draws a tier, every one alike, and A of its UEs by lot."""

    tiers: Tiers
    quorum: int
    seed: int

    def __call__(self, round_: int) -> Chosen:
        lots = np.random.default_rng([self.seed, 12, round_])
        return np.sort(lots.choice(self.tiers.members[lots.integers(self.tiers.count)], self.quorum, replace=False))


@dataclass(frozen=True)
class AllTiers:
    """FedAT (Chai et al. 2021): every tier has A of its UEs at work; when all of them have arrived, it draws others by lot."""

    tiers: Tiers
    quorum: int
    seed: int

    def __call__(self, moment: Moment) -> Int[np.ndarray, "M A"]:
        return np.array([self._of_tier(tier, own, moment) for tier, own in enumerate(self.tiers.members)])

    def _of_tier(self, tier: int, members: Int[np.ndarray, " m"], moment: Moment) -> Chosen:
        at_work = members[moment.versions[members] >= 0]
        if at_work.size == self.quorum or (at_work.size and moment.here is None):
            return at_work
        lots = np.random.default_rng([self.seed, 13, tier, moment.round])
        if moment.here is None:
            return np.sort(lots.choice(members, self.quorum, replace=False))
        others = lots.permutation(np.setdiff1d(members, at_work))  # somebody is away: those who are there come first
        others = others[np.argsort(~moment.here[others], kind="stable")]
        return np.sort(np.concatenate([at_work, others[: self.quorum - at_work.size]]))
