"""MNIST: 70,000 handwritten digits of 28×28 pixels, and a 784-100-10 network."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.datasets.images import Images, check_labels, shards_of_images
from perfeds2.learning.files.formats import DataBroken, read_idx, times
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Split
from perfeds2.learning.task import Recipe

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = {  # name without its ending: dimensions and checksum
    "train-images": (3, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels": (1, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images": (3, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels": (1, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}


def _names(stem: str, dimensions: int) -> tuple[str, ...]:
    plain = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte", f"{stem}.idx")
    return tuple(f"{name}{ending}" for name in plain for ending in (".gz", ""))


def _download(stem: str, dimensions: int, sha256: str) -> Download:
    file = _names(stem, dimensions)[0]
    return Download(file, tuple(mirror + file for mirror in MIRRORS), sha256)


MNIST = Source(
    "mnist",
    (Form("IDX files", tuple(_names(stem, dimensions) for stem, (dimensions, _) in FILES.items())),),
    tuple(_download(stem, *known) for stem, known in FILES.items()),
    "copyright Y. LeCun and C. Cortes; generally given as CC BY-SA 3.0",
)


def mnist_data(ues: int, split: Split, seed: int, found: Found) -> Shards:
    return shards_of_images(_read_once(found.files), ues, split, seed)


def read_mnist(files: Sequence[Path]) -> Images:
    """Read four IDX files, gzipped or not: training images and labels, test images and labels."""
    arrays = [read_idx(path, dimensions) for path, dimensions in zip(files, (3, 1, 3, 1), strict=True)]
    for images, path in ((arrays[0], files[0]), (arrays[2], files[2])):
        if images.shape[1:] != (28, 28):
            raise DataBroken(f"{path} holds images of {times(images.shape[1:])} pixels; MNIST's have 28×28.")
    x, y, test_x, test_y = (a.reshape(a.shape[0], -1) if a.ndim == 3 else a for a in arrays)
    check_labels(x, y, 10, files[1])
    check_labels(test_x, test_y, 10, files[3])
    return Images(x, y, test_x, test_y)


_read_once = lru_cache(maxsize=1)(read_mnist)  # for all seeds: unpacking takes seconds
mnist = Recipe(
    "mnist",
    MLP((784, 100, 10), input_scale=255),
    mnist_data,
    jax.ShapeDtypeStruct((784,), np.uint8),
    defaults={"run": {"horizon_s": 600.0}},
    source=MNIST,
)
