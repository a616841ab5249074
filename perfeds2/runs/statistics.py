"""Statistics over seeds: means, intervals, censored medians, paired tests; and measures of fairness over UEs."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from perfeds2.files import Json

Statistic = Json  # mean, low and high (or None) over seeds, and values
Means = Any  # an array with one mean per time, or one number

INTERVAL_SEEDS = 3  # minimum; with two seeds it would be 13 standard errors to either side
LEAST = 1e-150  # smaller differences count as none, because their squares vanish
NO_INTERVAL = "Fewer than three seeds give no interval."


def statistic(values: Sequence[float | None]) -> Statistic:
    """Return the mean over seeds and its 95 % interval.

    Fewer than three seeds have no interval. If any seed has no finite value, there is no mean either.
    """
    clean = [value if value is not None and math.isfinite(value) else None for value in values]
    if not clean or None in clean:
        return {"mean": None, "low": None, "high": None, "values": clean}
    mean, low, high = (None if end is None else float(end) for end in mean_and_interval(np.array(clean, float)))
    return {"mean": mean, "low": low, "high": high, "values": clean}


def mean_and_interval(values: Float[np.ndarray, "s *t"]) -> tuple[Means, Means | None, Means | None]:
    """Return the mean over seeds and the ends of its 95 % interval by Student's t.

    Args:
        values: Shape (seeds, …), with seeds on the first axis.

    Returns:
        Mean, low and high; low and high are None for fewer than three seeds.
    """
    seeds, mean = len(values), values.mean(axis=0)
    if seeds < INTERVAL_SEEDS:
        return mean, None, None
    from scipy.special import stdtrit  # slow to import

    half = stdtrit(seeds - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return mean, mean - half, mean + half


def prediction_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval in which a further value lies with probability 0.9, by Student's t on the logarithms.

    Args:
        values: Positive and independent, such as the times of several seeds.

    Returns:
        Low and high; None for fewer than three values.
    """
    if len(values) < INTERVAL_SEEDS:
        return None
    from scipy.special import stdtrit  # slow to import

    logs = np.log(np.array(values, float))
    half = stdtrit(len(logs) - 1, 0.95) * logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def pareto(costs: Float[np.ndarray, "n c"]) -> Bool[np.ndarray, " n"]:
    """Return which rows are Pareto-optimal: no other row is at most as large in all columns and smaller in one."""
    return np.array([not ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any() for row in costs], bool)


def paired_p(differences: Sequence[float]) -> float:
    """Return the p-value of Student's two-sided paired t-test, from the differences per seed.

    Ties show that values were rounded, such as times to an evaluation. Then the variance of a rounded difference,
    step²/6, is added, where the step is the smallest gap. Equal differences alone would otherwise give p = 0.
    """
    values = np.array(differences, float)
    if (np.abs(values) < LEAST).all():
        return 1.0
    gaps = np.diff(np.sort([0.0, *values]))
    is_tie = gaps <= 1e-9 * np.abs(values).max()
    step = gaps[~is_tie].min() if is_tie.any() else 0.0
    error = np.hypot(values.std(ddof=1), step / math.sqrt(6)) / math.sqrt(len(values))
    from scipy.special import stdtr

    return float(2 * stdtr(len(values) - 1, -abs(values.mean() / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the given order.

    The smallest of m p-values is multiplied by m, the next by m − 1 and so on; the results are made non-decreasing
    and capped at 1. This bounds the probability of any false positive below 0.05 by 5 %.
    """
    p, order = np.array(p_values, float), np.argsort(p_values, kind="stable")
    result = np.empty_like(p)
    result[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return result.tolist()


def pairwise_p(values: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], float]:
    """Return the p-value of the paired t-test over seeds for every two names, adjusted by Holm's method.

    Empty for fewer than three seeds.
    """
    pairs = list(itertools.combinations(values, 2))
    if not pairs or min(map(len, values.values())) < INTERVAL_SEEDS:
        return {}
    raw = [paired_p([a - b for a, b in zip(values[one], values[other], strict=True)]) for one, other in pairs]
    return dict(zip(pairs, holm(raw), strict=True))


def worst_decile(values: Sequence[float]) -> float:
    """Return the mean of the worst tenth of UEs, rounded up: two of 20, three of 21."""
    return float(np.sort(np.array(values, float))[: -(-len(values) // 10)].mean())


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index (Σx)²/(n·Σx²): 1 if all values are equal or 0, 1/n if one UE has everything."""
    x = np.array(values, float)
    return float(x.sum() ** 2 / (x.size * (x**2).sum())) if x.any() else 1.0


def censored_median(times: Sequence[float | None]) -> float | None:
    """Return the median, where None (never reached) counts as later than every time.

    For an even number of seeds it is the lower of the two middle values, so that it is a measured time. None if that
    one is None.
    """
    reached = sorted(time for time in times if time is not None)
    middle = (len(times) - 1) // 2
    return reached[middle] if 0 <= middle < len(reached) else None


def time_to_target(rows: Sequence[Mapping[str, Any]], target: float, what: str = "time_s") -> float | None:
    """Return the first evaluated time in seconds at which the personalised test accuracy reaches the target.

    Args:
        rows: Evaluations of one seed.
        target: Accuracy, or value of the metric that replaces it.
        what: Column to return instead of ``time_s``, such as ``joules`` or ``round``.

    Returns:
        None if the target is never reached, or the rows have no such column.
    """
    return next((row.get(what) for row in rows if row["test_accuracy_personal"] >= target), None)


def mean_over_time(
    rows: Sequence[Mapping[str, Any]], column: str = "test_accuracy_personal", *, last: bool = False
) -> float:
    """Return the mean of a metric over simulated time, or its last value if ``last``.

    Each value holds until the next evaluation. Once diverged (NaN), it counts as 0, or as its worst value so far if
    that is negative.
    """
    found = [float(row[column]) for row in rows]
    worst = min([0.0, *filter(math.isfinite, found)])  # a metric that replaces it may be negative
    values = [value if math.isfinite(value) else worst for value in found]
    time_s = np.array([row["time_s"] for row in rows], float)
    span_s = time_s[-1] - time_s[0]
    return values[-1] if last or not span_s else float((np.diff(time_s) * values[:-1]).sum() / span_s)
