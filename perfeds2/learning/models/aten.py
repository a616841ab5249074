"""PyTorch's operations in JAX.

``ATEN`` has a function for each operation that an exported graph may hold, called with PyTorch's arguments in PyTorch's
order. A key is an operation (``add``) or one of its overloads (``max.dim``). PyTorch decomposes whatever is not here
into what is; so an operation is listed only where PyTorch cannot decompose it, or where the whole is faster or has a
better gradient than its parts.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfeds2.learning.models import torch_layers as layers
from perfeds2.learning.models.torch_layers import UnsupportedError

CHECKS = ("_assert_", "sym_constrain_range")  # operations that begin so compute nothing
PLACES = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"}  # where, not what


# ---- numbers


def add(x: Any, other: Any, alpha: Any = 1) -> Any:
    return x + (other if alpha == 1 else alpha * other)


def div(x: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return jnp.trunc(x / other).astype(jnp.result_type(x, other)) if rounding_mode == "trunc" else x / other


def clamp(x: Array, least: Any = None, most: Any = None) -> Array:
    """Clamp. At a bound itself the gradient passes, as in PyTorch before 2.15."""
    x = x if least is None else jnp.where(x < least, least, x)
    return x if most is None else jnp.where(x > most, most, x)


def hardtanh(x: Array, least: float = -1.0, most: float = 1.0) -> Array:
    """Clamp. At a bound itself the gradient is zero."""
    return jnp.where(x <= least, least, jnp.where(x >= most, most, x))


def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    below = jnp.expm1(jnp.where(x > 0, 0.0, x) * input_scale)
    return jnp.where(x > 0, scale * x, scale * alpha * below)


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    far = x * beta > threshold
    return jnp.where(far, x, jnp.log1p(jnp.exp(jnp.where(far, 0.0, x * beta))) / beta)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def addmm(x: Any, one: Array, other: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    return beta * x + alpha * (one @ other)


def reduced(reduce: Callable[..., Array]) -> Callable[..., Array]:
    """Return sum, mean, amax, …: over all axes, or some."""

    def over(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
        return reduce(x if dtype is None else jnp.asarray(x, dtype), axis=_axes(dim), keepdims=keepdim)

    return over


def picked(where: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """Return max.dim or min.dim: the value and its place, which alone gets the gradient."""

    def over(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        at = where(x, axis=dim, keepdims=True)
        value = jnp.take_along_axis(x, at, axis=dim)
        return (value, at) if keepdim else (value.squeeze(dim), at.squeeze(dim))

    return over


def var(x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.var(x, axis=_axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def vector_norm(x: Array, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    if order != 2:
        raise UnsupportedError(f"a norm of order {order} is not supported; 2 is")
    squares = (jnp.asarray(x, dtype or x.dtype) ** 2).sum(_axes(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)  # gradient 0 at 0, as PyTorch


def _axes(dim: Any) -> Any:
    """Return axes for NumPy; PyTorch's empty list means all."""
    return (tuple(dim) or None) if isinstance(dim, Sequence) else dim


# ---- shapes


def squeeze(x: Array, dims: Sequence[int]) -> Array:
    """Drop axes of size 1; others stay."""
    return jnp.squeeze(x, tuple(each for each in dims if x.shape[each] == 1))


def expand(x: Array, size: Sequence[int], *_: Any, **__: Any) -> Array:
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [own if wanted == -1 else wanted for own, wanted in zip(kept, size, strict=True)])


def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[_along(x, dim, slice(start, end, step))]


def slice_scatter(x: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x.at[_along(x, dim, slice(start, end, step))].set(src)


def _along(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % x.ndim) + (index,)


def split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return jnp.split(x, [int(end) for end in np.cumsum(sizes)[:-1]], axis=dim)


def pad(x: Array, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Array:
    """Pad by pairs from the last axis on; negative padding cuts off."""
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)][::-1]
    sizes = x.shape[-len(pairs) :]
    x = x[(..., *(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(pairs, sizes, strict=True)))]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode == "constant":
        return jnp.pad(x, pairs, constant_values=value or 0)
    return jnp.pad(x, pairs, mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


def full(size: Sequence[int], fill_value: Any, dtype: Any = None) -> Array:
    """Fill while a program is compiled, so that whoever gets it can look at the numbers."""
    with jax.ensure_compile_time_eval():
        return jnp.full(size, fill_value, dtype)


def cast(x: Any, dtype: Any = None) -> Array:
    return x if dtype is None else jnp.asarray(x).astype(dtype)


def one_hot(x: Array, num_classes: int = -1) -> Array:
    if num_classes < 0:
        raise UnsupportedError("it must be told num_classes")
    return jax.nn.one_hot(x, num_classes, dtype=jnp.int32)


ATEN: Mapping[str, Callable[..., Any]] = {
    "arange": jnp.arange,
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_not": jnp.bitwise_not,
    "bitwise_or": jnp.bitwise_or,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "flip": jnp.flip,
    "floor": jnp.floor,
    "floor_divide": jnp.floor_divide,
    "fmod": jnp.fmod,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "outer": jnp.outer,
    "reciprocal": jnp.reciprocal,
    "remainder": jnp.remainder,
    "round": jnp.round,
    "sign": jnp.sign,
    "sin": jnp.sin,
    "sqrt": jnp.sqrt,
    "tanh": jnp.tanh,
    "tril": jnp.tril,
    "triu": jnp.triu,
    "where": jnp.where,
    "mul": operator.mul,
    "pow": operator.pow,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "neg": operator.neg,
    "matmul": operator.matmul,
    "getitem": operator.getitem,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "truediv": operator.truediv,
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), operator.matmul),
    **dict.fromkeys(("alias", "clone", "lift_fresh_copy"), lambda x: x),
    "abs": lambda x: jnp.where(x == 0, 0, jnp.abs(x)),  # gradient 0 at 0
    "erf": jax.scipy.special.erf,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "rsqrt": jax.lax.rsqrt,
    "detach": jax.lax.stop_gradient,
    "hardtanh": hardtanh,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "elu": elu,
    "softplus": softplus,
    "mish": lambda x: x * jnp.tanh(softplus(x)),
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "add": add,
    "sub": lambda x, other, alpha=1: x - alpha * other,
    "div": div,
    "clamp": clamp,
    "linear": linear,
    "addmm": addmm,
    "addmv": addmm,
    "einsum": lambda equation, operands, path=None: jnp.einsum(equation, *operands),  # noqa: ARG005 (only how)
    "sum": reduced(jnp.sum),
    "mean": reduced(jnp.mean),
    "prod": reduced(jnp.prod),
    "any": reduced(jnp.any),
    "argmax": reduced(jnp.argmax),
    "argmin": reduced(jnp.argmin),
    **dict.fromkeys(("amax", "max.default"), reduced(jnp.max)),
    **dict.fromkeys(("amin", "min.default"), reduced(jnp.min)),
    "max.dim": picked(jnp.argmax),
    "min.dim": picked(jnp.argmin),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(x, axis=dim, dtype=dtype),
    "var": var,
    "var_mean": lambda x, dim=None, **how: (
        var(x, dim, **how),
        x.mean(_axes(dim), keepdims=how.get("keepdim", False)),
    ),
    "linalg_vector_norm": vector_norm,
    "_softmax": lambda x, dim, _: jax.nn.softmax(x, axis=dim),
    "_log_softmax": lambda x, dim, _: jax.nn.log_softmax(x, axis=dim),
    "sym_size": lambda x, dim: x.shape[dim],
    "view": jnp.reshape,
    "squeeze.dims": squeeze,
    "unsqueeze": jnp.expand_dims,
    "expand": expand,
    "repeat": jnp.tile,
    "permute": jnp.transpose,
    "select": lambda x, dim, index: jax.lax.index_in_dim(jnp.asarray(x), index, dim, keepdims=False),
    "slice": cut,
    "slice_scatter": slice_scatter,
    "split_with_sizes": split,
    "index": lambda x, indices: x[tuple(slice(None) if each is None else each for each in indices)],
    "index_select": lambda x, dim, at: jnp.take(x, at, axis=dim),
    "gather": lambda x, dim, at: jnp.take_along_axis(x, at, axis=dim),
    "cat": lambda parts, dim=0: jnp.concatenate(parts, axis=dim),
    "roll": lambda x, by, dims=(): jnp.roll(x, tuple(by), _axes(dims)),
    "pad": pad,
    "constant_pad_nd": lambda x, pairs, value=0: pad(x, pairs, "constant", value),
    "full": full,
    "full_like": lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype),
    "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, dtype),
    "_to_copy": cast,
    "copy": lambda x, other: jnp.broadcast_to(other, x.shape).astype(x.dtype),
    "one_hot": one_hot,
    "convolution": layers.convolution,
    **{f"avg_pool{n}d": layers.average(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": layers.largest(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": layers.adaptive(layers.average, n) for n in (1, 2)},
    **{f"adaptive_max_pool{n}d": layers.adaptive(layers.with_places, n) for n in (1, 2)},
    "layer_norm": layers.layer_norm,
    "group_norm": layers.group_norm,
    "instance_norm": layers.instance_norm,
    "_native_batch_norm_legit_no_training": layers.batch_norm,
    "_native_batch_norm_legit": layers.batch_norm_in_training,
    "embedding": layers.embedding,
    "scaled_dot_product_attention": layers.attention,
    "lstm": layers.lstm,
    "gru": layers.recurrence(layers.gru_cell),
    "rnn_tanh": layers.recurrence(lambda enters, says, _: (jnp.tanh(enters + says),)),
    "rnn_relu": layers.recurrence(lambda enters, says, _: (jax.nn.relu(enters + says),)),
}
