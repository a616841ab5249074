"""scikit-learn's digits: 1,797 real ones of 8×8 pixels, inside its wheel, so nothing is downloaded."""

import jax
import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Samples, Split
from perfeds2.learning.task import Recipe


def digits_data(ues: int, split: Split, seed: int) -> Shards:
    """A quarter of a UE's samples is its test part."""
    from sklearn.datasets import load_digits

    x, y = map(np.asarray, load_digits(return_X_y=True))
    return Shards.of((x / 16).astype(np.float32), y, split(Samples(y), ues, seed))


digits = Recipe(
    "digits",
    MLP((64, 32, 10)),
    digits_data,
    jax.ShapeDtypeStruct((64,), np.float32),
    defaults={"task": {"labels_per_ue": 2}, "run": {"target_accuracy": 0.95}},  # docs/personalisation.md says why
)
