"""Training in NumPy, for tests of what happens to results: compiling the real one takes seconds.

All that is kept from one evaluation to the next depends on all that was kept, so nothing can be lost unnoticed.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from perfeds2.learning import replay, train
from perfeds2.learning.metrics import METRICS
from perfeds2.runs import trainer

_start = replay.start


def train_in_numpy(put: Callable[[Any, str, Any], None]) -> None:
    """Replace what a training on its own (not beside others) computes, by the given ``setattr``."""
    for where in (train, trainer):
        put(where, "start", start)
        put(where, "evaluate", evaluate)
    put(train, "advance", advance)


def start(task: Any, script: Any, learner: Any, seed: int) -> Any:
    structures = []

    def leaves() -> list[Any]:
        found, structure = jax.tree.flatten(_start(task, script, learner, seed))
        structures.append(structure)
        return found

    return as_state(structures, [np.full(leaf.shape, seed, leaf.dtype) for leaf in jax.eval_shape(leaves)])


def advance(_: None, state: Any, begin: int, end: int) -> Any:
    leaves, structure = jax.tree.flatten(state)
    leaves = [np.asarray(leaf) for leaf in leaves]
    for version in range(begin, end):
        told = version + np.sin(sum(float(leaf.mean()) for leaf in leaves))
        leaves = [(0.9 * leaf + told).astype(leaf.dtype) for leaf in leaves]
    return as_state([structure], leaves)


def as_state(structures: list[Any], leaves: list[np.ndarray]) -> Any:
    return jax.tree.unflatten(structures[0], [jax.device_put(leaf) for leaf in leaves])


def evaluate(task: Any, params: Any, *_: Any) -> dict[str, np.ndarray]:
    mean = np.mean([np.asarray(leaf).mean() for leaf in jax.tree.leaves(params)])
    return {name: 1 / (2 + np.abs(mean) + np.arange(task.ues)) for name in METRICS}
