"""How curved is a task's loss where training goes? Lemma 2 asks for α ≤ 1/L.

L is a supremum over all models, and grows as a model learns. So it is looked at from the first weights and from a few on the
way of a short plain training: a lower estimate, for the price of a few thousand gradients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from perfeds2.learning.models.model import Params, mean_loss
from perfeds2.learning.task import Task, stacked_samples
from perfeds2.spec.fields import CellSpec, Spec, TaskSpec
from perfeds2.spec.tasks import make_task, recipe_of
from perfeds2.theory.pilot import smoothness

STEP = 0.05  # of the plain training
LOOK_AFTER = (0, 100, 300, 1000)  # of its steps
UES = 16  # whose curvature is looked at


@dataclass(frozen=True)
class Alpha:
    """Which α a spec means, and why."""

    value: float
    note: str | None = None


def alpha_of(spec: Spec, algorithm: str) -> Alpha:
    """An algorithm's α. ``auto`` is the task's, or 1/L where that is shorter: one number for all algorithms and seeds."""
    alpha = spec.learning_of(algorithm).alpha
    if alpha != "auto":
        return Alpha(alpha)
    return _fitting_alpha(spec.task, spec.cell.ues)  # type: ignore[arg-type]  # frozen, so it has a hash


@cache
def _fitting_alpha(task: TaskSpec, ues: int) -> Alpha:
    spec = Spec(task=task, cell=CellSpec(ues=ues))
    recipe = recipe_of(spec)
    usual = ({} if recipe is None else recipe.defaults).get("learning", {}).get("alpha", spec.learning.alpha)
    largest = smoothness_of(make_task(spec, 0))
    fitting = float(f"{1 / largest:.3g}")  # what stands in the note is what is taken
    seen = f"1/L (L = {largest:.3g} where the pilot looked)"
    if usual <= fitting:
        return Alpha(usual, f"--alpha auto: the task's {usual:g}, which is not above {seen}.")
    return Alpha(
        fitting, f"--alpha auto: {fitting:g} = {seen}; the task's {usual:g} is {usual / fitting:.2g} times too long."
    )


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
