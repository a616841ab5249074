"""How does the server make one model of a round's uploads?

A merge is a small immutable object: called with the newest model, what has arrived and its own state, it returns the next model
and its state. The same object merges in a simulation and in a federation. Merges that belong to a method are in ``methods/``.
"""

import typing
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from perfeds2.learning.objectives import stepped
from perfeds2.learning.settings import setting, traced

Params = dict[str, Any]  # JAX's arrays in a replay, NumPy's in a federation
Discount = Literal["poly", "hinge", "constant"]
DiscountNumber = Annotated[float, Field(ge=0)] | Array


@traced
class Arrived:
    """A round's uploads, one in each row of every array."""

    uploads: Any  # the sum of a UE's gradients over its local steps
    handed: Any  # the model it began with
    told: Any  # what the merge had sent along with that model, if it sends anything
    staleness: Any  # τ, a whole number each
    ues: Any  # who sent it
    beta: Any  # the length of a UE's steps
    steps: int = setting(default=1, static=True)  # how many it takes

    @property
    def moves(self) -> Any:
        """Δ: how far each UE went from the model it began with, w_handed − w_end, as the literature counts it."""
        return jax.tree.map(lambda g: self.beta * g, self.uploads)

    @property
    def models(self) -> Any:
        """w_end: the model each UE ended with."""
        return jax.tree.map(jnp.subtract, self.handed, self.moves)


@typing.runtime_checkable
class Merge(typing.Protocol):
    """How uploads become a model. Implement these two and pass your own."""

    def init(self, params: Params, ues: int) -> Any:
        """What it has in mind before the first round: arrays, or nothing (None)."""
        ...

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        """The next model, and what it has in mind then."""
        ...


@typing.runtime_checkable
class OfMean(typing.Protocol):
    """A merge that asks for nothing but the mean of the uploads: then they are added up as they come, and none is kept."""

    def init(self, params: Params, ues: int) -> Any: ...

    def step(self, params: Params, mean: Params, beta: Any, state: Any) -> tuple[Params, Any]: ...


@typing.runtime_checkable
class Telling(Merge, typing.Protocol):
    """A merge that sends something along with every model it hands out."""

    def tell(self, state: Any) -> Any: ...


@typing.runtime_checkable
class Backward(typing.Protocol):
    """A merge that looks at the models its uploads began with; a federation keeps none of them."""

    looks_back: typing.Literal[True]


@typing.runtime_checkable
class Undrafted(typing.Protocol):
    """A merge of a draft that sees those, too, who came but were not drafted."""

    takes_undrafted: typing.Literal[True]


def weighted(weights: Any, rows: Params) -> Params:
    """Σ weight·row of every array. In full precision: a GPU would else round the factors of a product to ten bits."""
    return jax.tree.map(lambda each: jnp.tensordot(weights, each, 1, precision="highest"), rows)


def mean_of(rows: Params) -> Params:
    """As a product with 1/A: on a processor quicker than adding up columns."""
    count = jax.tree.leaves(rows)[0].shape[0]
    return weighted(jnp.full(count, 1 / count, jnp.float32), rows)


class Stateless:
    """A merge that keeps nothing from round to round."""

    def init(self, params: Params, ues: int) -> None:  # noqa: ARG002 (the interface)
        return None


@traced
class Mean(Stateless):
    """w −= β·mean, eq. (8)."""

    def step(self, params: Params, mean: Params, beta: Any, state: None) -> tuple[Params, None]:
        return stepped(params, beta, mean), state


MEAN = Mean()


@traced
class Optax:
    """Any transformation of optax on the mean; β is then only the length of local steps."""

    transformation: Any = setting(default=None, static=True)  # an optax.GradientTransformation

    def init(self, params: Params, ues: int) -> Any:  # noqa: ARG002 (the interface)
        return self.transformation.init(params)

    def step(self, params: Params, mean: Params, beta: Any, state: Any) -> tuple[Params, Any]:  # noqa: ARG002
        updates, state = self.transformation.update(mean, state, params)
        return jax.tree.map(jnp.add, params, updates), state


def discounted(
    kind: Discount, staleness: Any, a: float | Array | None = None, b: float | Array = 4.0
) -> Float[Array, " a"]:
    """Return s(τ) of FedAsync: 1, or (1 + τ)^−a, or 1 up to b and then 1/(a(τ − b) + 1)."""
    tau = jnp.asarray(staleness, jnp.float32)
    a = (10.0 if kind == "hinge" else 0.5) if a is None else a
    match kind:
        case "poly":
            return (1.0 + tau) ** -a
        case "hinge":
            return jnp.where(tau <= b, 1.0, 1.0 / (a * jnp.maximum(tau - b, 0.0) + 1.0))
        case "constant":
            return jnp.ones_like(tau)
