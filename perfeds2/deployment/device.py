"""What does a device do with a job?"""

import time
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.deployment.transport import Arrays
from perfeds2.learning.evaluate import look_at_ue
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Known, Learner, Program, local_update
from perfeds2.learning.task import Task


@dataclass(frozen=True)
class Work:
    """What a device sends back."""

    update: Arrays
    metrics: dict[str, float]  # of the model it was handed, on its own data
    compute_s: float  # until the update was computed; a simulation of this device needs it


def work(task: Task, learner: Learner, params: Arrays, *, alpha: float, seed: int, ue: int, version: int) -> Work:
    """One job: the update the simulator would compute for the same UE and version, and a look at the model."""
    started = time.monotonic()
    here = {name: jnp.asarray(values) for name, values in params.items()}
    update = _update(Program.of(task.model, learner), Known.of(task, learner, seed), here, ue, version)
    arrays = {name: np.asarray(values) for name, values in update.items()}
    compute_s = time.monotonic() - started
    return Work(arrays, look(task, params, alpha=alpha, ue=ue), compute_s)


_update = partial(jax.jit, static_argnames="program")(local_update)


def look(task: Task, params: Arrays, *, alpha: float, ue: int) -> dict[str, float]:
    """How a model does on this device's data, as it is and after one personal step: ``learning/evaluate.py`` for one UE."""
    here = {name: jnp.asarray(values) for name, values in params.items()}
    values = _look(here, task.data, jnp.float32(alpha), ue, model=task.model, lengths=task.data.lengths())
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


_look = partial(jax.jit, static_argnames=("model", "lengths"))(look_at_ue)
