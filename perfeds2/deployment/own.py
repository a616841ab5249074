"""Use your own model and data in a federation.

Write a file with two names: ``model``, and ``load_data(folder, device)``, which only the device calls, so its data
never leave it. See docs/how-to/deploy.md for a 20-line example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from perfeds2.learning.data import Data, Shards
from perfeds2.learning.models.model import Params, RandomKey
from perfeds2.learning.partition import Partition


def own_samples(x: np.ndarray, y: np.ndarray, *, test_share: float = 0.25, seed: int = 0) -> Data:
    """Shuffle one device's samples and split them into a training and a test part.

    Args:
        x: Samples, with the sample axis first; converted to float32.
        y: Labels, one per sample.
        test_share: Fraction of the samples kept for testing; at least one sample goes to each part.
        seed: Seed of the shuffle.

    Returns:
        The data that ``load_data`` must return.

    Raises:
        ValueError: There are fewer than 2 samples, or not as many labels as samples.
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"own_samples needs a label for each of at least 2 samples, got {len(x)} and {len(y)}.")
    test = min(max(round(len(x) * test_share), 1), len(x) - 1)
    order = np.random.default_rng(seed).permutation(len(x))
    # There is one part, and JAX clips indices that are too large: every UE number finds it.
    parts = Partition(order, np.array([0]), np.array([len(x) - test]), np.array([test]))
    return Shards.of(np.asarray(x, np.float32), np.asarray(y), parts)


@dataclass(frozen=True)
class EquinoxModel:
    """A model from an Equinox module, or any other callable JAX pytree, that maps one sample to its logits."""

    make: Callable[[RandomKey], Callable[[Array], Array]]  # makes a module from a key
    sample_rank: int = 1  # number of axes of one sample

    def init(self, key: RandomKey) -> Params:
        names, leaves, _ = self._leaves(key)
        return {name: leaf for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, jax.Array)}

    def __call__(self, params: Params, x: Array) -> Float[Array, "*s c"]:
        # Tracing makes the module again only for its structure; its own arrays are unused and cost nothing.
        names, leaves, structure = self._leaves(jax.random.key(0))
        module = structure.unflatten([params.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)])
        many = x.shape[: x.ndim - self.sample_rank]
        logits = jax.vmap(module)(x.reshape(-1, *x.shape[len(many) :]))
        return logits.reshape(*many, -1)

    def _leaves(self, key: RandomKey) -> tuple[list[str], list[object], Any]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(self.make(key))
        return [jax.tree_util.keystr(path).lstrip(".") for path, _ in leaves], [leaf for _, leaf in leaves], structure
