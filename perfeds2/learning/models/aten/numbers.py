"""What do PyTorch's operations on numbers compute, in JAX? Arithmetic, products, and what goes over axes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from perfeds2.learning.models.aten.layers import UnsupportedError

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
    """At a bound itself the gradient passes, as it does in PyTorch before 2.15."""
    x = x if min is None else jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def hardtanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """At a bound itself the gradient ends."""
    return jnp.where(x <= min_val, min_val, jnp.where(x >= max_val, max_val, x))


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


def glu(x: Array, dim: int = -1) -> Array:
    half, gate = jnp.split(x, 2, axis=dim)
    return half * jax.nn.sigmoid(gate)


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
        return reduce(x, axis=axes_of(dim), keepdims=keepdim)

    return over


def over_one(where: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
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
    return jnp.var(x, axis=axes_of(dim), ddof=less, keepdims=keepdim)


def std(x: Array, *how: Any, **named: Any) -> Array:
    return jnp.sqrt(var(x, *how, **named))


def var_mean(x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Array, Array]:
    return var(x, dim, None, keepdim, correction), x.mean(axes_of(dim), keepdims=keepdim)


def vector_norm(x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:  # noqa: A002
    if ord != 2:
        raise UnsupportedError(f"a norm of order {ord} is not supported; 2 is")
    squares = (jnp.asarray(x, dtype or x.dtype) ** 2).sum(axes_of(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)  # flat at 0, as PyTorch has it


def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    return jax.nn.softmax(jnp.asarray(x, _kind(dtype, x)), axis=dim)


def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    return jax.nn.log_softmax(jnp.asarray(x, _kind(dtype, x)), axis=dim)


def logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    return jax.nn.logsumexp(x, axis=axes_of(dim), keepdims=keepdim)


def _kind(dtype: Any, x: Array) -> Any:
    """Of softmax; where it was taken apart, it says whether half precision becomes single instead."""
    return x.dtype if dtype is None or isinstance(dtype, bool) else dtype


def axes_of(dim: Any) -> Any:
    """PyTorch's empty list is all axes."""
    if isinstance(dim, Sequence):
        return tuple(dim) or None
    return dim
