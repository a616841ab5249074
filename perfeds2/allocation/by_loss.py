"""Choose the UEs of a round by the losses they have reported, or by when they are present.

A schedule with an attribute ``feedback`` gets what its UEs last reported in ``moment.feedback``. It may keep state
between rounds: every run has its own copy, which is called once per round. State that must survive a killed server is
in ``memory``, as arrays.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from perfeds2.allocation.schedulers import Chosen, Moment, Numbers, first_of
from perfeds2.allocation.shares import distance_shares
from perfeds2.allocation.tiers import tiers_by_latency, tiers_by_speed
from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe

TIERS = 5  # M of TiFL
LOOKS = 8  # times at which REFL looks up who will be present


def _reported(moment: Moment) -> PerUe:
    return np.full(moment.versions.size, np.nan) if moment.feedback is None else moment.feedback


class Oort:
    """Prefer UEs with high losses and short jobs, and try the others (Lai et al. 2021).

    A UE's utility is |B|·√(mean loss²)·(T/t)^(2·[t > T]) + √(0.1·ln R/L), with the expected seconds t of a job and the
    round L of its last merge; rounds are counted from 1, and R is the current one. A share 0.9·0.98^R of a
    round's UEs, at least 0.3, has not reported yet; these are drawn by speed. The others are drawn by utility among
    those with at least 95 % of the last utility needed. T is a percentile of all t: the 10th, and the pacer adds 5 after every
    20 rounds in which the losses of the chosen UEs summed to less than in the 20 before.
    """

    feedback = "rms_loss"

    def __init__(self, cell: Cell, quorum: int, seed: int, payload_bits: float, samples: float) -> None:
        self._job = 1 / distance_shares(cell, payload_bits, samples, quorum)  # only ratios matter
        self._seed, self._samples = seed, samples
        # percentile of T, and the summed losses of the chosen UEs in the last 40 rounds
        self.memory = {"percentile": np.array(10), "gained": np.zeros(40)}

    def __call__(self, moment: Moment) -> Chosen:
        lots, reported, present = np.random.default_rng([self._seed, 14, moment.round]), _reported(moment), ~moment.away
        job, gained = self._job if moment.job_s is None else moment.job_s, self.memory["gained"]
        if moment.round >= 40 and moment.round % 20 == 0 and sum(gained[20:]) < sum(gained[:20]):
            self.memory["percentile"] = np.minimum(self.memory["percentile"] + 5, 100)
        known = np.isfinite(reported)
        slow = np.minimum(np.percentile(job, self.memory["percentile"]) / job, 1) ** 2
        recent = np.sqrt(0.1 * np.log(moment.round + 1) / np.maximum(moment.merged_in + 1, 1))
        utility = np.where(known, self._samples * np.nan_to_num(reported) * slow + recent, 0)
        tried, untried = np.flatnonzero(known & present), np.flatnonzero(~known & present)
        share = max(0.9 * 0.98 ** (moment.round + 1), 0.3)
        explored = min(round(share * moment.quorum), untried.size)
        exploited = min(moment.quorum - explored, tried.size)
        explored = min(moment.quorum - exploited, untried.size)
        best = _draw(lots, tried, _above_cutoff(utility[tried], exploited), exploited)
        weight = np.where(moment.merged_in < 0, 1.0, 1e-9) / job  # last, UEs whose report is still to come
        chosen = np.concatenate([best, _draw(lots, untried, weight[untried], explored)])
        self.memory["gained"] = np.append(gained[1:], self._samples * reported[best].sum())
        return first_of(moment, ~np.isin(np.arange(known.size), chosen))


def _above_cutoff(utility: PerUe, count: int) -> PerUe:
    """Return the utilities, 0 for those below 95 % of the ``count``-th largest one."""
    if not count:
        return utility
    return np.where(utility >= 0.95 * np.sort(utility)[-count], np.maximum(utility, 1e-12), 0)


def _draw(lots: np.random.Generator, ues: Numbers, weight: PerUe, count: int) -> Chosen:
    """Draw different UEs with probabilities in proportion to weights."""
    return lots.choice(ues, count, replace=False, p=weight / weight.sum()) if count else ues[:0]


def power_of_choice(candidates: float) -> Callable[..., "PowerOfChoice"]:
    """Return the schedule with this many candidates."""
    return partial(PowerOfChoice, int(candidates))


class PowerOfChoice:
    """Draw d candidates and choose those with the highest last losses, unknown ones first (Cho et al. 2020, rpow-d)."""

    feedback = "loss"

    def __init__(self, candidates: int, cell: Cell, quorum: int, seed: int) -> None:
        if not quorum <= candidates <= cell.ues:
            raise ValueError(
                f"D must be from the quorum, {quorum}, to the number of UEs, {cell.ues}, got {candidates}."
            )
        self._candidates, self._seed = candidates, seed

    def __call__(self, moment: Moment) -> Chosen:
        lots = np.random.default_rng([self._seed, 15, moment.round]).permutation(moment.versions.size)
        others = np.argsort(np.argsort(np.where(moment.away, np.inf, lots), kind="stable")) >= self._candidates
        return first_of(moment, lots, -np.nan_to_num(_reported(moment), nan=np.inf), others)


class AdaptiveTiers:
    """Draw a tier of equally fast UEs, more often one with a high loss, and A of its UEs (TiFL, Chai et al. 2020).

    Every 20 rounds, if the loss of the last tier has not fallen, the tiers get new probabilities: in proportion to
    M − 1, …, 1, 0 for M tiers in the order of their losses. In 20 rounds a tier is used at most
    ⌈40/M⌉ times. TiFL compares accuracies; we compare the mean of the losses that a tier's UEs last reported.
    """

    feedback = "loss"

    def __init__(self, cell: Cell, quorum: int, seed: int, payload_bits: float, samples: float) -> None:
        count = max(1, min(TIERS, cell.ues // quorum))
        self._tiers, self._seed = tiers_by_latency(cell, payload_bits, samples, count, quorum), seed
        self.memory = {"last": np.array(0), "before": np.full(count, np.inf), "weights": np.ones(count)}
        self.memory["credits"] = np.full(count, -(-40 // count))

    def __call__(self, moment: Moment) -> Chosen:
        lots, memory = np.random.default_rng([self._seed, 16, moment.round]), self.memory
        last, count = int(memory["last"]), memory["weights"].size
        tiers = (self._tiers if moment.job_s is None else tiers_by_speed(1 / moment.job_s, count)).members
        if moment.round and moment.round % 20 == 0:
            known = [own[np.isfinite(own)] for own in (_reported(moment)[members] for members in tiers)]
            losses = np.array([own.mean() if own.size else np.inf for own in known])
            if count > 1 and losses[last] >= memory["before"][last]:
                memory["weights"][np.argsort(-losses, kind="stable")] = np.arange(count)[::-1]
            memory["before"], memory["credits"][:] = losses, -(-40 // count)
        weights = np.where(memory["credits"] > 0, memory["weights"], 0)
        weights = weights if weights.any() else memory["credits"] > 0
        last = int(lots.choice(count, p=weights / weights.sum()))
        memory["last"] = np.array(last)
        memory["credits"][last] -= 1
        rank, others = lots.permutation(moment.versions.size), np.ones(moment.versions.size, bool)
        others[tiers[last]] = False
        return first_of(moment, rank, others)


def refl(cell: Cell, seed: int) -> Callable[[Moment], Chosen]:
    """Choose the UEs present for the shortest time in the next round; ties are random (Abdelmoniem et al. 2023).

    Rounds are expected to take as long as those so far. Needs only the hours of the UEs; without hours, UEs are drawn.
    """

    def choose(moment: Moment) -> Chosen:
        lots = np.random.default_rng([seed, 17, moment.round]).permutation(cell.ues)
        usual_s = moment.time_s / max(moment.round, 1)
        later_s = moment.time_s + usual_s * (1 + np.arange(LOOKS) / LOOKS)
        present = [cell.present(float(time_s)) for time_s in later_s]
        seen = np.sum([np.ones(cell.ues) if mask is None else mask for mask in present], axis=0)
        return first_of(moment, lots, seen)

    return choose
