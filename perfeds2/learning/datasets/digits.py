"""scikit-learn's 1,797 handwritten digits of 8×8 pixels, which come with its wheel and need no download."""

import importlib.util
from functools import cache
from pathlib import Path

import jax
import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Samples, Split
from perfeds2.learning.task import Recipe


def digits_data(ues: int, split: Split, seed: int) -> Shards:
    """Divide the digits among UEs; a quarter of them, the same for every seed, is the test set."""
    x, y = read_digits()
    return Shards.of((x / 16).astype(np.float32), y, split(Samples.of(y), ues, seed))


@cache
def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return what ``load_digits`` returns without importing scikit-learn, which takes a second per process."""
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None
    table = np.loadtxt(Path(str(sklearn.origin)).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    table.flags.writeable = False  # every caller gets the same numbers
    return table[:, :-1], table[:, -1].astype(int)


digits = Recipe(
    "digits",
    MLP((64, 32, 10)),
    digits_data,
    jax.ShapeDtypeStruct((64,), np.float32),
    defaults={
        "task": {"labels_per_ue": 2},
        "run": {"target_accuracy": 0.95},
    },  # docs/explanation/personalisation.md says why
)
