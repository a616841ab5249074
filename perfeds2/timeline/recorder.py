"""Collect the rounds of a simulation into a timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfeds2.network.link import Numbers, PerUe
from perfeds2.timeline.choices import Choices
from perfeds2.timeline.jobs import LOST, OPEN, Jobs, in_order
from perfeds2.timeline.protocol import IDLE, Protocol, Server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import RoundInfo

MANY_LOST = 256  # above this many jobs lost at once, consecutive UEs share a row


class Recorder:
    """Append rounds to where a timeline ended."""

    def __init__(self, past: Timeline) -> None:
        self._compute_s, self._downlink_s = past.compute_s, past.downlink_s
        self._rounds: list[Sequence[np.ndarray]] = [[past.ues, past.staleness, past.arrival_s, past.time_s]]
        self._lost: list[Sequence[np.ndarray]] = [
            [past.lost_ue, past.lost_version, past.lost_round, past.lost_arrival_s, past.lost_count]
        ]
        self._models = [[past.model_s, past.lost_model_s]]  # None without a downlink
        self.parts: list[Jobs] = []  # parts of jobs, if UEs leave and return
        self._choices = [] if past.choices is None else [past.choices]
        if past.log is not None:
            self.parts.append(past.log.take(past.log.outcome != OPEN))

    def add(self, info: RoundInfo, model_s: PerUe | None = None) -> None:
        """Add a round and, with a downlink, how long each UE waited for its model."""
        self.parts += [*info.interrupted, *info.ended]
        for part in info.interrupted:
            left = part.take(part.outcome == LOST)
            never, each = np.full(left.ue.size, np.inf), np.ones(left.ue.size, np.int64)
            self._lost.append([left.ue, left.version, left.round, never, each])
        round_, versions, arrival_s, lost = info.uplink.round, info.versions, info.arrival_s, info.lost
        merged, now_s = info.closing.merged, info.closing.time_s
        self._rounds.append([merged[None], info.staleness[None], arrival_s[None, merged], np.array([now_s])])
        if lost.size:
            version, arrived_s = versions[lost], arrival_s[lost]
            arrived_s[arrived_s > now_s] = np.inf
            first = np.arange(lost.size)
            if lost.size > MANY_LOST:  # one row for consecutive UEs that lost the same job
                same = (np.diff(version) == 0) & (arrived_s[1:] == arrived_s[:-1])
                same &= True if model_s is None else np.diff(model_s[lost]) == 0
                first = np.concatenate([[0], 1 + np.flatnonzero((np.diff(lost) != 1) | ~same)])
            count = np.diff(first, append=lost.size)
            self._lost.append([lost[first], version[first], np.full(first.size, round_), arrived_s[first], count])
            lost = lost[first]
        if model_s is not None:
            self._models.append([model_s[None, merged], model_s[lost]])

    def choose(self, choices: Choices) -> None:
        """Add frequencies and powers that a policy has chosen."""
        self._choices.append(choices)

    def add_rounds(
        self,
        rounds: Sequence[np.ndarray],
        lost: Sequence[np.ndarray] = (),
        waits_s: Sequence[np.ndarray] = (),
    ) -> None:
        """Add several rounds at once: their columns, those of the jobs lost in them, and how long both waited."""
        self._rounds.append(rounds)
        for columns, more in ((self._lost, lost), (self._models, waits_s)):
            columns += [list(more)] if more else []

    def timeline(
        self,
        versions: Numbers,
        arrived_s: PerUe,
        model_s: PerUe | None = None,
        open_parts: Jobs | None = None,
    ) -> Timeline:
        """Return the recorded rounds, with the jobs that were open when the clock stopped."""
        models = (None, None, None)
        if model_s is not None:
            merged, lost = zip(*self._models, strict=True)
            models = np.concatenate(merged), np.concatenate(lost), np.where(versions == IDLE, 0.0, model_s)
        rounds = map(np.concatenate, zip(*self._rounds, strict=True))
        *lost, lost_count = map(np.concatenate, zip(*self._lost, strict=True))
        log = None if open_parts is None else in_order(Jobs.joined([*self.parts, open_parts]))
        parts = (*rounds, self._compute_s, *lost, versions, arrived_s, lost_count, *models, self._downlink_s, log)
        timeline = Timeline(*parts)  # type: ignore[call-arg]  # in the order of its fields
        if not self._choices:
            return timeline
        return replace(timeline, choices=Choices.joined(self._choices).before(timeline.end_s))


def nothing_yet(compute_s: PerUe, quorum: int, waits: bool = False, downlink_s: float = 0.0) -> Timeline:
    """Return a timeline without rounds, in which every UE holds w_0.

    ``waits`` says whether it records waits for models. ``downlink_s`` is a part of ``compute_s``.
    """
    n, none, never = compute_s.size, np.empty(0, np.int64), np.empty(0)
    ues, arrival_s = np.empty((0, quorum), np.int64), np.empty((0, quorum))
    open_ = np.zeros(n, np.int64), np.full(n, np.inf)
    empty = Timeline(ues, ues, arrival_s, never, compute_s, none, none, none, never, *open_, none)
    if downlink_s:
        empty = replace(empty, downlink_s=np.array(downlink_s))
    if not waits:
        return empty
    return replace(empty, model_s=arrival_s, lost_model_s=never, open_model_s=np.zeros(n))


@dataclass
class Above:
    """The cloud above base stations: a server whose UEs are the edges."""

    protocol: Protocol
    server: Server
    record: Recorder
    transfer_s: PerUe  # of each edge's model, one way
    edge_rounds: int  # rounds of an edge between two exchanges
    rounds: int  # of all edges together, at most

    def timeline(self) -> Timeline:
        """Return the cloud's rounds as a timeline of edges."""
        return self.record.timeline(self.server.versions, np.full(self.transfer_s.size, np.inf))
