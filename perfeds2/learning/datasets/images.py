"""Data sets of labelled images with their own test sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken, times
from perfeds2.learning.files.sources import Found, Source
from perfeds2.learning.models.model import Model
from perfeds2.learning.partition import Samples, Split
from perfeds2.learning.task import Recipe

Labelled = tuple[UInt8[np.ndarray, "N p"], UInt8[np.ndarray, " N"]]


@dataclass(frozen=True)
class Images:
    """A data set of labelled images, with its own test set."""

    x: UInt8[np.ndarray, "N p"]  # pixels in rows; in colour images, all red, then green, then blue
    y: UInt8[np.ndarray, " N"]
    test_x: UInt8[np.ndarray, "M p"]
    test_y: UInt8[np.ndarray, " M"]


Read = Callable[[Sequence[Path]], Images]


def labelled(x: np.ndarray, y: np.ndarray, pixels: tuple[int, ...], classes: int) -> Labelled:
    """Return images as rows, with their labels.

    Raises:
        DataBroken: The images have another shape, or an image has no valid label.
    """
    if x.shape[1:] != pixels or x.dtype != np.uint8:
        raise DataBroken(f"holds images of {times(x.shape[1:])} values; expected {times(pixels)} bytes.")
    if y.shape != x.shape[:1] or y.size == 0 or y.dtype != np.uint8:
        raise DataBroken(f"holds {y.size} labels for {len(x)} images.")
    if y.max() >= classes:
        raise DataBroken(f"holds the label {y.max()}; the largest is {classes - 1}.")
    return x.reshape(len(x), -1), y


def image_recipe(
    source: Source, model: Model, pixels: int, read: Read, defaults: Mapping[str, Mapping[str, Any]]
) -> Recipe:
    """Return the task of a downloadable image data set; test parts come from the data set's own test set."""
    sample = jax.ShapeDtypeStruct((pixels,), np.uint8)
    return Recipe(source.name, model, partial(image_data, read), sample, defaults, source=source)


def image_data(read: Read, ues: int, split: Split, seed: int, found: Found) -> Shards:
    images = _read_once(read, found.files)
    y = np.concatenate([images.y, images.test_y]).astype(int)
    parts = split(Samples.of(y, images.test_y.size), ues, seed)
    return Shards.of(np.concatenate([images.x, images.test_x]), y, parts)


@lru_cache(maxsize=1)  # shared by all seeds: unpacking takes seconds
def _read_once(read: Read, files: tuple[Path, ...]) -> Images:
    return read(files)
