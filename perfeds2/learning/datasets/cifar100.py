"""CIFAR-100: 60,000 small photographs of 100 things, and LeNet-5."""

import io
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from perfeds2.learning.datasets.images import Images, Labelled, image_recipe, labelled
from perfeds2.learning.files.formats import DataBroken, naming, read_bytes, read_npz
from perfeds2.learning.files.sources import Download, Form, Source
from perfeds2.learning.models.lenet import LENET

RECORD_BYTES = 2 + 3072  # in the binary archive: a coarse label, a fine label, and the pixels
MEMBERS = ("train.bin", "test.bin")
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
)


def read_cifar100(files: Sequence[Path]) -> Images:
    return read_cifar100_archive(files[0]) if len(files) == 1 else read_cifar100_parts(files)


def read_cifar100_archive(path: Path) -> Images:
    """Read ``train.bin`` and ``test.bin`` from the official archive without extracting it."""
    found: dict[str, Labelled] = {}
    with naming(path):
        with tarfile.open(fileobj=io.BytesIO(read_bytes(path))) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in MEMBERS and member.isreg() and (content := archive.extractfile(member)):
                    records = np.frombuffer(content.read(), np.uint8).reshape(-1, RECORD_BYTES)
                    found[name] = labelled(records[:, 2:], records[:, 1], (3072,), 100)
        if found.keys() != set(MEMBERS):
            raise DataBroken(f"lacks {' or '.join(MEMBERS)}; expected the binary version, cifar-100-binary.tar.gz.")
    return Images(*found["train.bin"], *found["test.bin"])


def read_cifar100_parts(files: Sequence[Path]) -> Images:
    """Read npz files of ``data`` (rows of 1024 red, green, blue values) and ``fine_labels``; the last is the test set."""
    with ThreadPoolExecutor() as threads:  # unpacking is slow and releases the GIL
        parts = list(threads.map(_read_part, files))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Images(x, y, *parts[-1])


def _read_part(path: Path) -> Labelled:
    with naming(path):
        arrays = read_npz(path, ("data", "fine_labels"))
        if len(arrays) < 2:
            raise DataBroken("lacks data or fine_labels.")
        return labelled(arrays["data"], arrays["fine_labels"], (3072,), 100)


cifar100 = image_recipe(
    CIFAR100,
    LENET,
    3072,
    read_cifar100,
    {
        "task": {"labels_per_ue": 5, "model": "lenet5"},
        "learning": {"alpha": 0.02, "beta": 0.06},  # Table I
        "run": {"horizon_s": 2000.0, "target_accuracy": 0.5},
    },
)
