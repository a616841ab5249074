"""Derive the constants of the meta-objective from the smoothness, noise and diversity of the UEs' losses.

The assumptions are about the plain losses f_i; the theorem is about F_i(w) = f_i(w − α∇f_i(w)). Lemmas 1 to 3 carry
the constants over, for inner steps α ≤ 1/L.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

ALPHA = 0.03  # Table I: step size of the personal gradient step


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 2 to 5 on the losses f_i, and the distance of the start from the optimum."""

    smoothness: float  # L: ‖∇f_i(w) − ∇f_i(u)‖ ≤ L‖w − u‖
    gradient_bound: float  # C: ‖∇f_i(w)‖ ≤ C
    hessian_lipschitz: float  # ρ: ‖∇²f_i(w) − ∇²f_i(u)‖ ≤ ρ‖w − u‖
    gradient_noise: float  # σ_G: deviation of one sample's gradient from its UE's, root mean square
    hessian_noise: float  # σ_H: deviation of one sample's Hessian from its UE's, spectral norm
    gradient_diversity: float  # γ_G: deviation of one UE's gradient from the average UE's, root mean square
    hessian_diversity: float  # γ_H: deviation of one UE's Hessian from the average UE's, spectral norm
    gap: float  # F(w_0) − F(w*), of the meta-objective

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"constant {name} must be finite and at least 0, got {value}.")
        if self.smoothness == 0:
            raise ValueError("constant smoothness must be above 0: for a linear loss, 1/L is undefined.")


Batch = int | Iterable[int]  # one size for all UEs, or one per UE


def smoothness(constants: Constants, alpha: float) -> float:
    """Return L_F = 4L + αρC, the smoothness of every F_i and of F (Lemma 1)."""
    _check_step(constants, alpha)
    return 4 * constants.smoothness + alpha * constants.hessian_lipschitz * constants.gradient_bound


def bias(constants: Constants, alpha: float, batch_in: Batch, *, pick: Callable[[list[int]], int] = min) -> float:
    """Return 2αLσ_G/√D_in, a bound on the distance of the expected meta-gradient from ∇F_i (Lemma 2, first line)."""
    _check_step(constants, alpha)
    return 2 * alpha * constants.smoothness * constants.gradient_noise / math.sqrt(_size(batch_in, "batch_in", pick))


def noise(
    constants: Constants,
    alpha: float,
    batch_in: Batch,
    batch_out: Batch,
    batch_hessian: Batch,
    *,
    pick: Callable[[list[int]], int] = min,
) -> float:
    """Return σ_F², a bound on E‖∇̃F_i(w) − ∇F_i(w)‖² for every UE (Lemma 2, second line).

    A variance bound that holds for all UEs needs their smallest batch (erratum 14). ``pick=max`` gives the printed
    version.
    """
    _check_step(constants, alpha)
    size_in = _size(batch_in, "batch_in", pick)
    size_out = _size(batch_out, "batch_out", pick)
    size_hessian = _size(batch_hessian, "batch_hessian", pick)
    gradient = constants.gradient_noise**2 * (1 / size_out + (alpha * constants.smoothness) ** 2 / size_in)
    hessian = (alpha * constants.hessian_noise) ** 2 / (4 * size_hessian)
    # 12(C² + g)(1 + h) − 12C², expanded: evaluated as printed, a large C cancels the digits of g.
    return 12 * (gradient + constants.gradient_bound**2 * hessian + gradient * hessian)


def diversity(constants: Constants, alpha: float) -> float:
    """Return γ_F² = 3C²α²γ_H² + 192γ_G², a bound on (1/n)Σ_i ‖∇F_i(w) − ∇F(w)‖² (Lemma 3)."""
    _check_step(constants, alpha)
    hessian = (constants.gradient_bound * alpha * constants.hessian_diversity) ** 2
    return 3 * hessian + 192 * constants.gradient_diversity**2


def _check_step(constants: Constants, alpha: float) -> None:
    largest = 1 / constants.smoothness
    if not 0 <= alpha <= largest * (1 + 1e-12):
        raise ValueError(
            f"the lemmas hold for an inner step alpha from 0 to 1/L = {largest:.6g}, got {alpha:.6g}; lower alpha."
        )


def _size(batch: Batch, name: str, pick: Callable[[list[int]], int]) -> int:
    sizes = [batch] if isinstance(batch, int) else [int(size) for size in batch]
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{name} must be at least 1 sample for every UE, got {batch if sizes else 'no sizes'}.")
    return pick(sizes)
