"""What does the clock show where UEs have uplinks of their own, come and go?

The rounds are those of ``simulate.py``. Between two borders (somebody comes or goes, or the fading is redrawn) everything
stands still or follows a trace, so that every arrival is one formula again. When somebody comes or goes, the band is shared
out anew among those who are there. Who is away neither computes nor sends; who comes back without a job is handed the newest model.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.allocation.bandwidth import Uplink, allocate
from perfeds2.network.fleet import Fleet
from perfeds2.timeline.budget import Work, too_few
from perfeds2.timeline.jobs import LOST, MERGED, PAUSED, Jobs
from perfeds2.timeline.protocol import (
    IDLE,
    Closing,
    HandOut,
    Planned,
    Server,
    close_round,
    hand_out,
    leave,
    welcome,
)
from perfeds2.timeline.simulate import (
    LEAST_LEFT,
    Clock,
    Conditions,
    RoundInfo,
    _arrivals,
    _invite,
    _mask,
    _planned,
    _send_models,
    _work_left,
)
from perfeds2.timeline.stretches import Ended, stretches

PerUe = Float[np.ndarray, " n"]
Who = Int[np.ndarray, " _"]
MOST_BORDERS = 100_000  # of one round


@dataclass(frozen=True)
class Air:
    """The bands that were shared out, and what UEs send at; with traces, now."""

    uplink: Uplink
    bandwidth_hz: PerUe
    rate_bps: PerUe
    arrival_s: PerUe  # infinite for who is away


def tick_of_fleet(conditions: Conditions, clock: Clock, until_s: float = math.inf) -> tuple[Clock, RoundInfo] | None:
    """Play one round; None if it does not close by ``until_s``."""
    cell, protocol, opened_s = conditions.cell, conditions.protocol, clock.time_s
    fleet = cell.fleet
    assert fleet is not None
    planned = clock.planned
    if conditions.schedule is not None and not protocol.rests:
        planned = _planned(conditions, clock, cell.signal_at(clock.server.round, opened_s))
    here, ended, gone = here_at(fleet, opened_s), list[Jobs](), list[Who]()
    gone_version = list[Who]()
    air = _share_out(conditions, clock, here, planned)
    for _ in range(MOST_BORDERS):
        has_energy = _has_energy(conditions, clock)
        if has_energy is not None:
            may = has_energy if fleet.presence is not None else None
            if too_few(clock.server.versions, clock.server.round, protocol, may):
                return None
        closing = close_round(clock.server, air.arrival_s, protocol, planned)
        closing = replace(
            closing, time_s=max(closing.time_s, clock.time_s)
        )  # who left may have been all that was waited for
        goes_s = math.inf if fleet.presence is None else fleet.presence.changes_s(clock.time_s)
        border_s = min(cell.changes_s(clock.time_s), goes_s)
        if closing.time_s <= border_s and closing.time_s < math.inf:
            break
        if border_s == math.inf:
            raise ValueError(f"round {clock.server.round} never closes: {_obstacle(clock, air, here, planned)}")
        if border_s > until_s:
            return None
        clock = _later(conditions, clock, border_s, here, air)
        if border_s == goes_s:
            now_here = here_at(fleet, border_s)
            left = np.flatnonzero(here & ~now_here & _busy(clock))
            if not _keeps(fleet):
                gone.append(left)
                gone_version.append(clock.server.versions[left])
            clock, rows = come_and_go(conditions, clock, here, now_here, planned)
            ended += rows
            here = now_here
            air = _share_out(conditions, clock, here, planned)
        else:
            air = _send_on(conditions, clock, here, air, cell.signal_at(clock.server.round, border_s))
    else:
        raise ValueError(
            f"round {clock.server.round} has not closed after {MOST_BORDERS} times that somebody came or went (second "
            f"{clock.time_s:.6g}); with --on-leave lose a UE that is never there for a whole job never arrives: use keep, or a smaller quorum."
        )
    later, info = _close(conditions, clock, closing, here, air)
    assert info.ended is not None
    log = Jobs.joined([*ended, info.ended.log])
    return later, replace(info, start_s=opened_s, ended=Ended(log, _together(gone), _together(gone_version)))


def here_at(fleet: Fleet, time_s: float) -> Bool[np.ndarray, " n"]:
    return np.ones(fleet.ues, bool) if fleet.presence is None else fleet.presence.here(time_s)


def _keeps(fleet: Fleet) -> bool:
    return fleet.presence is not None and fleet.presence.keeps


def _busy(clock: Clock) -> Bool[np.ndarray, " n"]:
    """Who has a job that has not arrived."""
    return (clock.server.versions != IDLE) & np.isinf(clock.arrived_s)


def _share_out(conditions: Conditions, clock: Clock, here: Bool[np.ndarray, " n"], planned: Planned | None) -> Air:
    """Ask the policy, for those who are there and have no uplink of their own."""
    cell, fleet = conditions.cell, conditions.cell.fleet
    assert fleet is not None
    served = here & fleet.shares_band
    uplink = Uplink(
        clock.server.round,
        cell.bandwidth_hz,
        cell.signal_at(clock.server.round, clock.time_s),
        np.where(served, clock.compute_s, 0.0),
        np.where(served, clock.bits, 0.0),
        conditions.shares,
        None if planned is None else _mask(planned, cell.ues),
        cell.cap_bits_per_s_hz,
    )
    bandwidth_hz = allocate(conditions.bandwidth, uplink)
    nothing = np.zeros(cell.ues)
    return _send_on(conditions, clock, here, Air(uplink, bandwidth_hz, nothing, nothing), uplink.signal_hz)


def _send_on(conditions: Conditions, clock: Clock, here: Bool[np.ndarray, " n"], air: Air, signal_hz: PerUe) -> Air:
    """The same bands with the signals of now: the rates, and who would arrive when if nothing changed."""
    cell, fleet = conditions.cell, conditions.cell.fleet
    assert fleet is not None
    rate, arrival_s = _arrivals(cell, clock, air.bandwidth_hz, signal_hz)
    assert clock.in_hand is not None
    own, open_ = ~fleet.shares_band, clock.bits > 0
    rate[own] = fleet.own_bps[own] * clock.in_hand.ease[own]
    own &= open_
    arrival_s[own] = clock.time_s + clock.compute_s[own] + clock.bits[own] / rate[own]
    if fleet.traces is not None:
        traced = fleet.traces.ues
        rate[traced] = fleet.traces.rate_bps(clock.time_s)
        done_s = fleet.traces.done_s(clock.time_s + clock.compute_s[traced], clock.bits[traced])
        arrival_s[traced] = np.where(open_[traced], done_s, arrival_s[traced])
    arrival_s[own] = np.maximum(arrival_s[own], math.nextafter(clock.time_s, math.inf))
    arrival_s[~here & open_] = np.inf
    return replace(air, rate_bps=rate, arrival_s=arrival_s)


def _later(conditions: Conditions, clock: Clock, now_s: float, here: Bool[np.ndarray, " n"], air: Air) -> Clock:
    """Where everybody stands at a later second, nobody having come or gone before it."""
    compute_s, bits, arrived_s = _left(conditions, clock, clock.server, now_s, here, air)
    spent_j = _spent(conditions, clock, Work(now_s, compute_s, bits), here, air)
    return replace(clock, time_s=now_s, compute_s=compute_s, bits=bits, arrived_s=arrived_s, spent_j=spent_j)


def _spent(conditions: Conditions, clock: Clock, after: Work, here: Bool[np.ndarray, " n"], air: Air) -> PerUe | None:
    """What everybody has spent at a later second, nobody having come or gone before it; None where nobody asks."""
    if conditions.budget is None or clock.spent_j is None or clock.in_hand is None:
        return None
    more_j = conditions.budget.spent(clock.work, after, air.arrival_s, clock.in_hand.job_s)
    return clock.spent_j + np.where(here, more_j, 0.0)


def _left(
    conditions: Conditions, clock: Clock, server: Server, now_s: float, here: Bool[np.ndarray, " n"], air: Air
) -> tuple[PerUe, PerUe, PerUe]:
    """What is left to compute and to send; ``server`` is the one of then, and whom it gives no job has nothing left."""
    fleet = conditions.cell.fleet
    assert fleet is not None
    compute_s, bits, arrived_s = _work_left(conditions, clock, server, now_s, air.rate_bps, air.arrival_s)
    open_ = np.isinf(arrived_s)
    if fleet.traces is not None:
        traced = fleet.traces.ues
        ready_s = clock.time_s + clock.compute_s[traced]
        sent = fleet.traces.carried(ready_s, np.full(traced.size, now_s))
        rest = np.maximum(clock.bits[traced] - sent, LEAST_LEFT * conditions.payload_bits)
        bits[traced] = np.where(open_[traced], rest, bits[traced])
    away = ~here & open_
    compute_s[away], bits[away] = clock.compute_s[away], clock.bits[away]
    idle = server.versions == IDLE
    compute_s[idle], bits[idle], arrived_s[idle] = 0.0, 0.0, np.inf
    return compute_s, bits, arrived_s


def begin_jobs(conditions: Conditions, clock: Clock, handed: Who) -> Clock:
    """Who has just been handed the newest model begins; its job computes and sends as fast as its draw says."""
    cell, hand = conditions.cell, clock.in_hand
    assert cell.fleet is not None
    assert hand is not None
    compute_s, bits, arrived_s = clock.compute_s.copy(), clock.bits.copy(), clock.arrived_s.copy()
    compute_s[handed], bits[handed], arrived_s[handed] = conditions.compute_s[handed], conditions.payload_bits, np.inf
    job_s, ease = hand.job_s.copy(), hand.ease.copy()
    job_s[handed] = conditions.compute_s[handed] - cell.downlink_s
    if cell.fleet.spread is not None:
        slower, faster = cell.fleet.spread.factors(cell.seed, clock.server.round)
        job_s[handed] *= slower[handed]
        compute_s[handed], ease[handed] = job_s[handed] + cell.downlink_s, faster[handed]
    clock = replace(clock, compute_s=compute_s, bits=bits, arrived_s=arrived_s)
    clock = _send_models(conditions, clock, handed)
    hand = replace(hand, job_s=job_s, ease=ease).at_work(handed, clock.time_s, clock.compute_s)
    return replace(clock, in_hand=hand)


def come_and_go(
    conditions: Conditions,
    clock: Clock,
    were_here: Bool[np.ndarray, " n"],
    here: Bool[np.ndarray, " n"],
    planned: Planned | None,
) -> tuple[Clock, list[Jobs]]:
    """Who has gone pauses or loses its job, who has come goes on with its own or is handed the round's model.

    Returns also the stretches of work that have ended.
    """
    fleet, now_s = conditions.cell.fleet, clock.time_s
    assert fleet is not None
    assert clock.in_hand is not None
    left, back = were_here & ~here & _busy(clock), ~were_here & here & _busy(clock)
    outcome = PAUSED if _keeps(fleet) else LOST
    who = np.flatnonzero(left)
    rows = [stretches(clock, who, np.full(who.size, now_s), now_s, outcome)] if who.size else []
    server, compute_s, bits = clock.server, clock.compute_s.copy(), clock.bits.copy()
    if not _keeps(fleet):
        server = leave(server, who)
        compute_s[who] = bits[who] = 0.0
    in_hand = clock.in_hand.at_work(np.flatnonzero(back), now_s, compute_s)
    server, handed = welcome(server, conditions.protocol, _may_take(conditions, clock, here), planned)
    clock = replace(clock, server=server, compute_s=compute_s, bits=bits, in_hand=in_hand)
    return begin_jobs(conditions, clock, handed), rows


def _may_take(conditions: Conditions, clock: Clock, here: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Who is there and has energy left."""
    has_energy = _has_energy(conditions, clock)
    return here if has_energy is None else here & has_energy


def _has_energy(conditions: Conditions, clock: Clock) -> Bool[np.ndarray, " n"] | None:
    """Who has not spent its budget; None where nobody asks."""
    if conditions.budget is None or clock.spent_j is None:
        return None
    return ~conditions.budget.gone(clock.spent_j)


def _close(
    conditions: Conditions, clock: Clock, closing: Closing, here: Bool[np.ndarray, " n"], air: Air
) -> tuple[Clock, RoundInfo]:
    """The round closes: merge, hand out to those who are there, and note the work that is over."""
    fleet, protocol, server, now_s = conditions.cell.fleet, conditions.protocol, clock.server, closing.time_s
    assert fleet is not None
    staleness = server.round - server.versions[closing.merged]
    here_then, at_close = here_at(fleet, now_s), _later(conditions, clock, now_s, here, air)
    later_server, hand = hand_out(server, closing, protocol, _may_take(conditions, at_close, here_then))
    compute_s, bits, arrived_s = _left(conditions, clock, later_server, now_s, here, air)
    merged = stretches(clock, closing.merged, air.arrival_s[closing.merged], now_s, MERGED)
    lost = stretches(clock, hand.lost, np.minimum(air.arrival_s[hand.lost], now_s), now_s, LOST, here)
    later = replace(at_close, server=later_server, compute_s=compute_s, bits=bits, arrived_s=arrived_s, planned=None)
    later = begin_jobs(conditions, later, hand.handed)
    if protocol.rests:
        later, invited = _invite(conditions, later)
        hand = HandOut(invited, hand.lost)
    rows = [merged, lost]
    if (here & ~here_then & _busy(later)).any():  # somebody goes as the round closes
        later, more = come_and_go(conditions, later, here, here_then, later.planned)
        rows += more
    nobody = np.empty(0, np.int64)
    info = RoundInfo(
        clock.time_s,
        closing,
        hand,
        staleness,
        air.uplink,
        air.bandwidth_hz,
        air.rate_bps,
        air.arrival_s,
        server.versions,
        Ended(Jobs.joined(rows), nobody, nobody),
    )
    return later, info


def _obstacle(clock: Clock, air: Air, here: Bool[np.ndarray, " n"], planned: Planned | None) -> str:
    """Why a round cannot close, and what to do."""
    awaited = np.arange(here.size) if planned is None else np.sort(planned.ravel())
    stuck = awaited[np.isinf(air.arrival_s[awaited])]
    if not stuck.size:
        return "those who have arrived are too stale for it; raise --max-staleness, or use --stale restart."
    ue = int(stuck[0])
    if not here[ue]:
        return (
            f"UE {ue} has left for good, and the others are too few; give its hours a period, or use a smaller quorum."
        )
    if clock.server.versions[ue] == IDLE:
        return f"UE {ue} has no job and waits for its turn; use --stale restart."
    return f"UE {ue} gets no bandwidth; the bandwidth policy must serve the UEs the round waits for."


def _together(parts: list[Who]) -> Who:
    return np.concatenate([np.empty(0, np.int64), *parts])
