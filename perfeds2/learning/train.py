"""How good is the model at each moment on the way?

Replay in chunks, with an evaluation between chunks. The chunks have no influence on the weights.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from perfeds2.learning import on_gpu
from perfeds2.learning.devices import on_one
from perfeds2.learning.evaluate import evaluate, own_model
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Learner, Prepared, Script, State, advance, start
from perfeds2.learning.task import Task
from perfeds2.timeline.record import Timeline

Values = dict[str, float]  # the mean over UEs of every metric


@dataclass(frozen=True)
class EvaluationPoint:
    """When to look: at the model in force at a simulated second."""

    round: int  # that model's number: how many rounds had closed
    time_s: float


@dataclass(frozen=True)
class TrainState:
    """Where a training stands. Its state is used up when the training goes on: save it before."""

    values: list[Values]  # for each point so far
    state: State


def evaluation_points(
    timeline: Timeline, *, horizon_s: float | None = None, every_s: float | None = None, about: int = 60
) -> list[EvaluationPoint]:
    """Every so many seconds from 0 to the horizon (or the timeline's end); without ``every_s``, after about 60 rounds each."""
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
    """Train along a timeline and evaluate at the given points, one ``TrainState`` after each. Goes on where ``resume`` stands.

    With ``stop_when_diverged``, a training whose loss is no number is not trained on; its remaining values are NaN.
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
            weights, memory = on_one(state.params), on_one(state.memory)
            per_ue = evaluate(task, weights, learner.personal_step, memory, own, learner.personal_steps)
            values.append(mean_values(np.stack([per_ue[name] for name in METRICS], axis=1)))
        else:
            values.append(values[-1])  # no round closed meanwhile: the same model
        if stop_when_diverged and diverged(values[-1]):
            values += [no_values()] * (len(points) - len(values))
            yield TrainState(list(values), state)
            return
        yield TrainState(list(values), state)


def mean_values(per_ue: Float[np.ndarray, "n 4"]) -> Values:
    """The plain mean over UEs of every metric."""
    return {name: float(np.mean(np.asarray(column, float))) for name, column in zip(METRICS, per_ue.T, strict=True)}


def diverged(values: Values) -> bool:
    """Whether the weights have left the numbers. They do not come back."""
    return not math.isfinite(values["train_loss"])


def no_values() -> Values:
    return dict.fromkeys(METRICS, math.nan)
