"""Compute with trees of arrays: models, gradients and what UEs keep."""

from collections.abc import Container
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from perfeds2.learning.models.model import Params

Scalar: TypeAlias = Array | np.floating | float
Number: TypeAlias = Float[Array, ""]
Leaf = TypeVar("Leaf")


def zeros(tree: PyTree) -> PyTree:
    """Return zeros in the shapes of a tree's arrays."""
    return jax.tree.map(jnp.zeros_like, tree)


def rows_of(tree: PyTree) -> int:
    """Return the length of the first axis of a tree's arrays."""
    return jax.tree.leaves(tree)[0].shape[0]


def pick(rows: PyTree, number: int) -> PyTree:
    """Return one row of every array, such as one of the batches of a step."""
    return jax.tree.map(lambda b: b[number], rows)


def stepped(params: PyTree, size: Scalar, direction: PyTree) -> PyTree:
    """Return params − size·direction."""
    return jax.tree.map(lambda w, g: w - size * g, params, direction)


def dot(one: Params, other: Params) -> Number:
    """Return the scalar product of all arrays together."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)), jnp.zeros(()))


def norm(tree: Params) -> Number:
    """Return the Euclidean norm of all arrays together."""
    return jnp.sqrt(dot(tree, tree))


def clip(gradient: Params, most: float | Array, *, must_be_finite: bool = False) -> Params:
    """Return g·min(1, C/‖g‖), the gradient shortened to norm ``most``. A shorter one is unchanged.

    With ``must_be_finite``, a gradient whose norm is not finite becomes 0.
    """
    length = norm(gradient)
    scale = jnp.where(length > most, most / length, 1.0)
    if must_be_finite:
        return jax.tree.map(lambda g: jnp.where(jnp.isfinite(length), scale * g, 0.0), gradient)
    return jax.tree.map(lambda g: scale * g, gradient)


def without(params: dict[str, Leaf], stays: Container[str]) -> dict[str, Leaf]:
    """Return the arrays of a model whose names are not in ``stays``."""
    return {name: w for name, w in params.items() if name not in stays}
