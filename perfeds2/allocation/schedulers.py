"""Whom does a base station choose that looks at the channel, at ages or at its own turn?

The schedulers that papers on federated learning over radio compare with. Each chooses A UEs when a round opens, from what
is known then (``Moment``). A round's fading belongs to (seed, UE, round), so it is known at the round's start to everybody
alike; with a coherence time they know the fading of now, not what it becomes inside the round. A scheduler is a pure function: asked again about the same moment it gives the same answer, so a run can be cut into
pieces. Your own is one too: a function with a parameter named ``moment``.

Where UEs come and go, who is away when a round opens is chosen only where too few are there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from perfeds2.allocation.bandwidth import Mask
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe, rate_bps

Chosen = Int[np.ndarray, " A"]
Numbers = Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Moment:
    """What a schedule may look at when a round opens."""

    round: int  # k
    time_s: float  # now
    quorum: int  # A, how many are to be chosen
    bandwidth_hz: float  # B
    signal_hz: PerUe  # p·h·d^−κ / N0 in this round, or now where it changes inside rounds
    compute_s: PerUe  # computing left before a UE can send; all of it for a UE without a job
    bits: PerUe  # bits left to send; all of them for a UE without a job
    versions: Numbers  # the model each UE works from, or -1 if it rests
    merged_in: Numbers  # the last round each UE was merged in; -1 for never
    most_bits_per_s_hz: float | None = None  # what no link exceeds, if anything
    own_bps: PerUe | None = None  # rates of uplinks beside the band; NaN for who has none
    here: Mask | None = None  # who is there now; None: everybody always is

    @property
    def age(self) -> Numbers:
        """How many rounds a UE has sat out since it was merged last, or since the start."""
        return self.round - 1 - self.merged_in

    @property
    def away(self) -> Mask:
        """Who is not there now."""
        return np.zeros(self.versions.size, bool) if self.here is None else ~self.here


def round_robin(cell: Cell, quorum: int) -> Callable[[int], Chosen]:
    """In turn: A after A, from the smallest number on (RR of Yang et al. 2020)."""
    return lambda round_: (quorum * round_ + np.arange(quorum)) % cell.ues


def random(cell: Cell, quorum: int, seed: int) -> Callable[[int], Chosen]:
    """By lot, every A alike, drawn anew each round (RS of Yang et al. 2020; FedAvg's own choice)."""
    return lambda round_: np.random.default_rng([seed, 11, round_]).choice(cell.ues, quorum, replace=False)


def best_channel(moment: Moment) -> Chosen:
    """Those heard best in this round. A UE at the edge of the cell may never be."""
    return _first(moment, -moment.signal_hz)


def proportional_fair(cell: Cell) -> Callable[[Moment], Chosen]:
    """Those heard best compared with their own mean over the rounds so far, this one included (PF of Yang et al. 2020).

    So everybody is chosen when it is good for itself, wherever it is in the cell. With a coherence time, the mean is over the
    blocks of time so far.
    """
    seen = _Seen(cell)
    return lambda moment: _first(
        moment, -moment.signal_hz / seen.mean_signal_hz(cell.block_at(moment.round, moment.time_s))
    )


def age(moment: Moment) -> Chosen:
    """The A oldest: who was merged longest ago; of equally old ones those heard best (after the age of update, Yang et al. 2020).

    Of all sets of A this leaves the smallest sum of ages.
    """
    return _first(moment, -moment.signal_hz, -moment.age)


def fedcs(moment: Moment) -> Chosen:
    """FedCS's greedy choice (Nishio and Yonetani 2019, algorithm 3): again and again whoever makes the round least longer.

    As there, uploads are thought to follow one another, each on the whole band: a UE adds its sending, and what of its computing
    the uploads before it do not cover. There a round takes as many as end by a deadline; here it takes A, the first of the same order.
    """
    sending_s = np.where(moment.away, 1 / TINY, _sending_s(moment, moment.bandwidth_hz))
    elapsed_s, chosen = 0.0, np.empty(0, np.int64)
    for _ in range(moment.quorum):
        added_s = sending_s + np.maximum(moment.compute_s - elapsed_s, 0.0)
        added_s[chosen] = np.inf
        elapsed_s += added_s.min()
        chosen = np.append(chosen, added_s.argmin())
    return np.sort(chosen)


TINY = 1e-200  # of a rate or a signal: as good as none
WATERFALL = 10**0.0023  # m, 0.023 dB: the threshold of the packet errors


def chen(deadline_s: float) -> Callable[[Moment], Chosen]:
    """The assignment of UEs to resource blocks with the fewest packet errors (Chen et al. 2021), who is late last.

    A blocks of B/A each; a UE on a block loses its packet with probability q = 1 − exp(−m·b/g). The assignment has the largest
    sum of 1 − q. Noise is flat in our cells, so all blocks are alike to a UE, and the best assignment is the A UEs with the smallest
    q. Whoever computes and sends longer than the deadline is not chosen as long as there are others.
    """
    if not 0 < deadline_s < np.inf:
        raise ValueError(f"the deadline must be a number of seconds above 0, got {deadline_s}.")

    def choose(moment: Moment) -> Chosen:
        block_hz = moment.bandwidth_hz / moment.quorum
        late_s = moment.compute_s + _sending_s(moment, block_hz) - deadline_s
        late_s = np.where(moment.away, 2 / TINY, late_s)
        success = np.exp(-WATERFALL * block_hz / np.maximum(moment.signal_hz, TINY))
        return _first(moment, np.where(late_s > 0, 0.0, -success), np.maximum(late_s, 0.0))

    return choose


def _sending_s(moment: Moment, bandwidth_hz: float) -> PerUe:
    """How long each UE would send on such a band; very long where it is not heard at all."""
    rate = rate_bps(bandwidth_hz, moment.signal_hz, moment.most_bits_per_s_hz)
    if moment.own_bps is not None:
        rate = np.where(np.isnan(moment.own_bps), rate, moment.own_bps)
    return np.minimum(moment.bits / np.maximum(rate, TINY), 1 / TINY)


def _first(moment: Moment, *keys: PerUe | Numbers) -> Chosen:
    """The A UEs with the smallest keys, the last key first; ties go to the smaller number. Who is away comes last."""
    return np.sort(np.lexsort((np.arange(keys[0].size), *keys, moment.away))[: moment.quorum])


def of_those_here(planned: Callable[[int], Chosen]) -> Callable[[Moment], Chosen]:
    """A plan made beforehand, where UEs come and go: who is away when its round opens is replaced.

    In its place comes who is there, is not planned and was merged longest ago; the smaller number of equals. Where too few are
    there, the round waits for those of the plan, the smaller numbers first.
    """

    def choose(moment: Moment) -> Chosen:
        chosen, away = planned(moment.round), moment.away
        others = np.setdiff1d(np.flatnonzero(~away), chosen)
        others = others[np.argsort(moment.merged_in[others], kind="stable")]
        missing = np.sort(chosen[away[chosen]])
        return np.sort(np.concatenate([chosen[~away[chosen]], others, missing])[: moment.quorum])

    return choose


class _Seen:
    """The mean signal of the rounds, or blocks of time, up to one. It remembers the sum up to the last it was asked for."""

    def __init__(self, cell: Cell) -> None:
        self._cell, self._blocks, self._sum = cell, 0, np.zeros(cell.ues)

    def mean_signal_hz(self, block: int) -> PerUe:
        if block + 1 < self._blocks:
            self._blocks, self._sum = 0, np.zeros(self._cell.ues)
        while self._blocks <= block:
            self._sum = self._sum + self._cell.signal_in(self._blocks)
            self._blocks += 1
        return self._sum / self._blocks
