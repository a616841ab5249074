"""How are several trainings done at once?

A GPU has little to do with one small model. Trainings of equal shape (same model, objective, batch and quorum; other
data, timelines, weights, α and β) are one compiled loop with one more axis. Each gets the numbers it gets alone,
but for the order in which floats are added up.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from perfeds2.learning import on_gpu
from perfeds2.learning.data import Joinable, Layout, Pool, stack
from perfeds2.learning.devices import side_by_side
from perfeds2.learning.evaluate import View, device_bytes, look_at_ues, own_model
from perfeds2.learning.models.model import Params
from perfeds2.learning.replay import (
    Known,
    Learner,
    Program,
    Script,
    State,
    play_round,
    start,
)
from perfeds2.learning.settings import split
from perfeds2.learning.task import Task, parameters
from perfeds2.learning.train import EvaluationPoint, TrainState, Values, diverged, mean_values, no_values
from perfeds2.timeline.record import Timeline

MOST_BYTES = 32 << 30  # for the weights and data of trainings that are done together, each counted in full


@dataclass(frozen=True)
class Lane:
    """One training that is to be done."""

    task: Task
    timeline: Timeline
    learner: Learner
    points: Sequence[EvaluationPoint]  # when to evaluate
    seed: int = 0

    @property
    def shape(self) -> Hashable:
        return shape_of(self.task, self.learner, self.timeline.quorum)


@dataclass(frozen=True)
class LaneStates:
    """Where several trainings stand. Their state is used up when they go on: save it before."""

    values: list[list[Values]]  # of each lane, for each of its points so far
    moved: list[int]  # the lanes that have come to a point just now
    state: State  # of all, stacked
    slots: list[int]  # how long each one's own shelf is

    def __getitem__(self, number: int) -> TrainState:
        """One of them, as if it were trained alone."""
        own = jax.tree.map(lambda w: w[number], self.state)
        shelf = jax.tree.map(lambda w: w[: self.slots[number]], own.shelf)
        return TrainState(list(self.values[number]), replace(own, shelf=shelf))


def group_lanes(lanes: Sequence[Lane], most_bytes: int | None = None) -> list[list[int]]:
    """Which lanes, by number, go together: those of equal shape, as many as there is memory for."""
    most_bytes = most_bytes or min(MOST_BYTES, device_bytes() // 2)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, lane in enumerate(lanes):
        alike[lane.shape].append(number)
    found = []
    for numbers in alike.values():
        most = max(1, most_bytes // max(bytes_of(lanes[number]) for number in numbers))
        count = -(-len(numbers) // most)
        found += [part.tolist() for part in np.array_split(numbers, count)]  # of nearly the same size
    return found


def shape_of(task: Task, learner: Learner, quorum: int) -> Hashable:
    """What must be equal in lanes that go together."""
    data = task.data
    (numbers, structure), (merging, merge) = split(learner.objective), split(learner.merge)
    leaves, tree = jax.tree.flatten(data)
    joined = isinstance(data, Joinable)  # then it does not matter how many samples there are
    shapes = tuple((leaf.shape[1:] if joined else leaf.shape, leaf.dtype) for leaf in leaves)
    return (
        *(task.model, task.ues, tree, shapes, quorum),
        *(structure, merge, tuple(number.shape for number in (*numbers, *merging))),
        *(learner.personal_steps, learner.batch, learner.local_steps, learner.clip is None, learner.bits),
        learner.top_k,
    )


def bytes_of(lane: Lane) -> int:
    """About what a lane takes on the device: its state, its participants' weights and gradients, its data."""
    script = Script.of(lane.timeline, lane.learner.merge)
    state = jax.eval_shape(lambda: jax.tree.leaves(start(lane.task, script, lane.learner, lane.seed)))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in (*state, *jax.tree.leaves(lane.task.data)))
    return held + 4 * parameters(lane.task.model) * 4 * int(script.quorum)


def train_together(
    lanes: Sequence[Lane],
    *,
    resume: Sequence[TrainState | None] | None = None,
    stop_when_diverged: bool = False,
) -> Iterator[LaneStates]:
    """Train lanes of equal shape side by side, as ``train`` does each of them. Yields where they stand at every point.

    Who has fewer rounds to its next point, or has gone further already, waits there for the others. Where there are
    several devices, each takes its share of the lanes.
    """
    if len({lane.shape for lane in lanes}) != 1:
        raise ValueError(
            "the lanes differ in shape, so they cannot be trained together; sort them with group_lanes() first."
        )
    first, points = lanes[0], [lane.points for lane in lanes]
    resume = [None] * len(lanes) if resume is None else resume
    scripts = [Script.of(lane.timeline, lane.learner.merge) for lane in lanes]
    slots = max(script.slots for script in scripts)
    pool = Pool.of([lane.task.data for lane in lanes])
    common = _Common(
        Program.of(first.task.model, first.learner, int(scripts[0].quorum), one_by_one=False),
        View.of(
            first.task.model,
            pool.layout.lengths,
            own_model(first.learner.objective),
            first.learner.personal_steps,
            len(lanes),
        ),
        pool.layout,
        _mesh(len(lanes)),
        on_gpu.block_of([point.round for point in own] for own in points),
        on_gpu.compiler_options(first.task.model, len(lanes) * int(scripts[0].quorum)),
    )
    knowns = [Known.of(lane.task, lane.learner, lane.seed) for lane in lanes]
    each = common.place(
        (
            stack([_as_long_as(script, scripts, slots) for script in scripts]),
            replace(stack([replace(known, data=None) for known in knowns]), data=pool.own),
        )
    )
    everybody = common.place(pool.shared, split=False)
    state = common.place(stack([_begin(*one, slots) for one in zip(lanes, scripts, resume, strict=True)]))
    values = [[] if one is None else list(one.values) for one in resume]
    own_slots = [script.slots for script in scripts]
    if all(len(own) == len(times) for own, times in zip(values, points, strict=True)):
        yield LaneStates(values, [], state, own_slots)
    while unfinished := [number for number in range(len(lanes)) if len(values[number]) < len(points[number])]:
        point = min(len(values[number]) for number in unfinished)
        moving = [number for number in unfinished if len(values[number]) == point]
        begin, end = np.zeros((2, len(lanes)), np.int32)
        for number in moving:
            begin[number] = points[number][point - 1].round if point else 0
            end[number] = points[number][point].round
        looked = np.empty(0)
        if point == 0 or (end > begin).any():
            most = int((end - begin).max())
            rounds = common.place((jnp.asarray(begin), jnp.asarray(end)))
            state = _compiled(common.options)(state, each, everybody, *rounds, most, common=common)
            memory = None if common.view.own is None else state.memory
            looked = np.asarray(_evaluate_together(state.params, each[1], everybody, memory, common=common))
        for number in moving:
            own = values[number]
            own.append(mean_values(looked[number]) if point == 0 or end[number] > begin[number] else own[-1])
            if stop_when_diverged and diverged(own[-1]):
                own += [no_values()] * (len(points[number]) - len(own))
        yield LaneStates([list(own) for own in values], moving, state, own_slots)


@dataclass(frozen=True)
class _Common:
    """What is the same for all lanes that are trained together, and no array."""

    program: Program
    view: View  # of an evaluation
    layout: Layout  # of their data
    mesh: Mesh | None  # the devices that share the lanes
    block: int = 1  # so many rounds between two looks at whether to go on
    options: on_gpu.Options = ()  # of the compiler

    def place(self, tree: Any, *, split: bool = True) -> Any:
        """Arrays where they are needed: with one axis of lanes every device gets its own, else all get all."""
        where = PartitionSpec("lanes") if split else PartitionSpec()
        return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, where))

    def known(self, own: Known, everybody: Any) -> Known:
        """What one lane knows, with its data."""
        return replace(own, data=self.layout.data_of(everybody, own.data))


def _mesh(lanes: int) -> Mesh | None:
    """As many devices as can have the same number of lanes."""
    devices = jax.local_devices()
    count = max(number for number in range(1, len(devices) + 1) if lanes % number == 0)
    return Mesh(np.array(devices[:count]), ("lanes",)) if count > 1 else None


@cache
def _compiled(options: on_gpu.Options) -> Callable[..., State]:
    """The loop over rounds, as a compiler told these options makes it."""
    told = dict(options) or None
    return jax.jit(_rounds_together, static_argnames="common", donate_argnames="state", compiler_options=told)


def _rounds_together(
    state: State,
    each: tuple[Script, Known],
    everybody: Any,
    begin: Int[Array, " p"],
    end: Int[Array, " p"],
    most: Int[Array, ""],
    *,
    common: _Common,
) -> State:
    """Every lane plays its rounds ``begin`` to ``end`` − 1; ``most`` is how many the longest has."""

    def play(given: Any, state: State, each: tuple[Script, Known], begin: Array, end: Array) -> State:
        (everybody, most), (script, own) = given, each
        known = common.known(own, everybody)

        def one(step: Array, state: State) -> State:
            k = begin + step
            return play_round(common.program, known, script, state, k, alive=k < end)

        return on_gpu.in_blocks(common.block, most, one, state)

    return side_by_side(common.mesh, play, (everybody, most), (state, each, begin, end))


@partial(jax.jit, static_argnames="common")
def _evaluate_together(
    params: Params, known: Known, everybody: Any, memory: Any, *, common: _Common
) -> Float[Array, "p n 4"]:
    def look(everybody: Any, params: Params, own: Known, memory: Any) -> Array:
        known = common.known(own, everybody)
        return look_at_ues(common.view, params, known.data, known.alpha, memory)

    return side_by_side(common.mesh, look, everybody, (params, known, memory))


# ---- lanes of different length as arrays of one length


def _as_long_as(script: Script, scripts: Sequence[Script], slots: int) -> Script:
    """A script filled up to the longest of all."""

    def fill(column: Array, length: int) -> Array:
        return jnp.pad(column, (0, length - column.size))

    merges, rounds = (max(getattr(one, name).size for one in scripts) for name in ("ues", "write"))
    ues, versions, read = (fill(column, merges) for column in (script.ues, script.versions, script.read))
    return Script(script.quorum, ues, versions, read, fill(script.write, rounds), slots)


def _begin(lane: Lane, script: Script, resume: TrainState | None, slots: int) -> State:
    """Where a lane starts or goes on, on a shelf of the common length."""
    if resume is None:
        return start(lane.task, replace(script, slots=slots), lane.learner, lane.seed)
    more = slots - script.slots
    shelf = jax.tree.map(lambda w: jnp.pad(w, ((0, more), *((0, 0),) * (w.ndim - 1))), resume.state.shelf)
    return replace(resume.state, shelf=shelf)
