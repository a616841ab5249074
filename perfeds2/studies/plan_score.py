"""Judge whether a training reached a target and kept it.

A training is evaluated at equal distances from 0 to a horizon. The target is *kept from second t on* if it is met at the evaluation
that ends at t and in at least a given share of the evaluations from there to the horizon, and if it was then watched for at least as
long as it had taken: t is in the first half of the horizon. Between two evaluations t is interpolated. A target that was reached in
the first half and is not kept from any second of the first three quarters is *lost*; what comes between is *late*.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfeds2.studies.plan_data import SeedOutcome


def judge(seed: int, rows: Sequence[Mapping[str, Any]], least_share: float, target: float, keep: float) -> SeedOutcome:
    """Return what became of the target in one training, by its evaluations."""
    finite = [math.isfinite(row["train_loss"]) and math.isfinite(row["test_accuracy_personal"]) for row in rows]
    scores = tuple(
        float(row["test_accuracy_personal"]) if good else None for row, good in zip(rows, finite, strict=True)
    )
    score = np.array([-np.inf if each is None else each for each in scores])
    time_s = np.array([float(row["time_s"]) for row in rows])
    half_s = time_s[-1] / 2
    there = score >= target
    held = there[::-1].cumsum()[::-1] / np.arange(len(there), 0, -1)  # from each evaluation on
    first = int(there.argmax()) if there.any() else None
    kept = np.flatnonzero(there & (held >= keep))
    at = int(kept[0]) if kept.size else None
    if not math.isfinite(score[-1]):
        state = "diverged"
    elif first is None:
        state = "never"
    elif at is not None and time_s[at] <= half_s:
        state = "kept"
    else:
        settles = at is not None and time_s[at] <= 1.5 * half_s
        state = "late" if settles or time_s[first] > half_s else "lost"
    at = at if state == "kept" else None
    return SeedOutcome(
        seed=seed,
        state=state,
        time_s=None if at is None else _crossing(time_s, score, at, target),
        reached_s=None if first is None else _crossing(time_s, score, first, target),
        held=None if first is None else float(held[first]),
        joules=None if at is None else float(rows[at]["joules"]),
        least_share=least_share,
        scores=scores,
        fall=_fall(score, target, first),
    )


def _crossing(time_s: Any, score: Any, at: int, target: float) -> float:
    """Return where a straight line from the evaluation before meets the target."""
    if at == 0 or not math.isfinite(score[at - 1]) or score[at - 1] >= target:
        return float(time_s[at])
    part = (target - score[at - 1]) / (score[at] - score[at - 1])
    return float(time_s[at - 1] + part * (time_s[at] - time_s[at - 1]))


def _fall(score: Any, target: float, first: int | None) -> float:
    """Return how far the score fell back, as a part of the way from the start to the target.

    It is measured below the target once that was reached, else below the best score so far.
    """
    finite = np.where(np.isfinite(score), score, score[0])
    if not math.isfinite(finite[0]) or target <= finite[0]:
        return 0.0
    back = np.maximum.accumulate(finite) - finite if first is None else target - finite[first:]
    return float(max(back.max(), 0.0) / (target - finite[0]))
