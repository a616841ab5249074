"""What do a user's own samples say: which numbers are inputs, what is to be learned, whose is each?

From a CSV file whose columns have names, or from arrays (``arrays.py``). What is wrong is one sentence with the line or row.
"""

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from perfeds2.errors import did_you_mean
from perfeds2.learning.files.formats import UNREADABLE, DataBroken

TARGETS = ("label", "target", "y")  # what a target's column is called, where nobody says
OWNERS = ("ue", "client")  # … and a UE's
FEW_VALUES = 20  # whole numbers of so many values in a CSV file are labels; of more, numbers
MOST_LABELS = 1000
MOST_TEXTS = 32  # that a column of texts may hold: each becomes a column of its own
LARGEST = 1e30
Meaning = Literal["labels", "numbers"]  # of a target


@dataclass(frozen=True)
class SampleTable:
    """Samples as rows, with their targets. Of numbers, the targets are in units of their own: mean 0, deviation 1."""

    x: Shaped[np.ndarray, "N f"]  # bytes or single precision
    y: Shaped[np.ndarray, "N ..."]  # a label from 0, or a row of numbers; as long as nobody knows which, 0
    labels: tuple[str, ...] = ()  # what each label was called; empty for numbers
    shift: tuple[float, ...] = ()  # of numbers: their mean,
    unit: tuple[float, ...] = ()  # and their standard deviation, each
    owners: Int[np.ndarray, " N"] | None = None  # whose, from 0
    names: tuple[str, ...] = ()  # of the owners
    x_test: Shaped[np.ndarray, "M f"] | None = None
    y_test: Shaped[np.ndarray, "M ..."] | None = None
    test_owners: Int[np.ndarray, " M"] | None = None
    columns: tuple[str, ...] = ()  # what the inputs are called, in a CSV file
    centre: tuple[float, ...] = ()  # so many of the first columns are to be brought to mean 0 and deviation 1;
    stretch: tuple[float, ...] = ()  # as they stand here, this was taken off and divided by already
    said: tuple[str, ...] = ()  # what was taken for what
    given: tuple[Shaped[np.ndarray, " N"], ...] = ()  # the columns that are to be learned, as they stand in the file
    given_test: tuple[Shaped[np.ndarray, " M"], ...] = ()
    called: str = "y"  # what they are called
    usual: Meaning = "labels"  # what they look like

    def meant(self, meaning: Meaning | None) -> "SampleTable":
        """With its targets as labels or as numbers; as they look where nobody says."""
        return with_target(self, meaning or self.usual)


# ---- a CSV file


def read_csv(path: Path, target: Sequence[str], ue_column: str | None) -> SampleTable:
    """A line a sample. Every column that is neither target nor UE is an input. What its targets mean is not decided yet."""
    frame, names = _read_frame(path)
    target = _chosen(names, target, TARGETS, "--target")
    if not target:
        raise DataBroken(
            f"has no column called {' or '.join(TARGETS)}; say by --target which of {_some(names)} is to be learned."
        )
    (ue,) = _chosen(names, [ue_column] if ue_column else [], OWNERS, "--ue-column") or [None]
    if ue in target:
        raise DataBroken(f"--target and --ue-column are both {ue}; the one is learned, the other says whose a line is.")
    inputs = [name for name in names if name not in target and name != ue]
    if not inputs:
        raise DataBroken(f"has no column beside {' and '.join([*target, *([ue] if ue else [])])} to learn from.")
    table, texts = _inputs(frame, inputs)
    owners, owner_names = (None, ()) if ue is None else _owners(frame[ue], ue)
    table = replace(table, owners=owners, names=owner_names)
    said = [f"{len(frame):,} lines, {len(inputs)} columns to learn from"]
    said += [f"{' and '.join(texts)} as one column a text"] if texts else []
    said += [f"column {ue} says whose each is ({len(owner_names)} UEs)"] if ue else []
    columns = [_numbers(frame[name], name) for name in target]
    given = [_texts(frame[name], name) if one is None else one for name, one in zip(target, columns, strict=True)]
    are_labels = len(target) == 1 and (columns[0] is None or looks_like_labels(given[0], FEW_VALUES))
    usual: Meaning = "labels" if are_labels else "numbers"
    called = f"column{'s' * (len(target) > 1)} {' and '.join(target)}"
    return replace(table, said=tuple(said), given=tuple(given), called=called, usual=usual)


def _read_frame(path: Path) -> tuple[Any, list[str]]:
    """A data frame of all columns, and their names."""
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
    except UnicodeDecodeError:
        raise DataBroken("is not a text in UTF-8.") from None
    if not first.strip():
        raise DataBroken("is empty; expected a first line with the columns' names.")
    separator = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
    if "" in names:
        raise DataBroken(f"line 1: column {names.index('') + 1} has no name.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        first, second = [number + 1 for number, name in enumerate(names) if name == twice][:2]
        raise DataBroken(f"line 1: columns {first} and {second} are both called {twice}; give each its own name.")
    if all(_is_number(name) for name in names):
        raise DataBroken("line 1 holds numbers; expected the columns' names there.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            how: Any = {"header": 0, "names": names, "index_col": False, "skip_blank_lines": False, "low_memory": False}
            how |= {"keep_default_na": False, "na_values": [""]}  # a text such as NA is what it is
            frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", **how)
    except pd.errors.EmptyDataError:
        raise DataBroken("holds no line behind its columns' names.") from None
    except (pd.errors.ParserWarning, *UNREADABLE) as error:
        told = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ").removesuffix(".")
        told = f"a line has more than {len(names)} values" if isinstance(error, pd.errors.ParserWarning) else told
        raise DataBroken(f"cannot be read: {told[:200]}.") from None
    empty = frame.isna().all(axis=1).to_numpy()
    frame = frame.iloc[: len(empty) - int(empty[::-1].argmin()) if not empty.all() else 0]  # blank lines at the end
    if frame.empty:
        raise DataBroken("holds no line behind its columns' names.")
    return frame, names


def _chosen(names: Sequence[str], given: Sequence[str], usual: Sequence[str], flag: str) -> list[str]:
    """The columns that were named, or the one that has a usual name; none if there is no such."""
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names)
            raise DataBroken(f"has no column {name} ({flag}); {hint}{'' if hint.endswith('?') else '.'}")
    if given:
        return list(given)
    found = [name for name in names if name.lower() in usual]
    if len(found) > 1:
        raise DataBroken(f"has columns {' and '.join(found)}; say by {flag} which one is meant.")
    return found


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:8])}{' …' if len(names) > 8 else ''}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _inputs(frame: Any, names: Sequence[str]) -> tuple[SampleTable, list[str]]:
    """Columns of numbers, then one for every text of those that hold texts; and which do."""
    numbers, scales, texts, of_texts = {}, [], {}, []
    for name in names:
        column = _numbers(frame[name], name)
        if column is None:
            kinds, codes = _kinds(frame[name], name)
            if len(kinds) > MOST_TEXTS:
                raise DataBroken(
                    f"column {name} holds {len(kinds):,} different texts, at most {MOST_TEXTS} can be told apart; leave "
                    f"it out, or make numbers of it."
                )
            texts |= {f"{name}={kind}": (codes == number).astype(np.float32) for number, kind in enumerate(kinds)}
            of_texts.append(name)
        else:
            values, *scale = standard(column)
            scales.append(scale)
            numbers[name] = values.astype(np.float32)  # before that, seconds since 1970 would run together
    every = numbers | texts
    x = np.stack(list(every.values()), axis=1)
    centre, stretch = zip(*scales, strict=True) if scales else ((), ())
    return SampleTable(x, np.zeros(len(x), int), columns=tuple(every), centre=centre, stretch=stretch), of_texts


def _numbers(column: Any, name: str) -> Float[np.ndarray, " N"] | None:
    """A column of numbers; None if it holds no number at all."""
    import pandas as pd

    parsed: Any = pd.to_numeric(column, errors="coerce")
    values: np.ndarray = parsed.to_numpy(float)
    if np.isnan(values).all():
        return None
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        row = int(wrong.argmax())
        given = column.iloc[row]
        what = "is empty" if pd.isna(given) else f"holds {given!r:.60}"
        raise DataBroken(f"line {row + 2}: column {name} {what}; expected a number.")
    return values


def _kinds(column: Any, name: str) -> tuple[list[str], Int[np.ndarray, " N"]]:
    """What a column holds, each once and in order, and which of them stands in every line."""
    import pandas as pd

    missing = column.isna().to_numpy()
    if missing.any():
        raise DataBroken(f"line {int(missing.argmax()) + 2}: column {name} is empty.")
    nothing = column.astype(str).str.strip().str.lower().eq("nan").to_numpy()
    if nothing.any():
        number = int(nothing.argmax())
        raise DataBroken(
            f"line {number + 2}: column {name} holds {column.iloc[number]!r}, which stands for no text; name it, or leave the line out."
        )
    codes, kinds = pd.factorize(column, sort=True)
    return [_called(kind) for kind in kinds], np.asarray(codes, int)


def _texts(column: Any, name: str) -> Shaped[np.ndarray, " N"]:
    kinds, codes = _kinds(column, name)
    return np.array(kinds)[codes]


def _owners(column: Any, name: str) -> tuple[Int[np.ndarray, " N"], tuple[str, ...]]:
    names, codes = _kinds(column, name)
    return codes, tuple(names)


# ---- what is to be learned


def looks_like_labels(values: Shaped[np.ndarray, " N"], most: int) -> bool:
    """Whole numbers, few of them different."""
    return bool((values == np.round(values)).all()) and np.unique(values).size <= most


def with_target(table: SampleTable, meaning: Meaning) -> SampleTable:
    """A table with its targets: labels counted from 0, or columns of numbers in units of their own."""
    given, tests, what = table.given, table.given_test, table.called
    said = list(table.said)
    if meaning == "numbers":
        if any(values.dtype.kind not in "iufb" for values in given):
            raise DataBroken(f"{what} holds texts, which --loss mse cannot learn; expected numbers.")
        columns = [standard(np.asarray(values, float)) for values in given]
        y = np.stack([values for values, _, _ in columns], axis=1).astype(np.float32)
        shift, unit = (tuple(float(column[at]) for column in columns) for at in (1, 2))
        held = [(np.asarray(t, float) - m) / s for t, m, s in zip(tests, shift, unit, strict=True)] if tests else []
        y_test = np.stack(held, axis=1).astype(np.float32) if held else None
        said.append(f"{what} is learned as {'a number' if len(given) == 1 else f'{len(given)} numbers'}")
        return replace(table, y=y, y_test=y_test, shift=shift, unit=unit, said=tuple(said))
    if len(given) > 1:
        raise DataBroken(
            f"{what} are {len(given)} targets, which only numbers can be; give one --target, or --loss mse."
        )
    only = next(iter(given))
    labels, y = np.unique(only, return_inverse=True)
    if not 1 < labels.size <= MOST_LABELS:
        raise DataBroken(f"{what} holds {labels.size:,} different labels; expected from 2 to {MOST_LABELS:,}.")
    called = tuple(_called(label) for label in labels)
    if called != tuple(map(str, range(labels.size))):
        said.append(f"{what} is learned as labels 0 to {labels.size - 1}, which stand for {_some(called)}")
    else:
        said.append(f"{what} is learned as {labels.size} labels")
    y_test = None
    if tests:
        (held,) = tests
        place = np.minimum(np.searchsorted(labels, held), labels.size - 1)
        unknown = labels[place] != held
        if unknown.any():
            row = int(unknown.argmax())
            raise DataBroken(f"row {row} of y_test is the label {held[row]}, which y does not hold.")
        y_test = place
    return replace(table, y=y.reshape(-1), y_test=y_test, labels=called, said=tuple(said))


def standard(values: Float[np.ndarray, " N"]) -> tuple[Float[np.ndarray, " N"], float, float]:
    """Values with mean 0 and deviation 1, the mean and the deviation; equal ones become 0."""
    mean, deviation = float(values.mean()), float(values.std())
    deviation = deviation if deviation > 1e-12 * max(abs(mean), 1e-300) else 1.0
    return (values - mean) / deviation, mean, deviation


def _called(value: Any) -> str:
    """2.0 is called 2."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)
