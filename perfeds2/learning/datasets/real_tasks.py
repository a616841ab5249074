"""What do the paper's three data sets look like in the hands of UEs, and which models are for them?"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from perfeds2.learning.data import Shards
from perfeds2.learning.datasets.formats import Images, read_cifar100_archive, read_cifar100_parts, read_mnist
from perfeds2.learning.datasets.sources import Found, find
from perfeds2.learning.datasets.text import ALPHABET, WINDOW, Role, Windows, read_roles
from perfeds2.learning.models.lenet import LeNet
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.model import MLP, Params
from perfeds2.learning.partition import partition_by_label

FEWEST_SAMPLES = 64  # of a role that can be a UE, beside the gap between its training and test part


@dataclass(frozen=True)
class OfPixels:
    """A model of numbers between 0 and 1, given pixels of 8 bit."""

    network: MLP

    def init(self, key: Key[Array, ""]) -> Params:
        return self.network.init(key)

    def __call__(self, params: Params, x: UInt8[Array, "*s x"]) -> Float[Array, "*s c"]:
        return self.network(params, x.astype(params["dense1.weight"].dtype) / 255)


REAL_MODELS: dict[str, OfPixels | LeNet | LSTM] = {
    "mnist": OfPixels(MLP((784, 100, 10))),
    "cifar100": LeNet(),
    "shakespeare": LSTM(len(ALPHABET)),
}
STEP_SIZES = {"mnist": (0.03, 0.07), "cifar100": (0.02, 0.06), "shakespeare": (0.03, 0.07)}  # (α, β) of Table I


def mnist_data(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Shards:
    """70,000 handwritten digits. A UE's test part is taken from the official test set, with the UE's labels."""
    return _shards(_images(find("mnist", data_dir)), ues, labels_per_ue, seed)


def cifar100_data(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Shards:
    """60,000 small photographs; each UE knows ``labels_per_ue`` of the 100 fine labels."""
    return _shards(_images(find("cifar100", data_dir)), ues, labels_per_ue, seed)


def shakespeare_data(ues: int, labels_per_ue: int, seed: int, data_dir: Path | str | None = None) -> Windows:  # noqa: ARG001 (a role speaks as it speaks)
    """One UE per speaking role, drawn among those with at least 64 samples beside the gap. ``labels_per_ue`` has no say."""
    roles = [role for role in _roles(find("shakespeare", data_dir)) if role.samples >= WINDOW + FEWEST_SAMPLES]
    if ues > len(roles):
        raise ValueError(f"there are {len(roles)} roles that say enough, got {ues} UEs; use fewer UEs.")
    chosen = np.random.default_rng([seed, 3]).choice(len(roles), ues, replace=False)
    return Windows.of([roles[number] for number in chosen])


def _shards(images: Images, ues: int, labels_per_ue: int, seed: int) -> Shards:
    y, test_y = images.y.astype(int), images.test_y.astype(int)
    parts = partition_by_label(y, ues, labels_per_ue, seed, test_labels=test_y)
    return Shards.of(np.concatenate([images.x, images.test_x]), np.concatenate([y, test_y]), parts)


@lru_cache(maxsize=2)
def _images(found: Found) -> Images:
    """Read once for all seeds: unpacking takes seconds."""
    match found.form:
        case "IDX files":
            return read_mnist(found.files)
        case "npz parts":
            return read_cifar100_parts(found.files)
        case _:
            return read_cifar100_archive(found.files[0])


@lru_cache(maxsize=1)
def _roles(found: Found) -> list[Role]:
    return read_roles(found.files[0])
