"""Train along a timeline and evaluate the model at given moments.

The replay runs in chunks, with an evaluation after each. Chunks do not affect the weights.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from perfeds2.learning import on_gpu
from perfeds2.learning.evaluate import evaluate, own_model
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Learner, Prepared, Script, State, advance, start
from perfeds2.learning.task import Task
from perfeds2.timeline.record import Timeline

Values = dict[str, float]  # mean over UEs of every metric


@dataclass(frozen=True)
class EvaluationPoint:
    """A moment to evaluate: the model in force at a simulated second."""

    round: int  # version of that model: the number of rounds closed so far
    time_s: float


@dataclass(frozen=True)
class TrainState:
    """The progress of a training. Continuing donates its state, so save it first."""

    values: list[Values]  # for each point so far
    state: State


def evaluation_points(
    timeline: Timeline, *, horizon_s: float | None = None, every_s: float | None = None, about: int = 60
) -> list[EvaluationPoint]:
    """Return the points at which to evaluate.

    They are ``every_s`` simulated seconds apart, from 0 to ``horizon_s`` or the timeline's end. Without ``every_s``,
    about ``about`` points are spread evenly over the rounds.
    """
    end_s = timeline.end_s if horizon_s is None else horizon_s
    if every_s is None:
        rounds = np.unique(np.linspace(0, timeline.rounds, about + 1).round().astype(int))
        return [EvaluationPoint(int(k), float(timeline.start_s[k])) for k in rounds]
    times = np.append(np.arange(np.ceil(end_s / every_s - 1e-9)) * every_s, end_s)
    return [EvaluationPoint(timeline.until(time_s), float(time_s)) for time_s in times]


def train(
    task: Task,
    timeline: Timeline,
    learner: Learner,
    points: Sequence[EvaluationPoint],
    *,
    seed: int = 0,
    resume: TrainState | None = None,
    stop_when_diverged: bool = False,
) -> Iterator[TrainState]:
    """Train along a timeline and yield a ``TrainState`` after evaluating at each of the points.

    Training continues from ``resume``, if given. With ``stop_when_diverged``, it stops when the loss is not finite,
    and the remaining values are NaN.
    """
    script = Script.of(timeline, learner.merge)
    prepared = Prepared.of(task, script, learner, seed, on_gpu.block_of([[point.round for point in points]]))
    training = TrainState([], start(task, script, learner, seed)) if resume is None else resume
    values, state = list(training.values), training.state
    for number in range(len(values), len(points)):
        before = points[number - 1].round if number else 0
        now = points[number].round
        if number == 0 or now > before:
            state = advance(prepared, state, before, now)
            own = own_model(learner.objective)
            per_ue = evaluate(task, state.params, learner.personal_step, state.memory, own, learner.personal_steps)
            values.append(mean_values(np.stack([per_ue[name] for name in METRICS], axis=1)))
        else:
            values.append(values[-1])  # no round closed since the last point, so the model is the same
        if stop_when_diverged and diverged(values[-1]):
            values += [no_values()] * (len(points) - len(values))
            yield TrainState(list(values), state)
            return
        yield TrainState(list(values), state)


def mean_values(per_ue: Float[np.ndarray, "n 4"]) -> Values:
    """Return the plain mean over UEs of every metric."""
    return {name: float(np.mean(np.asarray(column, float))) for name, column in zip(METRICS, per_ue.T, strict=True)}


def diverged(values: Values) -> bool:
    """Return whether the training loss is not finite. A training does not recover from that."""
    return not math.isfinite(values["train_loss"])


def no_values() -> Values:
    return dict.fromkeys(METRICS, math.nan)
