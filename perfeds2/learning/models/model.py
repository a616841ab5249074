"""What is the model, as named arrays and a function of them?"""

import typing
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Params = dict[str, Array]


@typing.runtime_checkable
class Model(typing.Protocol):
    """Named arrays and what they compute. Hashable: a frozen dataclass of its sizes."""

    def init(self, key: Key[Array, ""]) -> Params:
        """Random weights."""
        ...

    def __call__(self, params: Params, x: Any) -> Float[Array, "*s c"]:
        """A logit per class."""
        ...


def cross_entropy(model: Model, params: Params, x: Array, y: Array, mask: Array | None = None) -> Float[Array, ""]:
    """Mean loss over a batch (l of eq. (2)), over the masked-in samples only where a mask is given."""
    logits = model(params, x)
    right = jnp.arange(logits.shape[-1]) == y[..., None]  # picking it out by number would be a scatter on the way back
    loss = jax.nn.logsumexp(logits, axis=-1) - jnp.where(right, logits, 0.0).sum(axis=-1)
    return loss.mean() if mask is None else jnp.where(mask, loss, 0.0).sum() / mask.sum()


def accuracy(model: Model, params: Params, x: Array, y: Array, mask: Array) -> Float[Array, ""]:
    """Fraction of samples whose largest logit is the label's."""
    return jnp.where(mask, model(params, x).argmax(axis=-1) == y, False).sum() / mask.sum()
