"""Compress uploads by top-k sparsification and stochastic quantisation.

Top-k with error feedback (Stich et al. 2018) sends only the largest numbers and adds the rest to the next upload.
Quantisation as in QSGD (Alistarh et al. 2017) sends each number in n bits, with the largest magnitude of an array as
its scale: one bit is the sign, and the others count steps of scale/(2^(n−1) − 1). Rounding is random between two
steps, so the result is unbiased.
"""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree

SCALE_BITS = 32  # the scale of an array is sent in full precision


def numbers_sent(share: float, numbers: int) -> int:
    """Return k, the number of an upload's numbers that are sent: its share, at least 1."""
    return max(1, round(share * numbers))


def place_bits(sent: int, numbers: int) -> float:
    """Return the bits that say which numbers are sent.

    Each takes ⌈lg numbers⌉ bits, or all together one bit for every number there is, if that is less.
    """
    return float(min(sent * math.ceil(math.log2(numbers)), numbers)) if sent < numbers else 0.0


def largest(upload: PyTree, count: int) -> PyTree:
    """Keep the ``count`` numbers of an upload farthest from 0, the first of equal ones, and set the others to 0."""
    flat, restore = ravel_pytree(upload)
    _, chosen = jax.lax.top_k(jnp.abs(flat), count)
    return restore(jnp.zeros_like(flat).at[chosen].set(flat[chosen]))


def quantised(key: Key[Array, ""], upload: PyTree, bits: int) -> PyTree:
    """Return the upload as the server reads it after quantisation."""
    steps = 2.0 ** (bits - 1) - 1
    arrays, structure = jax.tree.flatten(upload)
    rounded = []
    for number, array in enumerate(arrays):
        scale = jnp.max(jnp.abs(array))
        unit = jnp.where(scale > 0, scale / steps, 1.0)
        coin = jax.random.uniform(jax.random.fold_in(key, number), array.shape, array.dtype)
        rounded.append(jnp.clip(jnp.floor(array / unit + coin), -steps, steps) * unit)
    return jax.tree.unflatten(structure, rounded)
