"""Define a model as named arrays and a function of them."""

import typing
from contextvars import ContextVar
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from perfeds2.learning import losses

Params = dict[str, Array]
RandomKey = Key[Array, ""]
# Whether a model is traced to count its operations: then a clock is the same on a CPU and on a GPU.
COUNTING = ContextVar("COUNTING", default=False)


class DoesNotFit(ValueError):  # noqa: N818 (it is read in a sentence)
    """A model cannot be made for a task's samples; the message says why."""


@typing.runtime_checkable
class Model(typing.Protocol):
    """Named arrays and what they compute. Hashable: a frozen dataclass of its sizes."""

    def init(self, key: RandomKey) -> Params:
        """Return random weights."""
        ...

    def __call__(self, params: Params, x: Array) -> Float[Array, "*s c"]:
        """Return one logit per class, or one number per target."""
        ...


@dataclass(frozen=True)
class ModelWithLoss:
    """A model with its own loss and metric. Without it, a model has cross-entropy and accuracy.

    Targets that are numbers are learned with mean 0 and deviation 1. The metric sees targets and outputs in the
    original units.
    """

    model: Model
    loss: losses.Loss
    metric: losses.Metric
    shift: tuple[float, ...] = ()  # in original units, a value is value·unit + shift; empty: no scaling
    unit: tuple[float, ...] = ()

    def init(self, key: RandomKey) -> Params:
        return self.model.init(key)

    def __call__(self, params: Params, x: Array) -> Float[Array, "*s c"]:
        return self.model(params, x)

    def in_original_units(self, values: Array) -> Array:
        """Return outputs or targets in the original units."""
        if not self.unit:
            return values
        return values * jnp.asarray(self.unit, values.dtype) + jnp.asarray(self.shift, values.dtype)


def mean_loss(model: Model, params: Params, x: Array, y: Array, mask: Array | None = None) -> losses.Number:
    """Return the mean loss of a batch (l in eq. (2)), over the unmasked samples if there is a mask.

    Args:
        model: The model.
        params: Its weights by name.
        x: Samples, shape (b, …).
        y: Labels, shape (b,), or targets, shape (b, outputs).
        mask: Which samples count, shape (b,); None is all.

    Returns:
        One number.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from perfeds2 import digits, mean_loss
        >>> task = digits(4, labels_per_ue=2, seed=0)
        >>> x, y, mask = task.data.train_part(jnp.asarray(0), 8)
        >>> mean_loss(task.model, task.model.init(jax.random.key(0)), x, y, mask).shape
        ()
    """
    if mask is not None:
        return summed_loss(model, params, x, y, mask) / mask.sum()
    return loss_of(model)(model(params, x), y).mean()


def summed_loss(model: Model, params: Params, x: Array, y: Array, mask: Array) -> losses.Number:
    """Return the sum of the losses of the samples that the mask selects."""
    return jnp.where(mask, loss_of(model)(model(params, x), y), 0.0).sum()


def loss_of(model: Model) -> losses.Loss:
    """Return the loss a model is trained with: one number per sample, from outputs and targets."""
    return model.loss if isinstance(model, ModelWithLoss) else losses.cross_entropy


def measure(model: Model, params: Params, x: Array, y: Array, mask: Array) -> losses.Number:
    """Return the metric of a model on a UE's test part; larger is better."""
    if not isinstance(model, ModelWithLoss):
        return losses.accuracy(model(params, x), y, mask)
    return model.metric(model.in_original_units(model(params, x)), model.in_original_units(y), mask)


def bare(model: Model) -> Model:
    """Return the model without its loss and metric."""
    return model.model if isinstance(model, ModelWithLoss) else model
