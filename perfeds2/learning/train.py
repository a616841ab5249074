"""Train along a timeline and evaluate the model at given moments.

The replay runs in pieces, with an evaluation after each. Pieces do not affect the weights. If the schedule asks for
feedback, the timeline itself grows in chunks: a chunk is simulated, trained and reported before the next one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfeds2.learning import on_gpu
from perfeds2.learning.evaluate import evaluate, evaluate_new, own_model
from perfeds2.learning.metrics import METRICS, NEW_UES_METRICS
from perfeds2.learning.objectives import rows_of
from perfeds2.learning.replay import Learner, Prepared, State, advance, start
from perfeds2.learning.script import Script
from perfeds2.learning.task import Task
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.record import Timeline

MetricMeans = dict[str, float]  # mean over UEs of every metric, and over new UEs if there are any


@dataclass(frozen=True)
class EvaluationPoint:
    """A moment to evaluate: the model in force at a simulated second."""

    round: int  # version of that model: the number of rounds closed so far
    time_s: float


@dataclass(frozen=True)
class TrainState:
    """The progress of a training. Continuing donates its state, so save it first."""

    values: list[MetricMeans]  # for each point so far
    state: State
    feedback: tuple[Float[np.ndarray, " n"], ...] = ()  # that each chunk of the timeline was simulated with


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
    begin = resume or TrainState([], start(task, script, learner, seed))
    for training in _evaluated(prepared, task, learner, points, begin):
        if stop_when_diverged and diverged(training.values[-1]):
            rest = [no_values(task)] * (len(points) - len(training.values))
            yield replace(training, values=training.values + rest)
            return
        yield training


def train_in_chunks(
    task: Task,
    play: ChunkedPlay,
    learner: Learner,
    every_s: float | None = None,
    *,
    seed: int = 0,
    resume: TrainState | None = None,
    stop_when_diverged: bool = False,
) -> Iterator[tuple[Timeline, list[EvaluationPoint], TrainState]]:
    """Train along a timeline whose schedule asks for feedback, as ``train`` does, and yield also the timeline so far.

    To continue from ``resume``, the clock repeats the earlier chunks with the same feedback.
    """
    script = Script.of(play.timeline, learner.merge)
    prepared = Prepared.of(task, script, learner, seed)
    training = resume or TrainState([], start(task, script, learner, seed))
    told = len(training.feedback)
    has_diverged, played = False, 0
    while not play.is_finished:
        if played >= told and not has_diverged:
            reported = np.asarray(training.state.reported, float)
            training = replace(
                training, feedback=(*training.feedback, np.where(np.isfinite(reported), reported, np.nan))
            )
        first = play.timeline.rounds
        timeline = play.play(training.feedback[min(played, len(training.feedback) - 1)])
        played += 1
        if has_diverged:
            continue
        script = script.grown(timeline, first)
        if played < told:
            continue
        points = evaluation_points(timeline, horizon_s=play.horizon_s, every_s=every_s, rounds=play.rounds)
        final = points if play.is_finished else [point for point in points if point.round < timeline.rounds]
        prepared, begin = replace(prepared, script=script), _with_slots(training, script.slots)
        for training in _evaluated(prepared, task, learner, final, begin, first):
            has_diverged = stop_when_diverged and diverged(training.values[-1])
            if has_diverged or (play.is_finished and len(training.values) == len(points)):
                break
            yield timeline, points, training
        if not (has_diverged or play.is_finished):
            at = max(first, final[-1].round)
            training = replace(training, state=advance(prepared, training.state, at, timeline.rounds))
    points = evaluation_points(play.timeline, horizon_s=play.horizon_s, every_s=every_s, rounds=play.rounds)
    rest = [no_values(task)] * (len(points) - len(training.values))
    yield play.timeline, points, replace(training, values=training.values + rest)


def _with_slots(training: TrainState, slots: int) -> TrainState:
    """Return a training whose shelf has this many slots, no fewer than before."""
    state = training.state
    more = slots - rows_of(state.shelf)
    if not more:
        return training

    def longer(rows: Array) -> Array:
        return jnp.pad(rows, [(0, more)] + [(0, 0)] * (rows.ndim - 1))

    return replace(training, state=replace(state, shelf=jax.tree.map(longer, state.shelf)))


def _evaluated(
    prepared: Prepared,
    task: Task,
    learner: Learner,
    points: Sequence[EvaluationPoint],
    training: TrainState,
    first: int = 0,
) -> Iterator[TrainState]:
    """Continue a training, which is at least at round ``first``, and yield its progress at every further point."""
    values, state = list(training.values), training.state
    for number in range(len(values), len(points)):
        before = points[number - 1].round if number else 0
        now = points[number].round
        if number == 0 or now > before:
            state = advance(prepared, state, max(before, first), now)
            own = own_model(learner.objective)
            per_ue = evaluate(task, state.params, learner.personal_step, state.memory, own, learner.personal_steps)
            means = mean_values(np.stack([per_ue[name] for name in METRICS], axis=1))
            if task.new is not None:
                new = np.asarray(evaluate_new(task, state.params, learner.personal_step))
                means |= mean_values(new, NEW_UES_METRICS)
            values.append(means)
        else:
            values.append(values[-1])  # no round closed since the last point, so the model is the same
        yield replace(training, values=list(values), state=state)


def mean_values(per_ue: Float[np.ndarray, "n 4"], metrics: Sequence[str] = METRICS) -> MetricMeans:
    """Return the plain mean over UEs of every metric."""
    return {name: float(np.mean(np.asarray(column, float))) for name, column in zip(metrics, per_ue.T, strict=True)}


def diverged(values: MetricMeans) -> bool:
    """Return whether the training loss is not finite. A training does not recover from that."""
    return not math.isfinite(values["train_loss"])


def no_values(task: Task) -> MetricMeans:
    return dict.fromkeys(metrics_of(task), math.nan)


def metrics_of(task: Task) -> tuple[str, ...]:
    """Return the names of a task's metrics."""
    return METRICS if task.new is None else METRICS + NEW_UES_METRICS
