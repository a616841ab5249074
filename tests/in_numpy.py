"""Training in NumPy, for tests of what happens to results: compiling the real one takes seconds.

All that is kept from one evaluation to the next depends on all that was kept, so nothing can be lost unnoticed.
``python in_numpy.py compare ...`` is the command ``perfeds2 compare ...`` that trains so. Its workers do, too.
"""

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from perfeds2.learning import lanes, replay, train
from perfeds2.learning.evaluate import evaluate as evaluate_compiled
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.task import Task
from perfeds2.runs import trainer, workers

PAUSE_S = "IN_NUMPY_PAUSE_S"  # at every evaluation, for tests that kill: variable of the environment

_start = replay.start


def train_in_numpy(put: Callable[[Any, str, Any], None], *, traced: bool = False) -> None:
    """Replace what a training computes in this process and in workers that it starts, by the given ``setattr``.

    With ``traced``, the rounds and evaluations of a training on its own are traced as well, but not compiled: a mistake in an
    objective, a merge, a model or a loss of one's own still raises.
    """
    for where in (train, lanes, trainer):
        put(where, "start", start)
    for where in (train, trainer):
        put(where, "evaluate", also_trace(evaluate_compiled, evaluate) if traced else evaluate)
    rounds = also_trace(replay.advance, advance_at_once) if traced else advance
    put(train, "advance", rounds)
    put(train, "_rounds_together", advance_together)
    put(train, "_evaluate_together", evaluate_together)
    put(workers, "subprocess", SimpleNamespace(PIPE=subprocess.PIPE, Popen=start_worker))
    if traced:
        put(replay, "start", start)
        put(replay, "advance", rounds)


def evaluate_in_numpy(put: Callable[[Any, str, Any], None]) -> None:
    """Replace only evaluations, for tests that look at the weights."""
    for where in (train, trainer):
        put(where, "evaluate", evaluate)
    put(train, "_evaluate_together", evaluate_together)


def also_trace(real: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Return the stand-in; before it is first called with a program and shapes, the real one is traced."""
    seen = set()

    def called(*given: Any) -> Any:
        what = tuple(kind_of(each) for each in jax.tree.leaves(given))
        if what not in seen:
            jax.eval_shape(lambda: jax.tree.leaves(real(*given)))
            seen.add(what)
        return stand_in(*given)

    return called


def kind_of(given: Any) -> Any:
    """Return what a function is compiled for."""
    if isinstance(given, replay.Prepared):
        return given.program, jax.tree.structure(given.known)
    if isinstance(given, Task):
        return given.model
    if hasattr(given, "shape"):
        return given.shape, given.dtype
    return type(given) if isinstance(given, int | float) else given


def start_worker(command: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
    python, flag, code, paths = command
    first, found, rest = code.partition("from perfeds2.runs.workers")
    assert found, code
    code = f"{first}import in_numpy; in_numpy.train_in_numpy(setattr); {found}{rest}"
    paths = json.dumps([str(Path(__file__).parent), *json.loads(paths)])
    return subprocess.Popen([python, flag, code, paths], **settings)


def start(task: Any, script: Any, learner: Any, seed: int) -> Any:
    structures = []

    def leaves() -> list[Any]:
        found, structure = jax.tree.flatten(_start(task, script, learner, seed))
        structures.append(structure)
        return found

    return as_state(structures, [np.full(leaf.shape, seed, leaf.dtype) for leaf in jax.eval_shape(leaves)])


def advance(prepared: Any, state: Any, begin: int, end: int, rows: int | None = None) -> Any:
    """Rounds of one training. Only this many rows of its shelf matter: beside others it is longer than alone."""
    shelf = {id(leaf) for leaf in jax.tree.leaves(state.shelf)}
    leaves, structure = jax.tree.flatten(state)
    most = [rows if id(leaf) in shelf else None for leaf in leaves]
    leaves = [np.asarray(leaf) for leaf in leaves]
    steps = float(prepared.known.alpha) + float(prepared.known.beta)
    total = sum((leaf[:m] if m else leaf).mean(dtype=np.float64) for leaf, m in zip(leaves, most, strict=True))
    scale, shift = 1.0, 0.0  # a round makes 0.9 x + told of every number x
    for version in range(begin, end):
        told = version + math.sin(steps + total)
        total = 0.9 * total + told * len(leaves)
        scale, shift = 0.9 * scale, 0.9 * shift + told
    return as_state([structure], [(scale * leaf + shift).astype(leaf.dtype) for leaf in leaves])


def advance_together(state: Any, script: Any, known: Any, begin: Any, end: Any, *_: Any, **__: Any) -> Any:
    del script
    sizes = zip(np.asarray(known.alpha), np.asarray(known.beta), strict=True)
    steps = [SimpleNamespace(known=SimpleNamespace(alpha=a, beta=b)) for a, b in sizes]
    rounds = zip(steps, lanes_of(state), begin.tolist(), end.tolist(), strict=True)
    ends = [advance(step, lane, first, last, rows=1) for step, lane, first, last in rounds]
    return jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *ends)


def lanes_of(tree: Any) -> list[Any]:
    """Return the trees that were stacked, in NumPy, which compiles nothing."""
    leaves, structure = jax.tree.flatten(tree)
    return [jax.tree.unflatten(structure, rows) for rows in zip(*map(np.asarray, leaves), strict=True)]


def advance_at_once(prepared: Any, state: Any, begin: int, end: int) -> Any:
    return advance(prepared, state, max(begin, end - 1), end)


def as_state(structures: list[Any], leaves: list[np.ndarray]) -> Any:
    return jax.tree.unflatten(structures[0], jax.device_put(leaves))


def evaluate(task: Any, params: Any, *_: Any) -> dict[str, np.ndarray]:
    time.sleep(float(os.environ.get(PAUSE_S, 0)))
    mean = np.mean([np.asarray(leaf).mean() for leaf in jax.tree.leaves(params)])
    return {name: 1 / (2 + np.abs(mean) + np.arange(task.ues)) for name in METRICS}


def evaluate_together(params: Any, known: Any, *_: Any, **__: Any) -> np.ndarray:
    task = SimpleNamespace(ues=known.data.train_count.shape[-1])
    return np.stack([np.stack(list(evaluate(task, lane).values()), axis=1) for lane in lanes_of(params)])


if __name__ == "__main__":
    from perfeds2.cli import main

    train_in_numpy(setattr)
    main()
