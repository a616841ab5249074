"""Play all edges on one clock, where jobs follow UEs from cell to cell or uploads disturb other cells.

A UE that is handed over goes on computing and sending. It sends to the cell that it is in, on the band of that cell, and
the complete upload goes over the backhauls of both cells to the edge that gave it the job. Once the upload is sent, the
UE gets a job in its new cell. So edges depend on each other, and one clock takes all of them from event to event. An edge
that waits for the cloud hands out no model.

With coupled interference, an upload is noise for co-channel cells while it is sent. Its density is averaged over the band
of its cell. A policy shares a band by the signals without interference, which changes before the next share.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfeds2.network.cells import Cells, PerCell
from perfeds2.network.link import PerUe, rate_bps
from perfeds2.timeline.clock import LEAST_LEFT, MAX_CHANGES, begin_jobs, share_out, start_clock
from perfeds2.timeline.jobs import LOST, MERGED, OPEN, Jobs
from perfeds2.timeline.protocol import IDLE, Closing, close_round, end_jobs, hand_out
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder
from perfeds2.timeline.simulate import before_rounds
from perfeds2.timeline.state import Air, Clock, Conditions, Mask, RoundInfo, Ues, parts_of


class Following:
    """The edges of a network. Their clocks share the arrays of work left, because a UE does one job at a time."""

    def __init__(self, cells: Cells, conditions: Sequence[Conditions], edge_rounds: int) -> None:
        count, n = len(conditions), conditions[0].cell.ues
        self._conditions, self._edge_rounds, self._edges = conditions, edge_rounds, range(count)
        self._clocks = [start_clock(each) for each in conditions]
        self._records = [Recorder(before_rounds(*each)) for each in zip(conditions, self._clocks, strict=True)]
        self._set(0.0, *(np.sum([vars(each)[name] for each in self._clocks], axis=0) for name in ("compute_s", "bits")))
        to_cloud_s = cells.transfer_s(conditions[0].payload_bits)
        self._trip_s = np.where(np.eye(count), 0.0, to_cloud_s[:, None] + to_cloud_s)  # of an upload between edges
        self._sent_s, self._sent_to = np.zeros((count, n)), np.zeros((count, n), int)  # end and cell of the last upload
        self._serving, self._co_channel = np.zeros(n, int), cells.co_channel
        self._look()
        self._airs = [self._share(edge) for edge in self._edges]
        self._last, self._events = self._clocks, 0  # when a round last closed, and events since then
        self._opens_s = np.full(count, np.inf)  # when the model of the cloud is there
        self.closed_s: PerCell = np.full(count, np.inf)  # since when an edge waits for the cloud
        self.followed_bits = [[] for _ in conditions]  # by edge and round: on the backhaul, as uploads

    def play(self, horizon_s: float | None, cloud_s: Callable[[], float]) -> None:
        """Play until the cloud closes its round, or until the horizon."""
        end_s = np.inf if horizon_s is None else horizon_s
        while True:
            rate, sent_s = self._uploads()
            arrivals_s = [
                np.where(clock.busy, sent_s + trip_s[self._serving], clock.arrived_s)
                for clock, trip_s in zip(self._clocks, self._trip_s, strict=True)
            ]
            closings = [
                close_round(clock.server, arrival_s, own.protocol)
                for clock, arrival_s, own in zip(self._clocks, arrivals_s, self._conditions, strict=True)
            ]
            closes_s = min(closing.time_s for closing in closings)
            comes_s = min(closes_s, self._moves_s, float(sent_s.min()), float(self._opens_s.min()), self._starts_s())
            now_s, waits_s = min(comes_s, self._fades_s), cloud_s()
            is_stuck = comes_s == waits_s == np.inf
            if now_s > min(end_s, waits_s) and not is_stuck:
                return
            self._events += now_s == comes_s  # not that only signals change
            if self._events == MAX_CHANGES or is_stuck:
                raise ValueError(
                    f"no edge has closed a round in {self._events} events (second {self._clocks[0].time_s:.6g}); "
                    "use a smaller quorum."
                )
            self._advance(now_s, rate, sent_s)
            touched = self._look() if now_s in (self._moves_s, self._fades_s) else set[int]()
            for edge in np.flatnonzero(self._opens_s == now_s).tolist():
                clock, self._opens_s[edge] = self._clocks[edge], np.inf
                self._clocks[edge] = replace(clock, server=replace(clock.server, opened_s=now_s))
                touched.add(edge)
            for edge, closing in enumerate(closings):
                if closing.time_s == now_s:
                    self._close(edge, closing, arrivals_s[edge])
                    touched.add(edge)
            touched.update(edge for edge in self._edges if self._welcome(edge))
            for edge in touched:
                self._airs[edge] = self._share(edge)
            if closes_s == now_s:
                self._last, self._events = list(self._clocks), 0

    def open(self, handed: Ues, times_s: PerCell) -> None:
        """Let the model of the cloud be at some edges at these times."""
        self._opens_s[handed], self.closed_s[handed] = times_s, np.inf

    def timelines(self) -> list[Timeline]:
        """Return the rounds of each edge."""
        return [self._timeline(edge, clock) for edge, clock in enumerate(self._last)]

    def _timeline(self, edge: int, clock: Clock) -> Timeline:
        arrived_s = np.where(clock.arrived_s <= clock.time_s, clock.arrived_s, np.inf)
        open_ = self._parts(edge, clock, np.flatnonzero(clock.server.versions != IDLE), OPEN)
        return self._records[edge].timeline(clock.server.versions, arrived_s, None, open_)

    def _set(self, time_s: float, compute_s: PerUe, bits: PerUe) -> None:
        work = {"time_s": time_s, "compute_s": compute_s, "bits": bits}
        self._clocks = [replace(clock, **work, arrived_s=clock.arrived_s.copy()) for clock in self._clocks]

    def _look(self) -> set[int]:
        """Find the cells and signals of all UEs, and how long they last; return the cells that UEs left or entered."""
        now_s, moves_s, fades_s, before = self._clocks[0].time_s, np.inf, np.inf, self._serving
        signal_hz, here = [], []
        for own, clock in zip(self._conditions, self._clocks, strict=True):
            assert own.presence is not None
            here.append(own.presence.here(now_s))
            signal_hz.append(own.cell.signal_at(clock.server.round, now_s))
            moves_s = min(moves_s, own.presence.changes_s(now_s))
            fades_s = min(fades_s, own.cell.changes_s(now_s))
        self._moves_s, self._fades_s = moves_s, fades_s
        self._signal_hz, self._serving = np.stack(signal_hz), np.argmax(here, axis=0)
        went = before != self._serving
        return {*before[went].tolist(), *self._serving[went].tolist()}

    def _share(self, edge: int) -> Air:
        """Share the band of a cell among the UEs in it."""
        mine = self._serving == edge
        return share_out(self._conditions[edge], self._clocks[edge], mine, None, self._signal_hz[edge])

    def _uploads(self) -> tuple[PerUe, PerUe]:
        """Return the rate of each UE, and when its upload is sent; infinite for UEs without one."""
        clock, at = self._clocks[0], (self._serving, np.arange(self._serving.size))
        band_hz = np.stack([air.bandwidth_hz for air in self._airs])[at]
        signal_hz = self._signal_hz[at] / (1 + self._rises(band_hz > 0))[self._serving]
        rate = rate_bps(band_hz, signal_hz, self._conditions[0].cell.cap_bits_per_s_hz)
        with np.errstate(divide="ignore", invalid="ignore"):
            sent_s = clock.time_s + clock.compute_s + clock.bits / rate
        return rate, np.where(clock.bits > 0, np.maximum(sent_s, np.nextafter(clock.time_s, np.inf)), np.inf)

    def _rises(self, has_band: Mask) -> PerCell:
        """Return the interference at each base station relative to the noise: uploads in co-channel cells."""
        if self._co_channel is None:
            return np.zeros(len(self._conditions))
        sends = has_band & (self._clocks[0].bits > 0) & (self._clocks[0].compute_s == 0)
        band_hz = np.array([own.cell.bandwidth_hz for own in self._conditions])[self._serving]
        return (self._signal_hz / band_hz * (sends & self._co_channel[:, self._serving])).sum(axis=1)

    def _starts_s(self) -> float:
        """Return when a UE next starts to send, if that changes the rates of others."""
        clock = self._clocks[0]
        starts_s = clock.time_s + clock.compute_s[clock.compute_s > 0]
        return np.inf if self._co_channel is None else float(starts_s.min(initial=np.inf))

    def _advance(self, now_s: float, rate: PerUe, sent_s: PerUe) -> None:
        """Let UEs compute and send until a time. What is sent to another edge's cell is then on the backhaul."""
        clock = self._clocks[0]
        compute_s, done = clock.compute_s - (now_s - clock.time_s), sent_s <= now_s
        least = LEAST_LEFT * self._conditions[0].payload_bits
        bits = np.maximum(clock.bits + np.minimum(compute_s, 0.0) * rate, least)
        over = done | (clock.bits == 0)
        compute_s[clock.time_s + clock.compute_s <= now_s] = 0.0  # drop what rounding leaves
        before = [each.busy & done for each in self._clocks]
        self._set(now_s, np.where(over, 0.0, np.maximum(compute_s, 0.0)), np.where(over, 0.0, bits))
        for edge, sent in enumerate(before):
            self._sent_s[edge, sent], self._sent_to[edge, sent] = sent_s[sent], self._serving[sent]
            self._clocks[edge].arrived_s[sent] = (sent_s + self._trip_s[edge, self._serving])[sent]

    def _free(self, edge: int) -> Mask:
        """Return the UEs in a cell that have no unsent upload for another edge."""
        busy = [clock.busy for other, clock in enumerate(self._clocks) if other != edge]
        return (self._serving == edge) & ~np.any(busy, axis=0)

    def _close(self, edge: int, closing: Closing, arrival_s: PerUe) -> None:
        """Close the round of an edge; the cloud's model comes later, if it is the cloud's turn."""
        clock, own, merged = self._clocks[edge], self._conditions[edge], closing.merged
        exchanges, free, busy = (clock.server.round + 1) % self._edge_rounds == 0, self._free(edge), clock.busy
        server, lost = end_jobs(clock.server, closing, own.protocol)
        server, handed = hand_out(server, own.protocol, free & (not exchanges))
        ended = [self._parts(edge, clock, *each) for each in ((merged, MERGED), (lost, LOST))]
        staleness, versions = clock.server.round - clock.server.versions[merged], clock.server.versions
        bands = self._airs[edge][:3]
        info = RoundInfo(
            clock.server.opened_s, closing, handed, lost, staleness, *bands, arrival_s, versions, [], ended
        )
        self._records[edge].add(info)
        followed = np.count_nonzero(self._sent_to[edge, merged] != edge)
        self.followed_bits[edge].append(2.0 * own.payload_bits * followed)  # to the cloud, and from there
        idle = server.versions == IDLE
        clock.compute_s[busy & idle] = clock.bits[busy & idle] = 0.0
        clock.arrived_s[idle] = np.inf
        if exchanges:
            server, self.closed_s[edge] = replace(server, opened_s=np.inf), closing.time_s
        self._clocks[edge] = begin_jobs(own, replace(clock, server=server), handed)
        self._signal_hz[edge] = own.cell.signal_at(server.round, closing.time_s)

    def _welcome(self, edge: int) -> bool:
        """Hand the newest model to free UEs without a job; return whether there are any."""
        clock, own = self._clocks[edge], self._conditions[edge]
        if clock.server.opened_s == np.inf:
            return False
        server, handed = hand_out(clock.server, own.protocol, self._free(edge))
        if handed.size:
            self._clocks[edge] = begin_jobs(own, replace(clock, server=server), handed)
        return handed.size > 0

    def _parts(self, edge: int, clock: Clock, ues: Ues, outcome: int) -> Jobs:
        """Return the jobs of UEs for a log. An upload on the backhaul occupies no UE."""
        until_s = np.where(clock.busy, clock.time_s, self._sent_s[edge])
        return parts_of(clock, ues, until_s[ues], outcome)
