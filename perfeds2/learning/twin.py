"""The slow twin of ``replay``: the place to start reading, and what replay is tested against."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from perfeds2.learning.models.model import Params
from perfeds2.learning.replay import Learner, job_key, local_update
from perfeds2.learning.task import Task
from perfeds2.timeline.timeline import Timeline


def replay_slowly(task: Task, timeline: Timeline, learner: Learner, seed: int = 0) -> Params:
    """Train along a timeline, keeping every model there ever was. Hundreds of times slower than ``replay``."""
    models = [task.model.init(jax.random.fold_in(jax.random.key(seed), 0))]
    job = jax.jit(
        partial(
            local_update,
            task.model,
            task.data,
            learner.objective,
            beta=jnp.float32(learner.beta),
            batch=learner.batch,
            local_steps=learner.local_steps,
        )
    )
    optimiser = learner.optimiser or optax.sgd(learner.beta)
    state = optimiser.init(models[0])
    for ues, versions in zip(timeline.ues, timeline.versions, strict=True):
        uploads = [
            job(models[version], job_key(seed), jnp.int32(ue), jnp.int32(version))
            for ue, version in zip(ues, versions, strict=True)
        ]
        mean = jax.tree.map(lambda *gradients: sum(gradients) / len(gradients), *uploads)
        step, state = optimiser.update(mean, state, models[-1])
        models.append(jax.tree.map(jnp.add, models[-1], step))
    return models[-1]
