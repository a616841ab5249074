"""Bound the gradients of F after K rounds, and the server steps β for which the bound holds.

Every bound has the form: mean over the rounds of E‖∇F(w_k)‖² ≤ start / K + floor. ``printed`` is Theorem 1 as in the
paper, which its planning rule uses; ``scheduled`` is the same with the schedule's own shares (erratum 8). Neither
holds for every schedule. ``proved`` follows the paper's steps with the inequality in the right direction (erratum
15), and ``sharpened`` skips one step, which lowers the floor and allows a larger β. docs/explanation/theory.md has
the proofs.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.link import PerUe
from perfeds2.theory.constants import Batch, Constants, diversity, noise, smoothness


@dataclass(frozen=True)
class Premises:
    """What Theorem 1 needs to know about the objective and the protocol."""

    smoothness: float  # L_F
    noise: float  # σ_F²
    diversity: float  # γ_F²
    gap: float  # F(w_0) − F(w*)
    beta: float  # β, the server's step
    staleness: int  # S, the largest staleness merged

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            positive = name in {"smoothness", "beta"}
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                raise ValueError(f"{name} must be finite and {'above' if positive else 'at least'} 0, got {value}.")

    @classmethod
    def of(
        cls,
        constants: Constants,
        *,
        alpha: float,
        beta: float,
        staleness: int,
        batch_in: Batch,
        batch_out: Batch,
        batch_hessian: Batch,
    ) -> "Premises":
        """Carry measured constants over to the meta-objective by Lemmas 1 to 3."""
        return cls(
            smoothness(constants, alpha),
            noise(constants, alpha, batch_in, batch_out, batch_hessian),
            diversity(constants, alpha),
            constants.gap,
            beta,
            staleness,
        )


@dataclass(frozen=True)
class Bound:
    """mean_k E‖∇F(w_k)‖² ≤ start / K + floor, if β is admissible; otherwise nothing is claimed."""

    start: float  # 2(F(w_0) − F(w*))/β
    floor: float  # the part that more rounds do not reduce
    admissible: bool  # whether β meets the condition of the bound

    def after(self, rounds: int) -> float:
        """Return the bound after K rounds; infinite if nothing is claimed."""
        if rounds < 1:
            raise ValueError(f"a bound needs at least 1 round, got {rounds}.")
        return self.start / rounds + self.floor if self.admissible else math.inf

    def rounds_needed(self, epsilon: float) -> int | None:
        """Return the smallest K whose bound is at most ε; None if the floor is not below ε or nothing is claimed."""
        if epsilon <= 0:
            raise ValueError(f"the target epsilon must be above 0, got {epsilon}.")
        if not self.admissible or self.floor >= epsilon:
            return None
        return max(1, math.ceil(self.start / (epsilon - self.floor)))


# The conditions on β, as brackets that must not be positive, and the largest β that each allows.


def printed_bracket(premises: Premises) -> float:
    """Return L_Fβ² − β + 2L_F²β²S² − 1, from Theorem 1's printed condition (erratum 7: not what its proof needs)."""
    product = premises.smoothness * premises.beta
    return product * premises.beta - premises.beta + 2 * (product * premises.staleness) ** 2 - 1


def corrected_bracket(premises: Premises) -> float:
    """Return L_Fβ − 1 + 2L_F²β²S², the factor of the term that the proof of Theorem 1 drops (erratum 7)."""
    product = premises.smoothness * premises.beta
    return product - 1 + 2 * (product * premises.staleness) ** 2


def proved_bracket(premises: Premises) -> float:
    """Return L_Fβ − 1 + 8L_F²β²S² (erratum 15)."""
    product = premises.smoothness * premises.beta
    return product - 1 + 8 * (product * premises.staleness) ** 2


def largest_printed_beta(smoothness: float, staleness: int) -> float:
    """Return the positive root of (L_F + 2L_F²S²)β² − β − 1."""
    curvature = smoothness + 2 * (smoothness * staleness) ** 2
    return (1 + math.sqrt(1 + 4 * curvature)) / (2 * curvature)


def largest_corrected_beta(smoothness: float, staleness: int) -> float:
    """Return the positive root of 2L_F²S²β² + L_Fβ − 1; 1/L_F without staleness."""
    return 2 / (smoothness * (1 + math.sqrt(1 + 8 * staleness**2)))


# Theorem 1 as printed.


def printed(premises: Premises, quorum: int) -> Bound:
    """Return Theorem 1: 2Δ/(βK) + 4(L_Fβ + 2L_F²β²S²)(σ_F² + γ_F²)√A, under its printed condition."""
    return _theorem_1(premises, math.sqrt(quorum))


def scheduled(premises: Premises, share_sums: Float[np.ndarray, " K"]) -> Bound:
    """Return Theorem 1 with the schedule's own Σ_{i∈A_k} η_i, averaged over the rounds, in place of √A (erratum 8)."""
    return _theorem_1(premises, float(np.mean(share_sums)))


def share_sums(ues: Int[np.ndarray, "K A"], shares: PerUe) -> Float[np.ndarray, " K"]:
    """Return Σ_{i∈A_k} η_i of each round, from the merged UEs (π) and the shares η."""
    return shares[ues].sum(axis=1)


def _theorem_1(premises: Premises, participation: float) -> Bound:
    product = premises.smoothness * premises.beta
    factor = 4 * (product + 2 * (product * premises.staleness) ** 2)
    floor = factor * (premises.noise + premises.diversity) * participation
    return Bound(_start(premises), floor, _met(printed_bracket(premises)))


# What can be proved.


def merge_error(premises: Premises, spread: float) -> float:
    """Return 2(σ_F² + θγ_F²), a bound on the mean over the rounds of E[T1] = E‖X + Y‖².

    X is the sampling noise of a merge, Y the deviation of the merged UEs from the average UE. Lemma 3 bounds the
    deviation over all UEs, not over the merged ones; θ (``spread``) corrects for that. See ``spread_of_*``.
    """
    return 2 * (premises.noise + spread * premises.diversity)


def spread_of_any_schedule(ues: int, quorum: int) -> float:
    """Return θ = n/A, valid for every schedule in which a UE merges at most one job per model version."""
    return ues / quorum


def spread_of_shares(shares: PerUe) -> float:
    """Return θ = n·max η, valid if γ_F² bounds (1/n)Σ_i sup_w ‖∇F_i(w) − ∇F(w)‖²; 1 for equal participation.

    This is a stronger requirement than Lemma 3, where the supremum is outside the sum. The two agree if UEs differ by
    a constant gradient (a shared Hessian, a quadratic loss).
    """
    shares = np.asarray(shares, float)
    if (shares < 0).any() or not math.isclose(shares.sum(), 1, rel_tol=1e-6):
        raise ValueError(f"participation shares must be at least 0 and sum to 1, got a sum of {shares.sum():.6g}.")
    return float(shares.size * shares.max())


def proved(premises: Premises, error: float) -> Bound:
    """Return 2Δ/(βK) + (3 − L_Fβ + 4L_F²β²S²)·E[T1], for 1 − L_Fβ ≥ 8L_F²β²S² (erratum 15). ``error`` bounds E[T1]."""
    product = premises.smoothness * premises.beta
    factor = 3 - product + 4 * (product * premises.staleness) ** 2
    return Bound(_start(premises), factor * error, _met(proved_bracket(premises)))


def sharpened(premises: Premises, error: float) -> Bound:
    """Return 2Δ/(βK) + 2·E[T1] for 1 − L_Fβ ≥ 2L_F²β²S²: below ``proved`` everywhere, under erratum 7's condition.

    The proof does not split the merged gradient into signal and noise before it accounts for the staleness.
    """
    return Bound(_start(premises), 2 * error, _met(corrected_bracket(premises)))


def _start(premises: Premises) -> float:
    return 2 * premises.gap / premises.beta


def _met(bracket: float) -> bool:
    return bracket <= 1e-12  # the closed-form β meets its condition only up to rounding


def orders(epsilon: float) -> tuple[float, float, float, float]:
    """Return K = ε⁻³, β = ε², S = ε⁻¹ and A = ε⁻², the orders of Corollary 1. It relies on the printed bound."""
    return epsilon**-3, epsilon**2, 1 / epsilon, epsilon**-2
