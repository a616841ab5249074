"""Train along timelines and evaluate the models at given moments.

One loop serves all trainings. Rounds come from a source: a timeline that is known as a whole, or one that grows in
chunks, each simulated with what the UEs reported during those before. One training runs in a program of its own; several
of equal shape run in one program with an extra axis, each with the same numbers as alone, up to the order of summation.
Evaluations do not affect the weights.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from perfeds2.learning import on_gpu
from perfeds2.learning.data import Counts
from perfeds2.learning.devices import side_by_side, stack
from perfeds2.learning.evaluate import View, evaluate, evaluate_new, evaluate_new_ues, evaluate_ues
from perfeds2.learning.job import Known, Program
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.metrics import METRICS, NEW_UES_METRICS
from perfeds2.learning.models.model import Params
from perfeds2.learning.objectives import ClientState
from perfeds2.learning.points import EvaluationPoint, evaluation_points
from perfeds2.learning.replay import Prepared, State, advance, play_round, start
from perfeds2.learning.script import Script
from perfeds2.learning.task import Task
from perfeds2.learning.trees import rows_of
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.record import Timeline

MetricMeans = dict[str, float]  # mean over UEs of every metric, and over new UEs if there are any
Points = Sequence[EvaluationPoint]
LaneRounds = Int[np.ndarray, " p"]  # a round of every lane


@dataclass(frozen=True)
class TrainState:
    """The progress of a training. Continuing donates its state, so save it first."""

    values: list[MetricMeans]  # for each point so far
    state: State
    feedback: tuple[Float[np.ndarray, " n"], ...] = ()  # that each chunk of the timeline was simulated with


@dataclass(frozen=True)
class LaneStates:
    """The progress of several trainings. Continuing donates their state, so save it first."""

    values: list[list[MetricMeans]]  # of each lane, for each of its points so far
    moved: list[int]  # lanes that have just reached a point
    state: State  # of all lanes, stacked
    slots: list[int]  # length of each lane's own shelf

    def __getitem__(self, number: int) -> TrainState:
        """Return the progress of one lane, as if it were trained alone."""
        own = jax.tree.map(lambda w: w[number], self.state)
        shelf = jax.tree.map(lambda w: w[: self.slots[number]], own.shelf)
        return TrainState(list(self.values[number]), replace(own, shelf=shelf))


# ---- where rounds come from


class Whole:
    """The timelines of some lanes, known as a whole."""

    first, rounds, is_finished = 0, 0, True

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._points = [lane.points for lane in lanes]

    def points(self) -> list[Points]:
        """Return the evaluations of each lane that no later round can change."""
        return self._points

    def grow(self, state: State) -> None:
        """Simulate more rounds, with what the UEs have reported."""

    def end(self) -> None:
        """Simulate the rest, of which nothing is trained."""


class Growing:
    """The timeline of one training, simulated chunk by chunk with what its UEs report.

    Chunks of an earlier process are repeated with the same feedback.
    """

    def __init__(self, play: ChunkedPlay, every_s: float | None, engine: "Alone", resume: TrainState | None) -> None:
        self._play, self._every_s, self._engine = play, every_s, engine
        self.feedback, self.first = list[Float[np.ndarray, " n"]](), 0  # round at which the newest chunk begins
        for each in () if resume is None else resume.feedback:
            self._chunk(each)

    @property
    def is_finished(self) -> bool:
        return self._play.is_finished

    @property
    def rounds(self) -> int:
        return self._play.timeline.rounds

    def all_points(self) -> list[EvaluationPoint]:
        """Return all evaluations of the timeline so far."""
        play = self._play
        return evaluation_points(play.timeline, horizon_s=play.horizon_s, every_s=self._every_s, rounds=play.rounds)

    def points(self) -> list[Points]:
        every = self.all_points()
        return [every if self.is_finished else [point for point in every if point.round < self.rounds]]

    def grow(self, state: State) -> None:
        reported = np.asarray(state.reported, float)
        self._chunk(np.where(np.isfinite(reported), reported, np.nan))

    def end(self) -> None:
        while not self.is_finished:
            self._play.play(self.feedback[-1])

    def _chunk(self, reported: Float[np.ndarray, " n"]) -> None:
        self.first = self.rounds
        self.feedback.append(reported)
        self._engine.grow(self._play.play(reported), self.first)


# ---- what computes them


class Alone:
    """Compute one training."""

    def __init__(self, lane: Lane) -> None:
        self._lane, learner = lane, lane.learner
        script, block = (
            Script.of(lane.timeline, learner.merge),
            on_gpu.block_of([[point.round for point in lane.points]]),
        )
        self._prepared = Prepared.of(lane.task, script, learner, lane.seed, block)

    def start(self, resume: Sequence[TrainState | None]) -> State:
        (one,), lane = resume, self._lane
        return start(lane.task, self._prepared.script, lane.learner, lane.seed) if one is None else one.state

    def grow(self, timeline: Timeline, first: int) -> None:
        """Add the rounds of a timeline from round ``first`` on."""
        self._prepared = replace(self._prepared, script=self._prepared.script.grown(timeline, first))

    def advance(self, state: State, begin: LaneRounds, end: LaneRounds) -> State:
        return advance(self._prepared, self._with_slots(state), int(begin[0]), int(end[0]))

    def look(self, state: State) -> list[MetricMeans]:
        """Return the means of the metrics."""
        task, learner = self._lane.task, self._lane.learner
        own = (state.client_state, learner.objective.personal, learner.personal_steps)
        per_ue = evaluate(task, state.params, learner.personal_step, *own)
        means = mean_values(np.stack([per_ue[name] for name in METRICS], axis=1))
        if task.new is None:
            return [means]
        new = np.asarray(evaluate_new(task, state.params, learner.personal_step))
        return [means | mean_values(new, NEW_UES_METRICS)]

    def _with_slots(self, state: State) -> State:
        """Return a state whose shelf is as long as the script needs."""
        more = self._prepared.script.slots - rows_of(state.shelf)
        if not more:
            return state

        def longer(rows: Array) -> Array:
            return jnp.pad(rows, [(0, more)] + [(0, 0)] * (rows.ndim - 1))

        return replace(state, shelf=jax.tree.map(longer, state.shelf))


class Together:
    """Compute several trainings of equal shape. Several devices each take a share of them."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes, model, learner = lanes, lanes[0].task.model, lanes[0].learner
        self._scripts = [Script.of(lane.timeline, lane.learner.merge) for lane in lanes]
        self.slots = [script.slots for script in self._scripts]
        trained, tested = zip(*(lane.task.data.lengths() for lane in lanes), strict=True)
        self._common = _Common(
            Program.of(model, learner, int(self._scripts[0].quorum), one_by_one=False),
            View.of(model, (max(trained), max(tested)), learner.objective.personal, learner.personal_steps, len(lanes)),
            _mesh(len(lanes)),
            on_gpu.block_of([point.round for point in lane.points] for lane in lanes),
        )
        script = stack([replace(script, slots=max(self.slots)) for script in self._scripts])
        self._script = self._common.place(script)
        self._known = self._common.place(stack([Known.of(lane.task, lane.learner, lane.seed) for lane in lanes]))

        numbers = [lane.task.new.numbers for lane in lanes if lane.task.new is not None]
        self._new = self._common.place(stack(numbers)) if numbers else None

    def start(self, resume: Sequence[TrainState | None]) -> State:
        states = [
            start(lane.task, script, lane.learner, lane.seed) if one is None else one.state
            for lane, script, one in zip(self._lanes, self._scripts, resume, strict=True)
        ]
        return self._common.place(stack(states))

    def advance(self, state: State, begin: LaneRounds, end: LaneRounds) -> State:
        rounds, most = self._common.place((jnp.asarray(begin), jnp.asarray(end))), int((end - begin).max())
        return _rounds_together(state, self._script, self._known, *rounds, most, common=self._common)

    def look(self, state: State) -> list[MetricMeans]:
        """Return the means of the metrics of every lane."""
        kept = None if self._common.view.own is None else state.client_state
        looked = np.asarray(_evaluate_together(state.params, self._known, kept, common=self._common))
        means = [mean_values(of_lane) for of_lane in looked]
        if self._new is None:
            return means
        new = np.asarray(_evaluate_new_together(state.params, self._known, self._new, common=self._common))
        return [one | mean_values(of_lane, NEW_UES_METRICS) for one, of_lane in zip(means, new, strict=True)]


# ---- the loop

Progress = tuple[list[list[MetricMeans]], list[int], State]  # values and state of all lanes, and which have moved


def train(
    task: Task,
    timeline: Timeline,
    learner: Learner,
    points: Points,
    *,
    seed: int = 0,
    resume: TrainState | None = None,
    stop_when_diverged: bool = False,
) -> Iterator[TrainState]:
    """Train along a timeline and yield a ``TrainState`` after evaluating at each of the points.

    Training continues from ``resume``, if given. With ``stop_when_diverged``, it stops when the loss is not finite,
    and the remaining values are NaN.
    """
    lane = Lane(task, timeline, learner, points, seed)
    for values, _, state in _train(Alone(lane), Whole([lane]), [resume], stop_when_diverged):
        yield TrainState(values[0], state)


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
    engine = Alone(Lane(task, play.timeline, learner, [], seed))
    source = Growing(play, every_s, engine, resume)
    for values, _, state in _train(engine, source, [resume], stop_when_diverged):
        yield play.timeline, source.all_points(), TrainState(values[0], state, tuple(source.feedback))


def train_together(
    lanes: Sequence[Lane],
    *,
    resume: Sequence[TrainState | None] | None = None,
    stop_when_diverged: bool = False,
) -> Iterator[LaneStates]:
    """Train lanes of equal shape side by side, as ``train`` does each, and yield their progress at every point.

    A lane that has fewer rounds to its next point, or is ahead, waits there for the others.

    Raises:
        ValueError: The lanes differ in shape.
    """
    if len({lane.shape for lane in lanes}) != 1:
        raise ValueError(
            "the lanes differ in shape, so they cannot be trained together; sort them with group_lanes() first."
        )
    engine, resume = Together(lanes), [None] * len(lanes) if resume is None else resume
    for values, moved, state in _train(engine, Whole(lanes), resume, stop_when_diverged):
        yield LaneStates(values, moved, state, engine.slots)


def _train(
    engine: Alone | Together, source: Whole | Growing, resume: Sequence[TrainState | None], stop_when_diverged: bool
) -> Iterator[Progress]:
    """Train all lanes to their next points, evaluate, and let the rounds grow when there are no more points."""
    state, values = engine.start(resume), [[] if one is None else list(one.values) for one in resume]
    _stop_diverged(source, values, stop_when_diverged)
    if source.is_finished and not _behind(source, values):
        yield values, [], state
    while True:
        while behind := _behind(source, values):
            points, point = source.points(), min(len(values[number]) for number in behind)
            moving = [number for number in behind if len(values[number]) == point]
            begin, end = np.zeros((2, len(values)), np.int32)
            for number in moving:
                begin[number] = points[number][point - 1].round if point else 0
                end[number] = points[number][point].round
            looked = list[MetricMeans]()
            if point == 0 or (end > begin).any():
                state = engine.advance(state, np.maximum(begin, source.first), end)
                looked = engine.look(state)
            for number in moving:  # if no round has closed since the last point, the model is the same
                is_new = point == 0 or end[number] > begin[number]
                values[number].append(looked[number] if is_new else values[number][-1])
            _stop_diverged(source, values, stop_when_diverged)
            yield [list(own) for own in values], moving, state
        if source.is_finished:
            return
        reached = max([source.first, *(point.round for points in source.points() for point in points)])
        state = engine.advance(state, np.array([reached]), np.array([source.rounds]))
        source.grow(state)


def _behind(source: Whole | Growing, values: Sequence[Sequence[MetricMeans]]) -> list[int]:
    """Return the lanes that have not reached all of their points."""
    return [number for number, points in enumerate(source.points()) if len(values[number]) < len(points)]


def _stop_diverged(source: Whole | Growing, values: list[list[MetricMeans]], stop_when_diverged: bool) -> None:
    """Fill the values of diverged lanes with NaN."""
    for number, own in enumerate(values):
        if stop_when_diverged and own and diverged(own[-1]):
            source.end()
            own += [dict.fromkeys(own[-1], math.nan)] * (len(source.points()[number]) - len(own))


def mean_values(per_ue: Float[np.ndarray, "n 4"], metrics: Sequence[str] = METRICS) -> MetricMeans:
    """Return the plain mean over UEs of every metric."""
    return {name: float(np.mean(np.asarray(column, float))) for name, column in zip(metrics, per_ue.T, strict=True)}


def diverged(values: MetricMeans) -> bool:
    """Return whether the training loss is not finite. A training does not recover from that."""
    return not math.isfinite(values["train_loss"])


# ---- several lanes in one program


@dataclass(frozen=True)
class _Common:
    """The static part that all lanes of a group share."""

    program: Program
    view: View  # for evaluations
    mesh: Mesh | None  # devices that share the lanes
    block: int = 1  # rounds between two checks whether to stop

    def place(self, tree: PyTree) -> PyTree:
        """Place arrays on the devices, split along the axis of lanes."""
        return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec("lanes")))


def _mesh(lanes: int) -> Mesh | None:
    """Return a mesh of as many devices as can have the same number of lanes; None for one."""
    devices = jax.local_devices()
    count = max(number for number in range(1, len(devices) + 1) if lanes % number == 0)
    return Mesh(np.array(devices[:count]), ("lanes",)) if count > 1 else None


@partial(jax.jit, static_argnames="common", donate_argnames="state")
def _rounds_together(
    state: State,
    script: Script,
    known: Known,
    begin: Int[Array, " p"],
    end: Int[Array, " p"],
    most: Int[Array, ""],
    *,
    common: _Common,
) -> State:
    """Play rounds ``begin`` to ``end`` − 1 of every lane; ``most`` is the largest number of rounds of a lane."""

    def play(most: Array, state: State, script: Script, known: Known, begin: Array, end: Array) -> State:
        def one(step: Array, state: State) -> State:
            k = begin + step
            return play_round(common.program, known, script, state, k, alive=k < end)

        return on_gpu.in_blocks(common.block, most, one, state)

    return side_by_side(common.mesh, play, most, (state, script, known, begin, end))


@partial(jax.jit, static_argnames="common")
def _evaluate_together(params: Params, known: Known, memory: ClientState, *, common: _Common) -> Float[Array, "p n 4"]:
    def look(_: None, params: Params, known: Known, memory: ClientState) -> Array:
        return evaluate_ues(common.view, params, known.data, known.alpha, memory)

    return side_by_side(common.mesh, look, None, (params, known, memory))


@partial(jax.jit, static_argnames="common")
def _evaluate_new_together(params: Params, known: Known, numbers: Counts, *, common: _Common) -> Float[Array, "p n 4"]:
    """Return the accuracies of UEs that never trained; ``numbers`` are theirs in the data that all UEs share."""

    def look(_: None, params: Params, known: Known, numbers: Counts) -> Array:
        return evaluate_new_ues(common.view, params, replace(known.data, numbers=numbers), known.alpha)

    return side_by_side(common.mesh, look, None, (params, known, numbers))
