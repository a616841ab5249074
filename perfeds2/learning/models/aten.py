"""What do PyTorch's operations compute, in JAX?

The table at the end has a function for each, called with what stands in an exported graph: PyTorch's arguments in its order,
numbers and shapes known. A name is an operation's (``add``), or where its forms differ in what they take, one form's
(``max.dim``). What is not here is taken apart by PyTorch into what is, and else refused by name.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfeds2.learning.models import aten_layers as layers
from perfeds2.learning.models.aten_layers import Unsupported

CHECKS = ("_assert_", "sym_constrain_range")  # operations that begin so compute nothing
PLACES = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"}  # where, not what


# ---- arithmetic


def add(x: Any, other: Any, alpha: Any = 1) -> Any:
    return x + (other if alpha == 1 else alpha * other)


def sub(x: Any, other: Any, alpha: Any = 1) -> Any:
    return x - (other if alpha == 1 else alpha * other)


def rsub(x: Any, other: Any, alpha: Any = 1) -> Any:
    return other - (x if alpha == 1 else alpha * x)


def div(x: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return jnp.trunc(x / other).astype(jnp.result_type(x, other)) if rounding_mode == "trunc" else x / other


def clamp(x: Array, min: Any = None, max: Any = None) -> Array:  # noqa: A002 (PyTorch's names)
    """At a bound itself the gradient passes."""
    x = x if min is None else jnp.where(x >= min, x, min)
    return x if max is None else jnp.where(x <= max, x, max)


def hardtanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """At a bound itself the gradient ends."""
    return jnp.where(x > min_val, jnp.where(x < max_val, x, max_val), min_val).astype(x.dtype)


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, negative_slope * x)


def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    below = jnp.expm1(jnp.where(x > 0, 0.0, x) * input_scale)
    return jnp.where(x > 0, scale * x, scale * alpha * below)


def selu(x: Array) -> Array:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    far = x * beta > threshold
    return jnp.where(far, x, jnp.log1p(jnp.exp(jnp.where(far, 0.0, x * beta))) / beta)


def gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def hardsigmoid(x: Array) -> Array:
    return hardtanh(x + 3, 0.0, 6.0) / 6


def prelu(x: Array, weight: Array) -> Array:
    slope = weight.reshape(-1, *[1] * (x.ndim - 2)) if weight.size > 1 else weight.reshape(())
    return jnp.where(x > 0, x, slope * x)


# ---- products


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def addmm(x: Any, one: Array, other: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    """addmm, baddbmm, addmv."""
    out = one @ other
    return (x if beta == 1 else beta * x) + (out if alpha == 1 else alpha * out)


def einsum(equation: str, operands: Sequence[Array], path: Any = None) -> Array:  # noqa: ARG001 (only how, not what)
    return jnp.einsum(equation, *operands)


# ---- over axes


def reduced(reduce: Callable[..., Array]) -> Callable[..., Array]:
    """sum, mean, amax, …: over all axes, or some."""

    def over(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
        x = x if dtype is None else jnp.asarray(x, dtype)
        return reduce(x, axis=_axes(dim), keepdims=keepdim)

    return over


def over_one(reduce: Callable[..., Array], where: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """max.dim, min.dim: the value, and where it is. Its gradient goes there alone."""

    def over(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        at = where(x, axis=dim, keepdims=True)
        value = jnp.take_along_axis(x, at, axis=dim)
        return (value, at) if keepdim else (value.squeeze(dim), at.squeeze(dim))

    return over


def var(x: Array, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None) -> Array:
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    less = 1 if unbiased is None and correction is None else correction if unbiased is None else int(unbiased)
    return jnp.var(x, axis=_axes(dim), ddof=less, keepdims=keepdim)


def std(x: Array, *how: Any, **named: Any) -> Array:
    return jnp.sqrt(var(x, *how, **named))


def var_mean(x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Array, Array]:
    return var(x, dim, None, keepdim, correction), x.mean(_axes(dim), keepdims=keepdim)


def vector_norm(x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:  # noqa: A002
    if ord != 2:
        raise Unsupported(f"a norm of order {ord} is not supported; 2 is")
    squares = (jnp.asarray(x, dtype or x.dtype) ** 2).sum(_axes(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)  # flat at 0, as PyTorch has it


def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    return jax.nn.softmax(jnp.asarray(x, _kind(dtype, x)), axis=dim)


def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    return jax.nn.log_softmax(jnp.asarray(x, _kind(dtype, x)), axis=dim)


def logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    return jax.nn.logsumexp(x, axis=_axes(dim), keepdims=keepdim)


def _kind(dtype: Any, x: Array) -> Any:
    """Of softmax; where it was taken apart, it says whether half precision becomes single instead."""
    return x.dtype if dtype is None or isinstance(dtype, bool) else dtype


def _axes(dim: Any) -> Any:
    """PyTorch's empty list is all axes."""
    if isinstance(dim, Sequence):
        return tuple(dim) or None
    return dim


# ---- shapes


def reshape(x: Array, shape: Any) -> Array:
    if not isinstance(shape, Sequence):
        raise Unsupported("to see numbers as another type is not supported; use .to(dtype)")
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


def full(size: Sequence[int], fill_value: Any, dtype: Any = None) -> np.ndarray:
    return np.full(size, fill_value, dtype or np.result_type(fill_value, np.float32))


def new_full(x: Array, size: Sequence[int], fill_value: Any, dtype: Any = None) -> np.ndarray:
    return np.full(size, fill_value, dtype or x.dtype)


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
        raise Unsupported("it must be told num_classes")
    return jax.nn.one_hot(x, num_classes, dtype=jnp.int32)


# ---- the table

UNARY: Mapping[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "erf": jax.scipy.special.erf,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not,
    "bitwise_not": jnp.bitwise_not,
    "mish": lambda x: x * jnp.tanh(softplus(x)),
    "neg": operator.neg,
    "reciprocal": lambda x: 1 / x,
    "relu": jax.nn.relu,
    "relu6": partial(hardtanh, min_val=0.0, max_val=6.0),
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "selu": selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tanh": jnp.tanh,
    "hardsigmoid": hardsigmoid,
    "hardswish": lambda x: x * hardsigmoid(x),
    "detach": jax.lax.stop_gradient,
    "t": lambda x: x.T,
    "numpy_T": lambda x: x.T,
    "mT": lambda x: x.swapaxes(-1, -2),
}
SAME = ("alias", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "detach_copy")
RANDOM = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal_functional")
BINARY: Mapping[str, Callable[..., Any]] = {
    "mul": operator.mul,
    "pow": operator.pow,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "max.other": jnp.maximum,
    "min.other": jnp.minimum,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "floor_divide": jnp.floor_divide,
    "remainder": jnp.remainder,
    "atan2": jnp.arctan2,
    "matmul": operator.matmul,
    "mm": operator.matmul,
    "bmm": operator.matmul,
    "mv": operator.matmul,
    "dot": operator.matmul,
    "outer": jnp.outer,
    "expand_as": lambda x, other: jnp.broadcast_to(x, other.shape),
    "view_as": lambda x, other: x.reshape(other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "type_as": lambda x, other: x.astype(other.dtype),
    "getitem": operator.getitem,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "truediv": operator.truediv,
    "sym_size": lambda x, dim: x.shape[dim],
}
ATEN: Mapping[str, Callable[..., Any]] = {
    **UNARY,
    **BINARY,
    **dict.fromkeys(SAME, same),
    "add": add,
    "sub": sub,
    "rsub": rsub,
    "div": div,
    "clamp": clamp,
    "clamp_min": lambda x, least: clamp(x, least),
    "clamp_max": lambda x, most: clamp(x, None, most),
    "hardtanh": hardtanh,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "celu": lambda x, alpha=1.0: elu(x, alpha, 1.0, 1 / alpha),
    "softplus": softplus,
    "gelu": gelu,
    "glu": lambda x, dim=-1: math.prod((a if n == 0 else jax.nn.sigmoid(a)) for n, a in enumerate(chunk(x, 2, dim))),
    "prelu": prelu,
    "_prelu_kernel": lambda x, weight: jnp.where(x > 0, x, weight * x),
    "addcmul": lambda x, one, other, value=1: x + value * one * other,
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "where": jnp.where,
    "linear": linear,
    "addmm": addmm,
    "baddbmm": addmm,
    "addmv": addmm,
    "einsum": einsum,
    "sum": reduced(jnp.sum),
    "mean": reduced(jnp.mean),
    "prod": reduced(jnp.prod),
    "amax": reduced(jnp.max),
    "amin": reduced(jnp.min),
    "max": reduced(jnp.max),
    "min": reduced(jnp.min),
    "any": reduced(jnp.any),
    "all": reduced(jnp.all),
    "argmax": reduced(jnp.argmax),
    "argmin": reduced(jnp.argmin),
    "max.dim": over_one(jnp.max, jnp.argmax),
    "min.dim": over_one(jnp.min, jnp.argmin),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(x, axis=dim, dtype=dtype),
    "var": var,
    "std": std,
    "var_mean": var_mean,
    "linalg_vector_norm": vector_norm,
    "logsumexp": logsumexp,
    "softmax": softmax,
    "_softmax": softmax,
    "log_softmax": log_softmax,
    "_log_softmax": log_softmax,
    "view": reshape,
    "reshape": reshape,
    "_unsafe_view": reshape,
    "flatten": flatten,
    "unflatten": unflatten,
    "squeeze": squeeze,
    "unsqueeze": jnp.expand_dims,
    "expand": expand,
    "repeat": jnp.tile,
    "permute": jnp.transpose,
    "transpose": jnp.swapaxes,
    "movedim": jnp.moveaxis,
    "select": select,
    "slice": sliced,
    "split": split,
    "split_with_sizes": split,
    "chunk": chunk,
    "unbind": unbind,
    "index": index,
    "index_select": lambda x, dim, at: jnp.take(x, at, axis=dim),
    "gather": lambda x, dim, at: jnp.take_along_axis(x, at, axis=dim),
    "select_scatter": select_scatter,
    "slice_scatter": slice_scatter,
    "cat": lambda parts, dim=0: jnp.concatenate(parts, axis=dim),
    "stack": lambda parts, dim=0: jnp.stack(parts, axis=dim),
    "flip": jnp.flip,
    "roll": lambda x, by, dims=(): jnp.roll(x, tuple(by), _axes(dims)),
    "pad": pad,
    "constant_pad_nd": lambda x, pairs, value=0: pad(x, pairs, "constant", value),
    "tril": jnp.tril,
    "triu": jnp.triu,
    "zeros": lambda size, dtype=np.dtype(np.float32): np.zeros(size, dtype),
    "ones": lambda size, dtype=np.dtype(np.float32): np.ones(size, dtype),
    "full": full,
    "new_zeros": lambda x, size, dtype=None: new_full(x, size, 0, dtype),
    "new_ones": lambda x, size, dtype=None: new_full(x, size, 1, dtype),
    "new_full": new_full,
    "zeros_like": like(0),
    "ones_like": like(1),
    "full_like": lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype),
    "scalar_tensor": lambda value, dtype=None: np.asarray(value, dtype),
    "arange": arange,
    "to": cast,
    "to.device": lambda x, device, *how: cast(x, *how),  # noqa: ARG005 (there is one)
    "to.other": lambda x, other, *how: cast(x, other.dtype, *how),
    "_to_copy": cast,
    "masked_fill": masked_fill,
    "one_hot": one_hot,
    "conv1d": layers.convolve,
    "conv2d": layers.convolve,
    "conv3d": layers.convolve,
    "convolution": layers.convolution,
    "conv_transpose1d": layers.convolve_back,
    "conv_transpose2d": layers.convolve_back,
    "conv_transpose3d": layers.convolve_back,
    "avg_pool1d": layers.average(1),
    "avg_pool2d": layers.average(2),
    "avg_pool3d": layers.average(3),
    "max_pool1d": layers.largest(1),
    "max_pool2d": layers.largest(2),
    "max_pool3d": layers.largest(3),
    "adaptive_avg_pool1d": layers.adaptive_average(1),
    "adaptive_avg_pool2d": layers.adaptive_average(2),
    "_adaptive_avg_pool2d": layers.adaptive_average(2),
    "adaptive_max_pool1d": layers.adaptive_largest(1),
    "adaptive_max_pool2d": layers.adaptive_largest(2),
    "layer_norm": layers.layer_norm,
    "native_layer_norm": layers.native_layer_norm,
    "rms_norm": layers.rms_norm,
    "group_norm": layers.group_norm,
    "native_group_norm": layers.native_group_norm,
    "instance_norm": layers.instance_norm,
    "batch_norm": layers.batch_norm,
    "_native_batch_norm_legit_no_training": layers.batch_norm_taken_apart,
    "dropout": layers.dropout,
    "feature_dropout": layers.dropout,
    "alpha_dropout": layers.dropout,
    "feature_alpha_dropout": layers.dropout,
    "native_dropout": lambda x, p, train: (layers.dropout(x, p, bool(train)), None),
    **dict.fromkeys(RANDOM, layers.random),
    "embedding": layers.embedding,
    "scaled_dot_product_attention": layers.attention,
    "lstm": layers.lstm,
    "gru": layers.gru,
    "rnn_tanh": layers.rnn(jnp.tanh),
    "rnn_relu": layers.rnn(jax.nn.relu),
}
