"""How does a training that was killed go on where it was?"""

import time

import jax
import numpy as np

from perfeds2.errors import InputError
from perfeds2.learning.replay import Script, start
from perfeds2.learning.train import TrainState
from perfeds2.learning.train_many import Lane
from perfeds2.runs.folder import Folder

CHECKPOINT_EVERY_S = 2.0


class Pace:
    """When to save: every two seconds, and where saving takes long, a twentieth of the time."""

    def __init__(self) -> None:
        self._wait_s, self._since = CHECKPOINT_EVERY_S, time.monotonic()

    def is_due(self) -> bool:
        self._began = time.monotonic()
        return self._began - self._since > self._wait_s

    def is_done(self) -> None:
        self._since = time.monotonic()
        self._wait_s = max(CHECKPOINT_EVERY_S, 20 * (self._since - self._began) if CHECKPOINT_EVERY_S else 0.0)


def save_checkpoint(folder: Folder, name: str, training: TrainState) -> None:
    leaves = jax.tree.leaves(training.state)
    arrays = {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    folder.save_part(f"{name}.checkpoint", arrays, {"values": training.values})


def load_checkpoint(folder: Folder, name: str, trial: Lane) -> TrainState | None:
    part = folder.load_part(f"{name}.checkpoint")
    if part is None:
        return None
    arrays, facts = part
    fresh = start(trial.task, Script.of(trial.timeline, trial.learner.merge), trial.learner, trial.seed)
    leaves, structure = jax.tree.flatten(fresh)
    saved = [arrays[key] for key in sorted(arrays)]
    if [(a.shape, a.dtype) for a in saved] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise InputError(f"checkpoint {folder.parts / name}.checkpoint.safetensors does not fit this run; delete it.")
    return TrainState(facts["values"], jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in saved]))
