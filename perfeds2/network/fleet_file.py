"""Read a fleet from a CSV file with one row per device; errors name the file and the line.

Columns give a device's position or rate, its computing speed, its transmit power and its hours. A missing value is
drawn or set as it would be without a file.
"""

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.fleet import MAX_SPREAD, Fleet, Spread
from perfeds2.network.link import PerUe
from perfeds2.network.traces import Trace, TraceEnd, Traces

LINK = ("distance_m", "gain_db", "rate_bps", "uplink_trace")  # at most one per row
PLACE = ("x_m", "y_m")  # both or neither, with any link but a distance
PROCESSOR = ("cpu_hz", "compute_s", "samples_per_s")  # at most one per row
POSITIVE = (1e-9, 1e18)
COLUMNS: dict[str, tuple[float, float] | None] = {  # range of a number; None for text
    "name": None,
    "distance_m": (0.0, 1e9),
    "x_m": (-1e9, 1e9),
    "y_m": (-1e9, 1e9),
    "gain_db": (-300.0, 100.0),
    "rate_bps": POSITIVE,
    "uplink_trace": None,
    "cpu_hz": POSITIVE,
    "compute_s": POSITIVE,
    "samples_per_s": POSITIVE,
    "power_w": POSITIVE,
    "antenna_gain_db": (-100.0, 100.0),
    "indoor": (0.0, 1.0),
    "battery_wh": POSITIVE,
    "group": None,
    "available": None,
    "rate_spread": (0.0, MAX_SPREAD),
    "compute_spread": (0.0, MAX_SPREAD),
    "energy_budget_j": POSITIVE,
    "memory_mb": POSITIVE,
    "adapter_rank": (1.0, 99_999.0),
}
TRACE_COLUMNS = ("time_s", "bps")
SLOW_BPS, LONG_S = 1000.0, 1000.0  # a median rate below or a median step above is probably in another unit
UNITS = {  # by name: the usual range of the median, and what else a value may be
    "power_w": (1e-6, 5.0, "looks like dBm; power is in watts, and 23 dBm are 0.2 W"),
    "cpu_hz": (1e6, 1e12, "looks like GHz; frequencies are in Hz, and 1.5 GHz are 1.5e9"),
    "bandwidth_hz": (1e4, 1e11, "looks like MHz; bandwidths are in Hz, and 20 MHz are 2e7"),
    "gain_db": (-250.0, 0.0, "would amplify; a path loss of 95 dB is a gain of -95"),
    "battery_wh": (0.1, 200.0, "looks like mAh; batteries are in Wh, and 4000 mAh at 3.85 V are 15.4"),
}
ITSELF = ""
ALWAYS = Hours()


@dataclass(frozen=True)
class Row:
    """One device."""

    line: int
    name: str
    numbers: Mapping[str, float]
    trace: str | None = None  # path relative to the fleet file
    group: str = ""  # a label for tables
    hours: Hours = ALWAYS


@dataclass(frozen=True)
class FleetFile:
    """The contents of a fleet file and its traces, all read on opening; the files are not needed afterwards."""

    path: Path = field(compare=False)
    digest: str  # of the file and its traces
    rows: tuple[Row, ...] = field(compare=False)
    traces: Mapping[str, Trace] = field(compare=False)
    texts: Mapping[str, bytes] = field(
        compare=False
    )  # contents by path relative to the fleet file, which itself has the empty name

    @classmethod
    def open(cls, path: Path | str, kept: Mapping[str, bytes] | None = None) -> "FleetFile":
        """Read the files, or the copies in a run's folder. The text of a ValueError continues the file's name."""
        path = Path(path)
        own = read_bytes(path, "was not found") if kept is None else kept.get(ITSELF, b"")
        rows = tuple(read_fleet(own))
        texts, traces = {ITSELF: own}, dict[str, Trace]()
        for row in rows:
            if row.trace is not None and row.trace not in traces:
                otherwise = f"names a trace in line {row.line} that is not there"
                text = read_bytes(path.parent / row.trace, otherwise) if kept is None else kept.get(row.trace, b"")
                texts[row.trace], traces[row.trace] = text, read_trace(path.parent / row.trace, text)
        digest = hashlib.sha256()
        for name in sorted(texts):
            digest.update(f"{name}\n{len(texts[name])}\n".encode() + texts[name])
        return cls(path, digest.hexdigest(), rows, traces, texts)

    @property
    def ues(self) -> int:
        return len(self.rows)

    @cached_property
    def names(self) -> list[str]:
        """Names of the devices; "UE i" for those without one."""
        return [row.name or f"UE {ue}" for ue, row in enumerate(self.rows)]

    @property
    def has_hours(self) -> bool:
        return not all(row.hours.always for row in self.rows)

    @property
    def has_energy_budgets(self) -> bool:
        return any("energy_budget_j" in row.numbers for row in self.rows)

    def unit_warnings(self, bits: float) -> list[str]:
        """Return warnings about rates and computing times that look as if they were in another unit.

        Args:
            bits: Size of an upload.
        """
        traces = [float(trace.bps.mean()) for trace in self.traces.values()]
        rates, steps = (
            [row.numbers[name] for row in self.rows if name in row.numbers] for name in ("rate_bps", "compute_s")
        )
        said = [
            f"{self.path}: {name} {hint}."
            for name in UNITS
            if name in COLUMNS and (hint := unit_hint(name, self.column(name)[~np.isnan(self.column(name))]))
        ]
        if rates + traces and np.median(rates + traces) < SLOW_BPS:
            bps = min(rates + traces)
            said.append(
                f"{self.path}: an upload takes {bits / bps:,.0f} s at {bps:g} bit/s; did you mean Mbit/s? Rates are in bit/s, so 2 Mbit/s is 2e6."
            )
        if steps and np.median(steps) >= LONG_S:
            said.append(
                f"{self.path}: a gradient step takes {max(steps):,.0f} s (compute_s); did you mean milliseconds? Then divide by 1000."
            )
        return said

    def memory_warning(self, algorithm: str, needed_bytes: int) -> list[str]:
        """Return a warning if devices have less memory than a job of an algorithm needs."""
        needed_mb = needed_bytes / 1e6
        short = [
            name
            for name, row in zip(self.names, self.rows, strict=True)
            if row.numbers.get("memory_mb", math.inf) < needed_mb
        ]
        if not short:
            return []
        more = f" and {len(short) - 3} more" if len(short) > 3 else ""
        return [
            f"{self.path}: a job of {algorithm} needs about {needed_mb:,.3g} MB, and {', '.join(short[:3])}{more} have less (memory_mb). "
            f"A smaller --batch or --model needs less."
        ]

    def column(self, name: str) -> PerUe:
        """Return the numbers of a column; NaN where a row has none."""
        return np.array([row.numbers.get(name, math.nan) for row in self.rows])

    def cell(
        self, drawn: Cell, batch: int, trace_end: TraceEnd = "repeat", *, keeps: bool = False, begin_s: float = 0.0
    ) -> Cell:
        """Return a drawn cell with the file's values in place of its own.

        ``compute_s`` in the file is the time of one gradient step on ``batch`` samples, ``begin_s`` the second of the
        hours at which the run begins.
        """
        columns = {name: self.column(name) for name in COLUMNS}

        def own(name: str, otherwise: PerUe | float) -> PerUe:
            return np.where(np.isnan(columns[name]), otherwise, columns[name])

        rate_spread, compute_spread = own("rate_spread", 0.0), own("compute_spread", 0.0)
        cpu_hz = own("cpu_hz", own("samples_per_s", batch / columns["compute_s"]) * drawn.cycles_per_sample)
        traced = [ue for ue, row in enumerate(self.rows) if row.trace is not None]
        traces = [self.traces[str(self.rows[ue].trace)] for ue in traced]
        fleet = Fleet(
            columns["gain_db"],
            columns["rate_bps"],
            Traces(traced, traces, trace_end) if traced else None,
            Availability([row.hours.from_second(begin_s) for row in self.rows], keeps) if self.has_hours else None,
            Spread(compute_spread, rate_spread) if rate_spread.any() or compute_spread.any() else None,
            columns["energy_budget_j"] if self.has_energy_budgets else None,
        )
        angle_rad, has_place = drawn.angle_rad, ~np.isnan(columns["x_m"])
        if has_place.any():
            usual = drawn.where
            angle_rad = np.arctan2(own("y_m", usual.y_m), own("x_m", usual.x_m))
        return replace(
            drawn,
            distance_m=np.where(
                has_place, np.hypot(columns["x_m"], columns["y_m"]), own("distance_m", drawn.distance_m)
            ),
            angle_rad=angle_rad,
            cpu_hz=np.where(np.isnan(cpu_hz), drawn.cpu_hz, cpu_hz),
            power_w=drawn.power_w if np.isnan(columns["power_w"]).all() else own("power_w", drawn.power_w),
            fleet=fleet,
        )


def read_fleet(data: bytes) -> Iterator[Row]:
    """Yield the rows of a fleet file."""
    for line, given in read_rows(data, COLUMNS, "device"):
        yield _row(line, given)


def read_rows(data: bytes, known: Mapping[str, object], what: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file that has some of the known columns: line numbers, and texts by column."""
    lines = _table(data)
    line, columns = next(lines, (1, []))
    if not columns:
        raise ValueError(f"is empty; expected a line of column names, then one line per {what}")
    wrong = next((name for name in columns if name not in known or columns.count(name) > 1), None)
    if wrong is not None:
        raise ValueError(f"has a column {wrong!r} in line {line}; expected any of {', '.join(known)}, each once")
    line = 0
    for line, cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"has {len(cells)} values in line {line}, but {len(columns)} columns")
        yield line, {name: text for name, text in zip(columns, cells, strict=True) if text}
    if not line:
        raise ValueError(f"has no {what}s below its column names")


def _row(line: int, given: Mapping[str, str]) -> Row:
    for choices in (LINK, PROCESSOR):
        both = [name for name in choices if name in given]
        if len(both) > 1:
            raise ValueError(f"has {both[0]} and {both[1]} in line {line}; give only one of them")
    if len({name in given for name in PLACE}) > 1 or ("x_m" in given and "distance_m" in given):
        raise ValueError(f"has only part of a position in line {line}; give x_m and y_m together, without distance_m")
    limited = {name: limits for name in given if (limits := COLUMNS[name]) is not None}
    numbers = {name: read_number(given[name], name, line, limits) for name, limits in limited.items()}
    if numbers.get("adapter_rank", 1.0) % 1:
        raise ValueError(f"has adapter_rank {given['adapter_rank']!r} in line {line}; expected a whole number")
    if numbers.get("rate_spread") and "rate_bps" not in numbers:
        raise ValueError(f"has rate_spread without rate_bps in line {line}; a shared band or a trace varies by itself")
    hours = _hours(given["available"], line) if "available" in given else ALWAYS
    return Row(line, given.get("name", ""), numbers, given.get("uplink_trace"), given.get("group", ""), hours)


def read_number(text: str, name: str, line: int, limits: tuple[float, float]) -> float:
    """Return the number in a column."""
    (low, high), value = limits, _float(text)
    if not low <= value <= high:
        raise ValueError(f"has {name} {text!r} in line {line}; expected a number from {low:g} to {high:g}")
    return value


def unit_hint(name: str, values: "Sequence[float] | PerUe") -> str | None:
    """Return what the values of a column or setting look like, if their median is not in the usual range."""
    low, high, hint = UNITS[name]
    median = float(np.median(values)) if len(values) else low
    return None if low <= median <= high else f"{median:g} {hint}"


def _hours(text: str, line: int) -> Hours:
    """Parse hours such as ``0-600;1200-1800``, ``600-`` (no end) or ``0-600;1200-1800/3600`` (periodic)."""
    whole, slash, period = text.partition("/")
    try:
        intervals = tuple(_interval(part) for part in whole.split(";") if part.strip())
        return Hours(intervals, _seconds(period) if slash else math.inf)
    except ValueError as error:
        told = str(error).removesuffix(".")
        raise ValueError(
            f"has available {text!r} in line {line}: {told} (expected intervals such as 0-600;1200-1800, with a period 0-600/3600)"
        ) from None


def _interval(text: str) -> tuple[float, float]:
    start, dash, end = text.strip().partition("-")
    if not dash:
        raise ValueError(f"{text.strip()!r} is not an interval")
    return _seconds(start), _seconds(end) if end.strip() else math.inf


def _seconds(text: str) -> float:
    value = _float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text.strip()!r} is not a number of seconds")
    return value


def _float(text: str) -> float:
    """Return the number in a text, or NaN if there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_trace(path: Path, data: bytes) -> Trace:
    """Return the trace with columns ``time_s,bps``. The text of a ValueError continues the fleet file's name."""
    try:
        lines = _table(data)
        _, columns = next(lines, (1, []))
        if sorted(columns) != sorted(TRACE_COLUMNS):
            raise ValueError(f"line 1 is {','.join(columns)!r}; expected time_s,bps")
        values: dict[str, list[float]] = {name: [] for name in columns}
        for line, cells in lines:
            try:
                for name, text in zip(columns, cells, strict=True):
                    values[name].append(float(text))
            except ValueError:
                raise ValueError(f"line {line} is {','.join(cells)!r}; expected two numbers") from None
        return Trace(*(np.array(values[name]) for name in TRACE_COLUMNS))
    except ValueError as error:
        raise ValueError(f"has a trace {path}: {str(error).removesuffix('.')}") from None


def read_bytes(path: Path, otherwise: str) -> bytes:
    """Read a file; the text of a ValueError continues its name."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{otherwise}: {path} is not in {Path.cwd()}") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {os.strerror(error.errno or 0)}") from None


def _table(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty lines that are not comments (#), with their line numbers.

    Columns are separated by what is most frequent in the first of these lines: commas, semicolons or tabs.
    """
    try:
        text = data.decode("utf-8-sig")
        lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
        separator = max(",;\t", key=next(lines, "").count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                yield reader.line_num, [cell.strip() for cell in cells]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"is not a readable CSV in UTF-8 ({error})") from None
