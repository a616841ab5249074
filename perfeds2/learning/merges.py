"""Merge the uploads of a round into one model.

A merge is a small immutable object. From the newest model, the uploads and its own state it makes the next model and its
next state. The same object merges in a simulation and in a federation. Merges that belong to a method are in ``methods/``.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from pydantic import Field

from perfeds2.errors import InputError
from perfeds2.learning.method import Method
from perfeds2.learning.objectives import Broadcast
from perfeds2.learning.settings import setting, traced
from perfeds2.learning.trees import Scalar, rows_of, stepped

Rows: TypeAlias = Array | np.ndarray
Params = dict[str, PyTree]  # a replay has JAX arrays, a federation NumPy arrays
MergeState: TypeAlias = PyTree  # what a merge keeps between rounds: any nest of arrays
Discount = Literal["poly", "hinge", "constant"]
DiscountNumber = Annotated[float, Field(ge=0)] | Array
Need = Literal["uploads", "start_models", "broadcast", "undrafted"]


@traced
class Arrived:
    """What arrived in a round. Arrays that the merge does not need are None."""

    beta: Scalar  # step size of a UE's local steps
    mean: PyTree = None  # of the uploads, weighted if the merge has weights; for a merge without single uploads
    uploads: PyTree = None  # sum of a UE's gradients over its local steps; one row per upload, as in all that follow
    start_models: PyTree = None  # the model it started from
    broadcast: Broadcast = None  # what the merge sent along with that model
    staleness: Any = None  # τ, an integer each
    ues: Any = None  # the sender
    steps: int = setting(default=1, static=True)  # number of local steps

    @property
    def deltas(self) -> PyTree:
        """Return Δ = w_start − w_end, the move of each UE, with the sign of the literature."""
        return jax.tree.map(lambda g: self.beta * g, self.uploads)

    @property
    def models(self) -> PyTree:
        """Return w_end, the model each UE ended with."""
        if self.start_models is None:
            raise InputError('the merge uses models of UEs; add "start_models" to its needs.')
        return jax.tree.map(jnp.subtract, self.start_models, self.deltas)

    def needed_by(self, merge: "Merge") -> "Arrived":
        """Return what a merge needs of single uploads."""
        if "uploads" not in merge.needs:
            return Arrived(self.beta, mean_of(self.uploads, merge.weights(self.staleness)), steps=self.steps)
        start_models = self.start_models if "start_models" in merge.needs else None
        return replace(
            self, start_models=start_models, broadcast=self.broadcast if "broadcast" in merge.needs else None
        )


class Merge(Method):
    """How uploads become a model. Subclass it, as a frozen dataclass, and write ``step``.

    Attributes:
        needs: What it uses beyond the (weighted) mean of a round's uploads: the single "uploads", the "start_models" that
            they started from, the "broadcast" that was sent along with those, and the "undrafted" uploads of a draft. Only
            a merge of the plain mean fits secure aggregation.
        drops_model: Whether the next model is made of UEs' last models alone, not of the current one.
    """

    needs: ClassVar[Set[Need]] = frozenset()
    drops_model: ClassVar[bool] = False

    @property
    def merge(self) -> "Merge":
        return self

    def init(self, params: Params, ues: int) -> MergeState:
        """Return the state before the first round: arrays, or None."""
        return None

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        """Return the next model and the next state."""
        raise NotImplementedError(f"{type(self).__name__} has no step.")

    def weights(self, staleness: Rows) -> Float[Array, "..."] | None:
        """Return the weight of every upload of a round, if uploads are used only through their weighted mean; else None.

        The mean is the sum of weight·upload, divided by the number of uploads.

        With noise, no weight may exceed 1.
        """
        return None

    def broadcast(self, state: MergeState) -> Broadcast:
        """Return the arrays by name that are sent along with every model; None sends only the model."""
        return None


def weighted(weights: Array, rows: Params) -> Params:
    """Return Σ weight·row of every array.

    In full precision: a GPU would otherwise round the factors of a product to ten bits.
    """
    return jax.tree.map(lambda each: jnp.tensordot(weights, each, 1, precision="highest"), rows)


def mean_of(rows: Params, weights: Array | None = None) -> Params:
    """Return the mean of the (weighted) rows. On a CPU, a product with 1/A is faster than summing columns."""
    count = rows_of(rows)
    return weighted(jnp.full(count, 1 / count, jnp.float32) if weights is None else weights / count, rows)


@traced
class Mean(Merge):
    """w −= β·mean, eq. (8)."""

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        return stepped(params, arrived.beta, arrived.mean), state


MEAN = Mean()


@traced
class Optax(Merge):
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

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        updates, state = self.transformation.update(arrived.mean, state, params)
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
