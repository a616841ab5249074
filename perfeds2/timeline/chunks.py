"""Simulate a timeline in chunks, for schedules that ask for feedback."""

import copy
import math
from dataclasses import replace

import numpy as np

from perfeds2.network.link import PerUe
from perfeds2.timeline.cells import EdgeClocks, EdgeConditions
from perfeds2.timeline.clock import Clock
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import play, start_clock
from perfeds2.timeline.state import Conditions

CHUNK = 20  # default number of rounds between two reports to a schedule


class ChunkedPlay:
    """A timeline that grows by a chunk of rounds at a time.

    The schedule is copied, so it shares no state with other runs. The same feedback gives the same timeline. If the
    schedule ignores the feedback, the timeline is that of ``simulate`` or ``simulate_cells``.
    """

    def __init__(
        self,
        conditions: Conditions | EdgeConditions,
        rounds: int | None,
        horizon_s: float | None = None,
        chunk: int = CHUNK,
    ) -> None:
        """With edges, ``rounds`` and ``chunk`` count the rounds of all edges together."""
        self.rounds, self.horizon_s, self._chunk = rounds, horizon_s, chunk
        self.is_finished = False
        self._clock: Clock | EdgeClocks
        if isinstance(conditions, Conditions):
            self._feedback, self._ues = [np.full(conditions.cell.ues, np.nan)], [slice(None)]
            schedule = copy.deepcopy(conditions.schedule)
            self._clock = start_clock(replace(conditions, schedule=schedule, feedback=self._feedback[0]))
        else:
            self._feedback, self._ues = (
                [np.full(ues.size, np.nan) for ues in conditions.cells.ues],
                conditions.cells.ues,
            )
            pairs = zip(conditions.edges, self._feedback, strict=True)
            edges = [replace(of_edge, feedback=feedback) for of_edge, feedback in pairs]
            self._clock = EdgeClocks(replace(conditions, edges=edges))
        self.timeline = self._played(0)

    def play(self, feedback: PerUe) -> Timeline:
        """Simulate the next chunk and return the timeline so far."""
        before = self.timeline.rounds
        wanted = self._chunk if self.rounds is None else min(self._chunk, self.rounds - before)
        for of_edge, ues in zip(self._feedback, self._ues, strict=True):
            of_edge[:] = feedback[ues]
        self.timeline = self._played(wanted)
        self.is_finished = self.timeline.rounds < before + wanted or self.timeline.rounds == self.rounds
        return self.timeline

    def _played(self, rounds: int) -> Timeline:
        """Play more rounds, and return the timeline so far."""
        if isinstance(self._clock, Clock):
            return play(self._clock, rounds=rounds, horizon_s=self.horizon_s)
        end_s, most = math.inf if self.horizon_s is None else self.horizon_s, self.rounds
        if most is not None and self._clock.rounds + rounds >= most:
            self._clock.play(end_s, most)
        else:
            self._clock.play_chunk(end_s, rounds)
        timeline = self._clock.timeline()
        return timeline if most is None else timeline.prefix(min(most, timeline.rounds))
