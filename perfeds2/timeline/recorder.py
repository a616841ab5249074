"""Collect the rounds of a simulation, and the jobs that ended in them, into a timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.link import Numbers, PerUe
from perfeds2.timeline.choices import Choices, Tries
from perfeds2.timeline.jobs import LOST, MERGED, OPEN, Jobs, in_order
from perfeds2.timeline.protocol import IDLE, Protocol, Server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import RoundInfo

MANY_LOST = 256  # above this many jobs lost at once, consecutive UEs share a row


@dataclass(frozen=True)
class RoundColumns:
    """The rounds of a server: what each merged, and when."""

    ues: Int[np.ndarray, "K A"]
    staleness: Int[np.ndarray, "K A"]
    arrival_s: Float[np.ndarray, "K A"]
    time_s: Float[np.ndarray, " K"]
    model_s: Float[np.ndarray, "K A"]  # from when the model was made until the UE had it


class Recorder:
    """Append the rounds of a server, and give their timeline.

    Jobs begin when their model is made, and all jobs of a UE compute equally long, unless ``RoundInfo`` has their parts.
    """

    def __init__(self, compute_s: PerUe, quorum: int, downlink_s: float = 0.0) -> None:
        """``downlink_s`` is a part of ``compute_s``."""
        self._compute_s, self._downlink_s = compute_s, downlink_s
        table, whole, none = (0, quorum), np.empty(0, np.int64), np.empty(0)
        self._rounds: list[Sequence[np.ndarray]] = [
            [np.empty(table, np.int64), np.empty(table, np.int64), np.empty(table), none, np.empty(table)]
        ]
        self._lost: list[Sequence[np.ndarray]] = [[whole, whole, whole, none, whole, none]]
        self._parts: list[Jobs] = []
        self._given: dict[str, list[Choices | Tries]] = {"choices": [], "tries": []}

    def add(self, info: RoundInfo, model_s: PerUe | None = None) -> None:
        """Add a round and, with a downlink, how long each UE waited for its model."""
        self._parts += [*info.interrupted, *info.ended]
        merged, lost, now_s = info.closing.merged, info.lost, info.closing.time_s
        arrival_s, staleness = info.arrival_s[None, merged], info.staleness[None]
        waits_s = np.zeros(staleness.shape) if model_s is None else model_s[None, merged]
        self._rounds.append([merged[None], staleness, arrival_s, np.array([now_s]), waits_s])
        if not lost.size or info.ended:
            return
        version, arrived_s = info.versions[lost], info.arrival_s[lost]
        waits_s = np.zeros(lost.size) if model_s is None else model_s[lost]
        arrived_s[arrived_s > now_s] = np.inf
        first = np.arange(lost.size)
        if lost.size > MANY_LOST:  # one row for consecutive UEs that lost the same job
            same = (
                (np.diff(version) == 0) & (np.diff(waits_s) == 0) & np.isinf(np.maximum(arrived_s[1:], arrived_s[:-1]))
            )
            first = np.concatenate([[0], 1 + np.flatnonzero((np.diff(lost) != 1) | ~same)])
        round_, count = np.full(first.size, info.uplink.round), np.diff(first, append=lost.size)
        self._lost.append([lost[first], version[first], round_, arrived_s[first], count, waits_s[first]])

    def give(self, rows: Choices | Tries) -> None:
        """Add what UEs are given now."""
        self._given[type(rows).__name__.lower()].append(rows)

    def add_rounds(self, rounds: Sequence[np.ndarray], lost: Sequence[np.ndarray] = ()) -> None:
        """Add several rounds at once: their columns, and those of the jobs lost in them."""
        self._rounds.append(rounds)
        self._lost += [lost] if lost else []

    @property
    def rounds(self) -> RoundColumns:
        return RoundColumns(*map(np.concatenate, zip(*self._rounds, strict=True)))

    def timeline(
        self,
        versions: Numbers,
        arrived_s: PerUe,
        model_s: PerUe | None = None,
        open_parts: Jobs | None = None,
        end_s: float = 0.0,
    ) -> Timeline:
        """Return the recorded rounds, with the jobs that were open when the clock stopped, or at ``end_s`` if that is later."""
        rounds, compute_s = self.rounds, np.maximum(self._compute_s - self._downlink_s, 0.0)
        if open_parts is None:
            waits_s = np.zeros(versions.size) if model_s is None else model_s
            log = self._jobs(rounds, versions, arrived_s, waits_s, end_s)
        else:
            log = in_order(Jobs.joined([*self._parts, open_parts]))
        timeline = Timeline(rounds.ues, rounds.staleness, rounds.arrival_s, rounds.time_s, compute_s, log)
        given = {name: type(rows[0]).joined(rows).before(timeline.end_s) for name, rows in self._given.items() if rows}  # type: ignore[arg-type]  # rows of one kind
        return replace(timeline, **given) if given else timeline

    def _jobs(self, rounds: RoundColumns, versions: Numbers, arrived_s: PerUe, model_s: PerUe, until_s: float) -> Jobs:
        """Return the merged, the lost and the open jobs, given what every UE works on now."""
        (last, quorum), open_ = rounds.ues.shape, np.flatnonzero(versions != IDLE)
        lost, one_each = list(map(np.concatenate, zip(*self._lost, strict=True))), np.ones_like
        merged_in, merged_ue = np.repeat(np.arange(last), quorum), rounds.ues.ravel()
        merged = merged_ue, merged_in - rounds.staleness.ravel(), merged_in, rounds.arrival_s.ravel()
        running = open_, versions[open_], np.full(open_.size, last), arrived_s[open_]
        ended = (*merged, one_each(merged_ue), rounds.model_s.ravel()), lost
        columns = zip(*ended, (*running, one_each(open_), model_s[open_]), strict=True)
        ue, version, round_, arrival_s, count, waits_s = map(np.concatenate, columns)
        outcome = np.repeat([MERGED, LOST, OPEN], [merged_ue.size, lost[0].size, open_.size])
        closed_s = np.append(rounds.time_s, max([until_s, *rounds.time_s[-1:]]))
        start_s, end_s = np.append(0.0, rounds.time_s)[version], closed_s[round_]
        sending_s, arrived = self._compute_s[ue], np.isfinite(arrival_s)
        sending_s += waits_s  # in place: with a million UEs, memory is the bottleneck
        sending_s += start_s
        np.minimum(sending_s, end_s, out=sending_s)
        np.clip(arrival_s, sending_s, end_s, out=arrival_s)
        waits_s += self._downlink_s
        return Jobs(ue, version, start_s, sending_s, arrival_s, end_s, outcome, round_, waits_s, arrived, count)


@dataclass
class CloudState:
    """The cloud above base stations: a server whose UEs are the edges."""

    protocol: Protocol
    server: Server
    record: Recorder
    transfer_s: PerUe  # of each edge's model, one way
    edge_rounds: int  # rounds of an edge between two exchanges
    rounds: int = 0  # of all edges together, at most
