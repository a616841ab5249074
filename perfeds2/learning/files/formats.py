"""What do the data sets' files say?

Files come from anywhere, so nothing in them is believed before it is checked: no code of theirs is run, no path of
theirs is followed, nothing is allocated because a header asks for it. What cannot be read is one sentence.
"""

import gzip
import io
import json
import lzma
import math
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

MOST_BYTES = 1 << 30  # of anything unpacked; the largest of these data sets has 0.2 GB
CHUNK_BYTES = 1 << 14  # so that a few packed bytes cannot become gigabytes at once


class DataBroken(ValueError):  # noqa: N818 (named for what is the case)
    """A file of a data set does not hold what it should; the message is one sentence."""


@runtime_checkable
class Bytes(Protocol):
    """A file, a part of an archive, or what is unpacked from them."""

    def read(self, size: int = -1, /) -> bytes: ...


# ---- arrays of bytes


def read_idx(path: Path, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """One array of bytes: two zeros, 8 for "unsigned byte", the number of dimensions, their sizes, the values."""
    with in_one_sentence(path), unpacked(path) as file:
        if exactly(file, 4) != bytes([0, 0, 8, dimensions]):
            raise DataBroken(f"{path} is not an IDX file of {dimensions}-dimensional bytes.")
        shape = struct.unpack(f">{dimensions}I", exactly(file, 4 * dimensions))
        values = exactly(file, _size(path, shape))
        if file.read(1):
            raise DataBroken(f"{path} goes on behind the {times(shape)} values its header announces.")
        return np.frombuffer(values, np.uint8).reshape(shape)


NPY_HEADER = re.compile(r"\{'descr': '[|<]u1', 'fortran_order': False, 'shape': \((\d+(?:, ?\d+)*),?\), *\}\s*")


def read_npy_of_bytes(path: Path, archive: zipfile.ZipFile, name: str) -> UInt8[np.ndarray, "..."]:
    """One member of an npz, when it is an array of bytes."""
    with archive.open(f"{name}.npy") as file:
        magic = exactly(file, 8)
        if magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
            raise DataBroken(f"{path} holds no NumPy array under {name}.")
        length = "<H" if magic[6] == 1 else "<I"
        (size,) = struct.unpack(length, exactly(file, struct.calcsize(length)))
        header = exactly(file, min(size, 4096)).decode("latin-1")
        match = NPY_HEADER.fullmatch(header)
        if match is None:
            raise DataBroken(f"{path} holds something else than an array of bytes under {name}.")
        shape = tuple(int(number) for number in match[1].split(","))
        return np.frombuffer(exactly(file, _size(path, shape)), np.uint8).reshape(shape)


# ---- texts


def read_json_file(path: Path) -> Any:
    """A JSON file, gzipped or not."""
    with in_one_sentence(path), unpacked(path) as file:
        return json.loads(everything(file))


def read_text(path: Path) -> str:
    """A text in UTF-8 or Latin-1: as it is, gzipped, or the one text in a zip archive."""
    with in_one_sentence(path):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                texts = [name for name in archive.namelist() if name.lower().endswith(".txt")]
                if len(texts) != 1:
                    raise DataBroken(f"{path} holds {len(texts)} texts; expected one.")
                with archive.open(texts[0]) as file:
                    raw = everything(file)
        else:
            with unpacked(path) as file:
                raw = everything(file)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw.decode("latin-1")


# ---- reading with care


@contextmanager
def unpacked(path: Path) -> Iterator[Bytes]:
    """Open a file; one that is gzipped (whatever its name says) is unpacked on the way."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not gzipped:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as inner:
            yield inner


def exactly(file: Bytes, size: int) -> bytes:
    """So many bytes, taken in small pieces: a forged size costs nothing."""
    pieces, left = [], size
    while left:
        piece = file.read(min(left, CHUNK_BYTES))
        if not piece:
            raise DataBroken(f"it ends {left} bytes too early")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def everything(file: Bytes, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file, if they are not absurdly many."""
    pieces, size = [], 0
    while piece := file.read(CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise DataBroken(f"it unpacks to more than {most} bytes")
    return b"".join(pieces)


class NotTooLong(io.RawIOBase):
    """A stream that refuses to become absurdly long."""

    def __init__(self, file: Bytes) -> None:
        self.file, self.left = file, MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.file.read(min(len(buffer), CHUNK_BYTES))
        self.left -= len(piece)
        if self.left < 0:
            raise DataBroken(f"it unpacks to more than {MOST_BYTES} bytes")
        buffer[: len(piece)] = piece
        return len(piece)


def _size(path: Path, shape: Sequence[int]) -> int:
    size = math.prod(shape)
    if not 0 < size <= MOST_BYTES:
        raise DataBroken(f"{path} announces {times(shape)} values; expected from 1 to {MOST_BYTES}.")
    return size


def times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "single"


UNREADABLE = (
    *(ValueError, LookupError, TypeError, OverflowError, MemoryError, EOFError, OSError),
    *(RuntimeError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
)


@contextmanager
def in_one_sentence(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file becomes one sentence that names it."""
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, DataBroken) and str(error).startswith(str(path)):
            raise
        words = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise DataBroken(f"{path} cannot be read: {' '.join(words.split())[:200].rstrip('.')}.") from None
