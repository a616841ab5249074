"""Choose the UEs of a round when it opens, by channel, age or turn.

These are the schedulers that papers on federated learning over radio compare with. Each chooses A UEs from what is
known when the round opens (``Moment``). A round's fading depends only on (seed, UE, round), so all schedulers know
the same fading at the start of the round; with a coherence time they know the current fading, but not how it changes
during the round. A scheduler is a pure function: the same moment gives the same answer, so a run can be split into
pieces. To write your own, define a function with a parameter named ``moment``.

If UEs leave and return, absent UEs are chosen only when too few are present.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from perfeds2.allocation.bandwidth import Mask
from perfeds2.network.cell import Cell
from perfeds2.network.link import Numbers, PerUe, rate_bps
from perfeds2.network.modulation import Link

Chosen = Int[np.ndarray, "*groups A"]  # UEs that close a round, or groups of them


@dataclass(frozen=True)
class Moment:
    """What a schedule may look at when a round opens."""

    round: int  # k
    time_s: float  # now
    quorum: int  # A, the number of UEs to choose
    bandwidth_hz: float  # B
    signal_hz: PerUe  # p·h·d^−κ / N0 in this round, or now if it changes during rounds
    compute_s: PerUe  # seconds of computing left; a full job for a UE without one
    bits: PerUe  # bits left to send; a full upload for a UE without a job
    versions: Numbers  # the model each UE works from, or -1 if it rests
    merged_in: Numbers  # the last round that merged each UE, or -1
    most_bits_per_s_hz: float | None = None  # limit of the modulation; None for no limit
    own_bps: PerUe | None = None  # rates of UEs' own uplinks; NaN for UEs on the shared band
    present: Mask | None = None  # which UEs are present; None if all always are
    feedback: PerUe | None = None  # what each UE last reported, NaN before that; None if nothing is reported
    job_s: PerUe | None = None  # how long each UE's jobs take, as measured; None: as expected in the cell
    link: Link | None = None  # what links carry; None: Shannon's rate up to the limit

    @property
    def age(self) -> Numbers:
        """How many rounds each UE has sat out since its last merge, or since the start."""
        return self.round - 1 - self.merged_in

    @property
    def away(self) -> Mask:
        """UEs that are absent now."""
        return np.zeros(self.versions.size, bool) if self.present is None else ~self.present


def round_robin(cell: Cell, quorum: int) -> Callable[[int], Chosen]:
    """Choose UEs in turn, A at a time, from the smallest number on (RR of Yang et al. 2020)."""
    return lambda round_: (quorum * round_ + np.arange(quorum)) % cell.ues


def random(cell: Cell, quorum: int, seed: int) -> Callable[[int], Chosen]:
    """Choose A UEs uniformly at random in each round (RS of Yang et al. 2020; FedAvg's own choice)."""
    return lambda round_: np.random.default_rng([seed, 11, round_]).choice(cell.ues, quorum, replace=False)


def best_channel(moment: Moment) -> Chosen:
    """Choose the UEs with the strongest signals in this round. A UE at the edge of the cell may never be chosen."""
    return first_of(moment, -moment.signal_hz)


def proportional_fair(cell: Cell) -> Callable[[Moment], Chosen]:
    """Choose the UEs with the best signal relative to their own mean over the rounds so far (PF of Yang et al. 2020).

    The mean includes the current round. Each UE is thus chosen when its own channel is good, wherever it is in the
    cell. With a coherence time, the mean is over the time blocks so far.
    """
    seen = _Seen(cell)
    return lambda moment: first_of(
        moment, -moment.signal_hz / seen.mean_signal_hz(cell.channel.block_at(moment.round, moment.time_s))
    )


def age(moment: Moment) -> Chosen:
    """Choose the A UEs merged longest ago, ties by signal (after the age of update, Yang et al. 2020).

    Of all sets of A UEs, this one leaves the smallest sum of ages.
    """
    return first_of(moment, -moment.signal_hz, -moment.age)


def fedcs(moment: Moment) -> Chosen:
    """Choose greedily the UE that extends the round least (FedCS; Nishio and Yonetani 2019, algorithm 3).

    As in FedCS, we assume that uploads follow one another, each on the whole band. A UE adds its sending time, and
    the part of its computing time that earlier uploads do not cover. FedCS takes the UEs that finish by a deadline;
    we take the first A in the same order.
    """
    sending_s = np.where(moment.away, 1 / TINY, _sending_s(moment, moment.bandwidth_hz))
    elapsed_s, chosen = 0.0, np.empty(0, np.int64)
    for _ in range(moment.quorum):
        added_s = sending_s + np.maximum(moment.compute_s - elapsed_s, 0.0)
        added_s[chosen] = np.inf
        elapsed_s += added_s.min()
        chosen = np.append(chosen, added_s.argmin())
    return np.sort(chosen)


TINY = 1e-200  # rates and signals below this count as zero
WATERFALL = 10**0.0023  # m, 0.023 dB: the threshold of the packet errors


def chen(deadline_s: float) -> Callable[[Moment], Chosen]:
    """Assign UEs to resource blocks with the fewest packet errors (Chen et al. 2021), late UEs last.

    There are A blocks of B/A each; a UE on a block loses its packet with probability q = 1 − exp(−m·b/g). The
    assignment maximizes the sum of 1 − q. Noise is flat in our cells, so all blocks are alike to a UE, and the best
    assignment takes the A UEs with the smallest q. A UE that needs longer than the deadline to compute and send is
    chosen only if no others are left.
    """
    if not 0 < deadline_s < np.inf:
        raise ValueError(f"the deadline must be a number of seconds above 0, got {deadline_s}.")

    def choose(moment: Moment) -> Chosen:
        block_hz = moment.bandwidth_hz / moment.quorum
        late_s = moment.compute_s + _sending_s(moment, block_hz) - deadline_s
        late_s = np.where(moment.away, 2 / TINY, late_s)
        success = np.exp(-WATERFALL * block_hz / np.maximum(moment.signal_hz, TINY))
        return first_of(moment, np.where(late_s > 0, 0.0, -success), np.maximum(late_s, 0.0))

    return choose


def _sending_s(moment: Moment, bandwidth_hz: float) -> PerUe:
    """Return how long each UE would send on this bandwidth; very long if its signal is zero."""
    rate = rate_bps(bandwidth_hz, moment.signal_hz, moment.link or moment.most_bits_per_s_hz)
    if moment.own_bps is not None:
        rate = np.where(np.isnan(moment.own_bps), rate, moment.own_bps)
    return np.minimum(moment.bits / np.maximum(rate, TINY), 1 / TINY)


def first_of(moment: Moment, *keys: PerUe | Numbers | Mask) -> Chosen:
    """Return the A UEs with the smallest keys, the last key first, ties by number. Absent UEs come last."""
    return np.sort(np.lexsort((np.arange(keys[0].size), *keys, moment.away))[: moment.quorum])


def replacing_absent(planned: Callable[[int], Chosen]) -> Callable[[Moment], Chosen]:
    """Return a fixed plan adapted to UEs that leave and return: it replaces the UEs absent when their round opens."""

    def choose(moment: Moment) -> Chosen:
        return replace_absent(planned(moment.round), moment.away, moment.merged_in)

    return choose


def replace_absent(chosen: Chosen, away: Mask, merged_in: Numbers) -> Chosen:
    """Replace absent UEs by present ones that are not planned: those merged longest ago, ties by number.

    If too few UEs are present, absent UEs of the plan stay, smaller numbers first.
    """
    others = np.setdiff1d(np.flatnonzero(~away), chosen)
    others = others[np.argsort(merged_in[others], kind="stable")]
    missing = np.sort(chosen[away[chosen]])
    return np.sort(np.concatenate([chosen[~away[chosen]], others, missing])[: chosen.size])


def among(ues: Int[np.ndarray, " h"], schedule: Callable[..., Chosen]) -> Callable[..., Chosen]:
    """Return a schedule for a larger cell that plans only these UEs, which ``schedule`` numbers from 0."""
    if "moment" not in inspect.signature(schedule).parameters:
        return lambda round_: ues[np.asarray(schedule(round_))]

    def planned(moment: Moment) -> Chosen:
        columns = {name: value[ues] for name, value in vars(moment).items() if isinstance(value, np.ndarray)}
        return ues[np.asarray(schedule(replace(moment, **columns)))]

    return planned


class _Seen:
    """The mean signal of all rounds (or time blocks) so far. Caches the sum up to the last request."""

    def __init__(self, cell: Cell) -> None:
        self._cell, self._blocks, self._sum = cell, 0, np.zeros(cell.ues)

    def mean_signal_hz(self, block: int) -> PerUe:
        if block + 1 < self._blocks:
            self._blocks, self._sum = 0, np.zeros(self._cell.ues)
        while self._blocks <= block:
            self._sum = self._sum + self._cell.channel.signal_in(self._blocks)
            self._blocks += 1
        return self._sum / self._blocks
