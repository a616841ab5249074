"""How long may an update be? A multiple of what the devices usually send.

Think of an attacker who is first, or fast, or patient. Every device has one vote, its last accepted norm, so a fast one does
not move the median alone. Until half of the devices have voted, a step that would move the model by its own length stands
in for the bound: whoever comes first can do no worse. And a step that would hardly move the model is never refused, so tiny
votes cannot shut the others out, and neither can honest devices that have little left to learn.
"""

import bisect
import math
from collections.abc import Iterable

import numpy as np

from perfeds2.deployment.transport import Arrays

VOTES = 200  # of the devices heard of last
STANDS_IN = 1 / 10  # of the model's length: a norm that is taken as usual while too few have voted
HARMLESS = 1 / 20  # of the model's length: a norm that is usual whatever the votes say
LARGEST = 1e18  # its square still fits into a float32


def norm_of(arrays: Arrays) -> float:
    """‖·‖₂ of all arrays together, in float64; infinite where that overflows."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays.values()))


class Norms:
    """The votes, and what bound follows."""

    def __init__(self, ues: int, votes: Iterable[tuple[int, float]] = ()) -> None:
        self.enough = min(ues, max(3, min(math.ceil(ues / 2), VOTES // 2)))
        self.votes: dict[int, float] = {}  # device: norm; who voted longest ago comes first
        self._sorted: list[float] = []
        for ue, norm in votes:
            self.add(ue, norm)

    def add(self, ue: int, norm: float) -> None:
        """An update of this device was accepted. One that moves nothing is no vote."""
        if norm > 0:
            self._take_out(ue)
            self.votes[ue] = norm
            bisect.insort(self._sorted, norm)
            if len(self.votes) > VOTES:
                self._take_out(next(iter(self.votes)))

    def _take_out(self, ue: int) -> None:
        if (norm := self.votes.pop(ue, None)) is not None:
            del self._sorted[bisect.bisect_left(self._sorted, norm)]

    @property
    def median(self) -> float | None:
        """Of the votes; None while there are too few."""
        count = len(self._sorted)
        if count < self.enough:
            return None
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2

    def bound(self, factor: float, length: float, step: float) -> float:
        """The largest norm that is taken, of a model that is so long, when an update of norm 1 moves it by ``step``."""
        if factor == 0:
            return LARGEST
        whole = max(length, 1.0) / step
        usual = STANDS_IN * whole if self.median is None else max(self.median, HARMLESS * whole)
        return min(factor * usual, LARGEST)
