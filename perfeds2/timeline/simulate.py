"""What does a cell's clock show: who arrives when, round after round?

The virtual clock. Within a round gains and bandwidths stand still, so every UE's arrival is one formula, the protocol
says when the round closes, and what was not finished is carried over. No time step: the times are exact in float64.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.allocation.bandwidth import Policy, Uplink, allocate, equal_share
from perfeds2.allocation.schedulers import Moment
from perfeds2.network.blocks import each_block
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.timeline.crowd import HOPE, LEAST_CROWD, MARGIN, Crowd, most_bits, split_crowd
from perfeds2.timeline.rounds import (
    IDLE,
    Closing,
    HandOut,
    Planned,
    Protocol,
    Server,
    close_round,
    hand_out,
    invite,
    open_server,
)
from perfeds2.timeline.stretches import Ended, Log
from perfeds2.timeline.timeline import Timeline

A_CROWD = 256  # jobs lost at once; from here on they are not recorded one by one
LEAST_LEFT = np.finfo(float).eps  # of its payload a job has at least this left until it has arrived
# round -> the UEs it must close on, or groups of them of which the first complete one closes it. A parameter named
# ``moment`` is given all that is known when the round opens, instead of its number.
Schedule = Callable[[Any], Planned]
Tell = Callable[[int, float], None]  # hears how many rounds have closed, and when the last one did


@dataclass(frozen=True)
class Conditions:
    """What stays the same from round to round."""

    cell: Cell
    protocol: Protocol
    payload_bits: float  # Z: what one upload takes
    compute_s: Float[np.ndarray, " n"]  # what one job's computing takes
    shares: Float[np.ndarray, " n"]  # η
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first A arrivals

    @cached_property
    def looks(self) -> bool:
        """Whether the schedule looks at the moment, not only at the round's number."""
        return self.schedule is not None and "moment" in inspect.signature(self.schedule).parameters


@dataclass(frozen=True)
class Clock:
    """Where everybody stands at the start of a round."""

    time_s: float
    server: Server
    compute_s: Float[np.ndarray, " n"]  # computing left
    bits: Float[np.ndarray, " n"]  # bits left to send
    arrived_s: Float[np.ndarray, " n"]  # when the update was complete at the server; infinite if it is not
    planned: Planned | None = None  # whom the round closes on, where only they are handed its model
    begun_s: Float[np.ndarray, " n"] | None = None  # where UEs come and go: since when each is at work without a break,
    sends_s: Float[np.ndarray, " n"] | None = None  # and when it begins to send, if it stays


@dataclass(frozen=True)
class RoundInfo:
    """What happened in one round; not needed to go on."""

    start_s: float
    closing: Closing
    hand_out: HandOut
    staleness: Int[np.ndarray, " A"]
    uplink: Uplink
    bandwidth_hz: Float[np.ndarray, " n"]
    rate_bps: Float[np.ndarray, " n"]
    arrival_s: Float[np.ndarray, " n"]  # when each update arrives if the round lasted long enough
    versions: Int[np.ndarray, " n"]  # the model each UE worked from during the round, or when it closed
    ended: Ended | None = None  # where UEs come and go: the work that ended in the round


def simulate(
    cell: Cell,
    protocol: Protocol,
    *,
    payload_bits: float,
    samples: float,
    rounds: int | None = None,
    horizon_s: float | None = None,
    bandwidth: Policy = equal_share,
    schedule: Schedule | None = None,
    shares: Float[np.ndarray, " n"] | None = None,
    watch: Callable[[RoundInfo], None] | None = None,
    tell: Tell | None = None,
) -> Timeline:
    """Play the protocol on a cell for a number of rounds, or for all rounds that close by ``horizon_s``, or both limits.

    ``watch`` sees everything about every round, ``tell`` hears how many rounds have closed and when. A crowd is played
    without following those who cannot arrive; the timeline is the same to the last bit.
    """
    if rounds is None and horizon_s is None:
        raise ValueError("simulate needs rounds or horizon_s, got neither.")
    if rounds is not None and rounds < 0:
        raise ValueError(f"rounds must be at least 0, got {rounds}.")
    if horizon_s is not None and not (horizon_s >= 0 and (math.isfinite(horizon_s) or rounds is not None)):
        raise ValueError(f"horizon_s must be a finite number of seconds from 0, got {horizon_s}.")
    if not (np.isfinite(samples) and samples >= 0):
        raise ValueError(f"samples must be finite and at least 0, got {samples}.")
    if not (np.isfinite(payload_bits) and payload_bits > 0):
        raise ValueError(f"payload_bits must be finite and above 0, got {payload_bits}.")
    shares = np.full(cell.ues, 1 / cell.ues) if shares is None else np.asarray(shares, float)
    if shares.shape != (cell.ues,):
        raise ValueError(f"shares must hold one number for each of {cell.ues} UEs, got shape {shares.shape}.")
    if protocol.drafts and schedule is not None:
        raise ValueError("a protocol that drafts the first who were not merged last time takes no schedule.")
    if protocol.rests and schedule is None:
        raise ValueError("without a schedule nobody is planned, so nobody can rest; give simulate a schedule.")
    job_s = cell.job_s(samples, protocol.quorum)
    conditions = Conditions(cell, protocol, float(payload_bits), job_s, shares, bandwidth, schedule)
    hopeful = _hopeful(conditions) if watch is None else None
    if hopeful is not None:
        crowd = split_crowd(cell, hopeful, conditions.compute_s, conditions.payload_bits)
        timeline = play_crowd(conditions, crowd, rounds=rounds, horizon_s=horizon_s, tell=tell)
        if timeline is not None:
            return timeline
    _, timeline = play(conditions, start_clock(conditions), rounds=rounds, horizon_s=horizon_s, watch=watch, tell=tell)
    return timeline


def start_clock(conditions: Conditions) -> Clock:
    """Second 0: everybody at work has just been handed w_0."""
    server = open_server(conditions.cell.ues, conditions.protocol, conditions.cell.here(0.0))
    at_work = server.versions != IDLE
    clock = Clock(
        0.0,
        server,
        np.where(at_work, conditions.compute_s, 0.0),
        np.where(at_work, conditions.payload_bits, 0.0),
        np.full(conditions.cell.ues, np.inf),
    )
    if not conditions.cell.is_plain:
        clock = replace(clock, begun_s=np.zeros(clock.bits.size), sends_s=clock.compute_s)
    return _invite(conditions, clock)[0] if conditions.protocol.rests else clock


def play(
    conditions: Conditions,
    clock: Clock,
    past: Timeline | None = None,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    watch: Callable[[RoundInfo], None] | None = None,
    tell: Tell | None = None,
) -> tuple[Clock, Timeline]:
    """Go on from a clock for so many more rounds. Returns where it stopped, and the timeline: the past and what followed."""
    past = _nothing_yet(conditions) if past is None else past
    if past.rounds != clock.server.round:
        raise ValueError(f"the clock stands at round {clock.server.round}, but the past has {past.rounds} rounds.")
    record = Recorder(conditions, past)
    while rounds is None or clock.server.round < past.rounds + rounds:
        ticked = tick(conditions, clock, math.inf if horizon_s is None else horizon_s)
        if ticked is None:
            break
        later, info = ticked
        if horizon_s is not None and later.time_s > horizon_s:
            break
        server = clock.server if info.ended is None else replace(clock.server, versions=info.versions)
        record.add(server, info.closing, info.staleness, info.hand_out.lost, info.arrival_s, info.ended)
        if watch is not None:
            watch(info)
        clock = later
        if tell is not None:
            tell(clock.server.round, clock.time_s)
    return clock, record.timeline(clock.server, clock.arrived_s, clock)


class Recorder:
    """Collects the rounds of a timeline, one after the other."""

    def __init__(self, conditions: Conditions, past: Timeline) -> None:
        self._conditions = conditions
        self._rounds = [[past.ues, past.staleness, past.arrival_s, past.time_s]]
        self._lost = [[past.lost_ue, past.lost_version, past.lost_round, past.lost_arrival_s, past.lost_count]]
        self._log = None if conditions.cell.is_plain else Log(past.log)

    def add(
        self,
        server: Server,
        closing: Closing,
        staleness: Int[np.ndarray, " A"],
        lost: Int[np.ndarray, " l"],
        arrival_s: Float[np.ndarray, " n"],
        ended: Ended | None = None,
    ) -> None:
        """One more round: the server that it had, how it closed and how stale, whose job was lost, who arrives when."""
        if ended is not None and self._log is not None:
            self._log.parts.append(ended.log)
            self._lost.append(ended.lost_rows(server.round))
        merged, now_s = closing.merged, closing.time_s
        self._rounds.append([merged[None], staleness[None], arrival_s[None, merged], np.array([now_s])])
        if lost.size:
            version, arrived_s = server.versions[lost], arrival_s[lost]
            arrived_s[arrived_s > now_s] = np.inf
            first = np.arange(lost.size)
            if lost.size > A_CROWD:  # one row for UEs with successive numbers and the same fate: that is few rows
                same = (np.diff(version) == 0) & (arrived_s[1:] == arrived_s[:-1])
                first = np.concatenate([[0], 1 + np.flatnonzero((np.diff(lost) != 1) | ~same)])
            round_, count = np.full(first.size, server.round), np.diff(first, append=lost.size)
            self._lost.append([lost[first], version[first], round_, arrived_s[first], count])

    def timeline(self, server: Server, arrived_s: Float[np.ndarray, " n"], clock: Clock | None = None) -> Timeline:
        """What was recorded, and what everybody had in hand when the clock stopped."""
        log = (
            None
            if clock is None or self._log is None
            else self._log.until(clock, self._conditions.cell.here(clock.time_s))
        )
        ues, staleness, arrival_s, time_s = map(np.concatenate, zip(*self._rounds, strict=True))
        lost_ue, lost_version, lost_round, lost_arrival_s, lost_count = map(
            np.concatenate, zip(*self._lost, strict=True)
        )
        return Timeline(
            ues, staleness, arrival_s, time_s, self._conditions.compute_s,
            lost_ue, lost_version, lost_round, lost_arrival_s, server.versions, arrived_s, lost_count, log,
        )  # fmt: skip


def _nothing_yet(conditions: Conditions) -> Timeline:
    quorum, n = conditions.protocol.quorum, conditions.cell.ues
    none, never = np.empty(0, np.int64), np.empty(0)
    table = (0, quorum)
    return Timeline(
        none.reshape(table), none.reshape(table), never.reshape(table), never, conditions.compute_s,
        none, none, none, never, np.zeros(n, np.int64), np.full(n, np.inf),
    )  # fmt: skip


def tick(conditions: Conditions, clock: Clock, until_s: float = math.inf) -> tuple[Clock, RoundInfo] | None:
    """Play one round. None if it is known not to close by ``until_s``."""
    if not conditions.cell.is_plain:
        from perfeds2.timeline.comings import tick_of_fleet  # late: it builds on this file

        return tick_of_fleet(conditions, clock, until_s)
    cell, server, protocol = conditions.cell, clock.server, conditions.protocol
    signal_hz = cell.signal_at(server.round, clock.time_s)
    planned = clock.planned if protocol.rests else _planned(conditions, clock, signal_hz)
    uplink = Uplink(
        server.round,
        cell.bandwidth_hz,
        signal_hz,
        clock.compute_s,
        clock.bits,
        conditions.shares,
        None if planned is None else _mask(planned, cell.ues),
        cell.cap_bits_per_s_hz,
    )
    bandwidth = allocate(conditions.bandwidth, uplink)
    rate, arrival_s = _arrivals(cell, clock, bandwidth, uplink.signal_hz)
    closing = close_round(server, arrival_s, protocol, planned)
    if not math.isfinite(closing.time_s):
        obstacle = _obstacle(server, arrival_s, protocol, planned)
        raise ValueError(f"round {server.round} never closes: {obstacle}")
    opened_s = clock.time_s
    while closing.time_s > (change_s := cell.changes_s(clock.time_s)):  # then from there, with other signals
        clock = Clock(change_s, server, *_work_left(conditions, clock, server, change_s, rate, arrival_s))
        rate, arrival_s = _arrivals(cell, clock, bandwidth, cell.signal_at(server.round, change_s))
        closing = close_round(server, arrival_s, protocol, planned)
    staleness = server.round - server.versions[closing.merged]
    later_server, handed = hand_out(server, closing, protocol)
    later = _carry_over(conditions, clock, later_server, handed.handed, rate, arrival_s)
    if protocol.rests:
        later, invited = _invite(conditions, later)
        handed = HandOut(invited, handed.lost)
    return later, RoundInfo(opened_s, closing, handed, staleness, uplink, bandwidth, rate, arrival_s, server.versions)


def _planned(conditions: Conditions, clock: Clock, signal_hz: Float[np.ndarray, " n"]) -> Planned | None:
    """Whom the schedule plans for the round that opens now."""
    schedule, quorum, n, round_ = (
        conditions.schedule,
        conditions.protocol.quorum,
        conditions.cell.ues,
        clock.server.round,
    )
    if schedule is None:
        return None
    planned = np.asarray(schedule(_moment(conditions, clock, signal_hz) if conditions.looks else round_))
    whole = planned.ndim in (1, 2) and planned.shape[-1] == quorum and planned.size
    whole = whole and np.issubdtype(planned.dtype, np.integer) and planned.min() >= 0 and planned.max() < n
    if not whole or np.count_nonzero(_mask(planned, n)) != planned.size:
        raise ValueError(
            f"the schedule plans {planned} for round {round_}; expected {quorum} different UEs from 0 to {n - 1}."
        )
    return planned


def _moment(conditions: Conditions, clock: Clock, signal_hz: Float[np.ndarray, " n"]) -> Moment:
    server, rests = clock.server, clock.server.versions == IDLE
    return Moment(
        server.round,
        clock.time_s,
        conditions.protocol.quorum,
        conditions.cell.bandwidth_hz,
        signal_hz,
        np.where(rests, conditions.compute_s, clock.compute_s),
        np.where(rests, conditions.payload_bits, clock.bits),
        server.versions,
        server.merged_in,
        conditions.cell.cap_bits_per_s_hz,
        None if conditions.cell.fleet is None else conditions.cell.fleet.own_bps,
        conditions.cell.here(clock.time_s),
    )


def _invite(conditions: Conditions, clock: Clock) -> tuple[Clock, Int[np.ndarray, " h"]]:
    """Where the unplanned rest: plan the round that opens now, and start the jobs of those who are planned."""
    planned = _planned(conditions, clock, conditions.cell.signal_at(clock.server.round, clock.time_s))
    assert planned is not None  # ``simulate`` has seen to it
    server, handed = invite(clock.server, planned, conditions.cell.here(clock.time_s))
    compute_s, bits = clock.compute_s.copy(), clock.bits.copy()
    compute_s[handed], bits[handed] = conditions.compute_s[handed], conditions.payload_bits
    if clock.begun_s is not None and clock.sends_s is not None:
        begun_s, sends_s = clock.begun_s.copy(), clock.sends_s.copy()
        begun_s[handed], sends_s[handed] = clock.time_s, clock.time_s + compute_s[handed]
        clock = replace(clock, begun_s=begun_s, sends_s=sends_s)
    return replace(clock, server=server, compute_s=compute_s, bits=bits, planned=planned), handed


def _mask(ues: Planned, n: int) -> Bool[np.ndarray, " n"]:
    mask = np.zeros(n, bool)
    mask[ues] = True
    return mask


def _arrivals(
    cell: Cell, clock: Clock, bandwidth_hz: Float[np.ndarray, " n"], signal_hz: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The rates, and when each update is complete at the server if this round lasts long enough: now, computing, sending."""
    rate, arrival_s = np.empty_like(clock.bits), np.empty_like(clock.bits)
    each_block(rate.size, partial(_send, cell.cap_bits_per_s_hz, clock, bandwidth_hz, signal_hz, rate, arrival_s))
    return rate, arrival_s


def _send(
    cap: float | None,
    clock: Clock,
    bandwidth_hz: Float[np.ndarray, " n"],
    signal_hz: Float[np.ndarray, " n"],
    rate: Float[np.ndarray, " n"],
    arrival_s: Float[np.ndarray, " n"],
    at: slice,
) -> None:
    """Fill in the rates and arrivals of a block of UEs."""
    rate[at] = bits_per_s = rate_bps(bandwidth_hz[at], signal_hz[at], cap)
    bits, arrival = clock.bits[at], arrival_s[at]
    with np.errstate(divide="ignore", invalid="ignore"):  # no rate: never; no bits at no rate: replaced below
        np.divide(bits, bits_per_s, out=arrival)
    arrival += clock.time_s + clock.compute_s[at]
    # A job that is open when the round opens is over later, however few bits rounding left it.
    np.maximum(arrival, math.nextafter(clock.time_s, math.inf), out=arrival)
    np.copyto(arrival, clock.arrived_s[at], where=bits == 0)


def _obstacle(server: Server, arrival_s: Float[np.ndarray, " n"], protocol: Protocol, planned: Planned | None) -> str:
    """Why a round cannot close, and what to do."""
    planned = None if planned is None else planned.ravel()
    for ue in [] if planned is None else planned:
        version = server.versions[ue]
        if version == IDLE:
            return (
                f"the schedule plans UE {ue}, which has no job and waits for its turn; plan it later, or use restart."
            )
        if protocol.max_staleness is not None and server.round - version > protocol.max_staleness:
            return (
                f"the schedule plans UE {ue}, whose model w_{version} is staler than {protocol.max_staleness}; "
                f"plan every UE at least once in {protocol.max_staleness + 1} rounds, or use restart."
            )
    awaited = np.flatnonzero(server.versions != IDLE) if planned is None else np.sort(planned)
    stuck = awaited[np.isinf(arrival_s[awaited])][0]
    return f"UE {stuck} gets no bandwidth; the bandwidth policy must serve the UEs the round waits for."


def _carry_over(
    conditions: Conditions,
    clock: Clock,
    server: Server,
    handed: Int[np.ndarray, " handed"],
    rate: Float[np.ndarray, " n"],
    arrival_s: Float[np.ndarray, " n"],
) -> Clock:
    """Take what was computed and sent in the round off everybody's remaining work, and start the new jobs."""
    compute_s, bits, arrived_s = _work_left(conditions, clock, server, server.opened_s, rate, arrival_s)
    compute_s[handed], bits[handed], arrived_s[handed] = conditions.compute_s[handed], conditions.payload_bits, np.inf
    return Clock(server.opened_s, server, compute_s, bits, arrived_s)


def _work_left(
    conditions: Conditions,
    clock: Clock,
    server: Server,
    now_s: float,
    rate: Float[np.ndarray, " n"],
    arrival_s: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """What is left to compute and to send at a later second, and when those who had arrived by then did.

    ``server`` is the one of then: whom it gives no job has nothing left to do.
    """
    compute_s = clock.compute_s - (now_s - clock.time_s)
    bits = np.minimum(compute_s, 0.0)
    bits *= rate  # minus the bits sent
    bits += clock.bits
    np.maximum(bits, LEAST_LEFT * conditions.payload_bits, out=bits)
    np.maximum(compute_s, 0.0, out=compute_s)
    arrived_s = np.full(bits.size, np.inf)
    (arrived,) = (arrival_s <= now_s).nonzero()
    arrived_s[arrived] = arrival_s[arrived]
    compute_s[arrived] = bits[arrived] = 0.0
    if conditions.protocol.waits or conditions.protocol.rests:
        idle = np.flatnonzero(server.versions == IDLE)
        compute_s[idle], bits[idle], arrived_s[idle] = 0.0, 0.0, np.inf
    return compute_s, bits, arrived_s


# A crowd: the same rounds, following only those who can arrive.


def _hopeful(conditions: Conditions) -> int | None:
    """How many of a crowd to follow; None where everybody must be: their work counts, or they are few."""
    protocol, n = conditions.protocol, conditions.cell.ues
    if (
        protocol.stale != "restart"
        or protocol.max_staleness is None
        or conditions.schedule is not None
        or protocol.drafts
    ):
        return None
    known = conditions.bandwidth is equal_share and type(conditions.cell).signal_hz is Cell.signal_hz
    known = known and not conditions.cell.changes_in_rounds and conditions.cell.is_plain
    hopeful = HOPE * protocol.quorum * (protocol.max_staleness + 1)
    return hopeful if known and n >= LEAST_CROWD and hopeful <= n // 4 else None


def play_crowd(
    conditions: Conditions,
    crowd: Crowd,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    tell: Tell | None = None,
) -> Timeline | None:
    """The timeline of ``play`` from second 0, for ``restart`` and ``equal_share``; None if the hopeless might arrive."""
    cell, protocol, n, ues = conditions.cell, conditions.protocol, conditions.cell.ues, crowd.hopeful
    if protocol.stale != "restart" or protocol.max_staleness is None or conditions.schedule is not None:
        raise ValueError("only a crowd that restarts, without a schedule, can be played without following everybody.")
    few = replace(conditions, compute_s=conditions.compute_s[ues], shares=conditions.shares[ues])
    clock = Clock(
        0.0, open_server(n, protocol), few.compute_s, np.full(ues.size, few.payload_bits), np.full(ues.size, np.inf)
    )
    record, sent_bits = Recorder(conditions, _nothing_yet(conditions)), 0.0  # by a hopeless UE in its job, at most
    since_s = crowd.least_s  # no hopeless UE sends before
    arrival_s = np.full(n, np.inf)  # of the hopeless: never
    while rounds is None or clock.server.round < rounds:
        server, sending = clock.server, clock.bits > 0
        band_hz = cell.bandwidth_hz / (n - ues.size + np.count_nonzero(sending))
        signal_hz = cell.signal_hz(server.round, ues)
        rate, arrival_s[ues] = _arrivals(cell, clock, np.where(sending, band_hz, 0.0), signal_hz)
        closing = close_round(server, arrival_s, protocol)
        if server.round % (protocol.max_staleness + 1) == 0:
            sent_bits, since_s = 0.0, clock.time_s + crowd.least_s  # never merged, the hopeless all start over together
        sent_bits += most_bits(crowd, band_hz, max(closing.time_s - max(clock.time_s, since_s), 0.0))
        if not sent_bits < (1 - MARGIN) * conditions.payload_bits:
            return None
        if horizon_s is not None and closing.time_s > horizon_s:
            break
        later, hand = hand_out(server, closing, protocol)
        record.add(server, closing, server.round - server.versions[closing.merged], hand.lost, arrival_s)
        handed = crowd.place[hand.handed]
        clock = _carry_over(few, clock, later, handed[handed >= 0], rate, arrival_s[ues])
        if tell is not None:
            tell(later.round, later.opened_s)
    arrived_s = np.full(n, np.inf)
    arrived_s[ues] = clock.arrived_s
    return record.timeline(clock.server, arrived_s)
