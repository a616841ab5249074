"""Differentiate the loss of a batch, as objectives ask for it: plain gradients and the meta-gradient of the paper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from perfeds2.learning.models.model import Model, Params, mean_loss
from perfeds2.learning.trees import Number, clip, norm, pick, stepped

Batches: TypeAlias = PyTree  # inputs and targets of one batch, or of several stacked along the first axes
Gradient = Callable[[Params, Batches], Params]  # (model, batches of one step) -> gradient
Hessian = Literal["exact", "fo", "hf"]


class BatchLoss:
    """The loss of a model on one batch. Call it, or ask for its gradients; some models compute the meta-gradient faster."""

    def __call__(self, params: Params, batch: Batches) -> Number:
        raise NotImplementedError

    def outputs(self, params: Params, batch: Batches) -> Float[Array, "*s c"]:
        """Return what the model computes."""
        raise NotImplementedError

    def gradient(self, params: Params, batch: Batches) -> Params:
        """Return ∇f(w) on one batch."""
        return jax.grad(self)(params, batch)

    def meta_gradient(
        self,
        params: Params,
        batches: Batches,
        alpha: float | Array,
        hessian: Hessian = "exact",
        *,
        inner_clip: float | Array | None = None,
        is_early: Bool[Array, ""] | None = None,
    ) -> Params:
        """Return the meta-gradient (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) of eq. (7).

        Args:
            params: The weights w by name.
            batches: D_in, D_o and, if it has a batch of its own, D_h, stacked along the first axis.
            alpha: Step size α of the inner step.
            hessian: The Hessian term: exact, fo (none) or hf (a difference of gradients).
            inner_clip: Largest norm of the inner gradient; None is no bound.
            is_early: Where true, the Hessian term is left out; None is never.

        Returns:
            The gradient, by name, in the shapes of ``params``.
        """
        inner = jax.grad(self)(params, pick(batches, 0))
        step = inner if inner_clip is None else clip(inner, inner_clip)
        outer = jax.grad(self)(stepped(params, alpha, step), pick(batches, 1))
        if hessian == "fo":
            return outer
        product = _jvp if hessian == "exact" else _difference
        on = pick(batches, hessian_row(batches))
        direction = outer if inner_clip is None else _jvp(lambda g: clip(g, inner_clip), inner, outer)
        exact = stepped(outer, alpha, product(lambda w: jax.grad(self)(w, on), params, direction))
        if is_early is None:
            return exact
        return jax.tree.map(lambda first_order, g: jnp.where(is_early, first_order, g), outer, exact)


@dataclass(frozen=True)
class MeanLoss(BatchLoss):
    """The mean loss of a model on a batch, and the model's outputs."""

    model: Model

    def __call__(self, params: Params, batch: Batches) -> Number:
        return mean_loss(self.model, params, *batch)

    def outputs(self, params: Params, batch: Batches) -> Float[Array, "*s c"]:
        return self.model(params, batch[0])


def hessian_row(batches: Batches) -> int:
    """Return which of the batches of a step the Hessian is taken on: the third, or the inner one if there are two."""
    return 2 if jax.tree.leaves(batches)[0].shape[0] > 2 else 0


def _jvp(function: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """Return the derivative of a function along a direction; for a gradient this is ∇²f · v."""
    return jax.jvp(function, (params,), (direction,))[1]


def _difference(gradient: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """Return ∇²f · v ≈ (∇f(w + δv) − ∇f(w − δv)) / 2δ, with δ such that the step has length 10⁻²."""
    delta = 1e-2 / jnp.maximum(norm(direction), 1e-12)
    ahead, behind = gradient(stepped(params, -delta, direction)), gradient(stepped(params, delta, direction))
    return jax.tree.map(lambda a, b: (a - b) / (2 * delta), ahead, behind)
