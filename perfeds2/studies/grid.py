"""Define the points of a sweep: a grid over one base spec, with the same seeds at every point."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.errors import InputError
from perfeds2.runs.folder import SWEEP
from perfeds2.runs.session import reading
from perfeds2.spec.cell_fields import CellSpec
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import Values
from perfeds2.spec.resolve import EACH, SEEDS, as_list, name_of, place_of, put, resolve, take

MOST_RUNS = 100_000
MODEL = ("task", "model")
CYCLES = CellSpec.model_fields["cycles"].default
AxisValues = tuple[Any, ...]  # values of one setting
Listed = Mapping[str, Iterable[Any]]  # values to try, by setting


@dataclass(frozen=True)
class Axis:
    """One setting and its values."""

    name: str  # its column in the tables
    place: tuple[str, str]  # section and key of the spec
    values: AxisValues


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid, with all its seeds."""

    values: AxisValues  # value on each axis, as in a spec file
    label: str
    spec: Spec


@dataclass(frozen=True)
class Grid:
    """All points of a sweep, with the base and axes they are made of."""

    base: Values  # nested values of a spec, as given
    axes: tuple[Axis, ...]  # the first varies slowest; without the seeds
    seeds: tuple[int, ...]
    points: tuple[GridPoint, ...]

    @property
    def trainings(self) -> int:
        return sum(len(point.spec.algorithms) * len(self.seeds) for point in self.points)

    @property
    def unwritten(self) -> list[str]:
        """Return the names of objects that were given from Python and cannot be saved."""
        return [text for point in self.points for text in point.spec.unwritten]

    def to_toml(self) -> str:
        grid = {axis.name: list(axis.values) for axis in self.axes}
        base = self.base | own_files(point.spec for point in self.points)
        return tomli_w.dumps({"grid": {**grid, "seed": list(self.seeds)}, "base": base})


def grid_from_flags(values: Values, texts: Sequence[str], flags: Iterable[str]) -> Grid:
    """Make the grid of a command line.

    Args:
        values: Nested values of the base.
        texts: The --grid arguments.
        flags: Other flags that were given; none may also be in the grid.
    """
    if not texts:
        raise InputError("give at least one --grid NAME=VALUES, such as --grid quorum=1,2,5,10,20 --grid seed=0..19.")
    grid = parse_grid(texts)
    fixed = {place_of(flag): flag for flag in flags}
    for name in grid:
        if (place := place_of(name, "something a grid can vary")) in fixed:
            raise InputError(f"--{fixed[place].replace('_', '-')} and --grid {name} were both given; give one of them.")
    return make_grid(values, grid)


def parse_grid(texts: Sequence[str], flag: str = "--grid") -> dict[str, list[str | int]]:
    """Parse texts such as ``quorum=1,2,5`` and ``seed=0..19`` into names and values."""
    grid: dict[str, list[str | int]] = {}
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        if not (name and equals):
            raise InputError(f"{flag} takes NAME=VALUES, such as quorum=1,2,5 or seed=0..19; got {text!r}.")
        if name in grid:
            raise InputError(f"{flag} {name} is given twice; put all its values into one.")
        grid[name] = [value for part in listed.split(",") for value in _parse_values(f"{flag} {name}", part.strip())]
    return grid


def _parse_values(name: str, part: str) -> Sequence[str | int]:
    if not part:
        raise InputError(f"{name} has an empty value; expected values between commas, such as {name}=1,2,5.")
    span = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if span is None:
        return [part]
    first, last = int(span[1]), int(span[2])
    if last < first:
        raise InputError(f"{name}={part} is empty; write the smaller number first.")
    if last - first >= MOST_RUNS:
        raise InputError(f"{name}={part} has {last - first + 1:,} values; a sweep takes at most {MOST_RUNS:,}.")
    return range(first, last + 1)


def make_grid(base: Values, grid: Listed) -> Grid:
    """Make every point of a grid, and validate it before anything runs.

    Raises:
        InputError: If a point is invalid, a value is given twice, or the grid is too large.
    """
    values = copied(base)
    axes: list[Axis] = []
    seeds: AxisValues | None = None
    for name, given in grid.items():
        place = place_of(name, "something a grid can vary")
        if place == ("run", "algorithms"):
            raise InputError("--grid algorithms: every point runs all algorithms; name them with --algorithms instead.")
        tried = axis_values(f"--grid {name}", given)
        algorithm, _, key = place[1].rpartition(".")
        inner = values.get(EACH, {}).get(algorithm) if place[0] == EACH else values.get(place[0])
        if isinstance(inner, dict):
            inner.pop(key, None)  # the grid overrides the base
        if place == SEEDS:
            if seeds is not None:
                raise InputError("--grid seed and --grid seeds are the same setting; give one of them.")
            seeds = tried
        elif place in [axis.place for axis in axes]:
            raise InputError(f"--grid {name} is given twice; put all its values into one.")
        else:
            axes.append(Axis(name_of(place), place, tried))
    if seeds is not None:
        put(values, *SEEDS, list(seeds))
    count = math.prod(len(axis.values) for axis in axes) * len(seeds or ())
    if count > MOST_RUNS:
        raise InputError(f"this grid has {count:,} runs; a sweep takes at most {MOST_RUNS:,}, so split it.")
    points: list[GridPoint] = []
    for combination in itertools.product(*(axis.values for axis in axes)):
        of_point = copied(values)
        for axis, value in zip(axes, combination, strict=True):
            put(of_point, *axis.place, value)
        spec = resolve(of_point)
        dumped = spec.model_dump(mode="json")
        used = tuple(take(dumped, *axis.place) for axis in axes)
        label = ", ".join(f"{axis.name}={value}" for axis, value in zip(axes, used, strict=True)) or "base"
        points.append(GridPoint(used, label, spec))
    for place, axis in enumerate(axes):
        used = list(dict.fromkeys(json.dumps(point.values[place]) for point in points))
        if len(used) < len(axis.values):  # different texts may be the same number
            raise InputError(f"--grid {axis.name} has a value twice; give each once: {', '.join(used)}.")
        axes[place] = replace(axis, values=tuple(json.loads(value) for value in used))
    first = points[0].spec
    values.get("run", {}).pop("seeds", None)  # saved with the grid
    base = recorded(values, first)
    models = {str(point.spec.task.model) for point in points}
    if len(models) == 1 and first.task.model is not None and MODEL not in [axis.place for axis in axes]:
        put(base, *MODEL, models.pop())  # saved even if it is the task's default, which may change
    return Grid(base, tuple(axes), first.run.seeds, tuple(points))


# ---- shared by sweep, tune and arena


def axis_values(name: str, given: Any) -> AxisValues:
    """Return the values of an axis, given as a list or a single value. ``name`` is for error messages."""
    found = as_list(given)
    tried: AxisValues = tuple(found) if isinstance(found, list) else (found,)
    if not tried or any(value is None for value in tried):
        raise InputError(f"{name} is empty or has an empty value; give at least one value.")
    return tried


def copied(values: Mapping[str, object]) -> Values:
    """Copy nested values, but not the objects in them, such as a user's Task."""
    return {name: copied(inner) if isinstance(inner, Mapping) else inner for name, inner in values.items()}


def as_read(given: Values, spec: Spec) -> Values:
    """Return the given values as the spec reads them, such as numbers instead of text."""
    return _picked(given, spec.values())


def recorded(given: Values, spec: Spec) -> Values:
    """Return the given values as the spec reads them, and the cycles, by which ``as_written`` knows the version."""
    return as_read({**given, "cell": {**given.get("cell", {}), "cycles": None}}, spec)


def without_recorded(base: Values) -> Values:
    """Leave out what ``recorded`` adds to values that do not give it."""
    cell = {key: value for key, value in base.get("cell", {}).items() if (key, value) != ("cycles", CYCLES)}
    return {key: value for key, value in (base | {"cell": cell}).items() if key != "cell" or value}


def _picked(given: Mapping[str, object], read: Values) -> Values:
    """Return the entries of ``read`` that were given, without empty sections."""
    found = {
        key: _picked(inner, read[key]) if isinstance(inner, Mapping) else read[key]
        for key, inner in given.items()
        if key in read and key != "own"
    }
    return {key: value for key, value in found.items() if value != {}}


def own_files(specs: Iterable[Spec]) -> dict[str, dict[str, str]]:
    """Return the section ``own`` with the hashes of the user's files; empty if there are none."""
    own = {source: digest for spec in specs for source, digest in spec.own.items()}
    return {"own": own} if own else {}


def read_sweep(path: Path) -> Grid:
    """Read a sweep's grid from its folder."""
    with reading(path, SWEEP) as values:
        return make_grid(values.get("base", {}), values.get("grid", {}))
