"""Read a user's own samples: inputs, targets and the UE of each sample.

The source is a CSV file with column names, an npz file with x and y, or a folder of npz files, one per UE. Errors name
the line of a CSV file or the row of an array.
"""

import csv
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from jaxtyping import Float, Int, Shaped

from perfeds2.errors import did_you_mean
from perfeds2.files import read_table
from perfeds2.learning.files.formats import DataBroken, naming, read_npz, times

TARGETS = ("label", "target", "y")  # usual names of the target column
OWNERS = ("ue", "client")  # usual names of the UE column
FEW_VALUES = 20  # integers with at most this many values are labels in a CSV file
MOST_LABELS = 1000
MOST_TEXTS = 32  # distinct texts in an input column; each becomes a column
LARGEST = 1e30
PARTS = ("x", "y", "ue", "x_test", "y_test", "ue_test")
LAYOUTS = ({"x", "y"}, {"x", "y", "ue"}, {"x", "y", "x_test", "y_test"}, set(PARTS))
DIMENSIONS = {"x": range(2, 65), "y": (1, 2), "ue": (1,)}
Meaning = Literal["labels", "numbers"]  # of a target
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclass(frozen=True)
class SampleTable:
    """Samples as rows, with their targets. Targets that are numbers have mean 0 and deviation 1."""

    x: Shaped[np.ndarray, "N f"]  # bytes or single precision; a test set's samples come last
    given: tuple[Shaped[np.ndarray, " N"], ...]  # target columns as the file has them
    usual: Meaning  # what they look like
    said: tuple[str, ...]  # how the file was understood
    called: str = "y"  # name of the target columns
    owners: Int[np.ndarray, " N"] | None = None  # UE of each sample, from 0
    names: tuple[str, ...] = ()  # names of the UEs
    tests: int = 0  # size of the test set
    shape: tuple[int, ...] = ()  # of a sample before it became a row; empty in a CSV file
    columns: tuple[str, ...] = ()  # names of the inputs in a CSV file
    centre: tuple[float, ...] = ()  # mean that was subtracted from each of the first columns
    stretch: tuple[float, ...] = ()  # deviation they were divided by; training parts are scaled again
    y: Shaped[np.ndarray, "..."] = field(default_factory=lambda: np.zeros(0))  # labels from 0, or rows of numbers
    labels: tuple[str, ...] = ()  # the name of each label; empty for numbers
    shift: tuple[float, ...] = ()  # mean of each target that is a number
    unit: tuple[float, ...] = ()  # and its standard deviation

    @property
    def trained(self) -> int:
        """Return the number of samples that are not in the test set."""
        return len(self.x) - self.tests

    def meant(self, meaning: Meaning | None) -> "SampleTable":
        """Return the table with its targets as labels or as numbers, by default as they look."""
        return _with_labels(self) if (meaning or self.usual) == "labels" else _with_numbers(self)


# ---- a CSV file


def read_csv(path: Path, target: Sequence[str], ue_column: str | None) -> SampleTable:
    """Read each line as a sample. Every column that is neither target nor UE is an input."""
    frame = _read_frame(path)
    names = list(frame)
    target = _chosen(names, target, TARGETS, "--target")
    owner = _chosen(names, [ue_column] if ue_column else [], OWNERS, "--ue-column")
    inputs = [name for name in names if name not in (*target, *owner)]
    if not target:
        raise DataBroken(
            f"has no column called {' or '.join(TARGETS)}; choose the target with --target from {_some(names)}."
        )
    if not inputs:
        raise DataBroken(f"has no input column besides {' and '.join([*target, *owner])}.")
    said = [f"{len(frame):,} lines, {len(inputs)} input columns"]
    numbers, texts, scales = {}, {}, []
    for name in inputs:
        column = _numbers(frame[name])
        if column is not None:
            mean, deviation = scale_of(column)
            scales.append((mean, deviation))
            numbers[name] = ((column - mean) / deviation).astype(
                np.float32
            )  # after scaling: float32 would merge seconds since 1970
            continue
        codes, kinds = _kinds(frame[name])
        if len(kinds) > MOST_TEXTS:
            raise DataBroken(
                f"column {name} holds {len(kinds):,} different texts, but at most {MOST_TEXTS} are allowed; remove it, "
                f"or convert it to numbers."
            )
        texts |= {f"{name}={kind}": (codes == number).astype(np.float32) for number, kind in enumerate(kinds)}
        said.append(f"{name} one-hot encoded")
    owners, owner_names = _kinds(frame[owner[0]]) if owner else (None, ())
    if owner:
        said.append(f"column {owner[0]} names the owner of each line ({len(owner_names)} UEs)")
    given = tuple(_numbers_or_texts(frame[name]) for name in target)
    every = numbers | texts
    centre, stretch = zip(*scales, strict=True) if scales else ((), ())
    return SampleTable(
        np.stack(list(every.values()), axis=1),
        given,
        _look(given, FEW_VALUES),
        tuple(said),
        f"column {' and '.join(target)}",
        owners,
        owner_names,
        columns=tuple(every),
        centre=centre,
        stretch=stretch,
    )


def _read_frame(path: Path) -> Any:
    """Return a data frame whose row r is line r + 2 of the file."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    separator = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
    numbers: Any = pd.to_numeric(pd.Series(names), errors="coerce")
    if not all(names) or len(set(names)) < len(names) or numbers.notna().all():
        raise DataBroken(f"must have a different name for each column in line 1; got {first.strip()!r:.60}.")
    how: Any = {"header": 0, "names": names, "index_col": False, "skip_blank_lines": False, "low_memory": False}
    how |= {"keep_default_na": False, "na_values": ["", "nan", "NaN", "NAN"]}  # the text NA is not a missing value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_table(path, sep=separator, encoding="utf-8-sig", **how)
    last = frame.last_valid_index()  # blank lines may follow
    if last is None:
        raise DataBroken("has no lines after the column names.")
    return frame.loc[:last]


def _chosen(names: Sequence[str], given: Sequence[str], usual: Sequence[str], flag: str) -> list[str]:
    """Return the named columns, or the one with a usual name, if there is one."""
    for name in given:
        if name not in names:
            raise DataBroken(f"has no column {name} ({flag}); {did_you_mean(name, names)}")
    found = list(given) or [name for name in names if name.lower() in usual]
    if not given and len(found) > 1:
        raise DataBroken(f"has columns {' and '.join(found)}; choose one with {flag}.")
    return found


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:8])}{' …' if len(names) > 8 else ''}"


def _numbers(column: Any) -> Float[np.ndarray, " N"] | None:
    """Return a column as numbers; None if it holds no number at all."""
    import pandas as pd

    parsed: Any = pd.to_numeric(column, errors="coerce")
    values: np.ndarray = parsed.to_numpy(float)
    if np.isnan(values).all():
        return None
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        _refuse(column, wrong, "a number")
    return values


def _kinds(column: Any) -> tuple[Int[np.ndarray, " N"], tuple[str, ...]]:
    """Return each line's index among a column's distinct values, and those values in order."""
    import pandas as pd

    if column.isna().any():
        _refuse(column, column.isna().to_numpy(), "a text")
    codes, kinds = pd.factorize(column, sort=True)
    return np.asarray(codes, int), tuple(map(_called, kinds))


def _refuse(column: Any, wrong: np.ndarray, expected: str) -> NoReturn:
    row = int(wrong.argmax())
    what = "is empty or NaN" if column.isna().iloc[row] else f"holds {column.iloc[row]!r:.60}"
    raise DataBroken(f"line {row + 2}: column {column.name} {what}; expected {expected}.")


def _numbers_or_texts(column: Any) -> Shaped[np.ndarray, " N"]:
    numbers = _numbers(column)
    if numbers is not None:
        return numbers
    codes, kinds = _kinds(column)
    return np.array(kinds)[codes]


# ---- arrays


def read_arrays(path: Path) -> SampleTable:
    """Read an npz file with x and y, one row per sample.

    Optional arrays are ``ue`` (the UE of each sample), and x_test and y_test (a test set; with ``ue_test`` if there is
    ue).
    """
    return _table_of(_load(path))


def read_folder(path: Path) -> SampleTable:
    """Read one npz file per UE, ordered by name; numbers in names are compared as numbers."""
    files = sorted(path.glob("*.npz"), key=lambda file: [(len(part), part) for part in re.split(r"(\d+)", file.stem)])
    if not files:
        raise DataBroken("is a folder without npz files; expected one for each UE, with x and y.")
    parts: list[Arrays] = []
    for file in files:
        with naming(file.name):
            parts.append(_load(file))
            held, first = _layout(parts[-1]), _layout(parts[0])
            if "ue" in parts[-1] or held != first:
                raise DataBroken(
                    f"has {held}; expected {first}, as {files[0].name} has, and no ue: every file is one UE."
                )
    together = {name: np.concatenate([arrays[name] for arrays in parts]) for name in parts[0]}
    for name in together.keys() & {"y", "y_test"}:
        together[name.replace("y", "ue")] = np.repeat(np.arange(len(files)), [len(arrays[name]) for arrays in parts])
    return replace(_table_of(together), names=tuple(file.stem for file in files))


def _layout(arrays: Arrays) -> str:
    return ", ".join(f"{name} of {values.dtype.kind}×{times(values.shape[1:])}" for name, values in arrays.items())


def _load(path: Path) -> Arrays:
    arrays = read_npz(path, PARTS)
    if arrays.keys() not in LAYOUTS:
        raise DataBroken(
            f"holds {', '.join(arrays) or 'neither x nor y'}; expected x and y (optionally ue), and for a test set "
            f"x_test and y_test (and ue_test if there is ue)."
        )
    for name, values in arrays.items():
        part, _, test = name.partition("_")
        x, like = arrays["x_test" if test else "x"], arrays[part]
        if values.dtype.kind not in ("biuf" if part == "x" else "biufU"):
            raise DataBroken(f"holds {values.dtype} under {name}; expected numbers.")
        if values.ndim not in DIMENSIONS[part] or 0 in values.shape or len(values) != len(x):
            raise DataBroken(f"has {name} of shape {times(values.shape)} and {len(x):,} rows of samples.")
        if values.shape[1:] != like.shape[1:] or (
            part == "x" and (values.dtype == np.uint8) != (like.dtype == np.uint8)
        ):
            raise DataBroken(
                f"has {name} of {times(values.shape[1:])} {values.dtype} per sample, but {part} of {times(like.shape[1:])} {like.dtype}."
            )
        if values.dtype.kind == "f" and not -LARGEST <= values.min() <= values.max() <= LARGEST:
            row = int((~(np.abs(values) <= LARGEST)).reshape(len(values), -1).any(axis=1).argmax())
            raise DataBroken(f"row {row} of {name} holds NaN or a number beyond {LARGEST:g}; correct or remove it.")
    return arrays


def _table_of(arrays: Arrays) -> SampleTable:
    """Return arrays as a table: flat samples, bytes as bytes and everything else in single precision."""
    given, y = arrays["x"], arrays["y"]
    said = [f"{len(given):,} samples of {times(given.shape[1:])}"]
    usual = _look(
        _columns(y), MOST_LABELS if y.dtype.kind in "iu" else FEW_VALUES
    )  # labels may be saved as 0.0, 1.0, …
    rows, shape = as_rows(given)
    tests, owners, names = 0, None, ()
    if "x_test" in arrays:
        tests = len(arrays["x_test"])
        said.append(f"{tests:,} for testing")
        rows = np.concatenate([rows, as_rows(arrays["x_test"])[0]])
        y = np.concatenate([y, arrays["y_test"]])
    if "ue" in arrays:
        every = np.unique(arrays["ue"])
        names = tuple(map(str, every.tolist()))
        said.append(f"of {len(names)} UEs")
        owners = _places(
            every, np.concatenate([arrays[name] for name in ("ue", "ue_test") if name in arrays]), tests, "ue"
        )
    return SampleTable(rows, _columns(y), usual, tuple(said), "y", owners, names, tests, shape)


def _columns(y: Shaped[np.ndarray, "N ..."]) -> tuple[Shaped[np.ndarray, " N"], ...]:
    return tuple(np.atleast_2d(y.T))


def _places(
    every: Shaped[np.ndarray, " n"], given: Shaped[np.ndarray, " N"], tests: int, name: str
) -> Int[np.ndarray, " N"]:
    """Return the index of each value among the sorted values of the training set, and refuse values that it lacks."""
    place = np.minimum(np.searchsorted(every, given), every.size - 1)
    strange = every[place] != given
    if strange.any():
        row = int(strange.argmax())
        raise DataBroken(f"row {row - len(given) + tests} of {name}_test is {given[row]}, which is not in {name}.")
    return place


def as_rows(x: Shaped[np.ndarray, "N ..."]) -> tuple[Shaped[np.ndarray, "N f"], tuple[int, ...]]:
    """Return samples as rows, and a sample's shape: bytes stay bytes, everything else becomes single precision.

    Images with colours last get PyTorch's order: all red, then green, then blue.
    """
    if x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] == x.shape[2]:
        x = x.transpose(0, 3, 1, 2)
    return np.asarray(x.reshape(len(x), -1), np.uint8 if x.dtype == np.uint8 else np.float32), x.shape[1:]


# ---- targets


def _look(targets: Sequence[np.ndarray], most: int) -> Meaning:
    """Return what targets look like: a column of texts, or of integers with few values, is labels."""
    (first, *more) = targets
    if not more and (first.dtype.kind in "bU" or ((first == np.round(first)).all() and np.unique(first).size <= most)):
        return "labels"
    return "numbers"


def _with_labels(table: SampleTable) -> SampleTable:
    """Return the table with labels counted from 0."""
    only, *more = table.given
    if more:
        raise DataBroken(f"{table.called} are several targets, but labels allow only one; give one, or --loss mse.")
    labels = np.unique(only[: table.trained])
    if not 1 < labels.size <= MOST_LABELS:
        raise DataBroken(f"{table.called} holds {labels.size:,} different labels; expected from 2 to {MOST_LABELS:,}.")
    names = tuple(map(_called, labels))
    said = f"{table.called} is learned as labels 0 to {labels.size - 1}, which stand for {_some(names)}"
    return replace(table, y=_places(labels, only, table.tests, "y"), labels=names, said=(*table.said, said))


def _with_numbers(table: SampleTable) -> SampleTable:
    """Return the table with targets of mean 0 and deviation 1."""
    if any(values.dtype.kind == "U" for values in table.given):
        raise DataBroken(f"{table.called} holds texts, which --loss mse cannot learn; expected numbers.")
    columns = [np.asarray(given, float) for given in table.given]
    shift, unit = zip(*(scale_of(column[: table.trained]) for column in columns), strict=True)
    scaled = [(column - mean) / deviation for column, mean, deviation in zip(columns, shift, unit, strict=True)]
    y = np.stack(scaled, axis=1).astype(np.float32)
    said = f"{table.called} is learned as {'a number' if len(unit) == 1 else f'{len(unit)} numbers'}"
    return replace(table, y=y, shift=shift, unit=unit, said=(*table.said, said))


def scale_of(values: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Return the mean and the standard deviation of values; the deviation of equal values is 1."""
    mean, deviation = float(values.mean()), float(values.std())
    return mean, deviation if deviation > 1e-12 * max(abs(mean), 1e-300) else 1.0


def _called(value: Any) -> str:
    """Return the name of a value; 2.0 becomes 2."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)
