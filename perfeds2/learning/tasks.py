"""What is to be learned: which data, which model?"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from perfeds2.learning.data import Data, Generated, Shards
from perfeds2.learning.models import MLP, Model
from perfeds2.learning.partition import partition_by_label

CYCLES_PER_PARAMETER = 100  # of one sample; then a median device computes about as long as it sends (docs/design.md)


@dataclass(frozen=True)
class Task:
    """Data in the hands of n UEs, and a model for them."""

    name: str
    model: Model
    data: Data
    classes: int

    @property
    def ues(self) -> int:
        return self.data.ues


def parameters(model: Model) -> int:
    """How many numbers a model has."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(int(np.prod(shape.shape)) for shape in shapes.values())


def payload_bits(model: Model) -> float:
    """Z: what one upload takes, 32 bit a parameter."""
    return 32.0 * parameters(model)


def cycles_per_sample(model: Model) -> float:
    """CPU cycles for one sample of one batch; the paper gives no value, this is ours."""
    return float(CYCLES_PER_PARAMETER * parameters(model))


def digits(ues: int, labels_per_ue: int, seed: int) -> Task:
    """scikit-learn's 1,797 real 8×8 digits, inside its wheel: needs no download."""
    from sklearn.datasets import load_digits

    x, y = map(np.asarray, load_digits(return_X_y=True))
    parts = partition_by_label(y, ues, labels_per_ue, seed)
    return Task("digits", MODELS["digits"], Shards.of((x / 16).astype(np.float32), y, parts), 10)


def synthetic(ues: int, labels_per_ue: int, seed: int) -> Task:
    """Per-UE data made on the fly, for any number of UEs."""
    model = MODELS["synthetic"]
    features, classes = model.sizes[0], model.sizes[-1]
    if not 1 <= labels_per_ue <= classes:
        raise ValueError(f"labels_per_ue must be from 1 to the task's {classes} labels, got {labels_per_ue}.")
    data = Generated(jax.random.key(seed), ues, features, classes, labels_per_ue)
    return Task("synthetic", model, data, classes)


MODELS = {"digits": MLP((64, 32, 10)), "synthetic": MLP((32, 32, 10))}
TASKS: dict[str, Callable[[int, int, int], Task]] = {"digits": digits, "synthetic": synthetic}
