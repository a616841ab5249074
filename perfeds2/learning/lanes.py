"""Group trainings of equal shape, which one compiled loop can train together.

One small model does not fill a GPU. Trainings of equal shape have the same model, objective, batch and quorum; their data,
timelines, weights, α and β may differ.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from perfeds2.learning.evaluate import device_bytes
from perfeds2.learning.learner import Learner
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import start
from perfeds2.learning.script import Script
from perfeds2.learning.settings import as_tree
from perfeds2.learning.task import Task, parameters
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
    (numbers, parts), (leaves, tree) = (
        jax.tree.flatten((as_tree(learner.objective), as_tree(learner.merge))),
        jax.tree.flatten(data),
    )
    shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)  # the number of samples may differ
    return (
        *(task.model, task.ues, 0 if task.new is None else task.new.ues, tree, shapes, quorum),
        *(parts, tuple(np.shape(number) for number in numbers)),
        *(learner.personal_steps, learner.batch, learner.local_steps, learner.clip is None),
        *(learner.chain, learner.attack is None, learner.noise is None, learner.bands, learner.feedback),
        learner.noise_seed is None,
    )


def bytes_of(lane: Lane) -> int:
    """Estimate the memory of a lane on the device: its state, its participants' weights and gradients, its data."""
    script = Script.of(lane.timeline, lane.learner.merge)
    state = jax.eval_shape(lambda: jax.tree.leaves(start(lane.task, script, lane.learner, lane.seed)))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in (*state, *jax.tree.leaves(lane.task.data)))
    return held + 4 * parameters(lane.task.model) * 4 * int(script.quorum)
