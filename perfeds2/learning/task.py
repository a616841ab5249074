"""What is to be learned: which data, which model?"""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from perfeds2.learning.data import Data, Generated, Shards
from perfeds2.learning.datasets.real_tasks import REAL_MODELS, cifar100_data, mnist_data, shakespeare_data
from perfeds2.learning.models.model import MLP, Model
from perfeds2.learning.partition import partition_by_label

CYCLES_PER_PARAMETER = 100  # of one sample; then a median device computes about as long as it sends (docs/design.md)


@dataclass(frozen=True)
class Task:
    """Data in the hands of n UEs, and a model for them."""

    name: str
    model: Model
    data: Data

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
    return Task("digits", DIGITS, Shards.of((x / 16).astype(np.float32), y, parts))


def synthetic(ues: int, labels_per_ue: int, seed: int) -> Task:
    """Per-UE data made on the fly, for any number of UEs."""
    features, classes = SYNTHETIC.sizes[0], SYNTHETIC.sizes[-1]
    if not 1 <= labels_per_ue <= classes:
        raise ValueError(f"labels_per_ue must be from 1 to the task's {classes} labels, got {labels_per_ue}.")
    return Task("synthetic", SYNTHETIC, Generated(jax.random.key(seed), ues, features, classes, labels_per_ue))


def mnist(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Task:
    """70,000 handwritten digits and a 784-100-10 network."""
    return Task("mnist", REAL_MODELS["mnist"], mnist_data(ues, labels_per_ue, seed, data_dir))


def cifar100(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Task:
    """60,000 small photographs of 100 things and LeNet-5."""
    return Task("cifar100", REAL_MODELS["cifar100"], cifar100_data(ues, labels_per_ue, seed, data_dir))


def shakespeare(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Task:
    """What comes next in a speaking role's lines, and an LSTM."""
    return Task("shakespeare", REAL_MODELS["shakespeare"], shakespeare_data(ues, labels_per_ue, seed, data_dir))


def make_task(name: str, ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Task:
    """A task by its name on the command line."""
    match name:
        case "digits":
            return digits(ues, labels_per_ue, seed)
        case "synthetic":
            return synthetic(ues, labels_per_ue, seed)
        case "mnist":
            return mnist(ues, labels_per_ue, seed, data_dir)
        case "cifar100":
            return cifar100(ues, labels_per_ue, seed, data_dir)
        case "shakespeare":
            return shakespeare(ues, labels_per_ue, seed, data_dir)
        case _:
            raise ValueError(f"there is no task {name!r}.")


DIGITS, SYNTHETIC = MLP((64, 32, 10)), MLP((32, 32, 10))
MODELS: dict[str, Model] = {"digits": DIGITS, "synthetic": SYNTHETIC, **REAL_MODELS}
