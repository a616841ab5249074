"""What might a fleet of phones look like? A made-up one: unequal processors, uplinks that wax and wane, hours at the charger.

Nothing of it is measured; the shapes are those that measurements have. Processors are log-normal. Uplinks are 3 classes (a
third each by default): poor, usual and good cellular links, each a trace in which the logarithm of the rate wanders around
its mean and now and then drops to nothing. Phones are there when they are plugged in and idle: at night, and in short stays by day.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfeds2.files import write_text

FILE, TRACES = "fleet.csv", "traces"
CLASSES_BPS = (0.5e6, 4e6, 20e6)  # median uplink rates
DAY_S = 86_400.0
PROCESSOR_SPREAD = 0.7  # deviation of the logarithm: the fastest tenth has 6 times the speed of the slowest
STEP_S = 1.0  # of a trace
SPREAD_OF_RATE = 0.6  # deviation of the logarithm within a trace
MEMORY_S = 10.0  # how long a rate is like itself
OUTAGES = 0.01  # share of the seconds without any rate


@dataclass(frozen=True)
class Made:
    """What a made-up fleet is asked to be."""

    devices: int
    seed: int = 0
    samples_per_s: float = 500.0  # of the median processor
    trace_s: float = 600.0  # length of a trace
    traced: float = 1.0  # share of the devices with a trace; the others have one rate
    hours: float = 0.5  # share of the devices that come and go; the others are always there
    day_s: float = DAY_S  # how long a day is


def write_fleet(folder: Path, made: Made) -> Path:
    """Write fleet.csv and its traces. The same wishes give the same bytes."""
    (folder / TRACES).mkdir(parents=True, exist_ok=True)
    lines = ["name,samples_per_s,rate_bps,uplink_trace,available"]
    for number in range(made.devices):
        rng = np.random.default_rng([made.seed, 31, number])
        speed = made.samples_per_s * np.exp(PROCESSOR_SPREAD * rng.standard_normal())
        median = CLASSES_BPS[rng.integers(len(CLASSES_BPS))] * np.exp(0.3 * rng.standard_normal())
        rate, trace, available = "", "", ""
        if rng.random() < made.traced:
            trace = f"{TRACES}/{number}.csv"
            write_text(folder / trace, trace_text(median, made, rng))
        else:
            rate = f"{median:.6g}"
        if rng.random() < made.hours:
            available = hours_text(made.day_s, rng)
        lines.append(f"phone {number},{speed:.6g},{rate},{trace},{available}")
    write_text(folder / FILE, "\n".join([*lines, ""]))
    return folder / FILE


def trace_text(median_bps: float, made: Made, rng: np.random.Generator) -> str:
    """A rate whose logarithm wanders around its mean (Ornstein and Uhlenbeck), with outages."""
    steps = max(2, round(made.trace_s / STEP_S))
    keeps = np.exp(-STEP_S / MEMORY_S)
    level, lines = rng.standard_normal(), ["time_s,bps"]
    for step in range(steps):
        level = keeps * level + np.sqrt(1 - keeps**2) * rng.standard_normal()
        bps = 0.0 if step and rng.random() < OUTAGES else median_bps * np.exp(SPREAD_OF_RATE * level)
        lines.append(f"{step * STEP_S:.6g},{bps:.6g}")
    return "\n".join([*lines, ""])


def hours_text(day_s: float, rng: np.random.Generator) -> str:
    """A night at the charger and up to three short stays by day; every day alike, begun at a random hour."""
    start = rng.random()
    stays = [(start, start + rng.uniform(0.25, 0.4))]  # parts of a day
    for _ in range(rng.integers(0, 4)):
        begin = start + rng.uniform(0.45, 0.9)
        stays.append((begin, min(begin + rng.uniform(0.01, 0.04), start + 1)))
    intervals = sorted(_within_a_day(stays))
    merged: list[list[float]] = []
    for begin, end in intervals:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return ";".join(f"{begin * day_s:.6g}-{end * day_s:.6g}" for begin, end in merged) + f"/{day_s:.6g}"


def _within_a_day(stays: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """What goes over midnight is two."""
    for begin, end in stays:
        begin, end = begin % 1.0, begin % 1.0 + (end - begin)
        yield begin, min(end, 1.0)
        if end > 1.0:
            yield 0.0, end - 1.0
