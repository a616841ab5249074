"""How curved is a task's loss where training goes? Lemma 2 asks for α ≤ 1/L.

L is a supremum over all models, and grows as a model learns. So it is looked at from the first weights and from a few on the
way of a short plain training: a lower estimate, for the price of a few thousand gradients.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from perfeds2.learning.models.model import Params, mean_loss
from perfeds2.learning.task import Task, stacked_samples
from perfeds2.theory.pilot import smoothness

STEP = 0.05  # of the plain training
LOOK_AFTER = (0, 100, 300, 1000)  # of its steps
UES = 16  # whose curvature is looked at


def smoothness_of(task: Task) -> float:
    """L as far as the probe points show it."""

    def loss(params: Params, batch: tuple[Any, Any]) -> Any:
        return mean_loss(task.model, params, *batch)

    x, y = stacked_samples(task, ues=UES)
    return smoothness(loss, list(_on_the_way(task)), x, y)


def _on_the_way(task: Task) -> Iterator[Params]:
    """The weights of a plain training, each of whose batches has a sample of every UE (of at most 32)."""
    x, y = (jnp.asarray(part) for part in stacked_samples(task))
    params = jax.jit(task.model.init)(jax.random.key(0))

    @jax.jit
    def go(params: Params, first: jax.Array, stop: jax.Array) -> Params:
        def step(number: jax.Array, params: Params) -> Params:
            at = number % x.shape[1]
            gradient = jax.grad(lambda w: mean_loss(task.model, w, x[:, at], y[:, at]))(params)
            return jax.tree.map(lambda w, g: w - STEP * g, params, gradient)

        return jax.lax.fori_loop(first, stop, step, params)

    before = 0
    for stop in LOOK_AFTER:
        params, before = go(params, jnp.int32(before), jnp.int32(stop)), stop
        yield params
