"""What do the data sets' files say?

Files come from anywhere, so nothing in them is believed before it is checked: no code of theirs is run, no path of
theirs is followed, nothing is allocated because a header asks for it. What cannot be read is one sentence.
"""

import gzip
import io
import json
import lzma
import math
import pickletools
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Images:
    """A data set of images with labels, and its own test set."""

    x: UInt8[np.ndarray, "N p"]  # pixels in rows; of colours, first all red, then green, then blue
    y: UInt8[np.ndarray, " N"]
    test_x: UInt8[np.ndarray, "M p"]
    test_y: UInt8[np.ndarray, " M"]


# ---- MNIST


def read_mnist(files: Sequence[Path]) -> Images:
    """Training images and labels, test images and labels: four IDX files, gzipped or not."""
    arrays = [read_idx(path, dimensions) for path, dimensions in zip(files, (3, 1, 3, 1), strict=True)]
    for images, path in ((arrays[0], files[0]), (arrays[2], files[2])):
        if images.shape[1:] != (28, 28):
            raise DataBroken(f"{path} holds images of {_times(images.shape[1:])} pixels; MNIST's have 28×28.")
    x, y, test_x, test_y = (a.reshape(a.shape[0], -1) if a.ndim == 3 else a for a in arrays)
    _check_labels(x, y, 10, files[1])
    _check_labels(test_x, test_y, 10, files[3])
    return Images(x, y, test_x, test_y)


def read_idx(path: Path, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """One array of bytes: two zeros, 8 for "unsigned byte", the number of dimensions, their sizes, the values."""
    with _in_one_sentence(path), unpacked(path) as file:
        if exactly(file, 4) != bytes([0, 0, 8, dimensions]):
            raise DataBroken(f"{path} is not an IDX file of {dimensions}-dimensional bytes.")
        shape = struct.unpack(f">{dimensions}I", exactly(file, 4 * dimensions))
        values = exactly(file, _size(path, shape))
        if file.read(1):
            raise DataBroken(f"{path} goes on behind the {_times(shape)} values its header announces.")
        return np.frombuffer(values, np.uint8).reshape(shape)


# ---- CIFAR-100


def read_cifar100_parts(files: Sequence[Path]) -> Images:
    """From npz files of ``data`` (rows of 1024 red, green, blue values) and ``fine_labels``; the last is the test set."""
    with ThreadPoolExecutor() as threads:  # unpacking takes its time and leaves the interpreter alone
        parts = list(threads.map(_read_npz_part, files))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Images(x, y, *parts[-1])


def _read_npz_part(path: Path) -> tuple[UInt8[np.ndarray, "N p"], UInt8[np.ndarray, " N"]]:
    with _in_one_sentence(path), zipfile.ZipFile(path) as archive:
        x, y = (_read_npy(path, archive, name) for name in ("data", "fine_labels"))
    return _cifar_images(path, x, y)


NPY_HEADER = re.compile(r"\{'descr': '[|<]u1', 'fortran_order': False, 'shape': \((\d+(?:, ?\d+)*),?\), *\}\s*")


def _read_npy(path: Path, archive: zipfile.ZipFile, name: str) -> UInt8[np.ndarray, "..."]:
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


def read_cifar100_archive(path: Path) -> Images:
    """From the official ``cifar-100-python.tar.gz``. Its pickles are read, never run; nothing is extracted."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with _in_one_sentence(path), unpacked(path) as file:
        with tarfile.open(fileobj=io.BufferedReader(_AtMost(file)), mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name not in ("train", "test") or not member.isreg():
                    continue
                content = archive.extractfile(member)
                assert content is not None
                table = read_plain_pickle(content)
                if not isinstance(table, dict) or not isinstance(table.get("data"), PlainArray):
                    raise DataBroken(f"{path} holds no table of images under {name}.")
                labels = table.get("fine_labels")
                if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
                    raise DataBroken(f"{path} holds no list of fine_labels under {name}.")
                found[name] = _cifar_images(path, table["data"].value, np.array(labels, np.uint8))
        if set(found) != {"train", "test"}:
            raise DataBroken(f"{path} lacks {' and '.join({'train', 'test'} - set(found))}.")
    return Images(*found["train"], *found["test"])


def _cifar_images(
    path: Path, x: UInt8[np.ndarray, "..."], y: UInt8[np.ndarray, "..."]
) -> tuple[UInt8[np.ndarray, "N p"], UInt8[np.ndarray, " N"]]:
    if x.ndim != 2 or x.shape[1] != 3072:
        raise DataBroken(f"{path} holds images of {_times(x.shape[1:])} values; CIFAR-100's have 3072.")
    _check_labels(x, y, 100, path)
    return x, y


def _check_labels(x: np.ndarray, y: np.ndarray, classes: int, path: Path) -> None:
    if y.shape != (x.shape[0],) or y.size == 0:
        raise DataBroken(f"{path} holds {y.size} labels for {x.shape[0]} images.")
    if y.max() >= classes:
        raise DataBroken(f"{path} holds the label {y.max()}; the largest is {classes - 1}.")


# ---- pickles, as the plain data they can be


@dataclass
class PlainArray:
    """An array of bytes in a pickle; empty until the pickle fills it."""

    value: np.ndarray


@dataclass(frozen=True)
class Named:
    """Something a pickle would import. Here it is only its name."""

    name: str


RECONSTRUCT = (Named("numpy.core.multiarray _reconstruct"), Named("numpy._core.multiarray _reconstruct"))
NDARRAY, DTYPE, ENCODE, BYTE = Named("numpy ndarray"), Named("numpy dtype"), Named("_codecs encode"), Named("u1")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"} | {
    "BINBYTES",
    "SHORT_BINBYTES",
}  # fmt: skip


def read_plain_pickle(file: Bytes) -> Any:
    """The dictionaries, lists, texts, numbers and byte arrays of a pickle; anything else in it is refused.

    An interpreter of our own for the few instructions such files need. It imports and calls nothing.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        mark = marks.pop()
        items = stack[mark:]
        del stack[mark:]
        return items

    def last(count: int) -> list[Any]:
        if len(stack) < count:
            raise DataBroken("the pickle takes more than it put down")
        items = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return items

    for instruction, argument, _ in pickletools.genops(file):  # pyright: ignore[reportArgumentType]  # any file will do
        match instruction.name:
            case "PROTO" | "FRAME":
                pass
            case name if name in LITERALS:
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE" as name:
                stack.append(CONSTANTS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(last(int(name[-1]))))
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPEND" | "APPENDS" as name:
                items = last(1) if name == "APPEND" else since_mark()
                _expect(list, stack[-1]).extend(items)
            case "SETITEM" | "SETITEMS" as name:
                items = last(2) if name == "SETITEM" else since_mark()
                _expect(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(Named(str(argument)))
            case "STACK_GLOBAL":
                stack.append(Named(" ".join(_expect(str, part) for part in last(2))))
            case "REDUCE":
                stack.append(_reduced(*last(2)))
            case "BUILD":
                (state,) = last(1)
                _build(stack[-1], state)
            case "STOP":
                return stack.pop()
            case name:
                raise DataBroken(f"it holds the pickle instruction {name}, which plain data never need")
    raise DataBroken("the pickle has no end")


def _reduced(function: Any, arguments: Any) -> Any:
    """What calling ``function`` would have given, for the three calls an array of bytes is written with."""
    match function, arguments:
        case function, (first, (0,), _) if function in RECONSTRUCT and first == NDARRAY:
            return PlainArray(np.zeros(0, np.uint8))
        case function, (str(kind), *_) if function == DTYPE and kind == "u1":
            return BYTE
        case function, (str(text), "latin1") if function == ENCODE:
            return text.encode("latin-1")
    raise DataBroken(f"its pickle asks for {getattr(function, 'name', 'something')!r}, which plain data never need")


def _build(value: Any, state: Any) -> None:
    """Fill an array; a type of bytes has nothing to be filled with."""
    if value == BYTE:
        return
    match state:
        case (1, tuple(shape), kind, False, str() | bytes() as raw) if kind == BYTE:
            values = np.frombuffer(raw.encode("latin-1") if isinstance(raw, str) else raw, np.uint8)
            if all(type(size) is int and size >= 0 for size in shape) and math.prod(shape) == values.size:
                _expect(PlainArray, value).value = values.reshape(shape)
                return
    raise DataBroken("its pickle fills an array with something else than as many bytes as it has")


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise DataBroken(f"its pickle uses {type(value).__name__} as {kind.__name__}")
    return value


# ---- texts


def read_json(path: Path) -> Any:
    """A JSON file, gzipped or not."""
    with _in_one_sentence(path), unpacked(path) as file:
        return json.loads(everything(file))


def read_text(path: Path) -> str:
    """A text in UTF-8 or Latin-1: as it is, gzipped, or the one text in a zip archive."""
    with _in_one_sentence(path):
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


class _AtMost(io.RawIOBase):
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
        raise DataBroken(f"{path} announces {_times(shape)} values; expected from 1 to {MOST_BYTES}.")
    return size


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "single"


UNREADABLE = (
    *(ValueError, LookupError, TypeError, OverflowError, MemoryError, EOFError, OSError),
    *(RuntimeError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
)


@contextmanager
def _in_one_sentence(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file becomes one sentence that names it."""
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, DataBroken) and str(error).startswith(str(path)):
            raise
        words = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise DataBroken(f"{path} cannot be read: {' '.join(words.split())[:200].rstrip('.')}.") from None
