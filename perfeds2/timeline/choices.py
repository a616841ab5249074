"""Record the processor frequencies and powers that a bandwidth policy chose."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from perfeds2.timeline.jobs import check_whole, one_by_one

Rows = Int[np.ndarray, " r"]
Times = Float[np.ndarray, " r"]
OfPieces = Int[np.ndarray, " p"]
Bounds = Float[np.ndarray, " p"]


@dataclass(frozen=True)
class Choices:
    """One row per change, sorted by UE and time: it holds until the UE's next row."""

    ue: Int[np.ndarray, " c"]
    from_s: Float[np.ndarray, " c"]
    speed: Float[np.ndarray, " c"]  # of the processor, for the whole of a job, as a fraction of its highest frequency
    power: Float[
        np.ndarray, " c"
    ]  # while sending, as a fraction of the highest; 0 for a UE that waits for a part of the band

    @classmethod
    def joined(cls, parts: "Sequence[Choices]") -> "Choices":
        """Join rows in order of time, or of several servers."""
        columns = [np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    def before(self, time_s: float) -> "Choices":
        """Return the rows before a time."""
        return Choices(*(column[self.from_s < time_s] for column in vars(self).values()))

    def row_at(self, ue: Rows, time_s: Times) -> Rows:
        """Return the row that holds for each UE at each time."""
        steps = np.unique(np.concatenate([self.from_s, time_s]))
        keys = self.ue * steps.size + np.searchsorted(steps, self.from_s)
        return np.searchsorted(keys, ue * steps.size + np.searchsorted(steps, time_s), side="right") - 1

    def pieces(self, ue: Rows, from_s: Times, until_s: Times) -> tuple[OfPieces, OfPieces, Bounds, Bounds]:
        """Cut the intervals of UEs where a row ends; return each piece's interval, row, beginning and end."""
        first, last = self.row_at(ue, from_s), self.row_at(ue, until_s)
        interval, row = one_by_one(first, last - first + 1)
        begin_s = np.where(row == first[interval], from_s[interval], self.from_s[row])
        end_s = np.where(row == last[interval], until_s[interval], np.append(self.from_s, 0.0)[row + 1])
        return interval, row, begin_s, end_s

    def check(self, ues: int) -> None:
        """Raise ValueError unless the rows fit this many UEs."""
        if {values.shape for values in vars(self).values()} != {(self.ue.size,)}:
            raise ValueError("timeline choices must have columns of one length.")
        check_whole("choices", self.ue, 0, ues - 1)
        for name, most in (("from_s", np.inf), ("speed", 1.0), ("power", 1.0)):
            values = vars(self)[name]
            if not (np.issubdtype(values.dtype, np.floating) and ((values >= 0) & (values <= most)).all()):
                raise ValueError(f"timeline choices must hold {name} from 0 to {most:g}.")
        if (np.lexsort((self.from_s, self.ue)) != np.arange(self.ue.size)).any():
            raise ValueError("timeline choices must be sorted by UE and time.")
