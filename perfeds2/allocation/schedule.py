"""Plan which UEs each round waits for.

A schedule Π is planned before the run: row k holds the A different UEs that round k closes on, in ascending order.
Use ``deficit``. ``printed`` and ``printed_fixed`` are the paper's Algorithm 2, kept for comparison (erratum 9).
Schedulers that choose UEs when a round opens, as in other papers, are in ``schedulers``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from perfeds2.allocation.by_loss import AdaptiveTiers, Oort, power_of_choice, refl
from perfeds2.allocation.schedulers import (
    Chosen,
    age,
    best_channel,
    chen,
    fedcs,
    proportional_fair,
    random,
    round_robin,
)
from perfeds2.allocation.shares import Shares, check_shares, distance_shares, nearest_feasible
from perfeds2.network.cell import Cell

ROWS = 4096  # rows of a schedule for a run that ends by time; a longer run repeats them
MAX_ROWS = 65_536  # of one for a number of rounds; a longer run repeats them, too
Rows = Int[np.ndarray, "K A"]
Merges = Int[np.ndarray, " m"]  # one number per merge


def deficit(shares: Shares, quorum: int, rounds: int) -> Rows:
    """Plan by largest deficit: round k takes the A UEs with the smallest merges so far − η_i·A·(k+1), ties by number.

    η_i·A·(k+1) is what UE i is due once round k (from 0) has closed. For feasible shares (η_i ≤ 1/A, Ση = 1; others
    are an error), merges differ from what is due, at the end of any round, by at most:

    - Equal shares: less than 1. This is round robin, with period n/gcd(n, A).
    - A = 1: less than 1 ahead, and at most H_n − 1 = 1/2 + 1/3 + … + 1/n behind. (Ahead: the deficits sum to 1 before
      the pick, so the largest is positive. Behind: let a_j be the mean of the j largest deficits after a round. If
      the picked UE stays among them, a_j has not grown; if not, it was among the j+1 largest before, and a_j ≤
      a_{j+1} + 1/(j+1). Since a_n = 0, a_1 ≤ 1/2 + … + 1/n.) A = n − 1 is the mirror image.
    - Other A: we have no proof. A search over hundreds of thousands of shares, including hill climbing, found at most
      1.4 in either direction; the tests require less than 2.
    """
    check_shares(shares, quorum, None)
    return _largest_deficit_first(tuple(map(float, shares)), quorum, rounds).copy()


def by_distance(
    cell: Cell, quorum: int, max_staleness: int | None, *, payload_bits: float, samples: float, rounds: int = ROWS
) -> Callable[[int], Chosen]:
    """Plan rounds as ``compare`` does by default: UEs with shorter jobs take part more often, within what A and S allow.

    Args:
        cell: The UEs and their radio.
        quorum: Updates that close a round (A).
        max_staleness: Largest staleness of a merged update in rounds (S); None for no bound.
        payload_bits: Size of one upload in bits.
        samples: Samples that one job computes on.
        rounds: How many rounds to plan. Later rounds repeat the plan.

    Returns:
        A schedule: the UEs of each round, by its number.

    Raises:
        ValueError: If no shares suit A and S.

    Example:
        >>> from perfeds2 import Cell, by_distance
        >>> plan = by_distance(Cell.draw(4, seed=0), 2, 3, payload_bits=77_120, samples=120)
        >>> plan(0)
        array([1, 2])
    """
    shares = nearest_feasible(distance_shares(cell, payload_bits, samples, quorum), quorum, max_staleness)
    return as_schedule(deficit(shares, quorum, rounds))


@lru_cache(maxsize=32)  # planning a run asks for the same schedule many times
def _largest_deficit_first(shares: tuple[float, ...], quorum: int, rounds: int) -> Rows:
    n = len(shares)
    due, ue = np.array(shares) * quorum, np.arange(n)
    merges = np.zeros(n)
    rows = np.empty((rounds, quorum), np.int64)
    for k in range(rounds):
        # Whole billionths, so that rounding breaks no tie; then the UE number, which makes every key unique.
        behind = np.rint((merges - due * (k + 1)) * 1e9).astype(np.int64) * n + ue
        rows[k] = np.sort(np.argpartition(behind, quorum - 1)[:quorum])
        merges[rows[k]] += 1
    return rows


def printed(shares: Shares, quorum: int, rounds: int) -> Rows:
    """Plan with Algorithm 2 as printed: the fill-up is inside the loop over UEs and takes the first UEs (erratum 9).

    We read it as follows. Sums over Π include the current entries of the running round. A UE that is reached when the
    row is full, or that has had its share, is removed (Π[k][i] = 0), even if the fill-up had added it. The fill-up
    sets Π[k][0 : A − sum] = 1. If a row still has fewer than A UEs, the first UEs not in it complete it.
    """
    return _algorithm_2(shares, quorum, rounds, fill_inside=True)


def printed_fixed(shares: Shares, quorum: int, rounds: int) -> Rows:
    """Plan with Algorithm 2, but fill up after the loop over UEs, with the first UEs not in the row (erratum 9)."""
    return _algorithm_2(shares, quorum, rounds, fill_inside=False)


def _algorithm_2(shares: Shares, quorum: int, rounds: int, *, fill_inside: bool) -> Rows:
    shares = np.asarray(shares, float)
    n = shares.size
    if not 1 <= quorum <= n:
        raise ValueError(f"quorum must be from 1 to the number of UEs, {n}, got {quorum}.")
    merges, total = np.zeros(n, np.int64), 0
    rows = np.empty((rounds, quorum), np.int64)
    for k in range(rounds):
        row = np.zeros(n, bool)
        for ue in range(n):
            in_row = int(row.sum())
            so_far = total + in_row
            achieved = (merges[ue] + row[ue]) / so_far if so_far else 0.0
            if in_row < quorum and achieved <= shares[ue] * (1 + 1e-12):  # ≤ as printed, tolerating rounding
                row[ue] = True
                if fill_inside:
                    row[: quorum - int(row.sum())] = True
            else:
                row[ue] = False
        row[np.flatnonzero(~row)[: quorum - int(row.sum())]] = True
        rows[k] = np.flatnonzero(row)
        merges += row
        total += quorum
    return rows


def period(schedule: Rows) -> int | None:
    """Return the number of rounds after which the schedule repeats (Theorem 3's K_p), or None if none is visible.

    The period is the smallest one. It is visible if it occurs at least twice, so it is at most half the schedule's
    length. Shares that are not fractions with a small denominator give none.
    """
    row = np.unique(schedule, axis=0, return_inverse=True)[1].ravel()
    again = 1 + np.flatnonzero(row[1 : row.size // 2 + 1] == row[:1])
    return next((length for length in again.tolist() if (row[length:] == row[:-length]).all()), None)


def achieved_shares(schedule: Rows, ues: int) -> Shares:
    """Return the shares η that a schedule gives (the paper's eq. (15))."""
    return np.bincount(schedule.ravel(), minlength=ues) / max(schedule.size, 1)


def longest_gap(schedule: Rows, ues: int) -> Int[np.ndarray, " n"]:
    """Return the most consecutive rounds that each UE sits out before a merge: its largest staleness.

    A UE merged in round p and next in round q works from model p + 1, so its staleness is q − p − 1; at its first
    merge it is q. Rounds after a UE's last merge do not count. A UE that is never merged sits out all rounds.
    """
    _, ue, gap = _gaps(schedule)
    longest = np.full(ues, -1, np.int64)
    np.maximum.at(longest, ue, gap)
    return np.where(longest < 0, schedule.shape[0], longest)


def _gaps(schedule: Rows) -> tuple[Merges, Merges, Merges]:
    """Return, for every merge, its round, its UE and how many rounds that UE had sat out."""
    round_ = np.repeat(np.arange(schedule.shape[0]), schedule.shape[1])
    ue = schedule.ravel()
    order = np.lexsort((round_, ue))
    round_, ue = round_[order], ue[order]
    before = np.where(np.diff(ue, prepend=-1) == 0, np.roll(round_, 1), -1)
    return round_, ue, round_ - before - 1


def check_schedule(
    schedule: Rows, ues: int, max_staleness: int | None, stale: Literal["restart", "wait", "ignore"]
) -> None:
    """Reject a schedule without A different UEs per row, or one that could make the protocol wait forever.

    A planned UE that has sat out more than S rounds is too stale to be merged, so its round never closes. With
    ``restart`` it got a newer model in time, so any schedule works. With ``wait`` it gets no newer model; with
    ``ignore`` it gets one only if it happened to arrive before. With ``wait``, moreover, at most A·(S+1) UEs hold a
    job.

    To check a schedule that ``as_schedule`` will repeat, pass it twice: ``np.concatenate([rows, rows])``.
    """
    outside = (schedule < 0) | (schedule >= ues)
    repeated = (np.diff(np.sort(schedule, axis=1), axis=1) == 0).any(axis=1)
    wrong = np.flatnonzero(outside.any(axis=1) | repeated)
    if wrong.size:
        raise ValueError(
            f"the schedule plans {schedule[wrong[0]]} for round {wrong[0]}; "
            f"expected {schedule.shape[1]} different UEs from 0 to {ues - 1}."
        )
    if max_staleness is None or stale == "restart":
        return
    round_, ue, gap = _gaps(schedule)
    late = np.flatnonzero(gap > max_staleness)
    if late.size:
        first = late[round_[late].argmin()]
        raise ValueError(
            f"the schedule plans UE {ue[first]} for round {round_[first]} after {gap[first]} rounds without it, more than "
            f"max_staleness {max_staleness}: with stale={stale!r} that round could wait forever. "
            f"Raise max_staleness to {gap.max()}, use stale='restart', or plan the UE more often."
        )
    at_work = schedule.shape[1] * (max_staleness + 1)
    if stale == "wait" and ues > at_work:
        raise ValueError(
            f"the schedule for {ues} UEs could plan a UE without a job: with stale='wait', quorum {schedule.shape[1]} and "
            f"max_staleness {max_staleness}, at most {at_work} UEs have a job. Raise max_staleness to {-(-ues // schedule.shape[1]) - 1}."
        )


def as_schedule(rows: Rows) -> Callable[[int], Chosen]:
    """Return the rows as a function from round to UEs. After its last row, the schedule repeats.

    It repeats with its period if it has one (Theorem 3), so that the pattern continues unchanged. Otherwise it
    restarts at the first row, where a UE may sit out longer than within the rows: plan as many rounds as you simulate,
    or see ``check_schedule``.
    """
    if rows.shape[0] == 0:
        raise ValueError("a schedule needs at least 1 row, got none.")
    length = period(rows) or rows.shape[0]

    def planned(round_: int) -> Chosen:
        return rows[round_] if round_ < rows.shape[0] else rows[round_ % length]

    return planned


SCHEDULES: dict[str, Callable[..., Any] | None] = {
    "first": None,  # no plan: a round closes on the first arrivals
    "deficit": deficit,
    "printed": printed,
    "printed_fixed": printed_fixed,
    "round_robin": round_robin,
    "random": random,
    "best_channel": best_channel,
    "proportional_fair": proportional_fair,
    "age": age,
    "fedcs": fedcs,
    "chen:DEADLINE": chen,  # the number after the colon is the deadline in seconds
    "refl": refl,
    "oort": Oort,
    "power_of_choice:D": power_of_choice,  # D candidates
    "tifl_adaptive": AdaptiveTiers,
}
