"""Read files that may come from anywhere.

Nothing in a file is trusted: no code in it is run, no path in it is followed, and nothing is unpacked without a limit.
Every problem becomes one sentence that follows the file's name.
"""

import gzip
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

MOST_BYTES = 1 << 30  # unpacked; the largest of the data sets has 0.2 GB
MOST_ARRAY_BYTES = 8 << 30  # of an npz file
CHUNK_BYTES = 1 << 20


class DataBroken(ValueError):  # noqa: N818 (named for what is the case)
    """A file does not hold what it should. The message is one sentence that follows the file's name."""


@contextmanager
def naming(name: object = "") -> Iterator[None]:
    """Turn any error in a file into one sentence that follows its name."""
    try:
        yield
    except DataBroken as error:
        raise DataBroken(f"{name} {error}".lstrip()) from None
    except Exception as error:
        words = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise DataBroken(f"{name} cannot be read: {' '.join(words.split())[:200].rstrip('.')}.".lstrip()) from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzipped, whatever its name."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        return everything(gzip.GzipFile(fileobj=file) if gzipped else file)


def everything(file: Any) -> bytes:  # of gzip, zipfile or the disk, which share no type
    """Return all bytes of an open file, in chunks, so that a decompression bomb is stopped at the limit."""
    pieces, size = [], 0
    while piece := file.read(CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise DataBroken(f"unpacks to more than {MOST_BYTES} bytes.")
    return b"".join(pieces)


def read_text(path: Path) -> str:
    """Return a text in UTF-8 or Latin-1: plain, gzipped, or the only text in a zip archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            texts = [name for name in archive.namelist() if name.lower().endswith(".txt")]
            if len(texts) != 1:
                raise DataBroken(f"holds {len(texts)} texts; expected one.")
            with archive.open(texts[0]) as file:
                raw = everything(file)
    else:
        raw = read_bytes(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def read_idx(path: Path, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """Return the array of bytes in an IDX file.

    The file has two zeros, 8 for "unsigned byte", the number of dimensions, their sizes, and the values.

    Raises:
        DataBroken: It is not an IDX file of ``dimensions`` dimensions, or its size is wrong.
    """
    with naming(path):
        raw, start = read_bytes(path), 4 + 4 * dimensions
        if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) < start:
            raise DataBroken(f"is not an IDX file of {dimensions}-dimensional bytes.")
        shape = np.frombuffer(raw[4:start], ">u4").tolist()
        values = np.frombuffer(raw, np.uint8, offset=start)
        if not 0 < math.prod(shape) == values.size:
            raise DataBroken(f"announces {times(shape)} values, but holds {values.size}.")
        return values.reshape(shape)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the named arrays that an npz file holds. Nothing is unpickled."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if sum(member.file_size for member in archive.zip.infolist()) > MOST_ARRAY_BYTES:
            raise DataBroken(f"unpacks to more than {MOST_ARRAY_BYTES} bytes.")
        return {name: archive[name] for name in names if name in archive.files}


def times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "single"
