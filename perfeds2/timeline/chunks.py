"""Simulate a timeline in chunks, for schedules that ask for feedback."""

import copy
from dataclasses import replace

import numpy as np

from perfeds2.network.link import PerUe
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import play, start_clock
from perfeds2.timeline.state import Conditions

CHUNK = 20  # default number of rounds between two reports to a schedule


class ChunkedPlay:
    """A timeline that grows by a chunk of rounds at a time.

    The schedule is copied, so it shares no state with other runs. The same feedback gives the same timeline. If the
    schedule ignores the feedback, the timeline is that of ``simulate``.
    """

    def __init__(
        self, conditions: Conditions, rounds: int | None, horizon_s: float | None = None, chunk: int = CHUNK
    ) -> None:
        self._feedback = np.full(conditions.cell.ues, np.nan)
        schedule = copy.deepcopy(conditions.schedule)
        conditions = replace(conditions, schedule=schedule, feedback=self._feedback)
        self.rounds, self.horizon_s, self._chunk = rounds, horizon_s, chunk
        self._clock = start_clock(conditions)
        self.timeline = play(self._clock, rounds=0)
        self.is_finished = False

    def play(self, feedback: PerUe) -> Timeline:
        """Simulate the next chunk and return the timeline so far."""
        before = self.timeline.rounds
        wanted = self._chunk if self.rounds is None else min(self._chunk, self.rounds - before)
        self._feedback[:] = feedback
        self.timeline = play(self._clock, rounds=wanted, horizon_s=self.horizon_s)
        self.is_finished = self.timeline.rounds < before + wanted or self.timeline.rounds == self.rounds
        return self.timeline
