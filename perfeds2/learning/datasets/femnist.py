"""FEMNIST: handwritten digits and letters, each with its writer; every UE is a writer.

The official file is TensorFlow Federated's copy of LEAF's data: an SQLite database of TensorFlow's ``Example`` records.
It is unpacked once, beside itself (4.7 GB), and only the pixels are kept in memory, a byte each.
"""

import lzma
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, UInt8

from perfeds2.learning.data import Shards
from perfeds2.learning.files.formats import DataBroken, naming
from perfeds2.learning.files.sources import Download, Form, Found, Source
from perfeds2.learning.models.lenet import CNN
from perfeds2.learning.partition import Natural, Samples, Split
from perfeds2.learning.task import Recipe

CLASSES = 62  # digits, capitals, small letters
PIXELS = 784
MOST_BYTES = 8 << 30  # of the unpacked database
CHUNK_BYTES = 1 << 24
FEMNIST = Source(
    "femnist",
    (Form("SQLite database", (("emnist_all.sqlite", "emnist_all.sqlite.lzma"),)),),
    (
        Download(
            "emnist_all.sqlite.lzma",
            ("https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",),
            "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
        ),
    ),
    "NIST Special Database 19, public domain; cite Cohen et al. 2017 and LEAF",
)


class Written(NamedTuple):
    """All characters, in the order of their writers."""

    x: UInt8[np.ndarray, "N p"]  # ink is 255
    y: Int[np.ndarray, " N"]
    is_test: np.ndarray  # bool, as the publisher divides each writer's samples
    writer: Int[np.ndarray, " N"]
    names: tuple[str, ...]


@lru_cache(maxsize=1)  # shared by all seeds: reading takes a minute
def read_femnist(files: Sequence[Path]) -> Written:
    """Read the database, and unpack it first if it is compressed."""
    (path,) = files
    with naming(path):
        path = _unpacked(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            rows = database.execute(
                "SELECT client_id, split_name, serialized_example_proto FROM examples "
                "WHERE split_name IN ('all_train', 'all_test') ORDER BY client_id, split_name, rowid"
            )
            pixels, labels, tests, writers = [], [], [], []
            for writer, half, record in rows:
                x, label = parse_example(record)
                pixels.append(x)
                labels.append(label)
                tests.append(half == "all_test")
                writers.append(str(writer))
        if not pixels:
            raise DataBroken("holds no samples.")
        names, writer = np.unique(writers, return_inverse=True)
        return Written(np.stack(pixels), np.array(labels), np.array(tests), writer, tuple(names.tolist()))


def _unpacked(path: Path) -> Path:
    """Return the path of the database, which is unpacked beside its compressed file if it is not there yet."""
    if path.suffix != ".lzma":
        return path
    database, part = path.with_suffix(""), path.with_name(f"{path.stem}.part")
    size = 0
    try:
        with lzma.open(path) as packed, part.open("wb") as file:
            while chunk := packed.read(CHUNK_BYTES):
                size += len(chunk)
                if size > MOST_BYTES:
                    raise DataBroken(f"unpacks to more than {MOST_BYTES} bytes.")
                file.write(chunk)
        os.replace(part, database)
    finally:
        part.unlink(missing_ok=True)
    return database


# ---- TensorFlow's Example: nested fields of (number, wire type), lengths and values


def parse_example(record: bytes) -> tuple[UInt8[np.ndarray, " p"], int]:
    """Return the pixels and the label of a record. Paper, which is 1 in the file, becomes 0, as in MNIST."""
    try:
        features = {}
        for example in _messages(record, 1):
            for entry in _messages(example, 1):
                (name,), (feature,) = _messages(entry, 1), _messages(entry, 2)
                features[bytes(name)] = feature
        (floats,) = _messages(features[b"pixels"], 2)
        (numbers,) = _messages(floats, 1)
        (integers,) = _messages(features[b"label"], 3)
        (label,) = (value if isinstance(value, int) else _varint(value, 0)[0] for value in _fields(integers, 1))
    except (KeyError, ValueError) as error:
        if isinstance(error, DataBroken):
            raise
        raise DataBroken("holds a record without pixels or label.") from None
    x = np.frombuffer(numbers, "<f4") if len(numbers) == 4 * PIXELS else np.zeros(len(numbers) // 4)
    if x.size != PIXELS or not 0 <= label < CLASSES:
        raise DataBroken(
            f"holds a record of {x.size} pixels with the label {label}; expected {PIXELS} and 0 to {CLASSES - 1}."
        )
    return np.rint(255 * (1 - np.clip(x, 0, 1))).astype(np.uint8), label


def _messages(message: bytes | memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the messages in a message's fields with a number."""
    return (value for value in _fields(message, wanted) if isinstance(value, memoryview))


def _fields(message: bytes | memoryview, wanted: int) -> Iterator[memoryview | int]:
    """Yield the values of a message's fields with a number: bytes, or an integer."""
    message, at = memoryview(message), 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 2:
            size, at = _varint(message, at)
            value: memoryview | int = message[at : at + size]
            at += size
            if at > len(message):
                raise DataBroken("holds a record that is cut.")
        elif key & 7 == 0:
            value, at = _varint(message, at)
        else:
            raise DataBroken("holds a record that is no Example.")
        if key >> 3 == wanted:
            yield value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the integer that begins at a position, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise DataBroken("holds a record that is cut.")
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


# ---- the task


def femnist_data(ues: int, split: Split, seed: int, found: Found) -> Shards:
    written = read_femnist(found.files)
    samples = Samples(written.y, written.is_test, written.writer, written.names)
    return Shards.of(written.x, written.y, split(samples, ues, seed))


femnist = Recipe(
    "femnist",
    CNN.fitting(PIXELS, CLASSES, np.dtype(np.uint8)),
    femnist_data,
    jax.ShapeDtypeStruct((PIXELS,), np.uint8),
    {
        "task": {"split": str(Natural()), "model": "cnn"},
        "cell": {"ues": 100},
        "learning": {"alpha": 0.01, "beta": 0.02},  # as for the same network on cifar10
        "run": {"horizon_s": 10_000.0, "target_accuracy": 0.7},
    },
    source=FEMNIST,
)
