"""Simulate one round of the protocol on a cell with a virtual clock.

Time advances from event to event: the fading is redrawn, or a UE leaves or returns. Between
events, gains and bandwidths are constant or follow a trace, so each arrival time is a closed formula, exact in
float64; there is no time step. The protocol decides when the round closes, and unfinished work carries over to the
next round. When a UE leaves or returns, the band is shared again. Absent UEs neither compute nor send; a UE that
returns without a job gets the newest model.
"""

import math
from dataclasses import replace

import numpy as np

from perfeds2.allocation.bandwidth import Uplink, allocate
from perfeds2.allocation.schedulers import Moment
from perfeds2.errors import InputError
from perfeds2.network.blocks import each_block
from perfeds2.network.link import rate_bps
from perfeds2.timeline.jobs import LOST, MERGED, PAUSED, Jobs
from perfeds2.timeline.protocol import (
    IDLE,
    Closing,
    Planned,
    Server,
    close_round,
    end_jobs,
    hand_out,
    leave,
    obstacle,
    open_server,
)
from perfeds2.timeline.state import (
    Air,
    Clock,
    Conditions,
    JobTimes,
    Mask,
    PerUe,
    RoundInfo,
    Ues,
    Work,
    WorkLeft,
    parts_of,
    too_few,
)

LEAST_LEFT = np.finfo(float).eps  # fraction of the payload that a job keeps until it has arrived
MAX_CHANGES = 100_000  # times in one round that UEs come or go before we give up


def start_clock(conditions: Conditions) -> Clock:
    """Return the clock at time 0, just after the first UEs have received w_0."""
    cell, n = conditions.cell, conditions.cell.ues
    zeros = np.zeros(n)
    clock = Clock(
        0.0,
        open_server(n, conditions.protocol, cell.here(0.0)),
        np.zeros(n),
        np.zeros(n),
        np.full(n, np.inf),
        spent_j=None if conditions.budget is None else zeros,
        model_s=None if cell.downlink is None else zeros,
        jobs=None if cell.is_plain else JobTimes(zeros, zeros, zeros, zeros, np.ones(n)),
    )
    if conditions.protocol.rests:
        return _plan(conditions, clock)[0]
    return begin_jobs(conditions, clock, np.flatnonzero(clock.server.versions != IDLE))


def tick(conditions: Conditions, clock: Clock, until_s: float = math.inf) -> tuple[Clock, RoundInfo] | None:
    """Simulate one round; return None if it cannot close by ``until_s`` or if too few UEs have energy left."""
    cell, protocol, opened_s = conditions.cell, conditions.protocol, clock.time_s
    presence = conditions.presence
    present = None if presence is None else presence.here(opened_s)
    signal_hz = cell.signal_at(clock.server.round, opened_s)
    planned = clock.planned if protocol.rests else _planned(conditions, clock, signal_hz)
    air = share_out(conditions, clock, present, planned, signal_hz)
    interrupted: list[Jobs] = []
    changes = 0
    while True:
        if conditions.budget is not None:
            has_energy = None if present is None else _may_work(conditions, clock.spent_j, None)
            if too_few(clock.server.versions, clock.server.round, protocol, has_energy):
                return None
        closing = close_round(clock.server, air.arrival_s, protocol, planned, clock.time_s)
        change_s = math.inf if presence is None else presence.changes_s(clock.time_s)
        border_s = min(cell.changes_s(clock.time_s), change_s)
        if closing.time_s <= border_s and closing.time_s < math.inf:
            break
        if closing.time_s == change_s == math.inf:
            why = obstacle(clock.server, air.arrival_s, protocol, planned, present)
            raise InputError(f"round {clock.server.round} never closes: {why}")
        if border_s > until_s:
            return None
        changes += border_s == change_s
        if changes == MAX_CHANGES:
            raise ValueError(
                f"round {clock.server.round} has not closed after {MAX_CHANGES} times that UEs came or went (second "
                f"{clock.time_s:.6g}). With --on-leave lose a UE that is never present for a whole job never arrives: "
                "use keep, or a smaller quorum."
            )
        work, spent_j = _advance(conditions, clock, border_s, present, air)
        _clear_idle(conditions, work, clock.server)
        clock = _clock(clock, border_s, clock.server, work, clock.planned, spent_j)
        signal_hz = cell.signal_at(clock.server.round, border_s)
        before, present = present, present if presence is None or border_s < change_s else presence.here(border_s)
        if before is None or present is None or np.array_equal(before, present):
            air = _send(conditions, clock, present, air.uplink, air.bandwidth_hz, signal_hz)
            continue
        clock, left = _change_presence(conditions, clock, before, present, planned)
        interrupted.append(left)
        air = share_out(conditions, clock, present, planned, signal_hz)
    return _close(conditions, clock, closing, present, air, opened_s, interrupted)


def _planned(conditions: Conditions, clock: Clock, signal_hz: PerUe) -> Planned | None:
    """Ask the schedule for the UEs of the round that opens now, and check its answer."""
    schedule, quorum, n = conditions.schedule, conditions.protocol.quorum, conditions.cell.ues
    if schedule is None:
        return None
    round_ = clock.server.round
    planned = np.asarray(schedule(_moment(conditions, clock, signal_hz) if conditions.looks else round_))
    whole = planned.ndim in (1, 2) and planned.shape[-1] == quorum and planned.size
    whole = whole and np.issubdtype(planned.dtype, np.integer) and planned.min() >= 0 and planned.max() < n
    if not whole or np.count_nonzero(_mask(planned, n)) != planned.size:
        raise ValueError(
            f"the schedule plans {planned} for round {round_}; expected {quorum} different UEs from 0 to {n - 1}."
        )
    return planned


def _moment(conditions: Conditions, clock: Clock, signal_hz: PerUe) -> Moment:
    cell, server, rests = conditions.cell, clock.server, clock.server.versions == IDLE
    return Moment(
        server.round,
        clock.time_s,
        conditions.protocol.quorum,
        cell.bandwidth_hz,
        signal_hz,
        np.where(rests, conditions.usual_s, clock.compute_s),
        np.where(rests, conditions.payload_bits, clock.bits),
        server.versions,
        server.merged_in,
        cell.cap_bits_per_s_hz,
        None if cell.fleet is None else cell.fleet.own_bps,
        cell.here(clock.time_s),
        None if conditions.feedback is None else conditions.feedback.copy(),
    )


def _mask(ues: Planned, n: int) -> Mask:
    mask = np.zeros(n, bool)
    mask[ues] = True
    return mask


def share_out(
    conditions: Conditions, clock: Clock, present: Mask | None, planned: Planned | None, signal_hz: PerUe
) -> Air:
    """Ask the policy to share the band among the present UEs that have no uplink of their own."""
    cell, compute_s, bits = conditions.cell, clock.compute_s, clock.bits
    if clock.jobs is not None and cell.fleet is not None:
        served = cell.fleet.shares_band if present is None else present & cell.fleet.shares_band
        compute_s, bits = np.where(served, compute_s, 0.0), np.where(served, bits, 0.0)
    uplink = Uplink(
        clock.server.round,
        cell.bandwidth_hz,
        signal_hz,
        compute_s,
        bits,
        conditions.shares,
        None if planned is None else _mask(planned, cell.ues),
        cell.cap_bits_per_s_hz,
    )
    return _send(conditions, clock, present, uplink, allocate(conditions.bandwidth, uplink), signal_hz)


def _send(
    conditions: Conditions,
    clock: Clock,
    present: Mask | None,
    uplink: Uplink,
    bandwidth_hz: PerUe,
    signal_hz: PerUe,
) -> Air:
    """Return the rates for these bandwidths and signals, and each update's arrival time if nothing changes."""
    fleet, cap = conditions.cell.fleet, conditions.cell.cap_bits_per_s_hz
    rate, arrival_s = np.empty_like(clock.bits), np.empty_like(clock.bits)

    def fill(at: slice) -> None:
        """Fill in the rates and arrival times of one block of UEs on the shared band."""
        rate[at] = bits_per_s = rate_bps(bandwidth_hz[at], signal_hz[at], cap)
        bits, arrival = clock.bits[at], arrival_s[at]
        with np.errstate(divide="ignore", invalid="ignore"):  # a rate of 0 gives infinity; 0/0 is overwritten below
            np.divide(bits, bits_per_s, out=arrival)
        arrival += clock.time_s + clock.compute_s[at]
        # An unfinished job arrives after the current time, even if rounding has left it almost no bits.
        np.maximum(arrival, math.nextafter(clock.time_s, math.inf), out=arrival)
        np.copyto(arrival, clock.arrived_s[at], where=bits == 0)

    each_block(rate.size, fill)
    if clock.jobs is not None and fleet is not None:
        own, open_ = ~fleet.shares_band, clock.bits > 0
        rate[own] = fleet.own_bps[own] * clock.jobs.rate_factor[own]
        own &= open_
        arrival_s[own] = clock.time_s + clock.compute_s[own] + clock.bits[own] / rate[own]
        if fleet.traces is not None:
            traced = fleet.traces.ues
            rate[traced] = fleet.traces.rate_bps(clock.time_s)
            done_s = fleet.traces.done_s(clock.time_s + clock.compute_s[traced], clock.bits[traced])
            arrival_s[traced] = np.where(open_[traced], done_s, arrival_s[traced])
        arrival_s[own] = np.maximum(arrival_s[own], math.nextafter(clock.time_s, math.inf))
        if present is not None:
            arrival_s[~present & open_] = np.inf
    return Air(uplink, bandwidth_hz, rate, arrival_s)


def _advance(
    conditions: Conditions, clock: Clock, now_s: float, present: Mask | None, air: Air
) -> tuple[WorkLeft, PerUe | None]:
    """Return the work left at ``now_s`` and the energy spent by then; no UE may leave or return before it."""
    fleet, least_bits = conditions.cell.fleet, LEAST_LEFT * conditions.payload_bits
    compute_s = clock.compute_s - (now_s - clock.time_s)
    bits = np.minimum(compute_s, 0.0)
    bits *= air.rate_bps  # negative: the bits sent on the shared band
    bits += clock.bits
    np.maximum(bits, least_bits, out=bits)
    np.maximum(compute_s, 0.0, out=compute_s)
    arrived_s = np.empty(bits.size)
    arrived_s.fill(np.inf)
    (arrived,) = (air.arrival_s <= now_s).nonzero()
    arrived_s[arrived] = air.arrival_s[arrived]
    compute_s[arrived] = bits[arrived] = 0.0
    work = compute_s, bits, arrived_s
    if clock.jobs is not None and fleet is not None:
        open_ = np.isinf(arrived_s)
        if fleet.traces is not None:
            traced = fleet.traces.ues
            ready_s = clock.time_s + clock.compute_s[traced]
            sent = fleet.traces.carried(ready_s, np.full(traced.size, now_s))
            rest = np.maximum(clock.bits[traced] - sent, least_bits)
            bits[traced] = np.where(open_[traced], rest, bits[traced])
        if present is not None:
            away = ~present & open_
            compute_s[away], bits[away] = clock.compute_s[away], clock.bits[away]
    if conditions.budget is None or clock.spent_j is None:
        return work, None
    _clear_idle(conditions, work, clock.server)
    job_s = None if clock.jobs is None else clock.jobs.job_s
    more_j = conditions.budget.spent(clock.work, Work(now_s, compute_s, bits), air.arrival_s, job_s)
    return work, clock.spent_j + (more_j if present is None else np.where(present, more_j, 0.0))


def _clock(
    clock: Clock, now_s: float, server: Server, work: WorkLeft, planned: Planned | None, spent_j: PerUe | None
) -> Clock:
    """Return the clock at another time. Called every round; ``replace`` would be several times slower."""
    return Clock(now_s, server, *work, planned, spent_j, clock.model_s, clock.sent_s, clock.jobs)


def _clear_idle(conditions: Conditions, work: WorkLeft, server: Server) -> None:
    """Clear the work of UEs without a job, in place."""
    if conditions.has_idle:
        compute_s, bits, arrived_s = work
        (idle,) = (server.versions == IDLE).nonzero()
        compute_s[idle], bits[idle], arrived_s[idle] = 0.0, 0.0, np.inf


def begin_jobs(conditions: Conditions, clock: Clock, handed: Ues) -> Clock:
    """Start the jobs of UEs that have just received a model. Changes the arrays of work in place."""
    cell, jobs, opened_s = conditions.cell, clock.jobs, clock.server.opened_s
    clock.compute_s[handed] = conditions.compute_s[handed]
    clock.bits[handed] = conditions.payload_bits
    clock.arrived_s[handed] = np.inf
    if jobs is not None and cell.fleet is not None:
        job_s, rate_factor = jobs.job_s.copy(), jobs.rate_factor.copy()
        job_s[handed] = conditions.compute_s[handed] - cell.downlink_s
        if cell.fleet.spread is not None:
            slower, faster = cell.fleet.spread.factors(cell.seed, clock.server.round)
            job_s[handed] *= slower[handed]
            clock.compute_s[handed] = job_s[handed] + cell.downlink_s
            rate_factor[handed] = faster[handed]
        jobs = replace(jobs, job_s=job_s, rate_factor=rate_factor)
    if clock.model_s is not None:
        model_s = clock.model_s.copy()
        model_s[handed], sent_s = cell.send_models(handed, clock.time_s, max(clock.sent_s, opened_s))
        clock.compute_s[handed] += model_s[handed]
        clock = replace(clock, model_s=model_s, sent_s=sent_s)
    elif opened_s > clock.time_s:  # the model is still on its way from the cloud
        clock.compute_s[handed] += opened_s - clock.time_s
    return clock if jobs is None else replace(clock, jobs=jobs.begin(handed, clock.time_s, clock.compute_s))


def open_later(conditions: Conditions, clock: Clock, opened_s: float, sent_s: float) -> Clock:
    """Delay the round that has just begun until ``opened_s``, when its model arrives.

    ``sent_s`` is when the base station had sent all earlier models. Changes the arrays of work in place.
    """
    server = Server(clock.server.round, clock.server.versions, clock.server.merged_in, opened_s)
    handed = np.flatnonzero(server.versions == server.round)
    work = clock.compute_s, clock.bits, clock.arrived_s
    later = Clock(clock.time_s, server, *work, clock.planned, clock.spent_j, clock.model_s, sent_s, clock.jobs)
    return begin_jobs(conditions, later, handed)


def _plan(conditions: Conditions, clock: Clock) -> tuple[Clock, Ues]:
    """Plan the round that opens now and start the jobs of its UEs, for protocols where unplanned UEs rest."""
    planned = _planned(conditions, clock, conditions.cell.signal_at(clock.server.round, clock.time_s))
    assert planned is not None  # simulate requires a schedule
    server, handed = hand_out(clock.server, conditions.protocol, conditions.cell.here(clock.time_s), planned)
    return begin_jobs(conditions, replace(clock, server=server, planned=planned), handed), handed


def _change_presence(
    conditions: Conditions, clock: Clock, before: Mask, present: Mask, planned: Planned | None
) -> tuple[Clock, Jobs]:
    """Pause or drop the jobs of UEs that left, and let UEs that returned continue their job or start one.

    Also returns the interrupted parts of jobs. Changes the arrays of work in place.
    """
    assert conditions.presence is not None
    assert clock.jobs is not None
    keeps, server, busy = conditions.presence.keeps, clock.server, clock.busy
    left, returned = np.flatnonzero(before & ~present & busy), np.flatnonzero(~before & present & busy)
    parts = parts_of(clock, left, np.full(left.size, clock.time_s), PAUSED if keeps else LOST)
    if not keeps:
        server = leave(server, left)
        clock.compute_s[left] = clock.bits[left] = 0.0
    jobs = clock.jobs.begin(returned, clock.time_s, clock.compute_s)
    may_work = _may_work(conditions, clock.spent_j, present)
    assert may_work is not None
    server, handed = hand_out(server, conditions.protocol, may_work, planned)
    return begin_jobs(conditions, replace(clock, server=server, jobs=jobs), handed), parts


def _may_work(conditions: Conditions, spent_j: PerUe | None, present: Mask | None) -> Mask | None:
    """Return which UEs are present and have energy left; None means all of them."""
    if conditions.budget is None or spent_j is None:
        return present
    has_energy = ~conditions.budget.gone(spent_j)
    return has_energy if present is None else present & has_energy


def _close(
    conditions: Conditions,
    clock: Clock,
    closing: Closing,
    present: Mask | None,
    air: Air,
    opened_s: float,
    interrupted: list[Jobs],
) -> tuple[Clock, RoundInfo]:
    """Close the round: merge its updates and hand the new model to the UEs that are present."""
    server, now_s, merged = clock.server, closing.time_s, closing.merged
    work, spent_j = _advance(conditions, clock, now_s, present, air)
    then_present = None if present is None else conditions.cell.here(now_s)
    next_server, lost = end_jobs(server, closing, conditions.protocol)
    next_server, handed = hand_out(next_server, conditions.protocol, _may_work(conditions, spent_j, then_present))
    ended: list[Jobs] = []
    if clock.jobs is not None:
        ended.append(parts_of(clock, merged, air.arrival_s[merged], MERGED, now_s))
        ended.append(parts_of(clock, lost, np.minimum(air.arrival_s[lost], now_s), LOST, now_s, present))
    _clear_idle(conditions, work, next_server)
    later = begin_jobs(conditions, _clock(clock, now_s, next_server, work, None, spent_j), handed)
    if conditions.protocol.rests:
        later, handed = _plan(conditions, later)
    if present is not None and then_present is not None and (present & ~then_present & later.busy).any():
        later, left = _change_presence(conditions, later, present, then_present, later.planned)
        ended.append(left)
    staleness = server.round - server.versions[merged]
    bands = (air.uplink, air.bandwidth_hz, air.rate_bps, air.arrival_s)
    return later, RoundInfo(opened_s, closing, handed, lost, staleness, *bands, server.versions, interrupted, ended)
