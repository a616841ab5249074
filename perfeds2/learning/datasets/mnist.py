"""MNIST: 70,000 handwritten digits of 28×28 pixels, and a 784-100-10 network."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.datasets.formats import DataBroken, read_idx, times
from perfeds2.learning.datasets.images import Images, check_labels, shards_of_images
from perfeds2.learning.datasets.sources import find
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.partition import Split
from perfeds2.learning.task import Recipe


def mnist_data(ues: int, split: Split, seed: int, data_dir: Path | str | None = None) -> Shards:
    """A UE's test part is taken from the official test set, with the UE's labels."""
    return shards_of_images(_read_once(find("mnist", data_dir).files), ues, split, seed)


def read_mnist(files: Sequence[Path]) -> Images:
    """Training images and labels, test images and labels: four IDX files, gzipped or not."""
    arrays = [read_idx(path, dimensions) for path, dimensions in zip(files, (3, 1, 3, 1), strict=True)]
    for images, path in ((arrays[0], files[0]), (arrays[2], files[2])):
        if images.shape[1:] != (28, 28):
            raise DataBroken(f"{path} holds images of {times(images.shape[1:])} pixels; MNIST's have 28×28.")
    x, y, test_x, test_y = (a.reshape(a.shape[0], -1) if a.ndim == 3 else a for a in arrays)
    check_labels(x, y, 10, files[1])
    check_labels(test_x, test_y, 10, files[3])
    return Images(x, y, test_x, test_y)


_read_once = lru_cache(maxsize=1)(read_mnist)  # for all seeds: unpacking takes its time
mnist = Recipe(
    "mnist",
    MLP((784, 100, 10), input_scale=255),
    mnist_data,
    jax.ShapeDtypeStruct((784,), np.uint8),
    defaults={"run": {"horizon_s": 600.0}},
)
