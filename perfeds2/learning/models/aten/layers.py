"""What do PyTorch's layers compute, in JAX? Convolutions, pooling, norms, attention, recurrence.

Each function has the parameters of PyTorch's operation, in its order. All of them can be differentiated twice, at kinks as
PyTorch does, and stay fast where every UE has weights of its own.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from perfeds2.learning.models.lstm import recur

MOST_ROWS = 256  # of an embedding that is picked by a matrix of ones


class UnsupportedError(Exception):
    """Something that cannot be done here; the message says why, and what to do instead."""


# ---- convolutions


def convolve(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """conv1d, conv2d, conv3d: a matrix times patches, one of all samples.

    With weights that differ from UE to UE, side by side on a GPU, XLA's own convolution would fall apart into slow groups,
    and on a processor it is slower too. Inside, samples stand last, so that shifting an image copies long runs.
    """
    axes = weight.ndim - 2
    if x.ndim == axes + 1:  # one sample alone
        return convolve(x[None], weight, bias, stride, padding, dilation, groups)[0]
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    edges = _edges(padding, weight.shape[2:], dilation)
    if groups == 1:
        out = _by_patches(x, weight, stride, edges, dilation)
    else:
        numbers = ("NCDHW"[: 2 + axes], "OIDHW"[: 2 + axes], "NCDHW"[: 2 + axes])
        out = jax.lax.conv_general_dilated(
            x, weight, stride, edges, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
        )
    return out if bias is None else out + bias.reshape(-1, *[1] * axes)


def _by_patches(x: Array, weight: Array, stride: Sequence[int], edges: Any, dilation: Sequence[int]) -> Array:
    maps = jnp.moveaxis(x, 0, -1)  # channel, place, sample
    maps = jnp.pad(maps, ((0, 0), *edges, (0, 0))) if any(map(any, edges)) else maps
    kernel = weight.shape[2:]
    for axis, (size, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True), start=1):
        places = (maps.shape[axis] - apart * (size - 1) - 1) // step + 1
        shifted = [
            jax.lax.slice_in_dim(maps, i * apart, i * apart + step * (places - 1) + 1, step, axis) for i in range(size)
        ]
        maps = jnp.concatenate(shifted) if size > 1 else shifted[0]  # the last axis' shift is the slowest
    columns = jnp.transpose(weight, (0, *range(weight.ndim - 1, 1, -1), 1)).reshape(weight.shape[0], -1)
    out = columns @ maps.reshape(maps.shape[0], -1)
    return jnp.moveaxis(out.reshape(-1, *maps.shape[1:]), -1, 0)


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    """All of them at once: what the others become when they are taken apart."""
    if transposed:
        return convolve_back(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolve(x, weight, bias, stride, padding, dilation, groups)


def convolve_back(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """conv_transpose1d, 2d, 3d: the gradient of a convolution."""
    axes = weight.ndim - 2
    stride, dilation, more = _each(stride, axes), _each(dilation, axes), _each(output_padding, axes)
    reach = [apart * (size - 1) for size, apart in zip(weight.shape[2:], dilation, strict=True)]
    edges = [(r - p, r - p + o) for r, p, o in zip(reach, _each(padding, axes), more, strict=True)]
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    kernel = weight.reshape(groups, inputs, outputs, *weight.shape[2:]).swapaxes(1, 2)
    kernel = jnp.flip(kernel, range(3, 3 + axes)).reshape(groups * outputs, inputs, *weight.shape[2:])
    numbers = ("NCDHW"[: 2 + axes], "OIDHW"[: 2 + axes], "NCDHW"[: 2 + axes])
    out = jax.lax.conv_general_dilated(
        x, kernel, [1] * axes, edges, stride, dilation, dimension_numbers=numbers, feature_group_count=groups
    )
    return out if bias is None else out + bias.reshape(-1, *[1] * axes)


def _each(value: Any, axes: int) -> list[int]:
    """One number for each axis; PyTorch takes one for all."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * axes if len(values) == 1 else values


def _edges(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        reach = [apart * (size - 1) for size, apart in zip(kernel, dilation, strict=True)]
        return [(r // 2, r - r // 2) for r in reach]
    return [(p, p) for p in _each(padding, len(kernel))]


# ---- pooling


def average(axes: int) -> Any:
    """avg_pool1d, avg_pool2d, avg_pool3d."""

    def pool(
        x: Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        total: Any = sum(_windows(x, kernel_size, stride, padding, 1, ceil_mode, axes, 0.0))
        if divisor_override is not None:
            return total / divisor_override
        if count_include_pad or not any(_each(padding, axes)):
            return total / math.prod(_each(kernel_size, axes))
        return total / sum(_windows(jnp.ones_like(x), kernel_size, stride, padding, 1, ceil_mode, axes, 0.0))

    return pool


def largest(axes: int) -> Any:
    """max_pool1d, max_pool2d, max_pool3d."""

    def pool(
        x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Array:
        first, *rest = _windows(x, kernel_size, stride, padding, dilation, ceil_mode, axes, -jnp.inf)
        for other in rest:  # of equal ones the first, so that its gradient goes where PyTorch's goes
            first = jnp.where(other > first, other, first)
        return first

    return pool


def _windows(
    x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, axes: int, beyond: float
) -> list[Array]:
    """For each place of a window what all windows have there, row after row."""
    if ceil_mode:
        raise UnsupportedError("ceil_mode is not supported; pad the input instead")
    kernel, edges, dilation = _each(kernel, axes), _each(padding, axes), _each(dilation, axes)
    stride = _each(stride, axes) if stride not in ((), [], None) else kernel
    if any(edges):
        x = jnp.pad(x, [(0, 0)] * (x.ndim - axes) + [(p, p) for p in edges], constant_values=beyond)
    sizes = x.shape[-axes:]
    if kernel == stride and set(dilation) == {1}:  # squares side by side
        x = x[(..., *(slice(size // k * k) for size, k in zip(sizes, kernel, strict=True)))]
        x = x.reshape(*x.shape[:-axes], *(n for size, k in zip(sizes, kernel, strict=True) for n in (size // k, k)))
        return [
            x[(..., *(part for i in at for part in (slice(None), i)))] for at in product(*(range(k) for k in kernel))
        ]
    spans = [
        [slice(i * d, i * d + s * ((size - d * (k - 1) - 1) // s) + 1, s) for i in range(k)]
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    return [x[(..., *at)] for at in product(*spans)]


def adaptive_average(axes: int) -> Any:
    """adaptive_avg_pool1d, 2d, 3d: windows as large as it takes."""

    def pool(x: Array, output_size: Any) -> Array:
        return average(axes)(x, _adapted(x, output_size, axes))

    return pool


def adaptive_largest(axes: int) -> Any:
    """adaptive_max_pool1d, 2d, 3d: the largest, and where it was, which nobody may ask."""

    def pool(x: Array, output_size: Any) -> tuple[Array, None]:
        return largest(axes)(x, _adapted(x, output_size, axes)), None

    return pool


def _adapted(x: Array, output_size: Any, axes: int) -> list[int]:
    wanted = _each(output_size, axes)
    if any(size % out for size, out in zip(x.shape[-axes:], wanted, strict=True)):
        sizes = " × ".join(map(str, x.shape[-axes:]))
        raise UnsupportedError(
            f"an output of {wanted} from {sizes} has windows of unequal size; choose one that divides it"
        )
    return [size // out for size, out in zip(x.shape[-axes:], wanted, strict=True)]


# ---- norms


def normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """Mean 0 and variance 1 over some axes."""
    centred = x - x.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axes, keepdims=True) + eps)


def layer_norm(
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001 (PyTorch's parameters)
) -> Array:
    out = normalise(x, tuple(range(-len(normalized_shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def native_layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, None, None]:
    return layer_norm(x, normalized_shape, weight, bias, eps), None, None


def rms_norm(x: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    floor = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    out = x * jax.lax.rsqrt((x**2).mean(axes, keepdims=True) + floor)
    return out if weight is None else out * weight


def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: ARG001 (PyTorch's parameters)
) -> Array:
    groups = x.reshape(x.shape[0], num_groups, -1)
    return _scaled(normalise(groups, (2,), eps).reshape(x.shape), weight, bias)


def native_group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    samples: int,  # noqa: ARG001 (PyTorch's parameters)
    channels: int,  # noqa: ARG001
    size: int,  # noqa: ARG001
    group: int,
    eps: float,
) -> tuple[Array, None, None]:
    return group_norm(x, group, weight, bias, eps), None, None


def instance_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,  # noqa: ARG001
) -> Array:
    if use_input_stats and running_mean is None:
        return _scaled(normalise(x, tuple(range(2, x.ndim)), eps), weight, bias)
    return batch_norm(x, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)


def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,  # noqa: ARG001 (PyTorch's parameters)
    eps: float,
    cudnn_enabled: bool = True,  # noqa: ARG001
) -> Array:
    """With the statistics it came with: those of a batch would tie its samples together, and are nobody's parameters."""
    if training or running_mean is None or running_var is None:
        raise UnsupportedError(
            "in training it takes the statistics of a batch and keeps running ones, which no UE uploads; "
            "call .eval() on the module to keep them as they are, or take GroupNorm or LayerNorm"
        )
    shape = (1, -1, *[1] * (x.ndim - 2))
    out = (x - running_mean.reshape(shape)) * jax.lax.rsqrt(running_var.reshape(shape) + eps)
    return _scaled(out, weight, bias)


def batch_norm_taken_apart(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, variance: Array, momentum: float, eps: float
) -> tuple[Array, None, None]:
    return batch_norm(x, weight, bias, mean, variance, False, momentum, eps), None, None


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Each channel with its weight and bias."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def dropout(x: Array, p: float, train: bool) -> Array:
    if train and p > 0:
        raise UnsupportedError(
            "a gradient here has no dice to throw; call .eval() on the module to train without it, or set p to 0"
        )
    return x


def random(*_: Any, **__: Any) -> Any:
    raise UnsupportedError("a gradient here has no dice to throw; draw nothing in forward")


# ---- embedding, attention


def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001 (how PyTorch keeps a gradient)
) -> Array:
    """Few rows are picked by a matrix of ones: its gradient is a product again, where that of an index is a scattered sum."""
    if scale_grad_by_freq:
        raise UnsupportedError("scale_grad_by_freq is not supported; leave it out")
    few = weight.shape[0] <= MOST_ROWS
    rows = jax.nn.one_hot(indices, weight.shape[0], dtype=weight.dtype) @ weight if few else weight[indices]
    return (
        rows if padding_idx < 0 else jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)
    )


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
    """scaled_dot_product_attention."""
    query = dropout(query, dropout_p, True)
    if enable_gqa:
        key, value = (jnp.repeat(each, query.shape[-3] // each.shape[-3], axis=-3) for each in (key, value))
    scores = query @ key.swapaxes(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = jnp.asarray(np.tri(query.shape[-2], key.shape[-2], dtype=bool))
    if attn_mask is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    blind = (scores == -jnp.inf).all(-1, keepdims=True)  # whoever may look at nothing gets zeros
    return jnp.where(blind, 0.0, jax.nn.softmax(jnp.where(blind, 0.0, scores), axis=-1)) @ value


# ---- recurrence


def lstm(x: Array, hx: Any, params: Any, *settings: Any) -> tuple[Array, Array, Array]:
    from_zero = not any(isinstance(each, Tracer) or np.asarray(each).any() for each in hx)
    out, last = _recurrent(partial(_lstm_layer, from_zero), x, list(zip(*hx, strict=True)), params, *settings)
    return out, jnp.stack([hidden for hidden, _ in last]), jnp.stack([cell for _, cell in last])


def gru(x: Array, hx: Any, params: Any, *settings: Any) -> tuple[Array, Array]:
    out, last = _recurrent(_gru_layer, x, list(hx), params, *settings)
    return out, jnp.stack(last)


def rnn(squash: Any) -> Any:
    """rnn_tanh, rnn_relu."""

    def layers(x: Array, hx: Any, params: Any, *settings: Any) -> tuple[Array, Array]:
        def layer(x: Array, start: Array, weights: list[Array]) -> tuple[Array, Array]:
            entering, recurrent, bias = _entering(x, weights)

            def step(hidden: Array, now: Array) -> tuple[Array, Array]:
                hidden = squash(now + bias + hidden @ recurrent)
                return hidden, hidden

            last, out = jax.lax.scan(step, start, entering)
            return out, last

        out, last = _recurrent(layer, x, list(hx), params, *settings)
        return out, jnp.stack(last)

    return layers


def _recurrent(
    layer: Any,
    x: Array,
    start: list[Any],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout_p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, list[Any]]:
    """Layer after layer, forth and back. Returns all that the last one said, and where each ended."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise UnsupportedError("proj_size is not supported; leave it out, and put a Linear behind it")
    sequence, last = x.swapaxes(0, 1) if batch_first else x, []
    for number in range(num_layers):
        sequence = dropout(sequence, dropout_p, train and number > 0)
        said = []
        for direction in range(directions):
            at = number * directions + direction
            entering = jnp.flip(sequence, 0) if direction else sequence
            out, end = layer(entering, start[at], list(params[at * each : (at + 1) * each]))
            said.append(jnp.flip(out, 0) if direction else out)
            last.append(end)
        sequence = jnp.concatenate(said, axis=-1) if directions > 1 else said[0]
    return sequence.swapaxes(0, 1) if batch_first else sequence, last


def _entering(x: Array, weights: list[Array]) -> tuple[Array, Array, Any]:
    """What goes in, of the whole sequence at once; the recurrent weights; and their bias."""
    inward, recurrent, *biases = weights
    entering = x @ inward.T
    return (entering + biases[0], recurrent.T, biases[1]) if biases else (entering, recurrent.T, 0)


def _lstm_layer(
    from_zero: bool, x: Array, start: tuple[Any, Any], weights: list[Array]
) -> tuple[Array, tuple[Array, Array]]:
    entering, recurrent, bias = _entering(x, weights)

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        into, forget, candidate, out = jnp.split(now + hidden @ recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    hidden, cell = (jnp.asarray(each, entering.dtype) for each in start)
    (_, cell), out = jax.lax.scan(step, (hidden, cell), entering + bias)
    if from_zero:  # our own, which is faster; what is not used of the other is not computed
        out = recur(True, entering + bias, recurrent)
    return out, (out[-1], cell)


def _gru_layer(x: Array, start: Array, weights: list[Array]) -> tuple[Array, Array]:
    entering, recurrent, bias = _entering(x, weights)

    def step(hidden: Array, now: Array) -> tuple[Array, Array]:
        reset, update, new = jnp.split(now, 3, axis=-1)
        by_reset, by_update, by_new = jnp.split(hidden @ recurrent + bias, 3, axis=-1)
        update = jax.nn.sigmoid(update + by_update)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * by_new)
        hidden = (1 - update) * new + update * hidden
        return hidden, hidden

    last, out = jax.lax.scan(step, jnp.asarray(start, entering.dtype), entering)
    return out, last
