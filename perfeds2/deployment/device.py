"""What does a device do with a request?"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.learning.evaluate import look_at_ue
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import Known, Program, local_update
from perfeds2.learning.task import Task


def answer(setup: Setup, task: Task, request: Request, params: Arrays) -> Reply:
    """The update, if one is asked for, and how the model it was handed does on this device's data."""
    update, compute_s = None, 0.0
    if request.kind == "train":
        started_s = time.monotonic()
        update = compute_update(setup, task, params, request.ue, request.version)
        time.sleep(setup.own.slow.get(request.ue, 0.0))
        compute_s = time.monotonic() - started_s  # a simulation of this device needs it
    metrics = evaluate_here(setup, task, params, request.ue)
    if update is not None and request.ue in setup.own.uplink_bps:
        time.sleep(32 * sum(values.size for values in update.values()) / setup.own.uplink_bps[request.ue])
    return Reply(request.ue, request.ticket, request.version, update, metrics, compute_s)


def compute_update(setup: Setup, task: Task, params: Arrays, ue: int, version: int) -> Arrays:
    """What the simulator would compute for the same UE and version."""
    learner = setup.algorithm.learner
    program, known = Program.of(task.model, learner), Known.of(task, learner, setup.seed)
    update = _update(program, known, _on_device(params), ue, version)
    return {name: np.asarray(values) for name, values in update.items()}


def evaluate_here(setup: Setup, task: Task, params: Arrays, ue: int) -> dict[str, float]:
    """How a model does on one device, as it is and after its personal steps: ``learning/evaluate.py`` for one UE."""
    learner, lengths = setup.algorithm.learner, task.data.lengths()
    alpha, steps = jnp.float32(learner.personal_step), learner.personal_steps
    values = _evaluate(_on_device(params), task.data, alpha, ue, model=task.model, lengths=lengths, steps=steps)
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


def _on_device(params: Arrays) -> dict[str, jax.Array]:
    return {name: jnp.asarray(values) for name, values in params.items()}


_update = jax.jit(local_update, static_argnames="program")
_evaluate = jax.jit(look_at_ue, static_argnames=("model", "lengths", "steps"))
