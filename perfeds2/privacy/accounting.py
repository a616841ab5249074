"""Account for the privacy of every UE along a timeline, before anything is trained.

Uploads are clipped to norm C, and noise N(0, σ²C²I) is added once to the sum of a round. A timeline knows no weights,
so it also says what all models together reveal about a UE: exactly μ-GDP with μ = √k/σ for a UE merged k times.

Neighbouring runs differ in one UE's uploads, which are zeros in one of them; their timelines are the same. The first A
arrivals are not a random sample, so there is no amplification by sampling. The noise of rounds may be correlated:
round t adds Σ_j d_j·z_{t−j} with the first coefficients of (1 − x)^½, so that later noise cancels part of earlier noise.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from perfeds2.network.link import PerUe
from perfeds2.privacy import DELTA
from perfeds2.timeline.record import Timeline

ASSUMPTIONS = (
    "ε covers all released models, if one UE's uploads are replaced by zeros; the timeline is public. "
    "There is no amplification by sampling. Measured losses and accuracies are not protected."
)


def privacy_loss(timeline: Timeline, sigma: float, delta: float = DELTA, bands: int = 1) -> PerUe:
    """Return ε of every UE: training along this timeline is (ε, δ)-differentially private for it.

    Args:
        timeline: Which UEs each round merges.
        sigma: σ, the noise on the sum of a round divided by the clipping norm. Weights of uploads are at most 1.
        delta: δ, above 0 and below 1.
        bands: Rounds that share noise; 1 is independent noise.

    Returns:
        ε of every UE, shape (n,); 0 for a UE that is never merged.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> from perfeds2 import Cell, Protocol, privacy_loss, simulate
        >>> timeline = simulate(Cell.draw(4, seed=0), Protocol(4), payload_bits=77_120, samples=120, rounds=10)
        >>> privacy_loss(timeline, sigma=4.0).round(2)
        array([3.34, 3.34, 3.34, 3.34])
    """
    _expect_above_zero("sigma", sigma)
    _expect_share(delta)
    levels, of_ue = np.unique(sensitivity(timeline, bands) / sigma, return_inverse=True)
    return epsilon_of(levels, delta)[of_ue]


def noise_for(timeline: Timeline, epsilon: float, delta: float = DELTA, bands: int = 1) -> float:
    """Return the smallest noise with which no UE loses more than ε along a timeline.

    Args:
        timeline: Which UEs each round merges.
        epsilon: ε that no UE may exceed, above 0.
        delta: δ, above 0 and below 1.
        bands: Rounds that share noise; 1 is independent noise.

    Returns:
        σ, the noise on the sum of a round divided by the clipping norm.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> from perfeds2 import Cell, Protocol, noise_for, privacy_loss, simulate
        >>> timeline = simulate(Cell.draw(4, seed=0), Protocol(4), payload_bits=77_120, samples=120, rounds=10)
        >>> privacy_loss(timeline, noise_for(timeline, epsilon=2.0)).max().round(6)
        np.float64(2.0)
    """
    _expect_above_zero("epsilon", epsilon)
    _expect_share(delta)
    return float(sensitivity(timeline, bands).max(initial=0.0)) / level_of(epsilon, delta)


def sensitivity(timeline: Timeline, bands: int = 1) -> PerUe:
    """Return the sensitivity ‖Σ_{t∈P_i} c_t‖ of every UE, for uploads of norm 1.

    P_i are the rounds that merge UE i, and c_t are the columns of C, the inverse of the filter that makes the noise. C has
    no negative entry, so equal uploads are the worst case. Independent noise has C = I, and the result is √k.
    """
    if bands < 1:
        raise ValueError(f"bands must be at least 1, got {bands}.")
    if bands == 1:
        return np.sqrt(timeline.merges)
    *_, squares = np.zeros(timeline.population), *_squares(timeline, bands)
    return np.sqrt(squares)


def densest(rounds: int, rest_rounds: int = 1, bands: int = 1) -> Float[np.ndarray, " m"]:
    """Return the largest sensitivity of a UE after 0, 1, 2, … merges, over all timelines of these rounds.

    No column of C increases from one row to the next, so the worst merges are the first ones that ``rest_rounds`` allows.
    """
    merges = np.arange(math.ceil(rounds / rest_rounds) + 1)
    if bands == 1:
        return np.sqrt(merges)
    from scipy.signal import lfilter  # slow to import, and every worker imports this file

    column = lfilter([1.0], noise_filter(bands), np.arange(rounds) == 0)
    total, found = np.zeros(rounds), [0.0]
    for first in range(0, rounds, rest_rounds):
        total[first:] += column[: rounds - first]
        found.append(float(np.linalg.norm(total)))
    return np.array(found)


def _squares(timeline: Timeline, bands: int) -> Iterator[PerUe]:
    """Yield the square of every UE's sensitivity up to each round."""
    earlier = -noise_filter(bands)[1:]
    columns, squares = np.zeros((bands - 1, timeline.population)), np.zeros(timeline.population)
    for merged in timeline.ues:
        column = earlier @ columns
        np.add.at(column, merged, 1.0)
        squares = squares + column**2
        columns = np.concatenate([column[None], columns[:-1]])
        yield squares


def worst_losses(
    timeline: Timeline, rounds: Sequence[int], sigma: float, delta: float = DELTA, bands: int = 1
) -> Float[np.ndarray, " p"]:
    """Return the largest ε of a UE after each of some numbers of rounds."""
    if bands == 1:
        largest = [np.bincount(timeline.ues[:k].ravel(), minlength=1).max() for k in rounds]
    else:
        by_round = [0.0, *(squares.max() for squares in _squares(timeline, bands))]
        largest = [by_round[k] for k in rounds]
    return epsilon_of(np.sqrt(np.array(largest, float)) / sigma, delta)


def noise_filter(bands: int) -> Float[np.ndarray, " bands"]:
    """Return d, the first coefficients of (1 − x)^½: the weights of this round's draw and of the earlier ones."""
    steps = np.arange(1, bands)
    return np.cumprod(np.concatenate([[1.0], (steps - 1.5) / steps]))


def epsilon_of(level: Float[np.ndarray, " m"], delta: float) -> Float[np.ndarray, " m"]:
    """Return ε of μ-GDP at δ, for every μ."""
    from scipy.optimize import elementwise  # slow to import

    epsilon = np.zeros(level.shape)
    large = np.flatnonzero(_log_delta(epsilon, np.maximum(level, 1e-300)) > math.log(delta))
    level = level[large]
    most = level**2 / 2 + level * math.sqrt(2 * math.log(1 / delta))  # the bound of zero-concentrated privacy
    found = elementwise.find_root(lambda e, mu: _log_delta(e, mu) - math.log(delta), (0 * most, most), args=(level,))
    epsilon[large] = found.x
    return epsilon


def level_of(epsilon: float, delta: float) -> float:
    """Return the largest μ whose μ-GDP is (ε, δ)-differentially private."""
    from scipy.optimize import elementwise  # slow to import

    root = math.sqrt(2 * math.log(1 / delta))
    least = math.sqrt(root**2 + 2 * epsilon) - root  # by the same bound
    most = np.array([2 * least])
    while _log_delta(epsilon, most) < math.log(delta):
        most = 2 * most
    return float(elementwise.find_root(lambda mu: _log_delta(epsilon, mu) - math.log(delta), (least, most)).x[0])


def _log_delta(epsilon: Float[np.ndarray, " m"] | float, level: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Return log δ(ε) of μ-GDP, where δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)."""
    from scipy.special import log_ndtr  # slow to import

    first, second = log_ndtr(-epsilon / level + level / 2), log_ndtr(-epsilon / level - level / 2)
    with np.errstate(divide="ignore"):
        return first + np.log1p(-np.exp(np.minimum(second + epsilon - first, 0.0)))


def _expect_above_zero(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and above 0, got {value}.")


def _expect_share(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}.")
