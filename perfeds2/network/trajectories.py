"""Read recorded paths of UEs, from a CSV file or SUMO's floating-car data, and follow them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.parsers import expat

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.fleet_file import ITSELF, read_bytes, read_number, read_rows
from perfeds2.network.link import PerUe
from perfeds2.network.mobility import Moves

COLUMNS = {"time_s": (0.0, 1e9), "ue": None, "x_m": (-1e9, 1e9), "y_m": (-1e9, 1e9)}  # the range of each number
IN_SUMO = ("vehicle", "person", "container")  # what moves in floating-car data
Sample = tuple[int, dict[str, str]]  # line of the file, and texts by column
PerSample = Float[np.ndarray, " m"]


@dataclass(frozen=True)
class Trajectories:
    """The paths of UEs, by UE and then time. Between two samples a UE moves straight; before and after them it stands."""

    ue: Int[np.ndarray, " m"]
    time_s: PerSample
    x_m: PerSample
    y_m: PerSample
    digest: str = field(default="", compare=False)
    texts: Mapping[str, bytes] = field(default_factory=dict, compare=False)  # the file, as in ``FleetFile``
    names: Sequence[str] = ()  # of the UEs in the file

    @classmethod
    def open(cls, path: Path | str, kept: Mapping[str, bytes] | None = None) -> "Trajectories":
        """Read a file, or its copy in a run's folder. Fails as ``FleetFile.open`` does. UEs are numbered as they appear."""
        data = read_bytes(Path(path), "was not found") if kept is None else kept.get(ITSELF, b"")
        samples = _floating_cars(data) if str(path).endswith(".xml") else read_rows(data, COLUMNS, "sample")
        names, rows = dict[str, int](), []
        for line, given in samples:
            lacking = next((name for name in COLUMNS if name not in given), None)
            if lacking is not None:
                raise ValueError(f"has no {lacking} in line {line}; give {', '.join(COLUMNS)} in every line")
            ue = names.setdefault(given["ue"], len(names))
            numbers = (read_number(given[name], name, line, of) for name, of in COLUMNS.items() if of is not None)
            rows.append((ue, *numbers, line))
        if not rows:
            raise ValueError("has no sample of a vehicle or person")
        rows.sort(key=lambda row: row[:2])
        twice = next((row for row, last in zip(rows[1:], rows, strict=False) if row[:2] == last[:2]), None)
        if twice is not None:
            raise ValueError(f"has a second position of the same UE at {twice[1]:g} s in line {twice[-1]}")
        ue, *columns, _ = zip(*rows, strict=True)
        digest = hashlib.sha256(data).hexdigest()
        return cls(np.array(ue), *map(np.array, columns), digest=digest, texts={ITSELF: data}, names=tuple(names))

    def of_fleet(self, devices: Sequence[str]) -> "Trajectories":
        """Return the paths of devices, by name. One without a path has NaN as its position.

        If no device has the name of a path, the paths are those of the devices in their order.
        """
        numbers = {name: number for number, name in enumerate(devices)}
        missing = [name for name in self.names if name not in numbers]
        if len(missing) == len(self.names):
            return self
        if missing:
            raise ValueError(f"has a path of {missing[0]!r}, but no device of the fleet has this name")
        ue = np.array([numbers[name] for name in self.names])[self.ue]
        others = np.setdiff1d(np.arange(len(devices)), ue)
        unknown = np.full(others.size, np.nan)
        order = np.argsort(ue := np.append(ue, others), kind="stable")  # samples of a UE are in order
        time_s = np.append(self.time_s, np.zeros(others.size))[order]
        x_m, y_m = (np.append(of, unknown)[order] for of in (self.x_m, self.y_m))
        return Trajectories(ue[order], time_s, x_m, y_m)

    def __call__(self, _moves: Moves, x_m: PerUe, y_m: PerUe, _seed: int) -> "RecordedWalk":
        """Return the paths of UEs that start at the given positions, which may be seen from another place."""
        return RecordedWalk(self, x_m, y_m)

    @property
    def ues(self) -> int:
        """n, the number of UEs."""
        return int(self.ue[-1]) + 1

    @cached_property
    def speed_mps(self) -> float:
        """The highest speed of any UE between two samples."""
        is_same = self.ue[1:] == self.ue[:-1]
        way_m = np.hypot(np.diff(self.x_m), np.diff(self.y_m))[is_same]
        return float((way_m / np.diff(self.time_s)[is_same]).max(initial=0.0))

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        """Return the positions at a time, x and y in metres."""
        first, end = self._first[:-1], self._first[1:]
        key = np.arange(self.ues) * self._period_s + min(time_s, self._period_s / 2)
        after = np.clip(np.searchsorted(self._key_s, key, side="right"), first, end - 1)
        before = np.maximum(after - 1, first)
        span_s = self.time_s[after] - self.time_s[before]
        part = np.clip((time_s - self.time_s[before]) / np.where(span_s > 0, span_s, 1.0), 0.0, 1.0)
        x_m, y_m = (of[before] + part * (of[after] - of[before]) for of in (self.x_m, self.y_m))
        return x_m, y_m

    @cached_property
    def _first(self) -> Int[np.ndarray, " e"]:
        """Where the samples of each UE begin, and where the last UE's end."""
        return np.searchsorted(self.ue, np.arange(self.ues + 1))

    @cached_property
    def _period_s(self) -> float:
        return 2 * (float(self.time_s.max()) + 1.0)

    @cached_property
    def _key_s(self) -> PerSample:
        """Times that rise from UE to UE, so that one search serves all."""
        return self.ue * self._period_s + self.time_s


class RecordedWalk:
    """Recorded paths of UEs, moved to where the UEs start. A UE without a path stays there."""

    def __init__(self, paths: Trajectories, x_m: PerUe, y_m: PerUe) -> None:
        start_x_m, start_y_m = paths.at(0.0)
        self._paths, self._x_m, self._y_m = paths, x_m - start_x_m, y_m - start_y_m
        self._stays, self._start = np.isnan(start_x_m), (x_m, y_m)

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        """Return the positions at a time, x and y in metres."""
        x_m, y_m = self._paths.at(time_s)
        x_m, y_m = np.where(self._stays, self._start, (x_m + self._x_m, y_m + self._y_m))
        return x_m, y_m


def _floating_cars(data: bytes) -> Iterator[Sample]:
    """Yield the samples of ``sumo --fcd-output FILE.xml``."""
    parser, time_s, samples = expat.ParserCreate(), "", list[Sample]()

    def refuse(*_: object) -> None:
        raise ValueError("has a document type, which floating-car data do not need")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal time_s
        if name == "timestep":
            time_s = attributes.get("time", "")
        elif name in IN_SUMO:
            given = {"time_s": time_s, "ue": attributes.get("id", "")}
            given |= {f"{axis}_m": attributes.get(axis, "") for axis in "xy"}
            samples.append((parser.CurrentLineNumber, {key: text for key, text in given.items() if text}))

    parser.StartDoctypeDeclHandler, parser.StartElementHandler = refuse, start
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"is not XML: {error}") from None
    yield from samples
