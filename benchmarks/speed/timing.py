"""How is everything timed? Rivals take turns, so a busy machine slows all of them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

BETA, BATCH, QUORUM, STALENESS = 0.07, 40, 5, 5  # what is trained and merged, wherever something is
Seconds = Float[np.ndarray, " turns"]
Announce = Callable[[str], None]  # hears what takes a while, before it begins
Group = Callable[[int, int, Announce], Iterator["Measurement"]]  # (repeats, seed, announce)


@dataclass(frozen=True)
class Measurement:
    """One line of the benchmark."""

    name: str  # group/what
    what: str
    value: float | None  # the median of the turns, or the mean over seeds; None if not measured, ``what`` says why
    unit: str
    target: str | None = None
    ok: bool | None = None  # None where there is no target
    low: float | None = None  # of all turns, or of the 95 % interval over seeds
    high: float | None = None


def take_turns(
    rivals: dict[str, Callable[[], object]], repeats: int, now: Callable[[], float] = time.perf_counter
) -> dict[str, Seconds]:
    """Seconds of each rival in each turn, by the wall clock unless told. A turn before the first warms up, and compiles what is compiled."""
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
    """The median of the turns, their range, and whether it meets its target."""
    value = float(np.median(values))
    target, ok = None, None
    if at_most is not None:
        target, ok = f"≤ {at_most:g}", value <= at_most
    if at_least is not None:
        target, ok = f"≥ {at_least:,g}", value >= at_least
    return Measurement(name, what, value, unit, target, ok, float(values.min()), float(values.max()))


def not_installed(name: str, what: str, package: str) -> Measurement:
    return Measurement(name, f"{what}: left out, {package} is not installed", None, "")
