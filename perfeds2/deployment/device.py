"""What does a device do with a job?"""

import time
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from perfeds2.deployment.transport import Arrays
from perfeds2.learning.data import Data
from perfeds2.learning.evaluate import look_at_ue
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models.model import Model, Params
from perfeds2.learning.replay import Learner, as_int32, job_key, local_update
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
    update = _update(
        {name: jnp.asarray(values) for name, values in params.items()},
        task.data,
        as_int32(seed),
        ue,
        version,
        jnp.float32(learner.beta),
        model=task.model,
        learner=learner,
    )
    arrays = {name: np.asarray(values) for name, values in update.items()}
    compute_s = time.monotonic() - started
    return Work(arrays, look(task, params, alpha=alpha, ue=ue), compute_s)


@partial(jax.jit, static_argnames=("model", "learner"))
def _update(
    params: Params,
    data: Data,
    seed: Int[Array, ""],
    ue: Int[Array, ""],
    version: Int[Array, ""],
    beta: Float[Array, ""],
    *,
    model: Model,
    learner: Learner,
) -> Params:
    return local_update(
        model, data, learner.objective, params, job_key(seed), ue, version,
        beta=beta, batch=learner.batch, local_steps=learner.local_steps,
    )  # fmt: skip


def look(task: Task, params: Arrays, *, alpha: float, ue: int) -> dict[str, float]:
    """How a model does on this device's data, as it is and after one personal step: ``learning/evaluate.py`` for one UE."""
    here = {name: jnp.asarray(values) for name, values in params.items()}
    values = _look(here, task.data, jnp.float32(alpha), ue, model=task.model, lengths=task.data.lengths())
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


_look = partial(jax.jit, static_argnames=("model", "lengths"))(look_at_ue)
