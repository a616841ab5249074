"""CIFAR-100: 60,000 small photographs of 100 things, and LeNet-5."""

import io
import tarfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
from jaxtyping import UInt8

from perfeds2.learning.data import Shards
from perfeds2.learning.datasets.images import Images, check_labels, shards_of_images
from perfeds2.learning.files.formats import (
    DataBroken,
    NotTooLong,
    everything,
    in_one_sentence,
    read_npy_of_bytes,
    times,
    unpacked,
)
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.lenet import LENET
from perfeds2.learning.partition import Split
from perfeds2.learning.task import Recipe

Labelled = tuple[UInt8[np.ndarray, "N p"], UInt8[np.ndarray, " N"]]
RECORD_BYTES = 2 + 3072  # of the binary archive: a coarse label, a fine one, then the pixels


CIFAR100 = Source(
    "cifar100",
    (
        Form("official archive", (("cifar-100-binary.tar.gz", "cifar-100-binary.tar"),)),
        Form("npz parts", (*((f"train_{number}.npz",) for number in range(1, 6)), ("test.npz",))),
    ),
    (
        Download(
            "cifar-100-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    "no licence stated; free for research that cites A. Krizhevsky's report of 2009",
    not_read=("cifar-100-python.tar.gz", "cifar-100-python.tar"),  # pickles
)


def cifar100_data(ues: int, split: Split, seed: int, found: Found) -> Shards:
    """Give out the images with their 100 fine labels."""
    return shards_of_images(_read_once(found.files), ues, split, seed)


@lru_cache(maxsize=1)  # for all seeds: unpacking takes seconds
def _read_once(files: tuple[Path, ...]) -> Images:
    return read_cifar100_archive(files[0]) if len(files) == 1 else read_cifar100_parts(files)


def read_cifar100_archive(path: Path) -> Images:
    """From the official ``cifar-100-binary.tar.gz``: its members ``train.bin`` and ``test.bin``. Nothing is extracted."""
    found: dict[str, Labelled] = {}
    with in_one_sentence(path), unpacked(path) as file:
        with tarfile.open(fileobj=io.BufferedReader(NotTooLong(file)), mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in ("train.bin", "test.bin") and member.isreg():
                    content = archive.extractfile(member)
                    assert content is not None
                    found[name] = _records(path, name, everything(content))
        missing = [name for name in ("train.bin", "test.bin") if name not in found]
        if missing:
            raise DataBroken(
                f"{path} lacks {' and '.join(missing)}; expected the binary version, cifar-100-binary.tar.gz."
            )
    return Images(*found["train.bin"], *found["test.bin"])


def _records(path: Path, name: str, raw: bytes) -> Labelled:
    if len(raw) % RECORD_BYTES:
        raise DataBroken(f"{path} has {len(raw)} bytes in {name}; expected records of {RECORD_BYTES}.")
    records = np.frombuffer(raw, np.uint8).reshape(-1, RECORD_BYTES)
    return _checked_images(path, records[:, 2:], records[:, 1])


def read_cifar100_parts(files: Sequence[Path]) -> Images:
    """From npz files of ``data`` (rows of 1024 red, green, blue values) and ``fine_labels``; the last is the test set."""
    with ThreadPoolExecutor() as threads:  # unpacking takes its time and leaves the interpreter alone
        parts = list(threads.map(_read_npz_part, files))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Images(x, y, *parts[-1])


def _read_npz_part(path: Path) -> Labelled:
    with in_one_sentence(path), zipfile.ZipFile(path) as archive:
        x, y = (read_npy_of_bytes(path, archive, name) for name in ("data", "fine_labels"))
    return _checked_images(path, x, y)


def _checked_images(path: Path, x: UInt8[np.ndarray, "..."], y: UInt8[np.ndarray, "..."]) -> Labelled:
    if x.ndim != 2 or x.shape[1] != 3072:
        raise DataBroken(f"{path} holds images of {times(x.shape[1:])} values; CIFAR-100's have 3072.")
    check_labels(x, y, 100, path)
    return x, y


cifar100 = Recipe(
    "cifar100",
    LENET,
    cifar100_data,
    jax.ShapeDtypeStruct((3072,), np.uint8),
    defaults={
        "task": {"labels_per_ue": 5, "model": "lenet5"},
        "learning": {"alpha": 0.02, "beta": 0.06},  # Table I
        "run": {"horizon_s": 2000.0, "target_accuracy": 0.5},
    },
    source=CIFAR100,
)
