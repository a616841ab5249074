"""Define when UEs are present: intervals of simulated seconds, optionally periodic, as a pure function of time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

Interval = tuple[float, float]  # start and end in seconds; the end is excluded


@dataclass(frozen=True)
class Hours:
    """When one UE is present: these intervals, repeated with the period if it is finite."""

    intervals: tuple[Interval, ...] = ((0.0, math.inf),)
    period_s: float = math.inf

    def __post_init__(self) -> None:
        borders = [second for interval in self.intervals for second in interval]
        rises = borders == sorted(borders) and all(start_s < end_s for start_s, end_s in self.intervals)
        if not borders or not rises or not 0 <= borders[0] < borders[-1] <= self.period_s:
            raise ValueError(
                f"intervals must be in rising order, not overlap, and lie between 0 and the period of {self.period_s:g} s, got {borders}."
            )

    @property
    def always(self) -> bool:
        """Whether the UE is always present."""
        return self.borders_s() == [0.0, self.period_s]

    def from_second(self, begin_s: float) -> "Hours":
        """Return the hours as seen by a run that begins at this second.

        Raises:
            ValueError: If the UE is never present from then on.
        """
        if self.always:
            return self
        passed_s = begin_s % self.period_s
        stays = sorted((a + k - passed_s, b + k - passed_s) for k in (0.0, self.period_s) for a, b in self.intervals)
        cut = ((max(start_s, 0.0), min(end_s, self.period_s)) for start_s, end_s in stays)
        intervals = tuple((start_s, end_s) for start_s, end_s in cut if start_s < end_s)
        if not intervals:
            raise ValueError(f"a device is not available after {begin_s:g} s.")
        return Hours(intervals, self.period_s)

    def borders_s(self) -> list[float]:
        """Return when the UE arrives and leaves within a period, with touching intervals joined."""
        borders: list[float] = []
        for start_s, end_s in self.intervals:
            if borders and borders[-1] == start_s:
                borders[-1] = end_s
            else:
                borders += [start_s, end_s]
        return borders


def hours_text(stays: Iterable[Interval], period_s: float) -> str:
    """Return periodic hours as a fleet file has them, with overlapping stays joined; empty if there are none."""
    joined: list[list[float]] = []
    for start_s, end_s in sorted(stays):
        if joined and start_s <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end_s)
        else:
            joined.append([start_s, end_s])
    texts = [f"{start_s:.6g}-{end_s:.6g}" for start_s, end_s in joined]
    return f"{';'.join(texts)}/{period_s:.6g}" if texts else ""


class Availability:
    """The hours of all UEs, and whether a UE that leaves keeps its job."""

    def __init__(self, hours: Sequence[Hours], keeps: bool = False) -> None:
        self.hours, self.keeps = tuple(hours), keeps
        borders = [each.borders_s() for each in hours]
        width = max(len(own) for own in borders) + 1
        self._borders_s = np.array([own + [math.inf] * (width - len(own)) for own in borders])
        self._repeats = np.array([each.period_s < math.inf for each in hours])
        self._period_s = np.array([each.period_s if each.period_s < math.inf else 1.0 for each in hours])
        self._last = (math.inf, -math.inf, np.zeros(len(hours), bool))

    def present(self, time_s: float) -> Bool[np.ndarray, " n"]:
        """Return which UEs are present at a time."""
        return self._stay(time_s)[2]

    def changes_s(self, time_s: float) -> float:
        """Return when a UE next arrives or leaves after a time; infinite if none ever does."""
        return self._stay(time_s)[1]

    def _stay(self, time_s: float) -> tuple[float, float, Bool[np.ndarray, " n"]]:
        """Return a time, the next change after it, and the UEs present until then.

        The last answer is cached, because time mostly moves forward.
        """
        since_s, until_s, present = self._last
        if not since_s <= time_s < until_s:
            periods = self._periods(time_s)
            passed = ((periods * self._period_s)[:, None] + self._borders_s <= time_s).sum(axis=1)  # odd: present
            next_s = periods * self._period_s + np.take_along_axis(self._borders_s, passed[:, None], axis=1)[:, 0]
            again_s = (periods + 1) * self._period_s + self._borders_s[:, 0]
            until_s = float(np.where(np.isinf(next_s) & self._repeats, again_s, next_s).min())
            present = passed % 2 == 1
            present.flags.writeable = False
            self._last = since_s, until_s, present = time_s, until_s, present
        return since_s, until_s, present

    def _periods(self, time_s: float) -> Float[np.ndarray, " n"]:
        """Return how many periods are over. A time at the end of a period counts as after it, despite rounding."""
        periods = np.floor(time_s / self._period_s)
        periods += (periods + 1) * self._period_s <= time_s
        periods -= periods * self._period_s > time_s
        return np.where(self._repeats, periods, 0.0)
