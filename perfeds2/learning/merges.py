"""Merge the uploads of a round into one model.

A merge is a small immutable object. Called with the newest model, the uploads and its own state, it returns the next
model and its next state. The same object merges in a simulation and in a federation. Merges that belong to a method
are in ``methods/``.
"""

import typing
from typing import Annotated, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from pydantic import Field

from perfeds2.learning.objectives import Scalar, Told, rows_of, stepped
from perfeds2.learning.settings import setting, traced

Rows: TypeAlias = Array | np.ndarray  # a replay has JAX arrays, a federation NumPy arrays
MergeState: TypeAlias = PyTree  # what a merge keeps between rounds: any nest of arrays
Params = dict[str, PyTree]
Discount = Literal["poly", "hinge", "constant"]
DiscountNumber = Annotated[float, Field(ge=0)] | Array


@traced
class Arrived:
    """The uploads of a round, stacked: every array has one row per upload."""

    uploads: PyTree  # sum of a UE's gradients over its local steps
    handed: PyTree  # the model it started from
    told: Told  # what the merge sent along with that model, if anything
    staleness: Rows  # τ, an integer each
    ues: Rows  # the sender
    beta: Scalar  # step size of a UE's local steps
    steps: int = setting(default=1, static=True)  # number of local steps

    @property
    def moves(self) -> PyTree:
        """Return Δ = w_handed − w_end, the move of each UE, with the sign of the literature."""
        return jax.tree.map(lambda g: self.beta * g, self.uploads)

    @property
    def models(self) -> PyTree:
        """Return w_end, the model each UE ended with."""
        return jax.tree.map(jnp.subtract, self.handed, self.moves)


@typing.runtime_checkable
class Merge(typing.Protocol):
    """How uploads become a model. Implement these two methods and pass your own."""

    def init(self, params: Params, ues: int) -> MergeState:
        """Return the state before the first round: arrays, or None."""
        ...

    def __call__(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        """Return the next model and the next state."""
        ...


@typing.runtime_checkable
class OfMean(typing.Protocol):
    """A merge that needs only the mean of the uploads, so they are added up as they arrive and not kept."""

    def init(self, params: Params, ues: int) -> MergeState: ...

    def step(self, params: Params, mean: Params, beta: Scalar, state: MergeState) -> tuple[Params, MergeState]: ...


@typing.runtime_checkable
class Weighted(Merge, typing.Protocol):
    """A merge that uses uploads only through their weighted sum. With noise, no weight may exceed 1."""

    def weights(self, staleness: Rows) -> Float[Array, "..."]: ...


@typing.runtime_checkable
class Telling(Merge, typing.Protocol):
    """A merge that sends extra arrays with every model."""

    def tell(self, state: MergeState) -> Told: ...


@typing.runtime_checkable
class Backward(typing.Protocol):
    """A merge that uses the models its uploads started from, so the server keeps those."""

    looks_back: typing.Literal[True]


@typing.runtime_checkable
class Undrafted(typing.Protocol):
    """A merge for a draft that also sees the UEs that arrived without being drafted."""

    takes_undrafted: typing.Literal[True]


def weighted(weights: Array, rows: Params) -> Params:
    """Return Σ weight·row of every array.

    In full precision: a GPU would otherwise round the factors of a product to ten bits.
    """
    return jax.tree.map(lambda each: jnp.tensordot(weights, each, 1, precision="highest"), rows)


def mean_of(rows: Params) -> Params:
    """Return the mean of the rows. On a CPU, a product with 1/A is faster than summing columns."""
    count = rows_of(rows)
    return weighted(jnp.full(count, 1 / count, jnp.float32), rows)


class Stateless:
    """A merge that keeps no state."""

    def init(self, params: Params, ues: int) -> None:
        return None


@traced
class Mean(Stateless):
    """w −= β·mean, eq. (8)."""

    def step(self, params: Params, mean: Params, beta: Scalar, state: None) -> tuple[Params, None]:
        return stepped(params, beta, mean), state


MEAN = Mean()


@traced
class Optax:
    """Step along the mean of the uploads with any optax transformation. β is then only the step size of local steps.

    Args:
        transformation: An ``optax.GradientTransformation``, such as ``optax.adam(0.01)``.

    Example:
        >>> import optax
        >>> from perfeds2 import FedAvg, Learner, Optax
        >>> Learner(FedAvg(), merge=Optax(optax.adam(0.01))).beta
        0.07
    """

    transformation: Any = setting(default=None, static=True)  # an optax.GradientTransformation

    def init(self, params: Params, ues: int) -> MergeState:
        return self.transformation.init(params)

    def step(self, params: Params, mean: Params, beta: Scalar, state: MergeState) -> tuple[Params, MergeState]:
        updates, state = self.transformation.update(mean, state, params)
        return jax.tree.map(jnp.add, params, updates), state


def discounted(
    kind: Discount, staleness: Rows, a: float | Array | None = None, b: float | Array = 4.0
) -> Float[Array, "..."]:
    """Return FedAsync's discount s(τ): 1, or (1 + τ)^−a, or 1 up to b and then 1/(a(τ − b) + 1)."""
    tau = jnp.asarray(staleness, jnp.float32)
    a = (10.0 if kind == "hinge" else 0.5) if a is None else a
    match kind:
        case "poly":
            return (1.0 + tau) ** -a
        case "hinge":
            return jnp.where(tau <= b, 1.0, 1.0 / (a * jnp.maximum(tau - b, 0.0) + 1.0))
        case "constant":
            return jnp.ones_like(tau)
