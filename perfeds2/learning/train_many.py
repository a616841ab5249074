"""Train several models at once.

One small model does not fill a GPU. Trainings of equal shape (same model, objective, batch and quorum; other data,
timelines, weights, α and β) run in one compiled loop with an extra axis. Each gets the same numbers as alone, up to
the order of summation.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
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
from perfeds2.learning.evaluate import View, device_bytes, evaluate_new_ues, evaluate_ues, own_model
from perfeds2.learning.metrics import NEW_UES_METRICS
from perfeds2.learning.models.model import Params
from perfeds2.learning.objectives import Memory
from perfeds2.learning.replay import (
    Known,
    Learner,
    Program,
    State,
    play_round,
    start,
)
from perfeds2.learning.script import Script
from perfeds2.learning.settings import split
from perfeds2.learning.task import Task, parameters
from perfeds2.learning.train import EvaluationPoint, MetricMeans, TrainState, diverged, mean_values, no_values
from perfeds2.timeline.record import Timeline

MOST_BYTES = 32 << 30  # for the weights and data of trainings in one group, each counted in full


@dataclass(frozen=True)
class Lane:
    """One training to run."""

    task: Task
    timeline: Timeline
    learner: Learner
    points: Sequence[EvaluationPoint]  # when to evaluate
    seed: int = 0

    @property
    def shape(self) -> Hashable:
        cloud = self.timeline.cloud
        levels = None if cloud is None else (cloud.edges, cloud.cells.shape[1], cloud.most_handed)
        return shape_of(self.task, self.learner, self.timeline.quorum), levels


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


def group_lanes(lanes: Sequence[Lane], most_bytes: int | None = None) -> list[list[int]]:
    """Group lanes, by index, into groups of equal shape that fit into memory."""
    most_bytes = most_bytes or min(MOST_BYTES, device_bytes() // 2)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, lane in enumerate(lanes):
        alike[lane.shape].append(number)
    found = []
    for numbers in alike.values():
        most = max(1, most_bytes // max(bytes_of(lanes[number]) for number in numbers))
        count = -(-len(numbers) // most)
        found += [part.tolist() for part in np.array_split(numbers, count)]  # groups of nearly equal size
    return found


def shape_of(task: Task, learner: Learner, quorum: int) -> Hashable:
    """Return what lanes must have in common to be trained together."""
    data = task.data
    (numbers, structure), (merging, merge) = split(learner.objective), split(learner.merge)
    leaves, tree = jax.tree.flatten(data)
    shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)  # the number of samples may differ
    return (
        *(task.model, task.ues, 0 if task.new is None else task.new.ues, tree, shapes, quorum),
        *(structure, merge, tuple(number.shape for number in (*numbers, *merging))),
        *(learner.personal_steps, learner.batch, learner.local_steps, learner.clip is None, learner.bits),
        *(learner.top_k, learner.attack is None, learner.noise is None, learner.bands, learner.feedback),
        learner.noise_seed is None,
    )


def bytes_of(lane: Lane) -> int:
    """Estimate the memory of a lane on the device: its state, its participants' weights and gradients, its data."""
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
    """Train lanes of equal shape side by side, as ``train`` does each, and yield their progress at every point.

    A lane that has fewer rounds to its next point, or is ahead, waits there for the others. Several devices each take
    a share of the lanes.

    Raises:
        ValueError: The lanes differ in shape.
    """
    if len({lane.shape for lane in lanes}) != 1:
        raise ValueError(
            "the lanes differ in shape, so they cannot be trained together; sort them with group_lanes() first."
        )
    first, points = lanes[0], [lane.points for lane in lanes]
    resume = [None] * len(lanes) if resume is None else resume
    scripts = [Script.of(lane.timeline, lane.learner.merge) for lane in lanes]
    slots = max(script.slots for script in scripts)
    lengths = zip(*(lane.task.data.lengths() for lane in lanes), strict=True)
    common = _Common(
        Program.of(first.task.model, first.learner, int(scripts[0].quorum), one_by_one=False),
        View.of(
            first.task.model,
            (max(next(lengths)), max(next(lengths))),
            own_model(first.learner.objective),
            first.learner.personal_steps,
            len(lanes),
        ),
        _mesh(len(lanes)),
        on_gpu.block_of([point.round for point in own] for own in points),
    )
    each_script = common.place(stack([replace(script, slots=slots) for script in scripts]))
    each_known = common.place(stack([Known.of(lane.task, lane.learner, lane.seed) for lane in lanes]))
    numbers = [lane.task.new.numbers for lane in lanes if lane.task.new is not None]
    each_new = common.place(stack(numbers)) if numbers else None
    states = [
        start(lane.task, script, lane.learner, lane.seed) if one is None else one.state
        for lane, script, one in zip(lanes, scripts, resume, strict=True)
    ]
    state = common.place(stack(states))
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
        looked, new = np.empty(0), [dict[str, float]()] * len(lanes)
        if point == 0 or (end > begin).any():
            most = int((end - begin).max())
            rounds = common.place((jnp.asarray(begin), jnp.asarray(end)))
            state = _rounds_together(state, each_script, each_known, *rounds, most, common=common)
            memory = None if common.view.own is None else state.memory
            looked = np.asarray(_evaluate_together(state.params, each_known, memory, common=common))
            if each_new is not None:
                seen = np.asarray(_evaluate_new_together(state.params, each_known, each_new, common=common))
                new = [mean_values(of_lane, NEW_UES_METRICS) for of_lane in seen]
        for number in moving:
            own = values[number]
            has_moved = point == 0 or end[number] > begin[number]
            own.append(mean_values(looked[number]) | new[number] if has_moved else own[-1])
            if stop_when_diverged and diverged(own[-1]):
                own += [no_values(lanes[number].task)] * (len(points[number]) - len(own))
        yield LaneStates([list(own) for own in values], moving, state, own_slots)


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
def _evaluate_together(params: Params, known: Known, memory: Memory, *, common: _Common) -> Float[Array, "p n 4"]:
    def look(_: None, params: Params, known: Known, memory: Memory) -> Array:
        return evaluate_ues(common.view, params, known.data, known.alpha, memory)

    return side_by_side(common.mesh, look, None, (params, known, memory))


@partial(jax.jit, static_argnames="common")
def _evaluate_new_together(params: Params, known: Known, numbers: Counts, *, common: _Common) -> Float[Array, "p n 4"]:
    """Return the accuracies of UEs that never trained; ``numbers`` are theirs in the data that all UEs share."""

    def look(_: None, params: Params, known: Known, numbers: Counts) -> Array:
        return evaluate_new_ues(common.view, params, replace(known.data, numbers=numbers), known.alpha)

    return side_by_side(common.mesh, look, None, (params, known, numbers))
