"""Generate a synthetic fleet of phones: unequal processors, varying uplinks and hours at the charger.

Nothing here is measured, but the distributions resemble measurements. Processor speeds are log-normal. Uplinks fall
into three equally likely classes (poor, usual and good cellular links), each with a trace in which the log rate
fluctuates around its mean, with occasional outages. Phones are present while plugged in and idle: at night, and in
short stays by day.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfeds2.files import write_text
from perfeds2.network.availability import hours_text

FILE, TRACES = "fleet.csv", "traces"
CLASSES_BPS = (0.5e6, 4e6, 20e6)  # median uplink rates
DAY_S = 86_400.0
PROCESSOR_SPREAD = 0.7  # standard deviation of the logarithm: the fastest tenth is 6 times as fast as the slowest
STEP_S = 1.0  # of a trace
SPREAD_OF_RATE = 0.6  # standard deviation of the logarithm within a trace
MEMORY_S = 10.0  # correlation time of a rate
OUTAGES = 0.01  # fraction of seconds without any rate


@dataclass(frozen=True)
class Made:
    """Parameters of a synthetic fleet."""

    devices: int
    seed: int = 0
    samples_per_s: float = 500.0  # of the median processor
    trace_s: float = 600.0  # length of a trace
    traced: float = 1.0  # fraction of devices with a trace; the others have a constant rate
    hours: float = 0.5  # fraction of devices that come and go; the others are always present
    day_s: float = DAY_S  # length of a day


def write_fleet(folder: Path, made: Made) -> Path:
    """Write fleet.csv and its traces. Equal parameters give equal bytes."""
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
            available = random_hours(made.day_s, rng)
        lines.append(f"phone {number},{speed:.6g},{rate},{trace},{available}")
    write_text(folder / FILE, "\n".join([*lines, ""]))
    return folder / FILE


def trace_text(median_bps: float, made: Made, rng: np.random.Generator) -> str:
    """Return a trace whose log rate follows an Ornstein–Uhlenbeck process, with outages."""
    steps = max(2, round(made.trace_s / STEP_S))
    keeps = np.exp(-STEP_S / MEMORY_S)
    level, lines = rng.standard_normal(), ["time_s,bps"]
    for step in range(steps):
        level = keeps * level + np.sqrt(1 - keeps**2) * rng.standard_normal()
        bps = 0.0 if step and rng.random() < OUTAGES else median_bps * np.exp(SPREAD_OF_RATE * level)
        lines.append(f"{step * STEP_S:.6g},{bps:.6g}")
    return "\n".join([*lines, ""])


def random_hours(day_s: float, rng: np.random.Generator) -> str:
    """Return a night at the charger and up to three short stays by day, the same every day, from a random hour on."""
    start = rng.random()
    stays = [(start, start + rng.uniform(0.25, 0.4))]  # as fractions of a day
    for _ in range(rng.integers(0, 4)):
        begin = start + rng.uniform(0.45, 0.9)
        stays.append((begin, min(begin + rng.uniform(0.01, 0.04), start + 1)))
    return hours_text([(begin * day_s, end * day_s) for begin, end in _within_a_day(stays)], day_s)


def _within_a_day(stays: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Split stays that cross midnight."""
    for begin, end in stays:
        begin, end = begin % 1.0, begin % 1.0 + (end - begin)
        yield begin, min(end, 1.0)
        if end > 1.0:
            yield 0.0, end - 1.0
