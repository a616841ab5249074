"""Record what UEs get besides a model: frequencies and powers from a policy, and how often uploads are sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.timeline.checks import check_whole
from perfeds2.timeline.jobs import one_by_one

Rows = Int[np.ndarray, " r"]
Times = Float[np.ndarray, " r"]
OfPieces = Int[np.ndarray, " p"]
Bounds = Float[np.ndarray, " p"]


@dataclass(frozen=True)
class TimedRows:
    """One row per change, sorted by UE and time: it holds until the UE's next row."""

    ue: Int[np.ndarray, " c"]
    from_s: Float[np.ndarray, " c"]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join rows in order of time, or of several servers."""
        columns = [np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    def before(self, time_s: float) -> Self:
        """Return the rows before a time."""
        return type(self)(*(column[self.from_s < time_s] for column in vars(self).values()))

    def row_at(self, ue: Rows, time_s: Times) -> Rows:
        """Return the row that holds for each UE at each time."""
        steps = np.unique(np.concatenate([self.from_s, time_s]))
        keys = self.ue * steps.size + np.searchsorted(steps, self.from_s)
        return np.searchsorted(keys, ue * steps.size + np.searchsorted(steps, time_s), side="right") - 1

    def check(self, ues: int, **most: float) -> None:
        """Raise ValueError unless the rows fit this many UEs, with columns from 0 to at most these values."""
        name = type(self).__name__.lower()
        if {values.shape for values in vars(self).values()} != {(self.ue.size,)}:
            raise ValueError(f"timeline {name} must have columns of one length.")
        check_whole(name, self.ue, 0, ues - 1)
        for column, limit in {"from_s": np.inf, **most}.items():
            if not ((vars(self)[column] >= 0) & (vars(self)[column] <= limit)).all():
                raise ValueError(f"timeline {name} must hold {column} from 0 to {limit:g}.")
        if (np.lexsort((self.from_s, self.ue)) != np.arange(self.ue.size)).any():
            raise ValueError(f"timeline {name} must be sorted by UE and time.")


@dataclass(frozen=True)
class Choices(TimedRows):
    """What a policy chose."""

    speed: Float[np.ndarray, " c"]  # of the processor, for the whole of a job, as a fraction of its highest frequency
    power: Float[np.ndarray, " c"]  # while sending, as a fraction; 0 for a UE that waits for a part of the band

    def pieces(self, ue: Rows, from_s: Times, until_s: Times) -> tuple[OfPieces, OfPieces, Bounds, Bounds]:
        """Cut the intervals of UEs where a row ends; return each piece's interval, row, beginning and end."""
        first, last = self.row_at(ue, from_s), self.row_at(ue, until_s)
        interval, row = one_by_one(first, last - first + 1)
        begin_s = np.where(row == first[interval], from_s[interval], self.from_s[row])
        end_s = np.where(row == last[interval], until_s[interval], np.append(self.from_s, 0.0)[row + 1])
        return interval, row, begin_s, end_s

    def check(self, ues: int, **most: float) -> None:
        super().check(ues, speed=1.0, power=1.0, **most)


@dataclass(frozen=True)
class Tries(TimedRows):
    """How uploads go, drawn when their jobs begin."""

    sent: Int[np.ndarray, " c"]  # transmissions until the upload is received
    fails: Bool[np.ndarray, " c"]  # whether it is discarded
