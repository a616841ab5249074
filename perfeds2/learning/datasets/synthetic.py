"""Data made on the fly, for any number of UEs."""

import jax
import jax.numpy as jnp

from perfeds2.learning.data import Generated
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import check_labels_per_ue
from perfeds2.learning.task import Recipe

FEATURES, CLASSES = 32, 10


def synthetic_data(ues: int, labels_per_ue: int, seed: int) -> Generated:
    check_labels_per_ue(labels_per_ue, CLASSES)
    return Generated(jax.random.key(seed), ues, FEATURES, CLASSES, labels_per_ue)


synthetic = Recipe(
    "synthetic",
    MLP((FEATURES, 32, CLASSES)),
    synthetic_data,
    jax.ShapeDtypeStruct((FEATURES,), jnp.float32),
    defaults={"run": {"target_accuracy": 0.7}},
)
