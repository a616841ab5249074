"""Group UEs of similar speed into tiers, and choose which tier works.

FedAT and TiFL sort the UEs by job duration into tiers of equal size, so that no UE waits for a much slower one. In
TiFL one tier works at a time; in FedAT and FedCompass all tiers work at once, each in its own rounds. The UEs of a
tier that are not chosen rest: these schedules need ``Protocol(…, rests=True)``.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from perfeds2.allocation.schedulers import Chosen, Moment
from perfeds2.allocation.shares import distance_shares, expected_sending_s
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe


@dataclass(frozen=True)
class Tiers:
    """The tier of each UE; 0 is the fastest."""

    of: tuple[int, ...]

    @property
    def count(self) -> int:
        return max(self.of) + 1

    @cached_property
    def members(self) -> list[Int[np.ndarray, " m"]]:
        return [np.flatnonzero(np.array(self.of) == tier) for tier in range(self.count)]

    @property
    def smallest(self) -> int:
        """Size of the smallest tier."""
        return min(own.size for own in self.members)


def tiers_by_latency(cell: Cell, payload_bits: float | PerUe, samples: float, count: int, quorum: int = 1) -> Tiers:
    """Sort UEs into tiers of (nearly) equal size by the expected seconds of a job on an equal share of the band."""
    return tiers_by_speed(distance_shares(cell, payload_bits, samples, quorum), count)


def tiers_by_speed(speed: PerUe, count: int) -> Tiers:
    """Sort UEs into tiers of (nearly) equal size by how many jobs they finish in the same time."""
    of = np.empty(speed.size, int)
    for tier, own in enumerate(np.array_split(np.argsort(-speed, kind="stable"), min(count, speed.size))):
        of[own] = tier
    return Tiers(tuple(of.tolist()))


def arrive_together(
    cell: Cell, payload_bits: float | PerUe, samples: float, quorum: int, tiers: Tiers, fewest: float
) -> PerUe:
    """Return the share of a job that lets each UE arrive with the fastest of its tier, at least ``fewest``."""
    computing_s, sending_s = cell.job_s(samples, quorum), expected_sending_s(cell, payload_bits)
    shares = np.ones(cell.ues)
    for own in tiers.members:
        arrival_s = (computing_s[own] + sending_s[own]).min()
        shares[own] = (arrival_s - sending_s[own]) / computing_s[own]
    return shares.clip(fewest, 1.0)


@dataclass(frozen=True)
class OneTier:
    """TiFL (Chai et al. 2020), static and uniform: each round draws a tier at random, and A of its UEs."""

    tiers: Tiers
    quorum: int
    seed: int

    def __call__(self, round_: int) -> Chosen:
        lots = np.random.default_rng([self.seed, 12, round_])
        return np.sort(lots.choice(self.tiers.members[lots.integers(self.tiers.count)], self.quorum, replace=False))


@dataclass(frozen=True)
class AllTiers:
    """FedAT (Chai et al. 2021): each tier has A of its UEs at work, and draws anew when all have arrived."""

    tiers: Tiers
    quorum: int
    seed: int

    def __call__(self, moment: Moment) -> Int[np.ndarray, "M A"]:
        return np.array([self._of_tier(tier, own, moment) for tier, own in enumerate(self.tiers.members)])

    def _of_tier(self, tier: int, members: Int[np.ndarray, " m"], moment: Moment) -> Chosen:
        at_work = members[moment.versions[members] >= 0]
        if at_work.size == self.quorum or (at_work.size and moment.present is None):
            return at_work
        lots = np.random.default_rng([self.seed, 13, tier, moment.round])
        if moment.present is None:
            return np.sort(lots.choice(members, self.quorum, replace=False))
        others = lots.permutation(np.setdiff1d(members, at_work))  # a UE is absent: prefer those present
        others = others[np.argsort(~moment.present[others], kind="stable")]
        return np.sort(np.concatenate([at_work, others[: self.quorum - at_work.size]]))
