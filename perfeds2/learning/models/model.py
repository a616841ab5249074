"""What is the model, as named arrays and a function of them?"""

import typing
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from perfeds2.learning import losses

Params = dict[str, Array]


class DoesNotFit(ValueError):  # noqa: N818 (it is read in a sentence)
    """Why a model cannot be made for a task's samples, in words."""


@typing.runtime_checkable
class Model(typing.Protocol):
    """Named arrays and what they compute. Hashable: a frozen dataclass of its sizes."""

    def init(self, key: Key[Array, ""]) -> Params:
        """Random weights."""
        ...

    def __call__(self, params: Params, x: Any) -> Float[Array, "*s c"]:
        """A logit per class, or a number per target."""
        ...


@dataclass(frozen=True)
class Judged:
    """A model with a loss and a metric of its own; what has none is trained by cross-entropy and judged by its accuracy.

    Targets that are numbers are learned in units of their own; the metric sees them, and the outputs, as they were.
    """

    model: Model
    loss: losses.Loss
    metric: losses.Metric
    shift: tuple[float, ...] = ()  # the target is so much more, once multiplied by the unit; empty: it is as it was
    unit: tuple[float, ...] = ()

    def init(self, key: Key[Array, ""]) -> Params:
        return self.model.init(key)

    def __call__(self, params: Params, x: Any) -> Float[Array, "*s c"]:
        return self.model(params, x)

    def as_it_was(self, values: Array) -> Array:
        """Outputs or targets in the data's own units."""
        if not self.unit:
            return values
        return values * jnp.asarray(self.unit, values.dtype) + jnp.asarray(self.shift, values.dtype)


def mean_loss(model: Model, params: Params, x: Array, y: Array, mask: Array | None = None) -> Float[Array, ""]:
    """Mean loss over a batch (l of eq. (2)), over the masked-in samples only where a mask is given."""
    if mask is not None:
        return summed_loss(model, params, x, y, mask) / mask.sum()
    return loss_of(model)(model(params, x), y).mean()


def summed_loss(model: Model, params: Params, x: Array, y: Array, mask: Array) -> Float[Array, ""]:
    """The sum of the losses of the masked-in samples."""
    return jnp.where(mask, loss_of(model)(model(params, x), y), 0.0).sum()


def loss_of(model: Model) -> losses.Loss:
    """What a model is trained by: a number for each sample, of its outputs and targets."""
    return model.loss if isinstance(model, Judged) else losses.cross_entropy


def measure(model: Model, params: Params, x: Array, y: Array, mask: Array) -> Float[Array, ""]:
    """How good a model is on a UE's test part; more is better."""
    if not isinstance(model, Judged):
        return losses.accuracy(model(params, x), y, mask)
    return model.metric(model.as_it_was(model(params, x)), model.as_it_was(y), mask)


def bare(model: Model) -> Model:
    """Without its loss and metric."""
    return model.model if isinstance(model, Judged) else model
