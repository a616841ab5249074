"""What do a user's own arrays say? One npz file with x and y, or a folder of them, one for each UE."""

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from perfeds2.learning.files.formats import UNREADABLE, DataBroken, times
from perfeds2.learning.files.tables import FEW_VALUES, LARGEST, MOST_LABELS, SampleTable, looks_like_labels

MOST_BYTES = 8 << 30  # of one file, unpacked
PARTS = ("x", "y", "ue", "x_test", "y_test", "ue_test")
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]


def read_npz(path: Path) -> SampleTable:
    """x and y, a row a sample; ``ue``: whose each is; x_test and y_test (with ``ue_test``): a test set of its own."""
    return table_of(load(path))


def read_folder(path: Path) -> SampleTable:
    """A file a UE, all alike. The UEs stand in the order of their names, numbers in them counting as numbers."""
    files = sorted(path.glob("*.npz"), key=lambda file: [(len(part), part) for part in re.split(r"(\d+)", file.stem)])
    if not files:
        raise DataBroken("is a folder without npz files; expected one for each UE, with x and y.")
    parts: list[Arrays] = []
    for file in files:
        try:
            arrays = load(file)
            if "ue" in arrays:
                raise DataBroken("holds ue; in a folder a file is a UE.")
            first = parts[0] if parts else arrays
            if arrays.keys() != first.keys():
                raise DataBroken(f"holds {', '.join(arrays)}, but {files[0].name} holds {', '.join(first)}.")
            for name, values in arrays.items():
                if values.shape[1:] != first[name].shape[1:] or values.dtype.kind != first[name].dtype.kind:
                    was = f"{first[name].dtype} of {times(first[name].shape[1:])}"
                    raise DataBroken(
                        f"has {name} as {values.dtype} of {times(values.shape[1:])} a sample; {files[0].name} has {was}."
                    )
        except DataBroken as error:
            raise DataBroken(f"{file.name}: {error}") from None
        parts.append(arrays)
    together = {name: np.concatenate([arrays[name] for arrays in parts]) for name in parts[0]}
    for name in ("y", "y_test"):
        if name in together:
            lengths = [len(arrays[name]) for arrays in parts]
            together[name.replace("y", "ue")] = np.repeat(np.arange(len(files)), lengths)
    return replace(table_of(together), names=tuple(file.stem for file in files))


def load(path: Path) -> Arrays:
    """The arrays we know of an npz file. Nothing in it is run, and nothing is allocated because a header asks for it."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if sum(sizes.values()) > MOST_BYTES:
                raise DataBroken(
                    f"would unpack to {sum(sizes.values()) / 2**30:.0f} GB; at most {MOST_BYTES >> 30} GB are read."
                )
            found = {name: _array(archive, name, sizes[f"{name}.npy"]) for name in PARTS if f"{name}.npy" in sizes}
    except DataBroken:
        raise
    except UNREADABLE as error:
        told = " ".join((str(error) or type(error).__name__).split())[:160].removesuffix(".")
        raise DataBroken(f"cannot be read as npz: {told}.") from None
    missing = [name for name in ("x", "y") if name not in found]
    if missing:
        names = ", ".join(name.removesuffix(".npy") for name in list(sizes)[:8]) or "nothing"
        raise DataBroken(f"has no array {missing[0]} (it holds {names}); expected x and y.")
    _check(found)
    return found


def _array(archive: zipfile.ZipFile, name: str, size: int) -> Shaped[np.ndarray, "..."]:
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise DataBroken(f"holds Python objects under {name}, which are not loaded; save it as plain numbers.")
        if dtype.kind not in "biufU" or (dtype.kind == "U" and name[0] == "x"):
            raise DataBroken(f"holds {dtype} under {name}; expected numbers.")
        if math.prod(shape) * dtype.itemsize != size - file.tell():
            raise DataBroken(f"holds {name} with a header that does not fit its size; save it anew.")
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _check(arrays: Arrays) -> None:
    """Lengths that belong together, and numbers that are numbers."""
    for end in ("", "_test"):
        x, y, ue = (arrays.get(f"{name}{end}") for name in ("x", "y", "ue"))
        if end and (x is None) != (y is None):
            raise DataBroken(f"has x_test or y_test, but not both: {', '.join(arrays)}.")
        if end and x is not None and (ue is None) != ("ue" not in arrays):
            raise DataBroken("has ue for x or for x_test only; give ue and ue_test, or neither.")
        if x is None or y is None:
            continue
        if x.ndim < 2 or 0 in x.shape:
            raise DataBroken(f"has x{end} of shape {times(x.shape)}; expected a row for each of some samples.")
        for name, other in (("y", y), ("ue", ue)):
            if other is not None and (other.ndim < 1 or len(other) != len(x)):
                length = len(other) if other.ndim else 1
                raise DataBroken(f"has {len(x):,} rows in x{end}, but {length:,} in {name}{end}; expected as many.")
        if y.ndim > 2 or 0 in y.shape or (ue is not None and ue.ndim != 1):
            raise DataBroken(f"has y{end} of shape {times(y.shape)}; expected a label, or a row of numbers, a sample.")
        if end and x.shape[1:] != arrays["x"].shape[1:]:
            raise DataBroken(f"has x_test of {times(x.shape[1:])} a sample, but x of {times(arrays['x'].shape[1:])}.")
        for name, values in ((f"x{end}", x), (f"y{end}", y), (f"ue{end}", ue)):
            if values is not None and values.dtype.kind == "f":
                _check_finite(name, values)


def _check_finite(name: str, values: Shaped[np.ndarray, "..."]) -> None:
    step = max(1, (1 << 22) // max(1, values[0].size))  # a piece at a time
    for first in range(0, len(values), step):
        piece = np.abs(values[first : first + step].reshape(len(values[first : first + step]), -1))
        wrong = ~(piece <= LARGEST).all(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            bad = piece[row][~(piece[row] <= LARGEST)][0]
            raise DataBroken(f"row {first + row} of {name} holds {bad:g}; expected numbers up to {LARGEST:g}.")


def table_of(arrays: Arrays) -> SampleTable:
    """Arrays that belong together as a table: samples flat, bytes as bytes, all else in single precision."""
    x, y = arrays["x"], arrays["y"]
    owners, names, test_owners = None, (), None
    if "ue" in arrays:
        every, owners = np.unique(arrays["ue"], return_inverse=True)
        names = tuple(map(str, every.tolist()))
        if "ue_test" in arrays:
            test_owners = _places(every, arrays["ue_test"])
    said = [f"{len(x):,} samples of {times(x.shape[1:])}"]
    said += [f"{len(arrays['x_test']):,} for testing"] if "x_test" in arrays else []
    said += [f"of {len(names)} UEs"] if names else []
    x_test = flat(arrays["x_test"]) if "x_test" in arrays else None
    table = SampleTable(
        flat(x),
        np.zeros(len(x), int),
        owners=owners,
        names=names,
        x_test=x_test,
        test_owners=test_owners,
        said=tuple(said),
    )
    if table.x_test is not None and table.x_test.dtype != table.x.dtype:
        raise DataBroken(f"has x as {x.dtype} and x_test as {arrays['x_test'].dtype}; save both as one.")
    columns, tests = ([] if each is None else _columns(each) for each in (y, arrays.get("y_test")))
    are_labels = len(columns) == 1 and (y.dtype.kind in "bU" or looks_like_labels(columns[0], _most_values(y)))
    return replace(table, given=tuple(columns), given_test=tuple(tests), usual="labels" if are_labels else "numbers")


def _most_values(y: Shaped[np.ndarray, "..."]) -> int:
    return MOST_LABELS if y.dtype.kind in "iu" else FEW_VALUES  # labels are often saved as 0.0, 1.0, …


def _columns(y: Shaped[np.ndarray, "..."]) -> list[Shaped[np.ndarray, " N"]]:
    return [y] if y.ndim == 1 else [y[:, place] for place in range(y.shape[1])]


def _places(every: Shaped[np.ndarray, " n"], given: Shaped[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    place = np.minimum(np.searchsorted(every, given), every.size - 1)
    strange = every[place] != given
    if strange.any():
        row = int(strange.argmax())
        raise DataBroken(f"row {row} of ue_test is {given[row]}, of whom x holds nothing.")
    return place


def flat(x: Shaped[np.ndarray, "N ..."]) -> Shaped[np.ndarray, "N f"]:
    """A row of numbers a sample; of colours that stand last, first all red, then green, then blue."""
    if x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] == x.shape[2]:
        x = x.transpose(0, 3, 1, 2)
    return np.asarray(x.reshape(len(x), -1), np.uint8 if x.dtype == np.uint8 else np.float32)
