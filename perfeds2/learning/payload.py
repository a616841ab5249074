"""How is an upload made shorter, and what does that do to it?

Stochastic quantisation, as in QSGD (Alistarh et al. 2017), with the largest number of an array as its scale: of n bits one is the sign,
the rest count the steps of scale/(2^(n−1) − 1). Between two steps a coin decides, so that nothing is wrong in the mean.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

SCALE_BITS = 32  # an array's scale is sent as it is


def quantised(key: Key[Array, ""], upload: Any, bits: int) -> Any:
    """The upload as the server reads it."""
    steps = 2.0 ** (bits - 1) - 1
    arrays, structure = jax.tree.flatten(upload)
    rounded = []
    for number, array in enumerate(arrays):
        scale = jnp.max(jnp.abs(array))
        unit = jnp.where(scale > 0, scale / steps, 1.0)
        coin = jax.random.uniform(jax.random.fold_in(key, number), array.shape, array.dtype)
        rounded.append(jnp.clip(jnp.floor(array / unit + coin), -steps, steps) * unit)
    return jax.tree.unflatten(structure, rounded)
