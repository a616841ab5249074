"""The slow twin of ``replay``: the place to start reading, and what replay is tested against.

It shares no function with ``replay``: what is written down here twice is written down twice on purpose.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from contexts import context
from jaxtyping import Array

from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Mean, Optax
from perfeds2.learning.models.model import Model, Params, mean_loss
from perfeds2.learning.task import Task
from perfeds2.timeline.record import Timeline

sgd = cache(optax.sgd)  # one object for one step size, so that ``merge`` is compiled once


def replay_slowly(task: Task, timeline: Timeline, learner: Learner, seed: int = 0) -> Params:
    """Train along a timeline, keeping every model there ever was. Hundreds of times slower than ``replay``.

    For the mean and optax. The field's methods have a twin each in tests/learning/twins.py.
    """
    assert isinstance(learner.merge, Mean | Optax)
    assert learner.top_k is None  # tests/learning/test_payload.py has a twin of that
    start_key, noise_key = (jax.random.fold_in(jax.random.key(seed), use) for use in (0, 1))
    models = [jax.jit(task.model.init)(start_key)]
    assert learner.objective.init(models[0]) is None
    optimiser = learner.merge.transformation if isinstance(learner.merge, Optax) else sgd(learner.beta)
    state = optimiser.init(models[0])
    for ues, versions in zip(timeline.ues, timeline.versions, strict=True):
        uploads = [
            upload(task.model, learner, task.data, noise_key, models[version], jnp.int32(ue), jnp.int32(version))
            for ue, version in zip(ues, versions, strict=True)
        ]
        merged, state = merge(optimiser, uploads, state, models[-1])
        models.append(merged)
    return models[-1]


@partial(jax.jit, static_argnums=(0, 1))
def upload(
    model: Model, learner: Learner, data: Any, noise_key: Array, handed: Params, ue: Array, version: Array
) -> Params:
    """What a UE makes of the model it was handed: the sum of its steps' gradients."""
    objective, steps = learner.objective, learner.local_steps

    def loss(params: Params, batch: tuple[Array, Array]) -> Array:
        return mean_loss(model, params, *batch)

    key = jax.random.fold_in(jax.random.fold_in(noise_key, ue), version)
    x, y = data.batches(key, ue, (steps, objective.batches, learner.batch))
    total, here = jax.tree.map(jnp.zeros_like, handed), handed
    for step in range(steps):
        gradient = objective.gradient(here, handed, (x[step], y[step]), context(loss, version=version))
        total = jax.tree.map(jnp.add, total, gradient)
        here = jax.tree.map(lambda w, g: w - learner.beta * g, here, gradient)
    if learner.clip is not None:
        length = jnp.linalg.norm(jnp.concatenate([jnp.ravel(g) for g in jax.tree.leaves(total)]))
        total = jax.tree.map(lambda g: jnp.where(length <= learner.clip, g, g / length * learner.clip), total)
    return total if learner.bits is None else sent_in_few_bits(total, jax.random.fold_in(key, 7), learner.bits)


@partial(jax.jit, static_argnums=0)
def merge(
    optimiser: optax.GradientTransformation, uploads: list[Params], state: Any, last: Params
) -> tuple[Params, Any]:
    """One step of the optimiser along the mean of the uploads."""
    mean = jax.tree.map(lambda *gradients: sum(gradients) / len(gradients), *uploads)
    step, state = optimiser.update(mean, state, last)
    return jax.tree.map(jnp.add, last, step), state


def sent_in_few_bits(upload: Params, key: Array, bits: int) -> Params:
    """Every number as the step below or above it, whose odds are how near they are."""
    received, most = {}, 2 ** (bits - 1) - 1
    for number, (name, array) in enumerate(sorted(upload.items())):
        largest = jnp.abs(array).max()
        position = jnp.nan_to_num(array / largest) * most
        below = jnp.floor(position)
        goes_up = jax.random.uniform(jax.random.fold_in(key, number), array.shape) >= 1 - (position - below)
        received[name] = (below + goes_up) * largest / most
    return received
