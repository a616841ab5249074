"""Compute how many UEs a round should wait for, and how many rounds the target takes.

Problem P4 asks for the A and K that bring both terms of the printed bound down to ε, while every UE is merged at
least once in S rounds. The shares must satisfy 1/(A·S) ≤ η_i (C4.2) and η_i ≤ 1/A, at most one merge per round
(erratum 5).
"""

import math
from dataclasses import dataclass

import numpy as np

from perfeds2.network.link import PerUe
from perfeds2.theory.bounds import Premises, printed


@dataclass(frozen=True)
class Optimum:
    """A* and K*, corrected and as printed, with the terms they come from."""

    quorum: int  # A*, corrected
    rounds: int  # K*, corrected
    printed_quorum: float  # A* as printed: the smaller of two terms, minimized over UEs
    printed_rounds: float  # K* as printed
    accuracy_quorum: float  # the A at which the printed bound's second term equals ε; a larger A exceeds it
    accuracy_rounds: float  # the K at which its first term equals ε
    least_quorum: float  # 1/(S·min η), from C4.2
    most_quorum: float  # 1/max η: the UE with the largest share merges at most once per round
    least_rounds: float  # 1/(A*·min η): every UE is merged at least once

    @property
    def meets_target(self) -> bool:
        """Whether the second term stays within ε at A*. If not, C4.2 requires more UEs per round than ε allows."""
        return self.quorum <= self.accuracy_quorum * (1 + 1e-9)


def optimum(premises: Premises, epsilon: float, shares: PerUe) -> Optimum:
    """Return A* and K* for a target ε on each term of the printed bound (end of Section V).

    C4.2 bounds A from below, so the corrected A* is the larger of the two terms (erratum 6), limited to 1..n and to
    what the shares allow. K must reach ε and merge every UE once; nothing implies the printed S/η_i (erratum 5).
    """
    shares = _checked(shares, epsilon, premises.staleness)
    smallest, largest = float(shares.min()), float(shares.max())
    accuracy_quorum = _accuracy_quorum(premises, epsilon)
    accuracy_rounds = 2 * premises.gap / (premises.beta * epsilon)
    least_quorum, most_quorum = 1 / (premises.staleness * smallest), 1 / largest
    lowest, highest = _ceil(least_quorum), min(_floor(most_quorum), shares.size)
    if lowest > highest:
        raise ValueError(
            f"no quorum fits these shares at S = {premises.staleness}: UE {int(shares.argmin())} (share {smallest:.4g}) "
            f"needs A ≥ {lowest} to be merged once in S rounds, UE {int(shares.argmax())} (share {largest:.4g}) needs "
            f"A ≤ {highest} to be merged at most once a round; raise S or make the shares more equal."
        )
    quorum = max(lowest, highest if accuracy_quorum >= highest else _floor(accuracy_quorum))
    least_rounds = 1 / (quorum * smallest)
    return Optimum(
        quorum=quorum,
        rounds=max(1, _ceil(accuracy_rounds), _ceil(least_rounds)),
        printed_quorum=min(accuracy_quorum, 1 / (premises.staleness * largest)),
        printed_rounds=min(accuracy_rounds, premises.staleness / largest),
        accuracy_quorum=accuracy_quorum,
        accuracy_rounds=accuracy_rounds,
        least_quorum=least_quorum,
        most_quorum=most_quorum,
        least_rounds=least_rounds,
    )


def _accuracy_quorum(premises: Premises, epsilon: float) -> float:
    """Return ε² / (16(L_Fβ + 2L_F²β²S²)²(σ_F² + γ_F²)²); infinite without noise and diversity."""
    floor_of_one = printed(premises, quorum=1).floor
    return (epsilon / floor_of_one) ** 2 if floor_of_one > 0 else math.inf


def _checked(shares: PerUe, epsilon: float, staleness: int) -> PerUe:
    shares = np.asarray(shares, float)
    if epsilon <= 0:
        raise ValueError(f"the target epsilon must be above 0, got {epsilon}.")
    if staleness < 1:
        raise ValueError("A* needs a staleness bound S of at least 1; S = 0 is the synchronous protocol, whose A is n.")
    if shares.size == 0 or not (shares > 0).all() or not math.isclose(shares.sum(), 1, rel_tol=1e-6):
        raise ValueError(
            f"participation shares must be above 0 and sum to 1, got {shares.size} with a sum of {shares.sum():.6g}."
        )
    return shares


def _ceil(value: float) -> int:
    return math.ceil(value * (1 - 1e-9))  # 1/(2·0.1) is 5, despite rounding


def _floor(value: float) -> int:
    return math.floor(value * (1 + 1e-9))
