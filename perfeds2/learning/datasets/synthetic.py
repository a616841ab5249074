"""Synthetic data, generated on the fly for any number of UEs."""

import jax
import jax.numpy as jnp

from perfeds2.learning.data import Generated
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import SPLITS, ByLabel, Natural, Split, check_labels_per_ue
from perfeds2.learning.task import Recipe

FEATURES, CLASSES = 32, 10


def synthetic_data(ues: int, split: Split, seed: int) -> Generated:
    """Make data in which each UE has its own distribution and ``labels_per_ue`` labels.

    With the split natural, UEs have all labels; with iid, all UEs have the same distribution.
    """
    if split == SPLITS["iid"]:
        return Generated(jax.random.key(seed), ues, FEATURES, CLASSES, CLASSES, differ=False)
    if not isinstance(split, ByLabel | Natural):
        raise ValueError(
            "its samples are generated without end, so they cannot be divided; --split takes labels:K, natural or iid."
        )
    labels_per_ue = split.labels_per_ue if isinstance(split, ByLabel) else CLASSES
    check_labels_per_ue(labels_per_ue, CLASSES)
    return Generated(jax.random.key(seed), ues, FEATURES, CLASSES, labels_per_ue)


synthetic = Recipe(
    "synthetic",
    MLP((FEATURES, 32, CLASSES)),
    synthetic_data,
    jax.ShapeDtypeStruct((FEATURES,), jnp.float32),
    defaults={"run": {"target_accuracy": 0.7}},
)
