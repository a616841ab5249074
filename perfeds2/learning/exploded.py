"""Notice that a training diverged, from its loss on a few samples."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.data import Data
from perfeds2.learning.models.model import Model, Params, mean_loss

EXPLODED = 10.0  # times the initial loss
UES, SAMPLES = 8, 32  # that are looked at, and samples of each


def warn_if_exploded(first: float, last: float) -> None:
    """Warn the caller's caller if the sampled loss is not finite after training, or over ten times what it was before."""
    if not last <= EXPLODED * first:
        warnings.warn(
            f"the training diverged: its loss went from {first:.3g} to {last:.3g}. Use a smaller step size (beta of "
            "the learner, alpha of the objective), and inputs of about unit scale.",
            RuntimeWarning,
            stacklevel=3,
        )


@partial(jax.jit, static_argnums=0)
def sampled_loss(model: Model, params: Params, data: Data) -> Float[Array, ""]:
    """Return the mean loss on a few samples of a few UEs."""
    parts = jax.vmap(lambda ue: data.train_part(ue, SAMPLES))(jnp.arange(min(data.ues, UES)))
    return jax.lax.map(lambda part: mean_loss(model, params, *part), parts).mean()
