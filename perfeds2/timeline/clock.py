"""Play rounds from event to event, with a virtual clock.

A clock has stations, each a server with its cell, whose UEs or cells affect each other: one station is a single cell.
In a step, time goes on to the next event, which is the next that a source announces or the closing of a round. UEs
compute and send until then; the sources act; rounds close; free UEs are handed the newest model; and the band is shared
again where something changed. Between events every arrival time is a closed formula, exact in float64: there is no time
step. A UE that leaves at the moment a round closes has left before.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import allocate
from perfeds2.errors import InputError
from perfeds2.network.channel import Channel
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.planning import plan, uplink
from perfeds2.timeline.protocol import (
    IDLE,
    NO_UES,
    Closing,
    Server,
    close_round,
    end_jobs,
    hand_out,
    obstacle,
)
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder, nothing_yet
from perfeds2.timeline.sources import (
    EventSource,
    FadingChanges,
    Handovers,
    Openings,
    PresenceChanges,
    UploadEnds,
    UploadStarts,
    serving_cells,
)
from perfeds2.timeline.state import (
    FOREVER,
    ClockState,
    Conditions,
    JobTimes,
    Mask,
    Network,
    RoundInfo,
    Station,
    Ues,
    too_few,
)
from perfeds2.timeline.uploads import advance, rises, send

MAX_CHANGES = 100_000  # between two closings, redrawn fading aside, before we give up
NEVER = Closing(math.inf, NO_UES, NO_UES)
OnRound = Callable[[RoundInfo], None]


def forever() -> float:
    return math.inf


class Clock(ClockState):
    """Stations that affect each other. A single cell is one station."""

    def __init__(
        self, conditions: Sequence[Conditions], network: Network | None = None, edge_rounds: int | None = None
    ) -> None:
        """Start at time 0, just after the first UEs have received w_0.

        Args:
            conditions: What stays the same, by station.
            network: How several stations affect each other; None for one station.
            edge_rounds: Rounds between two exchanges with a cloud; None without a cloud.
        """
        some, n = conditions[0], conditions[0].cell.ues
        spent_j = None if some.budget is None else np.zeros(n)
        super().__init__(0.0, np.zeros(n), np.zeros(n), [], network, spent_j)
        self.followed_bits: list[list[float]] = [[] for _ in conditions]  # by station and round, on the backhaul
        self.openings, self._edge_rounds = Openings(), edge_rounds
        self._closings: list[Closing] = []
        self._events = 0  # since a round closed
        for own in conditions:
            self._add(own)
        if network is not None:
            self.serving = serving_cells(self)
        for number in range(len(conditions)):
            self._hand_out(number)
        self.records = [Recorder(self.before_rounds(station)) for station in self.stations]
        self.sources = list(self._sources(network))

    def _add(self, conditions: Conditions) -> None:
        cell, n = conditions.cell, conditions.cell.ues
        zeros, never = np.zeros(n), np.full(n, np.inf)
        conditions.protocol.check(n)
        server = Server(0, np.full(n, IDLE, np.int64), np.full(n, -1, np.int64), 0.0)
        station = Station(conditions, server, never, never.copy(), signal_hz=cell.channel.signal_at(0, 0.0))
        station.present = cell.here(0.0) if self.network is None else None  # in a network every UE is in some cell
        station.left = FOREVER if self._edge_rounds is None else self._edge_rounds
        station.jobs = None if cell.is_plain else JobTimes(zeros, zeros, zeros, zeros, np.ones(n))
        station.model_s = None if cell.downlink is None and self._edge_rounds is None else zeros
        station.sent_to = np.zeros(0 if self.network is None else n, np.int64)
        self.stations.append(station)

    def _sources(self, network: Network | None) -> Iterator[EventSource]:
        cells = [station.conditions.cell for station in self.stations]
        if any(cell.coherence_s is not None or type(cell.channel) is not Channel for cell in cells):
            yield FadingChanges()
        if network is not None:
            yield from (Handovers(), UploadEnds())
            if network.co_channel is not None:
                yield UploadStarts()
        elif self.stations[0].present is not None:
            yield PresenceChanges()
        if self._edge_rounds is not None:
            yield self.openings

    def before_rounds(self, station: Station) -> Timeline:
        """Return the timeline of a station before its first round."""
        conditions = station.conditions
        compute_s, quorum = conditions.compute_s, conditions.protocol.quorum
        if station.jobs is not None:  # the log has the waits
            return nothing_yet(compute_s, quorum)
        return nothing_yet(compute_s, quorum, station.model_s is not None, conditions.cell.downlink_s)

    @property
    def server(self) -> Server:
        """The server of the first station."""
        return self.stations[0].server

    # ---- The loop

    def play(
        self,
        end_s: float,
        until_s: Callable[[], float] = forever,
        on_round: OnRound | None = None,
        *,
        once: bool = False,
    ) -> bool:
        """Play until no station has rounds left, the next event would come too late, or ``once`` a round has closed.

        Args:
            end_s: The horizon.
            until_s: When something outside next affects the stations, asked before every event.
            on_round: Called with every closed round.
            once: Whether to stop after a round.

        Returns:
            Whether it stopped after a round.

        Raises:
            ValueError: If a round can never close.
        """
        while any(station.left > 0 for station in self.stations):
            self._share()
            self._forecast()
            times_s = [source.next_s(self) for source in self.sources]
            now_s, limit_s = min([closing.time_s for closing in self._closings] + times_s), until_s()
            if self._events == MAX_CHANGES or min(closing.time_s for closing in self._closings) == math.inf:
                self._check_progress(times_s, limit_s)
            if now_s > min(end_s, limit_s) or now_s == math.inf:
                return False
            closed = self._step(
                now_s, [source for source, at_s in zip(self.sources, times_s, strict=True) if at_s <= now_s]
            )
            if on_round is not None:
                for info in closed:
                    on_round(info)
            if closed and once:
                return True
        return False

    def _step(self, now_s: float, due: Sequence[EventSource]) -> list[RoundInfo]:
        """Let time go on to the next event, and let it happen; return the rounds that closed."""
        closing = [number for number, each in enumerate(self._closings) if each.time_s <= now_s < math.inf]
        opens = self.openings in due and self.stations[0].jobs is None  # jobs that have begun before the timeline ends
        if closing or opens:
            self.before, self._events = None, 0
        elif any(not isinstance(source, FadingChanges) for source in due):
            self._events += 1
        if not closing and not opens:
            self.before = self.before or (self.time_s, [copy.copy(station) for station in self.stations])
        advance(self, now_s)
        touched = set[int]()
        for source in due:
            touched |= source.fire(self)
        closed = {number: self._close(number) for number in closing}
        for number in sorted(touched.union(closing)) if self.network is None else range(len(self.stations)):
            handed = self._hand_out(number)
            if number in closed:
                closed[number].handed = handed
            if handed.size or number in touched or number in closed:
                self.stations[number].uplink = None  # share its band again
        return list(closed.values())

    def _check_progress(self, times_s: Sequence[float], until_s: float) -> None:
        """Raise ValueError if no round can ever close, given when the sources act. Fading alone closes none."""
        (station, *others), closing_s = self.stations, min(closing.time_s for closing in self._closings)
        acting = zip(self.sources, times_s, strict=True)
        source_s = min((at_s for source, at_s in acting if not isinstance(source, FadingChanges)), default=math.inf)
        if others and (closing_s == source_s == until_s == math.inf or self._events == MAX_CHANGES):
            raise ValueError(
                f"no edge has closed a round in {self._events + 1} events (second {self.time_s:.6g}); use a smaller quorum."
            )
        if not others and closing_s == source_s == math.inf and station.left > 0 and not station.waits:
            rules, present = station.conditions.protocol, station.present
            why = obstacle(station.server, station.arrival_s, rules, station.planned, present)
            raise InputError(f"round {station.server.round} never closes: {why}")
        if self._events == MAX_CHANGES:
            raise ValueError(
                f"round {station.server.round} has not closed after {MAX_CHANGES} times that UEs came or went (second "
                f"{self.time_s:.6g}). With --on-leave lose a UE that is never present for a whole job never arrives: "
                "use keep, or a smaller quorum."
            )

    # ---- What comes next

    def _share(self) -> None:
        """Plan the rounds that have opened, and ask the policies to share the bands that something has changed in."""
        for number, station in enumerate(self.stations):
            if station.uplink is None:
                if station.planned is None and not station.waits and not station.conditions.protocol.rests:
                    plan(self, station)
                present = station.present if self.network is None else self.serving == number
                station.uplink = uplink(self, station, present)
                station.bandwidth_hz = allocate(station.conditions.bandwidth, station.uplink)

    def _forecast(self) -> None:
        """Compute the rates, and when uploads arrive and rounds close if nothing else happens."""
        station = self.stations[0]
        band_hz, signal_hz, idle_s = station.bandwidth_hz, station.signal_hz, station.arrived_s
        if self.network is not None:
            at = self.serving, np.arange(self.serving.size)
            band_hz = np.stack([station.bandwidth_hz for station in self.stations])[at]
            signals_hz = np.stack([station.signal_hz for station in self.stations])
            signal_hz = signals_hz[at] / (1 + rises(self, signals_hz, band_hz > 0))[self.serving]
            idle_s = np.full(self.serving.size, np.inf)
        send(self, band_hz, signal_hz, idle_s, station.conditions.cell.limit)
        station.arrival_s, self._closings = self.sent_s, []
        for number, station in enumerate(self.stations):
            if self.network is not None:
                trip_s = self.network.trip_s[number, self.serving]
                station.arrival_s = np.where(station.busy, self.sent_s + trip_s, station.arrived_s)
            self._closings.append(self._closing(station))

    def _closing(self, station: Station) -> Closing:
        conditions, server = station.conditions, station.server
        if conditions.budget is not None and station.left > 0:
            has_energy = None if station.present is None else self._has_energy(station)
            if too_few(server.versions, server.round, conditions.protocol, has_energy):
                station.left = -1
        if station.left <= 0:
            return NEVER
        return close_round(server, station.arrival_s, conditions.protocol, station.planned, self.time_s)

    # ---- Rounds close, and jobs begin

    def _close(self, number: int) -> RoundInfo:
        """Close the round of a station, and record it. An edge whose turn it is then waits for the cloud's model."""
        station, closing, now_s = self.stations[number], self._closings[number], self.time_s
        before, conditions = station.server, station.conditions
        server, lost = end_jobs(before, closing, conditions.protocol)
        outcomes = ((closing.merged, MERGED), (lost, LOST)) if station.jobs is not None else ()
        ended = [station.parts(ues, outcome, now_s) for ues, outcome in outcomes]
        assert station.uplink is not None
        bands = station.uplink, station.bandwidth_hz, self.rate_bps, station.arrival_s
        info = RoundInfo(
            station.begun_s,
            closing,
            lost,
            before.round - before.versions[closing.merged],
            *bands,
            before.versions,
            station.interrupted,
            ended,
        )
        self.records[number].add(info, None if station.jobs is not None else station.model_s)
        if self.network is not None:
            followed = np.count_nonzero(station.sent_to[closing.merged] != number)
            self.followed_bits[number].append(2.0 * conditions.payload_bits * followed)  # to the cloud, and from there
        if lost.size:
            dropped = lost[np.isinf(station.arrived_s[lost])]
            self.compute_s[dropped] = self.bits[dropped] = 0.0
            station.arrived_s[lost] = station.sent_s[lost] = np.inf
        station.arrived_s[closing.merged] = station.sent_s[closing.merged] = np.inf
        station.left -= 1
        if station.left == 0 and self._edge_rounds is not None:
            server = replace(server, opened_s=math.inf)
        station.server, station.closed_s, station.begun_s, station.interrupted = server, now_s, now_s, []
        station.planned, station.signal_hz = None, conditions.cell.channel.signal_at(server.round, now_s)
        return info

    def open(self, number: int, time_s: float) -> None:
        """Let the cloud's model be at an edge at a time."""
        self.stations[number].left, self.stations[number].opens_s = self._edge_rounds or 0, time_s

    def _hand_out(self, number: int) -> Ues:
        """Hand the newest model to the free UEs that may have it, and return them."""
        station = self.stations[number]
        if station.waits:
            return NO_UES
        present, protocol = station.present, station.conditions.protocol
        if protocol.rests and station.planned is None:
            plan(self, station)
        if self.network is not None:
            present = (self.serving == number) & (self.bits == 0)
        elif station.conditions.budget is not None:
            present = self._has_energy(station) if present is None else present & self._has_energy(station)
        station.server, handed = hand_out(station.server, protocol, present, station.planned)
        self._begin_jobs(station, handed)
        return handed

    def _has_energy(self, station: Station) -> Mask:
        assert station.conditions.budget is not None
        assert self.spent_j is not None
        return ~station.conditions.budget.gone(self.spent_j)

    def _begin_jobs(self, station: Station, handed: Ues) -> None:
        """Start the jobs of UEs that have just received a model."""
        conditions, jobs, cell = station.conditions, station.jobs, station.conditions.cell
        self.compute_s[handed] = conditions.compute_s[handed]
        self.bits[handed] = conditions.payload_bits
        station.arrived_s[handed] = station.sent_s[handed] = np.inf
        if jobs is not None and cell.fleet is not None:
            job_s, rate_factor = jobs.job_s.copy(), jobs.rate_factor.copy()
            job_s[handed] = conditions.compute_s[handed] - cell.downlink_s
            if cell.fleet.spread is not None:
                slower, faster = cell.fleet.spread.factors(cell.seed, station.server.round)
                job_s[handed] *= slower[handed]
                self.compute_s[handed] = job_s[handed] + cell.downlink_s
                rate_factor[handed] = faster[handed]
            jobs = replace(jobs, job_s=job_s, rate_factor=rate_factor)
        if station.model_s is not None:
            wait_s, station.free_s = cell.send_models(handed, self.time_s, max(station.free_s, station.server.opened_s))
            self.compute_s[handed] += wait_s
            station.model_s = station.model_s.copy()
            station.model_s[handed] = self.time_s - station.closed_s + wait_s
        if jobs is not None:
            station.jobs = jobs.begin(handed, self.time_s, self.compute_s)

    # ---- What was played

    def timelines(self) -> list[Timeline]:
        """Return the timeline of each station until a round last closed."""
        time_s, stations = self.before or (self.time_s, self.stations)
        timelines = []
        for station, record in zip(stations, self.records, strict=True):
            arrived_s = np.where(station.arrived_s <= time_s, station.arrived_s, np.inf)
            model_s = None if station.jobs is not None else station.model_s
            timelines.append(record.timeline(station.server.versions, arrived_s, model_s, station.open_parts(time_s)))
        return timelines
