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
from perfeds2.timeline.budget import Budget, Work, too_few
from perfeds2.timeline.crowd import HOPE, LEAST_CROWD, MARGIN, Crowd, most_bits, split_crowd
from perfeds2.timeline.protocol import (
    IDLE,
    Closing,
    HandOut,
    Planned,
    Protocol,
    Server,
    close_round,
    hand_out,
    invite,
    obstacle,
    open_server,
)
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder, nothing_yet
from perfeds2.timeline.stretches import Ended, InHand

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
    compute_s: Float[np.ndarray, " n"]  # what one job's computing takes, with its model there
    shares: Float[np.ndarray, " n"]  # η
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first A arrivals
    budget: Budget | None = None  # None: nobody runs out of energy

    @cached_property
    def usual_s(self) -> Float[np.ndarray, " n"]:
        """Until a UE that is handed a model now has computed, as far as one can say beforehand."""
        cell = self.cell
        return self.compute_s + (cell.model_s(self.protocol.quorum) - cell.downlink_s if cell.downlink else 0.0)

    @cached_property
    def looks(self) -> bool:
        """Whether the schedule looks at the moment, not only at the round's number."""
        return self.schedule is not None and "moment" in inspect.signature(self.schedule).parameters


@dataclass(frozen=True)
class Clock:
    """Where everybody stands at the start of a round."""

    time_s: float
    server: Server
    compute_s: Float[np.ndarray, " n"]  # waiting for the model and computing left
    bits: Float[np.ndarray, " n"]  # bits left to send
    arrived_s: Float[np.ndarray, " n"]  # when the update was complete at the server; infinite if it is not
    planned: Planned | None = None  # whom the round closes on, where only they are handed its model
    spent_j: Float[np.ndarray, " n"] | None = None  # by each UE; None where nobody asks
    model_s: Float[np.ndarray, " n"] | None = None  # how long each waited for its model; None: see the cell's downlink
    sent_s: float = 0.0  # when the base station has sent all models
    in_hand: InHand | None = None  # where UEs come and go, or their jobs differ

    @property
    def work(self) -> Work:
        return Work(self.time_s, self.compute_s, self.bits)


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
    budget: Budget | None = None,
    watch: Callable[[RoundInfo], None] | None = None,
    tell: Tell | None = None,
) -> Timeline:
    """Play the protocol on a cell for a number of rounds, or for all rounds that close by ``horizon_s``, or both limits.

    With a ``budget`` it ends earlier where fewer than A UEs are left.

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
    if budget is not None and schedule is not None:
        raise ValueError(
            "a schedule would wait for UEs that have spent their energy; give simulate no budget with one."
        )
    if cell.downlink is not None and cell.fleet is not None and not cell.fleet.shares_band.all():
        raise ValueError("how models reach UEs with uplinks of their own is not known; leave the downlink out.")
    compute_s = cell.compute_s(samples)
    conditions = Conditions(cell, protocol, float(payload_bits), compute_s, shares, bandwidth, schedule, budget)
    hopeful = _hopeful(conditions) if watch is None else None
    if hopeful is not None:
        crowd = split_crowd(cell, hopeful, conditions.compute_s, conditions.payload_bits)
        from perfeds2.timeline.compiled import crowd_pays, hurry_through_crowd  # late: it imports this file

        play_it = hurry_through_crowd if crowd_pays(conditions, rounds) else play_crowd
        timeline = play_it(conditions, crowd, rounds=rounds, horizon_s=horizon_s, tell=tell)
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
        spent_j=None if conditions.budget is None else np.zeros(conditions.cell.ues),
        model_s=None if conditions.cell.downlink is None else np.zeros(conditions.cell.ues),
    )
    if not conditions.cell.is_plain:
        clock = replace(clock, in_hand=InHand.nothing(clock.bits.size))
    if conditions.protocol.rests:
        return _invite(conditions, clock)[0]
    if clock.in_hand is not None:
        from perfeds2.timeline.comings import begin_jobs  # late: it builds on this file

        return begin_jobs(conditions, clock, np.flatnonzero(at_work))
    return _send_models(conditions, clock, np.flatnonzero(at_work))


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
    if past is None:
        downlink = conditions.cell.downlink if clock.in_hand is None else None  # else waits are in the log
        past = nothing_yet(conditions.compute_s, conditions.protocol.quorum, downlink)
    if past.rounds != clock.server.round:
        raise ValueError(f"the clock stands at round {clock.server.round}, but the past has {past.rounds} rounds.")
    record, last = Recorder(past), None if rounds is None else past.rounds + rounds
    hurry = _hurry(conditions) if watch is None else None
    while True:
        if hurry is not None:  # as many rounds as the compiled clock knows: the same, to the last bit
            clock = hurry(clock, record, last, horizon_s, tell)
        if last is not None and clock.server.round >= last:
            break
        limited = conditions.budget is not None and clock.in_hand is None  # else a round finds out itself
        if limited and too_few(clock.server.versions, clock.server.round, conditions.protocol):
            break
        ticked = tick(conditions, clock, math.inf if horizon_s is None else horizon_s)
        if ticked is None:
            break
        later, info = ticked
        if horizon_s is not None and later.time_s > horizon_s:
            break
        server = clock.server if info.ended is None else replace(clock.server, versions=info.versions)
        waits = clock.model_s if info.ended is None else None
        record.add(server, info.closing, info.staleness, info.hand_out.lost, info.arrival_s, waits, info.ended)
        if watch is not None:
            watch(info)
        clock = later
        if tell is not None:
            tell(clock.server.round, clock.time_s)
    log = None if clock.in_hand is None else record.log.until(clock, conditions.cell.here(clock.time_s))
    model_s = clock.model_s if clock.in_hand is None else None
    return clock, record.timeline(clock.server.versions, clock.arrived_s, model_s, log)


def _hurry(conditions: Conditions) -> Callable[..., Clock]:
    from perfeds2.timeline.compiled import Hurry  # late: it imports this file

    return Hurry(conditions)


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
        raise ValueError(f"round {server.round} never closes: {obstacle(server, arrival_s, protocol, planned)}")
    opened_s = clock.time_s
    while closing.time_s > (change_s := cell.changes_s(clock.time_s)):  # then from there, with other signals
        left = _work_left(conditions, clock, server, change_s, rate, arrival_s)
        spent_j = clock.spent_j
        if conditions.budget is not None and spent_j is not None:
            spent_j = spent_j + conditions.budget.spent(clock.work, Work(change_s, left[0], left[1]), arrival_s)
        clock = Clock(change_s, server, *left, spent_j=spent_j, model_s=clock.model_s, sent_s=clock.sent_s)
        rate, arrival_s = _arrivals(cell, clock, bandwidth, cell.signal_at(server.round, change_s))
        closing = close_round(server, arrival_s, protocol, planned)
    staleness = server.round - server.versions[closing.merged]
    spent_j, gone = None, None
    if conditions.budget is not None:
        assert clock.spent_j is not None
        left = _work_left(conditions, clock, server, closing.time_s, rate, arrival_s)
        after = Work(closing.time_s, left[0], left[1])
        spent_j = clock.spent_j + conditions.budget.spent(clock.work, after, arrival_s)
        gone = conditions.budget.gone(spent_j)
    later_server, handed = hand_out(server, closing, protocol, None if gone is None else ~gone)
    later = _carry_over(conditions, clock, later_server, handed.handed, rate, arrival_s)
    if spent_j is not None:
        later = replace(later, spent_j=spent_j)
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
        np.where(rests, conditions.usual_s, clock.compute_s),
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
    if clock.in_hand is not None:
        from perfeds2.timeline.comings import begin_jobs

        return begin_jobs(conditions, replace(clock, server=server, planned=planned), handed), handed
    compute_s, bits = clock.compute_s.copy(), clock.bits.copy()
    compute_s[handed], bits[handed] = conditions.compute_s[handed], conditions.payload_bits
    later = replace(clock, server=server, compute_s=compute_s, bits=bits, planned=planned)
    return _send_models(conditions, later, handed), handed


def _send_models(conditions: Conditions, clock: Clock, handed: Int[np.ndarray, " h"]) -> Clock:
    """Where models take their time: whoever has just been handed one computes only when it is there."""
    if clock.model_s is None:
        return clock
    model_s, compute_s = clock.model_s.copy(), clock.compute_s.copy()
    model_s[handed], sent_s = conditions.cell.send_models(handed, clock.time_s, clock.sent_s)
    compute_s[handed] += model_s[handed]
    return replace(clock, compute_s=compute_s, model_s=model_s, sent_s=sent_s)


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
    if clock.model_s is None:
        return Clock(server.opened_s, server, compute_s, bits, arrived_s)
    later = Clock(server.opened_s, server, compute_s, bits, arrived_s, None, None, clock.model_s, clock.sent_s)
    return _send_models(conditions, later, handed)


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
    if conditions.protocol.waits or conditions.protocol.rests or conditions.budget is not None:
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
    known = known and conditions.budget is None and conditions.cell.downlink is None
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
    record = Recorder(nothing_yet(conditions.compute_s, protocol.quorum))
    sent_bits = 0.0  # by a hopeless UE in its job, at most
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
    return record.timeline(clock.server.versions, arrived_s)
