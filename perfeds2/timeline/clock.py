"""Play rounds from event to event, with a virtual clock.

A clock has servers and cells that affect each other: a single cell has one of each, edges have a cell each, and a
server at the cloud has all cells. In a step, time goes on to the next event, which is the next that a source announces or the closing of a round. UEs
compute and send until then; the sources act; rounds close; free UEs are handed the newest model; and the band is shared
again where something changed. Between events every arrival time is a closed formula, exact in float64: there is no time
step. A UE that leaves at the moment a round closes has left before.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import Allocation, allocate
from perfeds2.errors import InputError
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.planning import plan, uplink
from perfeds2.timeline.protocol import (
    IDLE,
    NO_UES,
    Closing,
    Server,
    assign_model,
    close_round,
    end_jobs,
    why_stuck,
)
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder
from perfeds2.timeline.sources import EventSource, FadingChanges, Openings, serving_cells, sources_of
from perfeds2.timeline.starting import begin_jobs, choose
from perfeds2.timeline.state import (
    FOREVER,
    CellState,
    ClockState,
    Conditions,
    JobTimes,
    Luck,
    Mask,
    Network,
    RoundInfo,
    ServerState,
    SpeedAndPower,
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
    """Servers and cells that affect each other. A single cell is one of each."""

    def __init__(
        self, conditions: Sequence[Conditions], network: Network | None = None, edge_rounds: int | None = None
    ) -> None:
        """Start at time 0, just after the first UEs have received w_0.

        Args:
            conditions: What stays the same, by server.
            network: The cells of the servers; None for one server with one cell.
            edge_rounds: Rounds between two exchanges with a cloud; None without a cloud.
        """
        some, n = conditions[0], conditions[0].cell.ues
        network = some.network if network is None else network
        cells = [some.cell] if network is None else network.cells
        spent_j = None if some.budget is None else np.zeros(n)
        cell_states = [CellState(cell, cell.channel.signal_at(0, 0.0)) for cell in cells]
        super().__init__(0.0, np.zeros(n), np.zeros(n), [], cell_states, network, spent_j)
        self.followed_bits: list[list[float]] = [[] for _ in conditions]  # by server and round, on the backhaul
        self._edge_rounds = edge_rounds
        self._closings: list[Closing] = []
        self._events = 0  # since a round closed
        self.next_s = 0.0  # no event comes before; infinite if no server has rounds left
        if some.chooses_more:
            self.chosen = SpeedAndPower(np.ones(n), np.zeros(n), np.zeros(n, bool))
        if some.cell.errors is not None:
            self.luck = Luck(np.zeros(n, bool), np.full(n, IDLE, np.int64), np.zeros(n, np.int64))
        loses = some.cell.outage is not None and some.cell.outage.rule == "lose"
        differ = some.chooses_more or self.luck is not None or loses or some.events  # the jobs of a UE
        if differ or not all(cell.is_plain for cell in cells):
            self.job_s, self.rate_factor = np.zeros(n), np.ones(n)
        if self.presence is not None:
            self.present = self.presence.present(0.0)
        if network is not None:
            self.serving = serving_cells(self)
        for of_server in conditions:
            self._add(of_server)
        self.records = [Recorder(c.compute_s, c.protocol.quorum, c.cell.downlink_s) for c in conditions]
        for number in range(len(conditions)):
            self._assign_model(number)
        self.sources = list(sources_of(self, has_cloud=edge_rounds is not None))

    def _add(self, conditions: Conditions) -> None:
        n = conditions.cell.ues
        zeros, never = np.zeros(n), np.full(n, np.inf)
        conditions.protocol.check(n)
        protocol_state = Server(0, np.full(n, IDLE, np.int64), np.full(n, -1, np.int64), 0.0)
        server = ServerState(conditions, protocol_state, never, never.copy())
        server.left = FOREVER if self._edge_rounds is None else self._edge_rounds
        server.jobs = None if self.job_s is None else JobTimes(zeros, zeros, zeros)
        sends_models = self.cells[0].cell.downlink is not None
        server.model_s = zeros if sends_models or self._edge_rounds is not None else None
        server.sent_to = np.zeros(0 if self.network is None else n, np.int64)
        self.servers.append(server)

    @property
    def server(self) -> Server:
        """The state of the protocol of the first server."""
        return self.servers[0].server

    # ---- The loop

    def play(
        self,
        end_s: float,
        until_s: Callable[[], float] = forever,
        on_round: OnRound | None = None,
        *,
        once: bool = False,
    ) -> bool:
        """Play until no server has rounds left, the next event would come too late, or ``once`` a round has closed.

        Args:
            end_s: The horizon.
            until_s: When something outside next affects the servers, asked before every event.
            on_round: Called with every closed round.
            once: Whether to stop after a round.

        Returns:
            Whether it stopped after a round.

        Raises:
            ValueError: If a round can never close.
        """
        while any(server.left > 0 for server in self.servers):
            self._share()
            self._forecast()
            times_s = [source.next_s(self) for source in self.sources]
            closing_s, limit_s = min([closing.time_s for closing in self._closings]), until_s()
            self.next_s = now_s = min([closing_s, *times_s])
            if self._events == MAX_CHANGES or closing_s == math.inf:
                self._check_progress(times_s, limit_s)
            if now_s > min(end_s, limit_s) or now_s == math.inf:
                return False
            due = [source for source, at_s in zip(self.sources, times_s, strict=True) if at_s <= now_s]
            closed = self._step(now_s, due)
            if on_round is not None:
                for info in closed:
                    on_round(info)
            if closed and once:
                return True
        self.next_s = math.inf
        return False

    def _step(self, now_s: float, due: Sequence[EventSource]) -> list[RoundInfo]:
        """Let time go on to the next event, and let it happen; return the rounds that closed."""
        closing = [number for number, forecast in enumerate(self._closings) if forecast.time_s <= now_s < math.inf]
        acting = {type(source) for source in due}
        opens = Openings in acting and self.servers[0].jobs is None  # jobs that have begun before the timeline ends
        if closing or opens:
            self.before, self._events = None, 0
        else:
            self._events += bool(self.weak.any() or acting - {FadingChanges})
            self.before = self.before or (self.time_s, [copy.copy(server) for server in self.servers], self.present)
        advance(self, now_s)
        touched = set[int]()
        for source in due:
            touched |= source.fire(self)
        closed = {number: self._close(number) for number in closing}
        for number in range(len(self.servers)):
            if self.network is None and not touched and number not in closed:
                continue
            handed = self._assign_model(number)
            if number in closed:
                closed[number].handed = handed
            if handed.size or number in closed:
                touched.update(self.cells_of(number))
        for cell in touched:
            self.cells[cell].uplink = None  # share its band again
        return list(closed.values())

    def _check_progress(self, times_s: Sequence[float], until_s: float) -> None:
        """Raise ValueError if no round can ever close, given when the sources act. Fading alone closes none, but may end an outage."""
        (server, *others), closing_s = self.servers, min(closing.time_s for closing in self._closings)
        acting = zip(self.sources, times_s, strict=True)
        may_close = [at_s for source, at_s in acting if self.weak.any() or not isinstance(source, FadingChanges)]
        source_s = min(may_close, default=math.inf)
        if all(server.left <= 0 for server in self.servers):
            return  # they have too little energy
        if others and (closing_s == source_s == until_s == math.inf or self._events == MAX_CHANGES):
            raise ValueError(
                f"no edge has closed a round in {self._events + 1} events (second {self.time_s:.6g}); use a smaller quorum."
            )
        if not others and closing_s == source_s == math.inf and not server.waits:
            rules, present = server.conditions.protocol, self.present
            why = why_stuck(server.server, server.arrival_s, rules, server.planned, present)
            if self.weak.any():
                why = f"UE {self.weak.argmax()} is in outage, and its signal does not change. Set --speed-mps, or a lower --outage rate."
            raise InputError(f"round {server.server.round} never closes: {why}")
        if self._events == MAX_CHANGES:
            raise ValueError(
                f"round {server.server.round} has not closed after {MAX_CHANGES} times that UEs came or went (second "
                f"{self.time_s:.6g}). With --on-leave lose a UE that is never present for a whole job never arrives: "
                "use keep, or a smaller quorum. With --errors or --outage, its uploads may always fail."
            )

    # ---- What comes next

    def _share(self) -> None:
        """Plan the rounds that have opened, and ask the policies to share the bands that something has changed in."""
        for number, cell in enumerate(self.cells):
            if cell.uplink is None:
                server = self.server_of(number)
                if server.planned is None and not server.waits and not server.conditions.protocol.rests:
                    plan(self, number if len(self.servers) > 1 else 0)
                cell.uplink = uplink(self, number)
                allocation = allocate(server.conditions.bandwidth, cell.uplink)
                if isinstance(allocation, Allocation):
                    self.records[number if len(self.servers) > 1 else 0].give(choose(self, number, allocation))
                    allocation = allocation.bandwidth_hz
                cell.bandwidth_hz = allocation
        if self.chosen is not None:
            self.chosen.starts = np.zeros_like(self.chosen.starts)

    def _forecast(self) -> None:
        """Compute the rates, and when uploads arrive and rounds close if nothing else happens."""
        server, cell = self.servers[0], self.cells[0]
        band_hz, signal_hz, idle_s = cell.bandwidth_hz, cell.signal_hz, server.arrived_s
        if self.chosen is not None:
            signal_hz = signal_hz * self.chosen.power
        if self.network is not None:
            at = self.serving, np.arange(self.serving.size)
            band_hz = np.stack([cell.bandwidth_hz for cell in self.cells])[at]
            signals_hz = np.stack([cell.signal_hz for cell in self.cells])
            signals_hz = signals_hz if self.chosen is None else signals_hz * self.chosen.power
            signal_hz = signals_hz[at] / (1 + rises(self, signals_hz, band_hz > 0))[self.serving]
            idle_s = np.full(self.serving.size, np.inf)
        send(self, band_hz, signal_hz, idle_s, cell.cell.limit)
        if cell.cell.outage is not None:
            fleet = cell.cell.fleet
            self.weak = (self.bits > 0) & (band_hz > 0) & (self.rate_bps < cell.cell.outage.rate_bps)
            self.weak &= True if fleet is None else fleet.shares_band
            self.rate_bps[self.weak], self.sent_s[self.weak] = 0.0, np.inf
        server.arrival_s, self._closings = self.sent_s, []
        for number, server in enumerate(self.servers):
            if self.network is not None:
                trip_s = self.network.trip_s[number, self.serving]
                server.arrival_s = np.where(server.busy, self.sent_s + trip_s, server.arrived_s)
            if self.luck is not None:
                server.arrival_s = np.where(self.luck.fails & server.busy, np.inf, server.arrival_s)
            self._closings.append(self._closing(number))

    def _closing(self, number: int) -> Closing:
        server = self.servers[number]
        conditions = server.conditions
        if server.left > 0 and conditions.budget is not None and not server.waits:
            may_come = None
            if self.present is not None or self.network is not None:
                may_come = self._has_energy(server)
            if may_come is not None and self.network is not None and self.cells[0].cell.moves is None:
                may_come &= np.isin(self.serving, self.cells_of(number))
            if too_few(server.server.versions, server.server.round, conditions.protocol, may_come):
                server.left = -1
        if server.left <= 0:
            return NEVER
        return close_round(server.server, server.arrival_s, conditions.protocol, server.planned, self.time_s)

    # ---- Rounds close, and jobs begin

    def _close(self, number: int) -> RoundInfo:
        """Close the round of a server, and record it. An edge whose turn it is then waits for the cloud's model."""
        server, closing, now_s = self.servers[number], self._closings[number], self.time_s
        before, conditions, cell = server.server, server.conditions, self.cells[self.cells_of(number)[0]]
        after, lost = end_jobs(before, closing, conditions.protocol)
        outcomes = ((closing.merged, MERGED), (lost, LOST)) if server.jobs is not None else ()
        ended = [server.parts(ues, outcome, now_s, self.present) for ues, outcome in outcomes]
        assert cell.uplink is not None
        bands = cell.uplink, cell.bandwidth_hz, self.rate_bps, server.arrival_s
        staleness, parts = before.round - before.versions[closing.merged], (server.interrupted, ended)
        info = RoundInfo(server.begun_s, closing, lost, staleness, *bands, before.versions, *parts)
        self.records[number].add(info, None if server.jobs is not None else server.model_s)
        if len(self.servers) > 1:
            followed = closing.merged[server.sent_to[closing.merged] != number]
            bits = float(2.0 * conditions.full_bits[followed].sum())  # to the cloud and back
            self.followed_bits[number].append(bits)
        if lost.size:
            dropped = lost[np.isinf(server.arrived_s[lost])]
            self.compute_s[dropped] = self.bits[dropped] = 0.0
            server.arrived_s[lost] = server.sent_s[lost] = np.inf
        server.arrived_s[closing.merged] = server.sent_s[closing.merged] = np.inf
        server.left -= 1
        if server.left == 0 and self._edge_rounds is not None:
            after = replace(after, opened_s=math.inf)
        server.server, server.closed_s, server.begun_s, server.interrupted = after, now_s, now_s, []
        server.planned = None
        for place in self.cells_of(number):
            self.cells[place].signal_hz = self.cells[place].cell.channel.signal_at(after.round, now_s)
        return info

    def open(self, number: int, time_s: float) -> None:
        """Let the cloud's model be at an edge at a time."""
        self.servers[number].left, self.servers[number].opens_s = self._edge_rounds or 0, time_s
        self.next_s = self.time_s

    def _assign_model(self, number: int) -> Ues:
        """Hand the newest model to the free UEs that may have it, and return them."""
        server = self.servers[number]
        if server.waits or server.left < 0:
            return NO_UES
        present, protocol = self.in_reach(number), server.conditions.protocol
        if protocol.rests and server.planned is None:
            plan(self, number)
        allowed = [] if present is None else [present]
        allowed += [] if self.network is None else [self.bits == 0]
        allowed += [] if server.conditions.budget is None else [self._has_energy(server)]
        reached = np.logical_and.reduce(allowed) if allowed else None
        server.server, handed = assign_model(server.server, protocol, reached, server.planned)
        tries = begin_jobs(self, number, handed)
        if tries is not None:
            self.records[number].give(tries)
        return handed

    def _has_energy(self, server: ServerState) -> Mask:
        assert server.conditions.budget is not None
        assert self.spent_j is not None
        return ~server.conditions.budget.gone(self.spent_j)

    # ---- What was played

    def timelines(self, end_s: float = 0.0) -> list[Timeline]:
        """Return the timeline of each server until a round last closed, and open jobs until ``end_s`` if that is later."""
        time_s, servers, present = self.before or (self.time_s, self.servers, self.present)
        timelines = []
        for server, record in zip(servers, self.records, strict=True):
            arrived_s = np.where(server.arrived_s <= time_s, server.arrived_s, np.inf)
            model_s = None if server.jobs is not None else server.model_s
            parts = server.open_parts(time_s, present)
            timelines.append(record.timeline(server.server.versions, arrived_s, model_s, parts, end_s))
        return timelines
