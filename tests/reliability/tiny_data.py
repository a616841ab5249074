"""Data sets of a few samples, in the real formats."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, each: int = 10, classes: int = 10) -> Path:
    """This many images of each digit, in the training set and in the test set."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes, dtype=np.uint8), each)
    for name in ("train", "t10k"):
        images = random.integers(0, 256, (labels.size, 28, 28), dtype=np.uint8)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images), mtime=0))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels), mtime=0))
    return folder
