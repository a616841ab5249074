"""What do several seeds say together: mean, interval, the median where some never got there, who is better; and how fair is it?"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

Means = Any  # an array with one a time, or one number

INTERVAL_SEEDS = 3  # at least: two seeds' would be thirteen standard errors to either side
NO_INTERVAL = "Fewer than three seeds give no interval."


def statistic(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and 95 % interval over seeds. One or two seeds have no interval; a seed without a value leaves no mean."""
    clean = [value if value is not None and math.isfinite(value) else None for value in values]
    if not clean or None in clean:
        return {"mean": None, "low": None, "high": None, "values": clean}
    mean, low, high = (None if end is None else float(end) for end in mean_and_interval(np.array(clean, float)))
    return {"mean": mean, "low": low, "high": high, "values": clean}


def mean_and_interval(values: Float[np.ndarray, "s *t"]) -> tuple[Means, Means | None, Means | None]:
    """The mean over seeds (the first axis) and its 95 % interval by Student's t; none from fewer than three seeds."""
    seeds, mean = len(values), values.mean(axis=0)
    if seeds < INTERVAL_SEEDS:
        return mean, None, None
    from scipy.special import stdtrit  # late: it takes a while to load

    half = stdtrit(seeds - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return mean, mean - half, mean + half


def pareto(costs: Float[np.ndarray, "n c"]) -> Bool[np.ndarray, " n"]:
    """Which rows nothing beats: no other row is at most as much in all columns and less in one."""
    return np.array([not ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any() for row in costs], bool)


def paired_p(differences: Sequence[float]) -> float:
    """The p-value of Student's two-sided paired t-test: how easily chance alone gives a mean at least this far from 0."""
    seeds, values = len(differences), np.array(differences, float)
    error = float(values.std(ddof=1)) / math.sqrt(seeds)
    if error == 0:
        return 0.0 if values.any() else 1.0
    from scipy.special import stdtr

    return float(2 * stdtr(seeds - 1, -abs(float(values.mean()) / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted by Holm's method, in the order given: that any of those below 0.05 is mere luck has a chance of 5 % at most.

    Of m p-values the smallest is multiplied by m, the next by m − 1 and so on; none falls below a smaller one's, or exceeds 1.
    """
    p, order = np.array(p_values, float), np.argsort(p_values, kind="stable")
    result = np.empty_like(p)
    result[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return result.tolist()


def pairwise_p(values: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], float]:
    """For every two names, the p-value of the paired t-test over seeds, adjusted by Holm's method for as many tests.

    Empty where there are fewer than three seeds.
    """
    pairs = list(itertools.combinations(values, 2))
    if not pairs or min(map(len, values.values())) < INTERVAL_SEEDS:
        return {}
    raw = [paired_p([a - b for a, b in zip(values[one], values[other], strict=True)]) for one, other in pairs]
    return dict(zip(pairs, holm(raw), strict=True))


def worst_decile(values: Sequence[float]) -> float:
    """The mean of the worst tenth of UEs, their number rounded up: two of twenty, three of twenty-one."""
    return float(np.sort(np.array(values, float))[: -(-len(values) // 10)].mean())


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness, (Σx)²/(n·Σx²): 1 where all have the same, 1/n where one has everything. Nobody has more: 1."""
    x = np.array(values, float)
    return float(x.sum() ** 2 / (x.size * (x**2).sum())) if x.any() else 1.0


def censored_median(times: Sequence[float | None]) -> float | None:
    """The median, a None being later than all others: who never got there is not left out.

    Of an even number of seeds the lower of the middle two, a time that was measured; None if that seed never got there.
    """
    reached = sorted(time for time in times if time is not None)
    middle = (len(times) - 1) // 2
    return reached[middle] if 0 <= middle < len(reached) else None


def time_to_target(rows: Sequence[Mapping[str, Any]], target: float, what: str = "time_s") -> float | None:
    """The first evaluated second at which the personalised test accuracy, or what stands for it, is at least the target.

    None if it never is. Or what had been spent then of something else that the rows tell; None as well where they do not.
    """
    return next((row.get(what) for row in rows if row["test_accuracy_personal"] >= target), None)


def mean_over_time(
    rows: Sequence[Mapping[str, Any]], metric: str = "test_accuracy_personal", *, last: bool = False
) -> float:
    """The mean over simulated time of an accuracy; one that diverged counts 0 from then on, or as its worst before.

    ``last``: just the end.
    """
    worst = min([0.0, *(row[metric] for row in rows if math.isfinite(row[metric]))])  # a metric may be negative
    values = [row[metric] if math.isfinite(row[metric]) else worst for row in rows]
    if last:
        return float(values[-1])
    return over_time(np.array([row["time_s"] for row in rows], float), np.array(values, float))


def over_time(time_s: Float[np.ndarray, " t"], values: Float[np.ndarray, " t"]) -> float:
    """The mean over simulated time; a model stands until the next look."""
    span = time_s[-1] - time_s[0]
    return float((np.diff(time_s) * values[:-1]).sum() / span) if span > 0 else float(values[-1])
