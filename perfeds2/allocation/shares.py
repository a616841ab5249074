"""Compute how often each UE should take part.

A participation share η_i is the fraction of all merges that belong to UE i, so Ση = 1. A UE merges at most once in a
round of A merges, so η_i ≤ 1/A; and it must return often enough for the staleness bound S, so η_i ≥ 1/(A·S) (erratum
5).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from perfeds2.network.cell import Cell
from perfeds2.network.link import PerUe, rate_bps

Shares = Float[np.ndarray, " n"]
TOLERANCE = 1e-9  # shares that violate a bound by less than this count as feasible


def equal_shares(ues: int) -> Shares:
    """Return the same share for every UE."""
    return np.full(ues, 1 / ues)


def distance_shares(cell: Cell, payload_bits: float | PerUe, samples: float, quorum: int = 1) -> Shares:
    """Return shares proportional to how often a UE could deliver: η_i ∝ 1 / (expected seconds of one update).

    The paper leaves this choice open; ours favours UEs close to the base station or with a fast processor.
    """
    frequency = 1 / (cell.job_s(samples, quorum) + expected_sending_s(cell, payload_bits))
    return frequency / frequency.sum()


def expected_sending_s(cell: Cell, payload_bits: float | PerUe) -> PerUe:
    """Return how long each UE is expected to send on an equal part B/n of the band.

    With Table I's radio it is the mean of bits / rate over the fading. A real radio's signal is proportional to h², so
    deep fades make that mean infinite; there it is bits / mean rate, the time of an upload that lasts many fades.
    """
    part_hz = cell.bandwidth_hz / cell.ues
    sending_s, mean_bps = np.zeros(cell.ues), np.zeros(cell.ues)
    for amplitude, mass in zip(*_fading_law(cell.rician_k), strict=True):
        strength = cell.fading_scale * amplitude if cell.radio is None else amplitude * amplitude / 2
        bps = rate_bps(part_hz, cell.mean_signal_hz * strength, cell.limit)
        sending_s += mass * payload_bits / bps
        mean_bps += mass * bps
    if cell.radio is not None:
        sending_s = payload_bits / mean_bps
    if cell.fleet is not None:
        sending_s = np.where(cell.fleet.shares_band, sending_s, payload_bits / cell.fleet.own_bps)
    return sending_s


def _fading_law(rician_k: float) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
    """Return fading amplitudes with mean square 2 and their probabilities: Gauss-Legendre nodes, accurate to 2e-6."""
    if rician_k == np.inf:
        return np.array([np.sqrt(2)]), np.ones(1)
    steady, sharpness = np.sqrt(2 * rician_k / (1 + rician_k)), 1 + rician_k  # 1 / variance of the scattered part
    low, high = max(steady - 9 / np.sqrt(sharpness), 0.0), steady + 9 / np.sqrt(sharpness)  # all but e^−40
    amplitude, mass = np.polynomial.legendre.leggauss(48)
    amplitude, mass = low + (high - low) / 2 * (amplitude + 1), (high - low) / 2 * mass
    mass = mass * amplitude * np.exp(-sharpness * (amplitude - steady) ** 2 / 2)
    if rician_k > 0:
        from scipy.special import i0e  # slow to import

        mass *= sharpness * i0e(sharpness * amplitude * steady)
    return amplitude, mass


def share_bounds(quorum: int, max_staleness: int | None) -> tuple[float, float]:
    """Return the range of a single share: (1/(A·S), 1/A), or (0, 1/A) without a staleness bound.

    S = 0 allows only fresh updates: every UE is merged in every round, η_i = 1/A, which needs A = n.
    """
    if quorum < 1:
        raise ValueError(f"quorum must be at least 1, got {quorum}.")
    return (0.0 if max_staleness is None else 1 / (quorum * max(max_staleness, 1))), 1 / quorum


def check_shares(shares: Shares, quorum: int, max_staleness: int | None) -> None:
    """Reject shares unless 1/(A·S) ≤ η_i ≤ 1/A and Ση = 1. The error names the nearest feasible shares."""
    low, high = share_bounds(quorum, max_staleness)
    shares = np.asarray(shares, float)
    wrong = np.flatnonzero(~((shares >= low * (1 - TOLERANCE)) & (shares <= high * (1 + TOLERANCE))))  # also NaN
    if wrong.size == 0 and abs(shares.sum() - 1) <= TOLERANCE:
        return
    nearest = nearest_feasible(shares, quorum, max_staleness)
    shown = (wrong if wrong.size else np.arange(shares.size))[:5]
    told = ", ".join(f"UE {ue} has {shares[ue]:.6g} (nearest: {nearest[ue]:.6g})" for ue in shown)
    raise ValueError(
        f"shares must be from {low:.6g} to {high:.6g} with quorum {quorum} and max_staleness {max_staleness}, and sum to 1; got a "
        f"sum of {shares.sum():.9g}. {told}. nearest_feasible returns the nearest feasible shares."
    )


def nearest_feasible(shares: Shares, quorum: int, max_staleness: int | None) -> Shares:
    """Return the closest feasible shares (Euclidean): clip(η − μ, 1/(A·S), 1/A) with the μ that makes the sum 1."""
    low, high = share_bounds(quorum, max_staleness)
    shares = np.asarray(shares, float)
    n = shares.size
    if n < quorum:
        raise ValueError(
            f"no shares are feasible: quorum {quorum} is more than the {n} UEs; choose a quorum up to {n}."
        )
    if n * low > 1 + TOLERANCE:
        least = -(-n // quorum)
        raise ValueError(
            f"no shares are feasible: {n} UEs cannot all be merged every {max_staleness} rounds of {quorum}; "
            f"raise max_staleness to {least} or the quorum to {-(-n // max(max_staleness or 1, 1))}."
        )
    # Σ clip(η − μ) decreases with μ and is piecewise linear, with a knot where a share meets a bound.
    knots = np.sort(np.concatenate([shares - high, shares - low]))
    first, last = 0, knots.size - 1
    while last - first > 1:
        middle = (first + last) // 2
        if np.clip(shares - knots[middle], low, high).sum() >= 1:
            first = middle
        else:
            last = middle
    upper, lower = (np.clip(shares - knots[at], low, high).sum() for at in (first, last))
    part = (upper - 1) / (upper - lower) if upper > lower else 0.0
    return np.clip(shares - (knots[first] + part * (knots[last] - knots[first])), low, high)


SHARES: dict[str, Callable[..., Shares]] = {"equal": equal_shares, "distance": distance_shares}
