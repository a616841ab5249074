"""Store a tree of arrays, such as the state of a training or a merge, under numbered names."""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import PyTree


def named_leaves(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as ``name/0000``, ``name/0001``, …"""
    return {f"{name}/{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def from_leaves(name: str, arrays: Mapping[str, np.ndarray], like: PyTree, *, grown: bool = False) -> PyTree | None:
    """Return the tree stored under a name; None unless it has the structure, shapes and dtypes of ``like``.

    With ``grown``, the first axes of its arrays may have other lengths.
    """
    wanted = named_leaves(name, like)
    found = [arrays[each] for each in wanted if each in arrays]
    forms = [[(leaf.shape[grown:], leaf.dtype) for leaf in leaves] for leaves in (found, wanted.values())]
    return jax.tree.unflatten(jax.tree.structure(like), found) if forms[0] == forms[1] else None
