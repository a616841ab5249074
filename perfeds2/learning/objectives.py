"""What does a UE compute from the model it was handed?

An objective is a small immutable object that *is* the behaviour: called with a loss, the parameters, the version the
job started from and its batches, it returns a gradient. Its numbers are traced, so another α needs no new compilation.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.models.model import Params

Loss = Callable[[Params, Any], Float[Array, ""]]
Hessian = Literal["exact", "fo", "hf"]


@typing.runtime_checkable
class Objective(typing.Protocol):
    """What a UE computes. Implement these two and pass your own."""

    @property
    def batches(self) -> int:
        """How many independent batches one step takes; a step costs that many batches of computing time."""
        ...

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Any) -> Params:
        """The gradient at ``params`` of a job handed ``start``; ``batches`` is stacked along its first axis."""
        ...


@typing.runtime_checkable
class Adapting(Objective, typing.Protocol):
    """An objective with a personal step of its own: evaluations then take the same."""

    alpha: Any


@partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class FedAvg:
    """∇f on one batch."""

    @property
    def batches(self) -> int:
        return 1

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Any) -> Params:  # noqa: ARG002 (the interface)
        return jax.grad(loss)(params, _batch(batches, 0))


@partial(jax.tree_util.register_dataclass, data_fields=["proximal"], meta_fields=[])
@dataclass(frozen=True)
class FedProx:
    """∇f + μ(w − w_start): held near the model version it started from. With one local step the term is zero."""

    proximal: float | Array = 0.1  # μ

    @property
    def batches(self) -> int:
        return 1

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Any) -> Params:
        gradient = jax.grad(loss)(params, _batch(batches, 0))
        return jax.tree.map(lambda g, w, w0: g + self.proximal * (w - w0), gradient, params, start)


@partial(jax.tree_util.register_dataclass, data_fields=["alpha"], meta_fields=["hessian"])
@dataclass(frozen=True)
class PerFed:
    """The meta-gradient (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o) of eq. (7), on three independent batches.

    ``hessian``: "exact" takes the Hessian-vector product as it is (jvp of grad); "hf" by a central difference of
    gradients; "fo" leaves it out (first order).
    """

    alpha: float | Array = 0.03
    hessian: Hessian = "exact"

    @property
    def batches(self) -> int:
        return 2 if self.hessian == "fo" else 3

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Any) -> Params:  # noqa: ARG002 (the interface)
        inner = jax.grad(loss)(params, _batch(batches, 0))
        adapted = jax.tree.map(lambda w, g: w - self.alpha * g, params, inner)
        outer = jax.grad(loss)(adapted, _batch(batches, 1))
        if self.hessian == "fo":
            return outer
        product = _jvp if self.hessian == "exact" else _difference
        curvature = product(lambda w: jax.grad(loss)(w, _batch(batches, 2)), params, outer)
        return jax.tree.map(lambda g, h: g - self.alpha * h, outer, curvature)


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "PerFed": PerFed,
}  # each is called with the learning settings its parameters name


def _batch(batches: Any, number: int) -> Any:
    return jax.tree.map(lambda b: b[number], batches)


def _jvp(gradient: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """∇²f · v, exactly."""
    return jax.jvp(gradient, (params,), (direction,))[1]


def _difference(gradient: Callable[[Params], Params], params: Params, direction: Params) -> Params:
    """∇²f · v ≈ (∇f(w + δv) − ∇f(w − δv)) / 2δ, with δ scaled so that the step has length 10⁻²."""
    norm = jnp.sqrt(sum(jnp.vdot(v, v) for v in jax.tree.leaves(direction)))
    delta = 1e-2 / jnp.maximum(norm, 1e-12)
    ahead = gradient(jax.tree.map(lambda w, v: w + delta * v, params, direction))
    behind = gradient(jax.tree.map(lambda w, v: w - delta * v, params, direction))
    return jax.tree.map(lambda a, b: (a - b) / (2 * delta), ahead, behind)
