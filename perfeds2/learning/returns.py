"""Check what an objective or a merge returns, so that a user's mistake is one sentence and not an error inside JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from perfeds2.errors import InputError


def expect_pair(who: str, found: object, expected: str) -> tuple[PyTree, PyTree]:
    """Return the two values of a pair, or say what was returned instead."""
    if isinstance(found, tuple) and len(found) == 2:
        return found
    got = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
    raise InputError(f"{who} returned {got}; expected two values: {expected}.")


def expect_like(who: str, what: str, found: PyTree, like: PyTree) -> None:
    """Refuse arrays whose names, shapes or types differ from those they will replace."""
    ours, theirs = _arrays(found), _arrays(like)
    for name in [*theirs, *ours]:
        got, wanted = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if got != wanted:
            raise InputError(f"{who} returned {what} with {got}{name and f' as {name}'}; expected {wanted}.")


def _arrays(tree: PyTree) -> dict[str, str]:
    """Return the type and shape of every array by its name in the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): _described(leaf) for path, leaf in leaves}


def _described(leaf: PyTree) -> str:
    try:
        return f"{jnp.result_type(leaf)} of shape {list(jnp.shape(leaf))}"
    except TypeError:
        return f"a {type(leaf).__name__}"
