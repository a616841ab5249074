"""Describe which share of the band other traffic leaves over the day."""

from dataclasses import dataclass

import numpy as np

DAY_S = 86_400.0


@dataclass(frozen=True)
class Profile:
    """The share of the band that is left from each time on. It repeats every day."""

    time_s: tuple[float, ...]  # from 0, rising, within a day
    share: tuple[float, ...]  # above 0, at most 1

    def __post_init__(self) -> None:
        times = np.array(self.time_s)
        if not (
            len(self.time_s) == len(self.share) > 0
            and times[0] == 0
            and times[-1] < DAY_S
            and np.all(np.diff(times) > 0)
        ):
            raise ValueError(
                f"times must begin at 0, rise and be below {DAY_S:g} s, after which they repeat; got {self.time_s}"
            )
        if not all(0 < share <= 1 for share in self.share):
            raise ValueError(f"shares must be above 0 and at most 1, got {self.share}")

    @classmethod
    def of(cls, text: str) -> "Profile":
        """Read a text such as ``0:1,28800:0.7,36000:1``."""
        pairs = [[float(number) for number in pair.split(":")] for pair in text.split(",")]
        times, shares = zip(*pairs, strict=True)
        return cls(times, shares)

    def from_second(self, begin_s: float) -> "Profile":
        """Return the profile as seen by a run that begins at this second of the day."""
        steps = {(time_s - begin_s) % DAY_S: share for time_s, share in zip(self.time_s, self.share, strict=True)}
        steps.setdefault(0.0, self.share_at(begin_s))
        times, shares = zip(*sorted(steps.items()), strict=True)
        return Profile(times, shares)

    def share_at(self, time_s: float) -> float:
        """Return the share that is left at a time."""
        return self.share[(int(np.searchsorted(self._around(time_s), time_s, side="right")) - 1) % len(self.share)]

    def changes_s(self, time_s: float) -> float:
        """Return the next time after this one at which a step begins."""
        times = self._around(time_s)
        return float(times[np.searchsorted(times, time_s, side="right")])

    def _around(self, time_s: float) -> np.ndarray:
        """Return when steps begin, from the day before a time to the day after it."""
        day = int(time_s / DAY_S)
        return np.concatenate([np.array(self.time_s) + number * DAY_S for number in (day - 1, day, day + 1)])
