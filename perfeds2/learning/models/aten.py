"""Implement PyTorch's operations in JAX.

``ATEN`` has a function for each operation of an exported graph, with PyTorch's arguments in PyTorch's order. A key is
an operation (``add``) or one of its overloads (``max.dim``). PyTorch decomposes what is missing into what is here, so
an operation is listed only if PyTorch cannot decompose it, or if it is faster or has a better gradient than its parts.
All can be differentiated twice, at kinks as in PyTorch, and stay fast if every UE has its own weights. An argument
that a function does not take is a setting that we do not support.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import PyTree

from perfeds2.learning.models.lenet import neighbours
from perfeds2.learning.models.lstm import recur

CHECKS = ("_assert_", "sym_constrain_range")  # operations with these prefixes compute nothing
PLACES = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"}  # where, not what
Sizes: TypeAlias = Sequence[int]
Axes: TypeAlias = int | Sizes | None
MOST_ROWS = 256  # an embedding with at most this many rows is a product with a one-hot matrix


# ---- numbers


def clamp(x: Array, least: ArrayLike | None = None, most: ArrayLike | None = None) -> Array:
    """Clamp. At a bound the gradient passes, as in PyTorch before 2.15."""
    x = x if least is None else jnp.where(x < least, least, x)
    return x if most is None else jnp.where(x > most, most, x)


def hardtanh(x: Array, least: float = -1.0, most: float = 1.0) -> Array:
    """Clamp. At a bound the gradient is zero."""
    return jnp.where(x <= least, least, jnp.where(x >= most, most, x))


def linear(x: Array, weight: Array, bias: ArrayLike = 0) -> Array:
    return x @ weight.T + bias


def reduced(reduce: Callable[..., Array]) -> Callable[..., Array]:
    """Return a reduction (sum, mean, amax, …) over all or some axes."""

    def over(x: Array, dim: Axes = None, keepdim: bool = False, **how: DTypeLike) -> Array:
        return reduce(x, axis=_axes(dim), keepdims=keepdim, **how)

    return over


def largest_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Return the maximum and its index (max.dim). Only that entry gets the gradient."""
    at = x.argmax(dim, keepdims=True)
    value = jnp.take_along_axis(x, at, axis=dim)
    return (value, at) if keepdim else (value.squeeze(dim), at.squeeze(dim))


def vector_norm(x: Array, order: ArrayLike = 2, dim: Axes = None, keepdim: bool = False) -> Array:
    if order != 2:
        raise NotImplementedError(f"a norm of order {order} is not supported; use order 2")
    squares = (x**2).sum(_axes(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)  # gradient 0 at 0, as in PyTorch


def softmax(x: Array, dim: int, _: bool) -> Array:
    """Return the softmax.

    If all inputs are −∞, as in fully masked attention, the gradient is 0 instead of NaN.
    """
    blind = (x == -jnp.inf).all(dim, keepdims=True)
    return jax.nn.softmax(jnp.where(blind, 0.0, x), axis=dim)


def _axes(dim: Axes) -> int | tuple[int, ...] | None:
    """Return axes for NumPy; PyTorch's empty list means all."""
    return (tuple(dim) or None) if isinstance(dim, Sequence) else dim


# ---- shapes


def squeeze(x: Array, dims: Sizes) -> Array:
    """Drop those of the axes that have size 1."""
    return jnp.squeeze(x, tuple(each for each in dims if x.shape[each] == 1))


def expand(x: Array, size: Sizes, **_: bool) -> Array:
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [own if wanted == -1 else wanted for own, wanted in zip(kept, size, strict=True)])


def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def split(x: Array, sizes: Sizes, dim: int = 0) -> list[Array]:
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim)


def pad(x: Array, sizes: Sizes, value: ArrayLike = 0) -> Array:
    """Pad by pairs, from the last axis on. Negative padding cuts off."""
    pairs = [(sizes[at], sizes[at + 1], 0) for at in range(0, len(sizes), 2)][::-1]
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs)


def full(size: Sizes, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Fill at compile time, so that the values are known while tracing."""
    with jax.ensure_compile_time_eval():
        return jnp.full(size, fill_value, dtype)


# ---- layers


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    _: Sizes,
    groups: int,
) -> Array:
    """Convolve in one, two or three dimensions.

    Without groups it is a matrix times the patches of all samples: with weights that differ between UEs, XLA's own
    convolution becomes many slow groups on a GPU, and on a CPU it is slower too.
    """
    if transposed:
        raise NotImplementedError("a transposed convolution is not supported; upsample and convolve instead")
    edges = [(p, p) for p in padding]
    if groups == 1:
        out = _by_patches(x, weight, stride, edges, dilation)
    else:
        how = {"rhs_dilation": dilation, "feature_group_count": groups}
        out = jax.lax.conv_general_dilated(x, weight, stride, edges, **how)
    return _scaled(out, None, bias)


def _by_patches(x: Array, weight: Array, stride: Sizes, edges: Sequence[tuple[int, int]], dilation: Sizes) -> Array:
    maps = jnp.moveaxis(x, 0, -1)  # channel, position, sample: shifting an image then copies long runs
    maps = jnp.pad(maps, ((0, 0), *edges, (0, 0)))
    for axis, (size, step, apart) in enumerate(zip(weight.shape[2:], stride, dilation, strict=True), start=1):
        maps = neighbours(maps, axis, size, step, apart)  # the last axis's shift varies slowest
    columns = jnp.transpose(weight, (0, *range(weight.ndim - 1, 1, -1), 1)).reshape(weight.shape[0], -1)
    out = columns @ maps.reshape(maps.shape[0], -1)
    return jnp.moveaxis(out.reshape(-1, *maps.shape[1:]), -1, 0)


def average(x: Array, kernel: Sizes, stride: Sizes = (), padding: Sizes = ()) -> Array:
    windows = _windows(x, kernel, stride, padding, 0.0)
    return sum(windows[1:], windows[0]) / len(windows)


def adaptive_average(x: Array, output_size: Sizes) -> Array:
    """Average over windows of the size that the output needs."""
    pairs = list(zip(x.shape[-2:], output_size, strict=True))
    if any(size % out for size, out in pairs):
        raise NotImplementedError(
            f"an output of {output_size} from {x.shape[-2:]} has windows of unequal size; choose one that divides it"
        )
    return average(x, [size // out for size, out in pairs])


def largest(x: Array, kernel: Sizes, stride: Sizes = (), padding: Sizes = ()) -> Array:
    """Return the maximum of each window. Among equal numbers the first gets the gradient, as in PyTorch."""
    first, *rest = _windows(x, kernel, stride, padding, -jnp.inf)
    for other in rest:
        first = jnp.where(other > first, other, first)
    return first


def _windows(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, beyond: float) -> list[Array]:
    """Return, for each position in a window, the values of all windows there."""
    axes, stride = len(kernel), stride or kernel
    if any(padding):
        x = jnp.pad(x, [(0, 0)] * (x.ndim - axes) + [(p, p) for p in padding], constant_values=beyond)
    sizes = x.shape[-axes:]
    if tuple(kernel) == tuple(stride):  # no overlap: a reshape is faster than strided slices
        x = x[(..., *(slice(size // k * k) for size, k in zip(sizes, kernel, strict=True)))]
        x = x.reshape(*x.shape[:-axes], *(n for size, k in zip(sizes, kernel, strict=True) for n in (size // k, k)))
        places = product(*(range(k) for k in kernel))
        return [x[(..., *(part for i in at for part in (slice(None), i)))] for at in places]
    spans = [
        [slice(i, i + s * ((size - k) // s) + 1, s) for i in range(k)]
        for size, k, s in zip(sizes, kernel, stride, strict=True)
    ]
    return [x[(..., *at)] for at in product(*spans)]


def layer_norm(
    x: Array, shape: Sizes, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: bool
) -> Array:
    out = _normalise(x, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: bool
) -> Array:
    out = _normalise(x.reshape(x.shape[0], groups, -1), (2,), eps)
    return _scaled(out.reshape(x.shape), weight, bias)


def _normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axes, keepdims=True) + eps)


def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, variance: Array, _: float, eps: float
) -> tuple[Array]:
    """Normalise with the statistics stored in the module."""
    out = _scaled(_scaled(x, None, -mean), jax.lax.rsqrt(variance + eps), None)
    return (_scaled(out, weight, bias),)


def batch_norm_in_training(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, variance: Array | None, _: bool, *how: float
) -> tuple[Array | None, ...]:
    """Normalise with fixed statistics, or with those of the batch if there are none. Return those of the batch, too."""
    axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
    own = x.mean(axes), x.var(axes)
    used = own if mean is None or variance is None else jax.lax.stop_gradient((mean, variance))
    return *batch_norm(x, weight, bias, *used, *how), None, None, own[0], own[1] * count / max(count - 1, 1)


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Apply each channel's weight and bias."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def embedding(weight: Array, indices: Array, padding_idx: int = -1) -> Array:
    """Select rows.

    If there are few, this is a product with a one-hot matrix, whose gradient is a product instead of a scattered sum.
    """
    few = weight.shape[0] <= MOST_ROWS
    rows = jax.nn.one_hot(indices, weight.shape[0], dtype=weight.dtype) @ weight if few else weight[indices]
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


# ---- recurrence; a cell takes its input, the recurrent product and its state, which begins with the hidden state

Cell = Callable[..., tuple[Array, ...]]


def lstm(x: Array, hx: Sequence[Array], params: Sequence[Array], *how: Any) -> tuple[Array, ...]:
    from_zero = not any(isinstance(each, Tracer) or np.asarray(each).any() for each in hx)
    return _recurrent(_lstm_cell, from_zero, x, hx, params, *how)


def gru(x: Array, hx: Array, params: Sequence[Array], *how: Any) -> tuple[Array, ...]:
    return _recurrent(_gru_cell, False, x, (hx,), params, *how)


def _lstm_cell(enters: Array, says: Array, _: Array, cell: Array) -> tuple[Array, Array]:
    into, forget, candidate, out = jnp.split(enters + says, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def _gru_cell(enters: Array, says: Array, hidden: Array) -> tuple[Array]:
    (reset, update, new), (by_reset, by_update, by_new) = (jnp.split(each, 3, axis=-1) for each in (enters, says))
    update = jax.nn.sigmoid(update + by_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)
    return ((1 - update) * new + update * hidden,)


def _recurrent(
    cell: Cell,
    from_zero: bool,
    x: Array,
    start: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """Run all layers, in one or both directions. Return the last layer's sequence and the final states."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise NotImplementedError("proj_size is not supported; leave it out, and put a Linear behind it")
    if train and num_layers > 1 and dropout_p > 0:
        raise NotImplementedError("dropout is not supported; call .eval() on the module, or set it to 0")
    sequence, ends = x.swapaxes(0, 1) if batch_first else x, []
    for layer in range(num_layers):
        outputs = []
        for at in range(layer * directions, (layer + 1) * directions):
            backwards = slice(None, None, -1 if at % directions else 1)
            begin = tuple(jnp.asarray(state[at], x.dtype) for state in start)
            weights = params[at * each : (at + 1) * each]
            out, end = _one_layer(cell, from_zero, sequence[backwards], begin, *weights)
            outputs.append(out[backwards])
            ends.append(end)
        sequence = jnp.concatenate(outputs, axis=-1)
    return sequence.swapaxes(0, 1) if batch_first else sequence, *map(jnp.stack, zip(*ends, strict=True))


def _one_layer(
    cell: Cell,
    from_zero: bool,
    x: Array,
    start: tuple[Array, ...],
    inward: Array,
    recurrent: Array,
    bias_in: ArrayLike = 0,
    bias: ArrayLike = 0,
) -> tuple[Array, tuple[Array, ...]]:
    enters = x @ inward.T + bias_in

    def step(state: tuple[Array, ...], now: Array) -> tuple[tuple[Array, ...], Array]:
        state = cell(now, state[0] @ recurrent.T + bias, *state)
        return state, state[0]

    end, out = jax.lax.scan(step, start, enters)
    if from_zero:  # from a zero state our own LSTM is faster; XLA drops the unused part of the scan
        out = recur(True, enters + bias, recurrent.T)
        end = (out[-1], *end[1:])
    return out, end


SAME_NAME: tuple[Any, ...] = (
    jnp.arange,
    jnp.bitwise_and,
    jnp.bitwise_not,
    jnp.bitwise_or,
    jnp.cos,
    jnp.exp,
    jnp.flip,
    jnp.floor,
    jnp.log,
    jnp.log1p,
    jnp.logical_and,
    jnp.logical_not,
    jnp.logical_or,
    jnp.maximum,
    jnp.minimum,
    jnp.reciprocal,
    jnp.remainder,
    jnp.round,
    jnp.sign,
    jnp.sin,
    jnp.sqrt,
    jnp.tanh,
    jnp.where,
    operator.mul,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.neg,
    operator.getitem,
    operator.floordiv,
    operator.mod,
)
ATEN: Mapping[str, Callable[..., PyTree]] = {
    **{function.__name__: function for function in SAME_NAME},
    **dict.fromkeys(("div", "truediv"), operator.truediv),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), operator.matmul),
    **dict.fromkeys(("alias", "clone", "lift_fresh_copy"), lambda x: x),
    "abs": lambda x: jnp.where(x == 0, 0, jnp.abs(x)),  # gradient 0 at 0
    "erf": jax.scipy.special.erf,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "rsqrt": jax.lax.rsqrt,
    "detach": jax.lax.stop_gradient,
    "hardtanh": hardtanh,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1.0, scale=1.0: scale * jax.nn.elu(x, alpha),
    "softplus": lambda x, beta=1.0: jax.nn.softplus(beta * x) / beta,
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "add": lambda x, other, alpha=1: x + alpha * other,
    "sub": lambda x, other, alpha=1: x - alpha * other,
    "clamp": clamp,
    "linear": linear,
    "addmm": lambda x, one, other, beta=1, alpha=1: beta * x + alpha * (one @ other),
    "sum": reduced(jnp.sum),
    "mean": reduced(jnp.mean),
    "any": reduced(jnp.any),
    "argmax": reduced(jnp.argmax),
    **dict.fromkeys(("amax", "max.default"), reduced(jnp.max)),
    **dict.fromkeys(("amin", "min.default"), reduced(jnp.min)),
    "max.dim": largest_along,
    "cumsum": lambda x, dim: jnp.cumsum(x, axis=dim),
    "var": lambda x, dim=None, correction=1, keepdim=False: jnp.var(x, _axes(dim), ddof=correction, keepdims=keepdim),
    "linalg_vector_norm": vector_norm,
    "_softmax": softmax,
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
    "split_with_sizes": split,
    "index": lambda x, indices: x[tuple(slice(None) if each is None else each for each in indices)],
    "index_select": lambda x, dim, at: jnp.take(x, at, axis=dim),
    "gather": lambda x, dim, at: jnp.take_along_axis(x, at, axis=dim),
    "cat": lambda parts, dim=0: jnp.concatenate(parts, axis=dim),
    "constant_pad_nd": pad,
    "full": full,
    "full_like": lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype),
    "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, dtype),
    "_to_copy": lambda x, dtype=None: x if dtype is None else jnp.asarray(x).astype(dtype),
    "convolution": convolution,
    **dict.fromkeys(("avg_pool1d", "avg_pool2d"), average),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), largest),
    "_adaptive_avg_pool2d": adaptive_average,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "_native_batch_norm_legit_functional": batch_norm_in_training,
    "embedding": embedding,
    "lstm": lstm,
    "gru": gru,
}
