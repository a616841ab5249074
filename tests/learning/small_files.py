"""Small files in the formats of HAR and FEMNIST, written by these formats' definitions."""

import io
import lzma
import sqlite3
import struct
import zipfile
from pathlib import Path

import numpy as np


def har_archive(persons=4, each=12, nested=True, leave_out=""):
    """Features of a sample are its person and its activity, repeated; a third of the persons is the test half."""
    buffer, first_test = io.BytesIO(), persons - persons // 3
    with zipfile.ZipFile(buffer, "w") as file:
        for half, people in (("train", range(1, first_test + 1)), ("test", range(first_test + 1, persons + 1))):
            rows = [(person, 1 + n % 6) for person in people for n in range(each)]
            texts = {
                "X": [" ".join([f"{person / 100:.8e}", *[f"{label / 10: .8e}"] * 560]) for person, label in rows],
                "y": [str(label) for _, label in rows],
                "subject": [str(person) for person, _ in rows],
            }
            for what, lines in texts.items():
                name = f"UCI HAR Dataset/{half}/{what}_{half}.txt"
                if what != leave_out:
                    file.writestr(name, "\n".join(lines) + "\n")
    if not nested:
        return buffer.getvalue()
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as file:
        file.writestr("UCI HAR Dataset.names", "about it")
        file.writestr("UCI HAR Dataset.zip", buffer.getvalue())
    return outer.getvalue()


def varint(number):
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def field(number, content):
    """A field of bytes: its key, its length, its content."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(pixels, label, packed=True):
    """TensorFlow's Example with the features label and pixels."""
    floats = field(1, struct.pack(f"<{len(pixels)}f", *pixels))
    integers = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
    features = {b"label": field(3, integers), b"pixels": field(2, floats)}
    return field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in features.items()))


def write_femnist(folder: Path, writers=3, each=10, compressed=False):
    """Writer w's samples are as dark as its number; of every ten one is a test sample."""
    path = folder / "emnist_all.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        for writer in range(writers):
            for n in range(each):
                record = example([1 - writer / 255] * 784, (writer + n) % 62, packed=n % 2 == 0)
                half = "all_test" if n % 10 == 9 else "all_train"
                database.execute("INSERT INTO examples VALUES (?, ?, ?)", (half, f"f{writer:04}", record))
        database.execute("INSERT INTO examples VALUES ('digits_only_train', 'f0000', ?)", (example([0] * 784, 1),))
    database.close()
    if compressed:
        (folder / "emnist_all.sqlite.lzma").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    return path


def grey(number):
    return np.full(784, number, np.uint8)
