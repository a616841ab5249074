"""Time rivals in turns, so that a busy machine slows all of them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

BETA, BATCH, QUORUM, STALENESS = 0.07, 40, 5, 5  # shared by all benchmarks that train or merge
Seconds = Float[np.ndarray, " turns"]
Announce = Callable[[str], None]  # called with a line before something that takes a while
Group = Callable[[int, int, Announce], Iterator["Measurement"]]  # (repeats, seed, announce)


@dataclass(frozen=True)
class Measurement:
    """One line of the benchmark."""

    name: str  # group/name
    what: str
    value: float | None  # median over turns, or mean over seeds; None if not measured, and ``what`` says why
    unit: str
    target: str | None = None
    ok: bool | None = None  # None without a target
    low: float | None = None  # minimum over turns, or lower end of the 95 % interval over seeds
    high: float | None = None


def take_turns(
    rivals: dict[str, Callable[[], object]], repeats: int, now: Callable[[], float] = time.perf_counter
) -> dict[str, Seconds]:
    """Return the seconds of each rival in each turn, by the clock ``now``. An extra first turn compiles."""
    seconds = {name: np.empty(repeats) for name in rivals}
    for turn in range(-1, repeats):
        for name, work in rivals.items():
            begun = now()
            work()
            if turn >= 0:
                seconds[name][turn] = now() - begun
    return seconds


def measured(
    name: str, what: str, values: Seconds, unit: str, *, at_most: float | None = None, at_least: float | None = None
) -> Measurement:
    """Return the median and range of the turns, and whether the median meets its target."""
    value = float(np.median(values))
    target, ok = None, None
    if at_most is not None:
        target, ok = f"≤ {at_most:g}", value <= at_most
    if at_least is not None:
        target, ok = f"≥ {at_least:,g}", value >= at_least
    return Measurement(name, what, value, unit, target, ok, float(values.min()), float(values.max()))


def not_installed(name: str, what: str, package: str) -> Measurement:
    return Measurement(name, f"{what}: left out, {package} is not installed", None, "")
