"""When has a target been reached and kept?

A choice is looked at in equal distances from 0 to a horizon. The target is *kept from second t on* if it is held at the
look that ends at t and in at least a given share of the looks from there to the horizon, and if it was then watched for at least as
long as it had taken: t is in the first half of the horizon. Between two looks t is read off the straight line. A target that was
reached in the first half and is not kept from any second of the first three quarters is *lost*; what comes between is *late*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfeds2.studies.plan_data import Trial


@dataclass(frozen=True)
class Curve:
    """What a training showed, one number a look."""

    seed: int
    time_s: tuple[float, ...]  # of the looks
    score: tuple[float | None, ...]  # the personalised accuracy, or what stands for it; None is no number
    joules: tuple[float, ...]  # of all UEs until then
    least_share: float  # of the merges, of the UE that has fewest

    @classmethod
    def of_rows(cls, seed: int, rows: Sequence[dict[str, Any]], least_share: float) -> "Curve":
        good = [math.isfinite(row["train_loss"]) and math.isfinite(row["test_accuracy_personal"]) for row in rows]
        scores = [float(row["test_accuracy_personal"]) if fine else None for row, fine in zip(rows, good, strict=True)]
        times, joules = (tuple(float(row[key]) for row in rows) for key in ("time_s", "joules"))
        return cls(seed, times, tuple(scores), joules, least_share)


def judge(curve: Curve, target: float, keep: float) -> Trial:
    """What became of the target in one training."""
    score = np.array([-np.inf if each is None else each for each in curve.score])
    time_s, half_s = np.array(curve.time_s), curve.time_s[-1] / 2
    there = score >= target
    held = there[::-1].cumsum()[::-1] / np.arange(len(there), 0, -1)  # from each look on
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
    is_kept = state == "kept"
    return Trial(
        seed=curve.seed,
        state=state,
        time_s=_crossing(time_s, score, at, target) if is_kept and at is not None else None,
        reached_s=None if first is None else _crossing(time_s, score, first, target),
        held=None if first is None else float(held[first]),
        joules=float(curve.joules[at]) if is_kept and at is not None else None,
        least_share=curve.least_share,
        scores=curve.score,
        fall=_fall(score, target, first),
    )


def _crossing(time_s: Any, score: Any, at: int, target: float) -> float:
    """Where between the look before and this one a straight line meets the target."""
    if at == 0 or not math.isfinite(score[at - 1]) or score[at - 1] >= target:
        return float(time_s[at])
    part = (target - score[at - 1]) / (score[at] - score[at - 1])
    return float(time_s[at - 1] + part * (time_s[at] - time_s[at - 1]))


def _fall(score: Any, target: float, first: int | None) -> float:
    """How far it fell back, as a part of the way from the start to the target: below the target once that was reached, else
    below its best before."""
    finite = np.where(np.isfinite(score), score, score[0])
    if not math.isfinite(finite[0]) or target <= finite[0]:
        return 0.0
    back = np.maximum.accumulate(finite) - finite if first is None else target - finite[first:]
    return float(max(back.max(), 0.0) / (target - finite[0]))
