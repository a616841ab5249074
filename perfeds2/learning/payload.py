"""How is an upload made shorter, and what does that do to it?

Only the largest numbers are sent, and what is left out is kept and added to the next upload: top-k with error feedback (Stich et
al. 2018). Of what is sent each number may have fewer bits: stochastic quantisation, as in QSGD (Alistarh et al. 2017), with the largest number of an array as its scale: of n bits one is the sign,
the rest count the steps of scale/(2^(n−1) − 1). Between two steps a coin decides, so that nothing is wrong in the mean.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key

SCALE_BITS = 32  # an array's scale is sent as it is


def numbers_sent(share: float, numbers: int) -> int:
    """k: how many of an upload's numbers a share is."""
    return max(1, round(share * numbers))


def place_bits(sent: int, numbers: int) -> float:
    """What it takes to say which numbers are sent: ⌈lg numbers⌉ bits each, or one for every number there is, if that is less."""
    return float(min(sent * math.ceil(math.log2(numbers)), numbers)) if sent < numbers else 0.0


def largest(upload: Any, count: int) -> Any:
    """So many numbers of the upload, those farthest from 0 (of equal ones the first); 0 for the others."""
    flat, restore = ravel_pytree(upload)
    _, chosen = jax.lax.top_k(jnp.abs(flat), count)
    return restore(jnp.zeros_like(flat).at[chosen].set(flat[chosen]))


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
