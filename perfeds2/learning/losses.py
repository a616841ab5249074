"""Define the losses that models minimise and the metrics that score them.

A loss maps outputs and targets to one number per sample. A metric maps outputs, targets and a mask to one number for a
UE's test part; larger is better.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

Number = Float[Array, ""]
Loss = Callable[..., Float[Array, "*s"]]  # (outputs, targets) -> one number per sample
Metric = Callable[..., Number]  # (outputs, targets, mask) -> one number


def cross_entropy(outputs: Float[Array, "*s c"], y: Num[Array, "*s"]) -> Float[Array, "*s"]:
    """Return the cross-entropy of labels from 0, with one logit per label."""
    right = jnp.arange(outputs.shape[-1]) == y[..., None]  # indexing would make the gradient a scatter
    return jax.nn.logsumexp(outputs, axis=-1) - jnp.where(right, outputs, 0.0).sum(axis=-1)


def binary(outputs: Float[Array, "*s 1"], y: Num[Array, "*s"]) -> Float[Array, "*s"]:
    """Return the cross-entropy of the labels 0 and 1, with the logit of 1.

    It equals ``cross_entropy`` of the logits 0 and this one.
    """
    logit = outputs[..., 0]
    return jax.nn.softplus(logit) - logit * y.astype(logit.dtype)


def mse(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"]) -> Float[Array, "*s"]:
    """Return the squared error, averaged over the outputs."""
    return jnp.square(outputs - y).mean(axis=-1)


def accuracy(outputs: Float[Array, "*s c"], y: Num[Array, "*s"], mask: Bool[Array, "*s"]) -> Number:
    """Return the share of samples whose label has the largest logit.

    If there is one logit, its sign is the predicted label.
    """
    said = outputs[..., 0] > 0 if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)
    return jnp.where(mask, said == y, False).sum() / mask.sum()


@dataclass(frozen=True)
class R2:
    """1 − the squared error over the variance of the target in all data, averaged over the outputs.

    It differs from the usual R² in the variance, because a UE's own test part may have next to none. So the mean over
    UEs is the R² of all data, with equal weight for every UE.
    """

    spread: tuple[float, ...] = (1.0,)  # standard deviation of the target

    def __call__(self, outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Array:
        return 1 - _mean(jnp.square((outputs - y) / jnp.asarray(self.spread, outputs.dtype)).mean(axis=-1), mask)


def rmse(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Number:
    """Return the root mean squared error, negated so that larger is better."""
    return -jnp.sqrt(_mean(jnp.square(outputs - y).mean(axis=-1), mask))


def mae(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Number:
    """Return the mean absolute error, negated so that larger is better."""
    return -_mean(jnp.abs(outputs - y).mean(axis=-1), mask)


def _mean(each: Float[Array, "*s"], mask: Bool[Array, "*s"]) -> Number:
    return jnp.where(mask, each, 0.0).sum() / mask.sum()


LOSSES: Mapping[str, Loss] = {"cross-entropy": cross_entropy, "mse": mse, "binary": binary}
MEASURES: Mapping[str, Any] = {"accuracy": accuracy, "r2": R2, "rmse": rmse, "mae": mae}
OF_NUMBERS = frozenset({"mse", "r2", "rmse", "mae"})  # for numbers; the others are for labels
