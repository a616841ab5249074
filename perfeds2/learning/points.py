"""Choose when to evaluate a training."""

from dataclasses import dataclass

import numpy as np

from perfeds2.timeline.record import Timeline


@dataclass(frozen=True)
class EvaluationPoint:
    """A moment to evaluate: the model in force at a simulated second."""

    round: int  # version of that model: the number of rounds closed so far
    time_s: float


def evaluation_points(
    timeline: Timeline,
    *,
    horizon_s: float | None = None,
    every_s: float | None = None,
    rounds: int | None = None,
    about: int = 60,
) -> list[EvaluationPoint]:
    """Return the points at which to evaluate.

    They are ``every_s`` simulated seconds apart, from 0 to ``horizon_s`` or the timeline's end. Without ``every_s``,
    about ``about`` points are spread evenly over the rounds.

    Of a timeline that still grows to ``rounds`` or ``horizon_s``, the points before its last round are final.
    """
    start_s = np.append(0.0, timeline.visible_s)
    end_s = float(start_s[-1]) if horizon_s is None else horizon_s
    if every_s is None:
        pace_s = timeline.end_s / max(timeline.rounds, 1)
        at = np.unique(np.linspace(0, rounds or timeline.rounds, about + 1).round().astype(int))
        return [EvaluationPoint(int(k), float(start_s[k] if k < start_s.size else k * pace_s)) for k in at]
    times = np.append(np.arange(np.ceil(end_s / every_s - 1e-9)) * every_s, end_s)
    closed = np.searchsorted(timeline.visible_s, times, side="right").tolist()
    return [EvaluationPoint(*each) for each in zip(closed, times.tolist(), strict=True)]
