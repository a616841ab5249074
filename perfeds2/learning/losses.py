"""What is a model trained to make small, and by what is it judged?

A loss is a function of a model's outputs and the targets that gives one number a sample. A metric is a function of the
outputs, the targets and a mask that gives one number for a UE's test part; more is better.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

Loss = Callable[..., Float[Array, "*s"]]  # of outputs and targets
Metric = Callable[..., Float[Array, ""]]  # of outputs, targets and a mask


def cross_entropy(outputs: Float[Array, "*s c"], y: Num[Array, "*s"]) -> Float[Array, "*s"]:
    """Of a label from 0: a logit for each."""
    right = jnp.arange(outputs.shape[-1]) == y[..., None]  # picking it out by number would be a scatter on the way back
    return jax.nn.logsumexp(outputs, axis=-1) - jnp.where(right, outputs, 0.0).sum(axis=-1)


def binary(outputs: Float[Array, "*s 1"], y: Num[Array, "*s"]) -> Float[Array, "*s"]:
    """Of two labels, 0 and 1: the logit of 1. The same as the cross-entropy of the logits 0 and this one."""
    logit = outputs[..., 0]
    return jax.nn.softplus(logit) - logit * y.astype(logit.dtype)


def mse(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"]) -> Float[Array, "*s"]:
    """The squared error, its mean over the outputs."""
    return jnp.square(outputs - y).mean(axis=-1)


def accuracy(outputs: Float[Array, "*s c"], y: Num[Array, "*s"], mask: Bool[Array, "*s"]) -> Float[Array, ""]:
    """The share of samples whose label has the largest logit; of one logit, whose label its sign says."""
    said = outputs[..., 0] > 0 if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)
    return jnp.where(mask, said == y, False).sum() / mask.sum()


@dataclass(frozen=True)
class R2:
    """1 − the squared error over the target's variance in all of the data, its mean over the outputs.

    The usual R², but for the variance: a UE's own test part may have next to none. So the mean over UEs is the R² of all,
    every UE counting the same.
    """

    spread: tuple[float, ...] = (1.0,)  # the target's standard deviation

    def __call__(self, outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Array:
        return 1 - _mean(jnp.square((outputs - y) / jnp.asarray(self.spread, outputs.dtype)).mean(axis=-1), mask)


def rmse(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Float[Array, ""]:
    """The root of the mean squared error, with a minus, so that more is better."""
    return -jnp.sqrt(_mean(jnp.square(outputs - y).mean(axis=-1), mask))


def mae(outputs: Float[Array, "*s c"], y: Num[Array, "*s c"], mask: Bool[Array, "*s"]) -> Float[Array, ""]:
    """The mean absolute error, with a minus, so that more is better."""
    return -_mean(jnp.abs(outputs - y).mean(axis=-1), mask)


def _mean(each: Float[Array, "*s"], mask: Bool[Array, "*s"]) -> Float[Array, ""]:
    return jnp.where(mask, each, 0.0).sum() / mask.sum()


LOSSES: Mapping[str, Loss] = {"cross-entropy": cross_entropy, "mse": mse, "binary": binary}
MEASURES: Mapping[str, Any] = {"accuracy": accuracy, "r2": R2, "rmse": rmse, "mae": mae}
OF_NUMBERS = frozenset({"mse", "r2", "rmse", "mae"})  # the others are of labels
