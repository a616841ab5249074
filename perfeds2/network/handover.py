"""Hand moving UEs over from cell to cell by event A3, as a pure function of (seed, UE, time).

Every 160 ms a UE measures all base stations, without fast fading. It goes to a base station that was 3 dB stronger than
its own at two measurements in a row, the strongest if there are several.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.blocks import steps_by

MEASURE_S, BETTER_DB = 0.16, 3.0
AHEAD = 32  # measurements computed at a time

Measured = Float[np.ndarray, "n E"]  # levels in dB


class Handover:
    """The base station of each UE at any time."""

    def __init__(self, level_db: Callable[[float], Measured]) -> None:
        self._level_db = level_db
        level = level_db(0.0)
        self._serving = level.argmax(axis=1)
        self._better = np.zeros(level.shape, bool)  # than the serving one, at the last measurement
        self._blocks: list[Int[np.ndarray, "m n"]] = []

    def block(self, number: int) -> Int[np.ndarray, "m n"]:
        """Return the serving base stations after each measurement of a block."""
        while len(self._blocks) <= number:
            first = AHEAD * len(self._blocks)
            self._blocks.append(np.stack([self._measure(first + each) for each in range(AHEAD)]))
        return self._blocks[number]

    def count(self, until_s: float) -> int:
        """Return how often UEs change their base station until a time."""
        last = steps_by(until_s, MEASURE_S)
        blocks = [self.block(number) for number in range(last // AHEAD + 1)]
        return int(np.count_nonzero(np.diff(np.concatenate(blocks)[: last + 1], axis=0)))

    def _measure(self, number: int) -> Int[np.ndarray, " n"]:
        level = self._level_db(number * MEASURE_S)
        own = np.take_along_axis(level, self._serving[:, None], axis=1)
        better = level > own + BETTER_DB
        lasting = np.where(better & self._better, level, -np.inf)
        goes = np.isfinite(lasting).any(axis=1)
        self._serving = np.where(goes, lasting.argmax(axis=1), self._serving)
        self._better = better
        self._better[goes] = False
        return self._serving


class Attached:
    """When each UE is in a cell, for the clock of this cell, and whether a UE that leaves keeps its job."""

    def __init__(self, handover: Handover, site: int, keeps: bool = False) -> None:
        self.handover, self.keeps = handover, keeps
        self._inside = lru_cache(8)(lambda number: handover.block(number) == site)

    def present(self, time_s: float) -> Bool[np.ndarray, " n"]:
        """Return which UEs are in the cell at a time."""
        block, at = divmod(steps_by(time_s, MEASURE_S), AHEAD)
        return self._inside(block)[at]

    def changes_s(self, time_s: float) -> float:
        """Return when a UE next arrives or leaves, or when to ask again."""
        number = steps_by(time_s, MEASURE_S)
        inside, at = self._inside(number // AHEAD), number % AHEAD
        changed = (inside[at + 1 :] != inside[at]).any(axis=1)
        return (number + 1 + (int(changed.argmax()) if changed.any() else changed.size)) * MEASURE_S


class Settled:
    """The UEs of a cell that none enters or leaves."""

    keeps = True

    def __init__(self, inside: Bool[np.ndarray, " n"]) -> None:
        self._inside = inside

    def present(self, _time_s: float) -> Bool[np.ndarray, " n"]:
        """Return which UEs are in the cell."""
        return self._inside

    def changes_s(self, _time_s: float) -> float:
        """Return infinity, because no UE comes or goes."""
        return np.inf
