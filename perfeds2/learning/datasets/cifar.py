"""CIFAR-10 and CIFAR-100: 60,000 small photographs of 10 or 100 things."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from perfeds2.learning.datasets.images import Images, Labelled, image_recipe, labelled
from perfeds2.learning.files.formats import DataBroken, naming, read_bytes, read_npz
from perfeds2.learning.files.sources import Download, Form, Source
from perfeds2.learning.models.lenet import CNN, LENET

PIXELS = 3072
TERMS = "no licence stated; free for research that cites A. Krizhevsky's report of 2009"
ADDRESS = "https://www.cs.toronto.edu/~kriz/"
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10 = Source(
    "cifar10",
    (
        Form("official archive", (("cifar-10-binary.tar.gz", "cifar-10-binary.tar"),)),
        Form("extracted archive", tuple((f"cifar-10-batches-bin/{name}", name) for name in BATCHES)),
    ),
    (
        Download(
            "cifar-10-binary.tar.gz",
            (f"{ADDRESS}cifar-10-binary.tar.gz",),
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    TERMS,
)
CIFAR100 = Source(
    "cifar100",
    (
        Form("official archive", (("cifar-100-binary.tar.gz", "cifar-100-binary.tar"),)),
        Form("npz parts", (*((f"train_{number}.npz",) for number in range(1, 6)), ("test.npz",))),
    ),
    (
        Download(
            "cifar-100-binary.tar.gz",
            (f"{ADDRESS}cifar-100-binary.tar.gz",),
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    TERMS,
)


# ---- reading


def read_cifar10(files: Sequence[Path]) -> Images:
    """Read the official archive, or its six files extracted."""
    if len(files) == 1:
        return read_cifar10_archive(files[0])
    return _joined([_read_batch(path) for path in files])


def read_cifar10_archive(path: Path) -> Images:
    """Read the six files of records from the official archive without extracting it."""
    members = _read_members(path, BATCHES, "cifar-10-binary.tar.gz")
    with naming(path):
        return _joined([_records(members[name], label_bytes=1, classes=10) for name in BATCHES])


def read_cifar100(files: Sequence[Path]) -> Images:
    return read_cifar100_archive(files[0]) if len(files) == 1 else read_cifar100_parts(files)


def read_cifar100_archive(path: Path) -> Images:
    """Read ``train.bin`` and ``test.bin`` from the official archive without extracting it."""
    names = ("train.bin", "test.bin")
    members = _read_members(path, names, "cifar-100-binary.tar.gz")
    with naming(path):
        return _joined([_records(members[name], label_bytes=2, classes=100) for name in names])


def read_cifar100_parts(files: Sequence[Path]) -> Images:
    """Read npz files of ``data`` (rows of 1024 red, green, blue values) and ``fine_labels``; the last is the test set."""
    with ThreadPoolExecutor() as threads:  # unpacking is slow and releases the GIL
        return _joined(list(threads.map(_read_part, files)))


def _read_members(path: Path, names: Sequence[str], archive_name: str) -> Mapping[str, bytes]:
    """Return the content of an archive's members, found by their names without folders."""
    found: dict[str, bytes] = {}
    with naming(path):
        with tarfile.open(fileobj=io.BytesIO(read_bytes(path))) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in names and member.isreg() and (content := archive.extractfile(member)):
                    found[name] = content.read()
        missing = [name for name in names if name not in found]
        if missing:
            raise DataBroken(f"lacks {' and '.join(missing)}; expected the binary version, {archive_name}.")
    return found


def _records(content: bytes, label_bytes: int, classes: int) -> Labelled:
    """Return the images of records of labels, of which the last counts, and pixels."""
    records = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + PIXELS)
    return labelled(records[:, label_bytes:], records[:, label_bytes - 1], (PIXELS,), classes)


def _read_batch(path: Path) -> Labelled:
    with naming(path):
        return _records(read_bytes(path), label_bytes=1, classes=10)


def _read_part(path: Path) -> Labelled:
    with naming(path):
        arrays = read_npz(path, ("data", "fine_labels"))
        if len(arrays) < 2:
            raise DataBroken("lacks data or fine_labels.")
        return labelled(arrays["data"], arrays["fine_labels"], (PIXELS,), 100)


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Images:
    """Join parts of a training set; the last part is the test set."""
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Images(x, y, *parts[-1])


# ---- the tasks

cifar10 = image_recipe(
    CIFAR10,
    CNN.fitting(PIXELS, 10, np.dtype(np.uint8)),
    PIXELS,
    read_cifar10,
    {
        "task": {"labels_per_ue": 2, "model": "cnn"},
        "learning": {"alpha": 0.01, "beta": 0.02},  # larger steps diverge with the exact Hessian
        "run": {"horizon_s": 10_000.0, "target_accuracy": 0.7},
    },
)
cifar100 = image_recipe(
    CIFAR100,
    LENET,
    PIXELS,
    read_cifar100,
    {
        "task": {"labels_per_ue": 5, "model": "lenet5"},
        "learning": {"alpha": 0.02, "beta": 0.06},  # Table I
        "run": {"horizon_s": 2000.0, "target_accuracy": 0.5},
    },
)
