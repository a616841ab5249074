"""PyTorch's layers in JAX: convolutions, pooling, norms, embedding, attention, recurrence.

Each function has the parameters of PyTorch's operation, in its order. All can be differentiated twice, at kinks as in
PyTorch, and stay fast when every UE has weights of its own.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from perfeds2.learning.models.lstm import recur

MOST_ROWS = 256  # an embedding of up to this many rows is a product with a one-hot matrix


class UnsupportedError(Exception):
    """A setting of an operation is not supported. The message says why and what to do instead."""


# ---- convolutions


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """Convolve in one, two or three dimensions, or apply the gradient of a convolution (``transposed``).

    A plain convolution is a matrix times patches of all samples: with weights that differ from UE to UE, XLA's own
    convolution falls apart into slow groups on a GPU, and on a CPU it is slower too.
    """
    axes = weight.ndim - 2
    edges = [(p, p) for p in padding]
    spread = [1] * axes
    if transposed:
        reach = [apart * (size - 1) for size, apart in zip(weight.shape[2:], dilation, strict=True)]
        edges = [(r - p, r - p + more) for r, p, more in zip(reach, padding, output_padding, strict=True)]
        kernel = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
        weight = jnp.flip(kernel, range(3, 3 + axes)).reshape(-1, kernel.shape[2], *weight.shape[2:])
        stride, spread = spread, stride
    if groups == 1 and not transposed:
        out = _by_patches(x, weight, stride, edges, dilation)
    else:
        layout = ("NCDHW"[: 2 + axes], "OIDHW"[: 2 + axes], "NCDHW"[: 2 + axes])
        how = {"dimension_numbers": layout, "feature_group_count": groups}
        out = jax.lax.conv_general_dilated(x, weight, stride, edges, spread, dilation, **how)
    return out if bias is None else out + bias.reshape(-1, *[1] * axes)


def _by_patches(x: Array, weight: Array, stride: Sequence[int], edges: Any, dilation: Sequence[int]) -> Array:
    maps = jnp.moveaxis(x, 0, -1)  # channel, place, sample: shifting an image then copies long runs
    maps = jnp.pad(maps, ((0, 0), *edges, (0, 0))) if any(map(any, edges)) else maps
    for axis, (size, step, apart) in enumerate(zip(weight.shape[2:], stride, dilation, strict=True), start=1):
        places = (maps.shape[axis] - apart * (size - 1) - 1) // step + 1
        shifted = [
            jax.lax.slice_in_dim(maps, i * apart, i * apart + step * (places - 1) + 1, step, axis) for i in range(size)
        ]
        maps = jnp.concatenate(shifted) if size > 1 else shifted[0]  # the last axis' shift varies slowest
    columns = jnp.transpose(weight, (0, *range(weight.ndim - 1, 1, -1), 1)).reshape(weight.shape[0], -1)
    out = columns @ maps.reshape(maps.shape[0], -1)
    return jnp.moveaxis(out.reshape(-1, *maps.shape[1:]), -1, 0)


# ---- pooling


def average(axes: int) -> Callable[..., Array]:
    """Return avg_pool1d, 2d or 3d."""

    def pool(
        x: Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        how = (kernel_size, stride, padding, 1, ceil_mode, axes, 0.0)
        total: Any = sum(_windows(x, *how))
        if divisor_override is not None:
            return total / divisor_override
        if count_include_pad:
            return total / math.prod(_each(kernel_size, axes))
        return total / sum(_windows(jnp.ones_like(x), *how))

    return pool


def largest(axes: int) -> Callable[..., Array]:
    """Return max_pool1d, 2d or 3d. Among equal numbers the first gets the gradient, as in PyTorch."""

    def pool(
        x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Array:
        first, *rest = _windows(x, kernel_size, stride, padding, dilation, ceil_mode, axes, -jnp.inf)
        for other in rest:
            first = jnp.where(other > first, other, first)
        return first

    return pool


def with_places(axes: int) -> Callable[..., tuple[Array, None]]:
    """Return max pooling whose second result, the places, must not be used."""
    return lambda *how: (largest(axes)(*how), None)


def _windows(
    x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, axes: int, beyond: float
) -> list[Array]:
    """Return, for each place in a window, what all windows have there."""
    if ceil_mode:
        raise UnsupportedError("ceil_mode is not supported; pad the input instead")
    kernel, edges, dilation = _each(kernel, axes), _each(padding, axes), _each(dilation, axes)
    stride = _each(stride, axes) if stride not in ((), [], None) else kernel
    if any(edges):
        x = jnp.pad(x, [(0, 0)] * (x.ndim - axes) + [(p, p) for p in edges], constant_values=beyond)
    sizes = x.shape[-axes:]
    if kernel == stride and set(dilation) == {1}:  # windows side by side: a reshape is faster than strided slices
        x = x[(..., *(slice(size // k * k) for size, k in zip(sizes, kernel, strict=True)))]
        x = x.reshape(*x.shape[:-axes], *(n for size, k in zip(sizes, kernel, strict=True) for n in (size // k, k)))
        places = product(*(range(k) for k in kernel))
        return [x[(..., *(part for i in at for part in (slice(None), i)))] for at in places]
    spans = [
        [slice(i * d, i * d + s * ((size - d * (k - 1) - 1) // s) + 1, s) for i in range(k)]
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    return [x[(..., *at)] for at in product(*spans)]


def adaptive(pool: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Return a pooling whose windows are as large as the output size needs."""

    def adapted(x: Array, output_size: Any) -> Any:
        wanted = _each(output_size, axes)
        pairs = list(zip(x.shape[-axes:], wanted, strict=True))
        if any(size % out for size, out in pairs):
            sizes = " × ".join(map(str, x.shape[-axes:]))
            raise UnsupportedError(
                f"an output of {wanted} from {sizes} has windows of unequal size; choose one that divides it"
            )
        return pool(axes)(x, [size // out for size, out in pairs])

    return adapted


def _each(value: Any, axes: int) -> list[int]:
    """Return one number for each axis; PyTorch allows one for all."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * axes if len(values) == 1 else values


# ---- norms


def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> Array:
    out = _normalise(x, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> Array:
    out = _normalise(x.reshape(x.shape[0], groups, -1), (2,), eps)
    return _scaled(out.reshape(x.shape), weight, bias)


def _normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axes, keepdims=True) + eps)


def instance_norm(
    x: Array, weight: Any, bias: Any, mean: Any, variance: Any, from_input: bool, momentum: float, eps: float, *_: Any
) -> Array:
    if not from_input:
        return batch_norm(x, weight, bias, mean, variance, momentum, eps)[0]
    return group_norm(x, x.shape[1], weight, bias, eps) if mean is None else batch_norm_in_training()


def batch_norm(
    x: Array, weight: Any, bias: Any, mean: Array, variance: Array, _: float, eps: float
) -> tuple[Array, None, None]:
    """Normalise with the statistics the module came with."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    out = (x - mean.reshape(shape)) * jax.lax.rsqrt(variance.reshape(shape) + eps)
    return _scaled(out, weight, bias), None, None


def batch_norm_in_training(*_: Any) -> Any:
    raise UnsupportedError(
        "in training it takes the statistics of a batch, which no UE uploads; call .eval() on the module to keep its "
        "running ones, or take GroupNorm or LayerNorm"
    )


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Apply each channel's weight and bias."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


# ---- embedding, attention


def embedding(weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, *_: Any) -> Array:
    """Pick rows. Few rows are picked by a one-hot matrix, whose gradient is a product instead of a scattered sum."""
    if scale_grad_by_freq:
        raise UnsupportedError("scale_grad_by_freq is not supported; leave it out")
    few = weight.shape[0] <= MOST_ROWS
    rows = jax.nn.one_hot(indices, weight.shape[0], dtype=weight.dtype) @ weight if few else weight[indices]
    if padding_idx < 0:
        return rows
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """scaled_dot_product_attention. A query that may look at nothing gets zeros."""
    _refuse_dropout(dropout_p)
    if enable_gqa:
        key, value = (jnp.repeat(each, query.shape[-3] // each.shape[-3], axis=-3) for each in (key, value))
    scores = query @ key.swapaxes(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = jnp.asarray(np.tri(query.shape[-2], key.shape[-2], dtype=bool))
    if attn_mask is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    blind = (scores == -jnp.inf).all(-1, keepdims=True)
    return jnp.where(blind, 0.0, jax.nn.softmax(jnp.where(blind, 0.0, scores), axis=-1)) @ value


def _refuse_dropout(p: float) -> None:
    if p > 0:
        raise UnsupportedError(
            "dropout is not supported; call .eval() on the module to train without it, or set p to 0"
        )


# ---- recurrence: a cell is called with what enters, what its hidden state says, and its state; the first of a state is hidden

Cell = Callable[..., tuple[Array, ...]]


def lstm(x: Array, hx: Sequence[Array], params: Sequence[Array], *how: Any) -> tuple[Array, ...]:
    from_zero = not any(isinstance(each, Tracer) or np.asarray(each).any() for each in hx)
    return _recurrent(_lstm_cell, x, hx, params, *how, from_zero=from_zero)


def recurrence(cell: Cell) -> Callable[..., tuple[Array, ...]]:
    """Return an operation with one hidden state: gru, rnn_tanh, rnn_relu."""
    return lambda x, hx, params, *how: _recurrent(cell, x, (hx,), params, *how)


def _lstm_cell(enters: Array, says: Array, _: Array, cell: Array) -> tuple[Array, Array]:
    into, forget, candidate, out = jnp.split(enters + says, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def gru_cell(enters: Array, says: Array, hidden: Array) -> tuple[Array]:
    (reset, update, new), (by_reset, by_update, by_new) = (jnp.split(each, 3, axis=-1) for each in (enters, says))
    update = jax.nn.sigmoid(update + by_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)
    return ((1 - update) * new + update * hidden,)


def _recurrent(
    cell: Cell,
    x: Array,
    start: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    from_zero: bool = False,
) -> tuple[Array, ...]:
    """Run layer after layer, forwards and backwards. Returns the last layer's sequence and where each state ended."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise UnsupportedError("proj_size is not supported; leave it out, and put a Linear behind it")
    _refuse_dropout(dropout_p if train and num_layers > 1 else 0)
    sequence, ends = x.swapaxes(0, 1) if batch_first else x, []
    for layer in range(num_layers):
        outputs = []
        for at in range(layer * directions, (layer + 1) * directions):
            turn = (lambda a: jnp.flip(a, 0)) if at % directions else (lambda a: a)
            begin = tuple(jnp.asarray(state[at], x.dtype) for state in start)
            out, end = _one_layer(
                cell, turn(sequence), begin, *params[at * each : (at + 1) * each], from_zero=from_zero
            )
            outputs.append(turn(out))
            ends.append(end)
        sequence = jnp.concatenate(outputs, axis=-1)
    return sequence.swapaxes(0, 1) if batch_first else sequence, *map(jnp.stack, zip(*ends, strict=True))


def _one_layer(
    cell: Cell, x: Array, start: tuple[Array, ...], inward: Array, recurrent: Array, *biases: Array, from_zero: bool
) -> tuple[Array, tuple[Array, ...]]:
    enters = x @ inward.T
    bias: Any = 0
    if biases:
        enters, bias = enters + biases[0], biases[1]

    def step(state: tuple[Array, ...], now: Array) -> tuple[tuple[Array, ...], Array]:
        state = cell(now, state[0] @ recurrent.T + bias, *state)
        return state, state[0]

    end, out = jax.lax.scan(step, start, enters)
    if from_zero:  # an LSTM from zero is our own, which is faster; XLA drops the unused part of the scan
        out = recur(True, enters + bias, recurrent.T)
        end = (out[-1], *end[1:])
    return out, end
