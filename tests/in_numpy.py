"""Training in NumPy, for tests of what happens to results: compiling the real one takes seconds.

All that is kept from one evaluation to the next depends on all that was kept, so nothing can be lost unnoticed.
"""

import types
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
    put(train, "Prepared", types.SimpleNamespace(of=lambda *_: None))
    put(trainer, "on_one", lambda leaves: leaves)


def start(task: Any, script: Any, learner: Any, seed: int) -> Any:
    shapes = jax.eval_shape(lambda: _start(task, script, learner, seed))
    return jax.tree.map(lambda leaf: np.full(leaf.shape, seed, leaf.dtype), shapes)


def advance(_: None, state: Any, begin: int, end: int) -> Any:
    for version in range(begin, end):
        told = version + np.sin(sum(float(np.asarray(leaf).mean()) for leaf in jax.tree.leaves(state)))
        state = jax.tree.map(lambda leaf, told=told: (0.9 * np.asarray(leaf) + told).astype(leaf.dtype), state)
    return state


def evaluate(task: Any, params: Any, *_: Any) -> dict[str, np.ndarray]:
    mean = np.mean([np.asarray(leaf).mean() for leaf in jax.tree.leaves(params)])
    return {name: 1 / (2 + np.abs(mean) + np.arange(task.ues)) for name in METRICS}
