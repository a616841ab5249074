"""How do images with labels get into the hands of UEs?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken
from perfeds2.learning.partition import Samples, Split


@dataclass(frozen=True)
class Images:
    """A data set of images with labels, and its own test set."""

    x: UInt8[np.ndarray, "N p"]  # pixels in rows; of colours, first all red, then green, then blue
    y: UInt8[np.ndarray, " N"]
    test_x: UInt8[np.ndarray, "M p"]
    test_y: UInt8[np.ndarray, " M"]


def check_labels(x: np.ndarray, y: np.ndarray, classes: int, path: Path) -> None:
    """One label for every image, and none that does not exist."""
    if y.shape != (x.shape[0],) or y.size == 0:
        raise DataBroken(f"{path} holds {y.size} labels for {x.shape[0]} images.")
    if y.max() >= classes:
        raise DataBroken(f"{path} holds the label {y.max()}; the largest is {classes - 1}.")


def shards_of_images(images: Images, ues: int, split: Split, seed: int) -> Shards:
    """Images given out by a split; a UE's test part is taken from the data set's own test set, with the UE's labels."""
    y, test_y = images.y.astype(int), images.test_y.astype(int)
    parts = split(Samples(y, test_y), ues, seed)
    return Shards.of(np.concatenate([images.x, images.test_x]), np.concatenate([y, test_y]), parts)
