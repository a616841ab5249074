"""What do PyTorch's operations on shapes give, in JAX? What is cut, joined and turned, and what is made from nothing."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfeds2.learning.models.aten.layers import UnsupportedError


def reshape(x: Array, shape: Any) -> Array:
    if not isinstance(shape, Sequence):
        raise UnsupportedError("to see numbers as another type is not supported; use .to(dtype)")
    return jnp.reshape(x, shape)


def flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    first, last = start_dim % max(x.ndim, 1), end_dim % max(x.ndim, 1)
    return x.reshape(*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])


def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    at = dim % x.ndim
    sizes = [x.shape[at] // -math.prod(sizes) if size == -1 else size for size in sizes]
    return x.reshape(*x.shape[:at], *sizes, *x.shape[at + 1 :])


def squeeze(x: Array, dim: Any = None) -> Array:
    """What is not 1 stays."""
    dims = range(x.ndim) if dim is None else dim if isinstance(dim, Sequence) else [dim]
    return jnp.squeeze(x, tuple(each for each in dims if x.shape[each] == 1))


def expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:  # noqa: ARG001 (PyTorch's parameters)
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [own if wanted == -1 else wanted for own, wanted in zip(kept, size, strict=True)])


def select(x: Array, dim: int, index: int) -> Array:
    return jax.lax.index_in_dim(jnp.asarray(x), index, dim, keepdims=False)


def sliced(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def split(x: Array, size: Any, dim: int = 0) -> list[Array]:
    """Into parts of one size, of which the last may be shorter, or of given sizes."""
    ends = np.cumsum(size)[:-1] if isinstance(size, Sequence) else np.arange(size, x.shape[dim], size)
    return jnp.split(x, [int(end) for end in ends], axis=dim)


def chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return split(x, -(-x.shape[dim] // chunks), dim)


def unbind(x: Array, dim: int = 0) -> list[Array]:
    return [select(x, dim, index) for index in range(x.shape[dim])]


def index(x: Array, indices: Sequence[Any]) -> Array:
    return x[tuple(slice(None) if each is None else each for each in indices)]


def select_scatter(x: Array, src: Array, dim: int, index: int) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(src)


def slice_scatter(x: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)].set(src)


def pad(x: Array, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Array:
    """Pairs from the last axis on."""
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)][::-1]
    x = sliced_below(x, pairs)
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode == "constant":
        return jnp.pad(x, pairs, constant_values=0 if value is None else value)
    return jnp.pad(x, pairs, mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


def sliced_below(x: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """Padding below nothing cuts off."""
    cuts = [slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(pairs, x.shape[-len(pairs) :], strict=True)]
    return x[(..., *cuts)]


# ---- made from nothing


def like(number: Any) -> Callable[..., Any]:
    """zeros_like, ones_like."""
    return lambda x, dtype=None: jnp.full(x.shape, number, dtype or x.dtype)


def full(size: Sequence[int], fill_value: Any, dtype: Any = None) -> Array:
    """zeros, ones, full: known while a program is compiled, so that whoever gets it can look at the numbers."""
    with jax.ensure_compile_time_eval():
        return jnp.full(size, fill_value, dtype)


def new_full(x: Array, size: Sequence[int], fill_value: Any, dtype: Any = None) -> Array:
    return full(size, fill_value, dtype or x.dtype)


def arange(*ends: Any, dtype: Any = None) -> Array:
    return jnp.arange(*ends, dtype=dtype)


def cast(x: Any, dtype: Any = None, *how: Any) -> Array:  # noqa: ARG001 (whether to copy, and where to)
    return x if dtype is None else jnp.asarray(x).astype(dtype)


def same(x: Any) -> Any:
    return x


def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, value, x).astype(x.dtype)


def one_hot(x: Array, num_classes: int = -1) -> Array:
    if num_classes < 0:
        raise UnsupportedError("it must be told num_classes")
    return jax.nn.one_hot(x, num_classes, dtype=jnp.int32)
