"""Give an objective a loss that is any function, outside a training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import BatchLoss
from perfeds2.learning.objectives import Context


@dataclass(frozen=True)
class LossOf(BatchLoss):
    """A function of the weights and a batch, with its gradients."""

    function: Callable[..., Any]

    def __call__(self, params: Any, batch: Any) -> Any:
        return self.function(params, batch)


def context(loss: Callable[..., Any], *, beta: Any = 0.0, ue: Any = 0, version: Any = 0, seed: int = 0) -> Context:
    own = loss if isinstance(loss, BatchLoss) else LossOf(loss)
    return Context(own, jnp.float32(beta), jnp.int32(ue), jnp.int32(version), jax.random.key(seed))
