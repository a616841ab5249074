"""What does a device do with a request?"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.deployment.merging import Handed, uploaded
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.learning.evaluate import look_at_ue, own_model
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import Stateful
from perfeds2.learning.replay import Known, Learner, Program, local_job, local_update
from perfeds2.learning.task import Task


def answer(setup: Setup, task: Task, request: Request, params: Arrays) -> Reply:
    """The update, if one is asked for, and how the model it was handed does on this device's data."""
    return do_job(setup, task, request, Handed(params))[0]


def do_job(setup: Setup, task: Task, request: Request, handed: Handed, kept: Any = None) -> tuple[Reply, Any]:
    """The same of a device that keeps something: its answer, and what it keeps then, should that be merged."""
    update, left, compute_s = None, kept, 0.0
    if request.kind == "train":
        started_s = time.monotonic()
        update, left = compute_job(setup, task, handed, request.ue, request.version, kept)
        time.sleep(setup.own.slow.get(request.ue, 0.0))
        compute_s = time.monotonic() - started_s  # a simulation of this device needs it
    metrics = evaluate_here(setup, task, handed.params, request.ue, kept)
    if update is not None and request.ue in setup.own.uplink_bps:
        time.sleep(32 * sum(values.size for values in update.values()) / setup.own.uplink_bps[request.ue])
    return Reply(request.ue, request.ticket, request.version, update, metrics, compute_s), left


def compute_update(setup: Setup, task: Task, params: Arrays, ue: int, version: int) -> Arrays:
    """What the simulator would compute for the same UE and version."""
    return compute_job(setup, task, Handed(params), ue, version, None)[0]


def compute_job(setup: Setup, task: Task, handed: Handed, ue: int, version: int, kept: Any) -> tuple[Arrays, Any]:
    """The update, without what the device keeps of the model for itself; and what it keeps."""
    learner = setup.algorithm.learner
    program, known = Program.of(task.model, learner), Known.of(task, learner, setup.seed)
    if isinstance(learner.objective, Stateful):
        told = None if handed.told is None else _on_device(handed.told)
        update, (left, _) = _job(program, known, (_on_device(handed.params), told), (kept, None), ue, version)
    else:
        update, left = _update(program, known, _on_device(handed.params), ue, version), None
    sent = uploaded({name: np.asarray(values) for name, values in update.items()}, learner)
    return sent, jax.tree.map(np.asarray, left)


def kept_at_first(learner: Learner, first_params: Arrays) -> Any:
    """What a device has before its first job; None where it keeps nothing."""
    if not isinstance(learner.objective, Stateful):
        return None
    uploaded(first_params, learner)  # a model without the part that is to be kept is refused
    return jax.tree.map(np.asarray, learner.objective.first(_on_device(first_params)))


def evaluate_here(setup: Setup, task: Task, params: Arrays, ue: int, kept: Any = None) -> dict[str, float]:
    """How a model does on one device, as it is and after its personal steps, or the device's own beside it.

    ``learning/evaluate.py`` for one UE.
    """
    learner, lengths = setup.algorithm.learner, task.data.lengths()
    alpha, steps = jnp.float32(learner.personal_step), learner.personal_steps
    make, ours = own_model(learner.objective), _on_device(params)
    own = None if make is None or kept is None else make(ours, jax.tree.map(jnp.asarray, kept))
    values = _evaluate(ours, task.data, alpha, ue, own, model=task.model, lengths=lengths, steps=steps)
    return {name: float(value) for name, value in zip(METRICS, values, strict=True)}


def _on_device(params: Arrays) -> dict[str, jax.Array]:
    return {name: jnp.asarray(values) for name, values in params.items()}


_update = jax.jit(local_update, static_argnames="program")
_job = jax.jit(local_job, static_argnames="program")
_evaluate = jax.jit(look_at_ue, static_argnames=("model", "lengths", "steps"))
