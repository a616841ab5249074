"""What does a cell's clock show: who arrives when, round after round?

The virtual clock. Within a round gains and bandwidths stand still, so every UE's arrival is one formula, the protocol
says when the round closes, and what was not finished is carried over. No time step: the times are exact in float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.allocation.bandwidth import Policy, Uplink, allocate, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.timeline.rounds import IDLE, Closing, HandOut, Protocol, Server, close_round, hand_out, open_server
from perfeds2.timeline.timeline import Timeline

LEAST_LEFT = np.finfo(float).eps  # of its payload a job has at least this left until it has arrived
Schedule = Callable[[int], Int[np.ndarray, " A"]]  # round -> the UEs it must close on


@dataclass(frozen=True)
class Setting:
    """What stays the same from round to round."""

    cell: Cell
    protocol: Protocol
    payload_bits: float  # Z: what one upload takes
    compute_s: Float[np.ndarray, " n"]  # what one job's computing takes
    shares: Float[np.ndarray, " n"]  # η
    bandwidth: Policy = equal_share
    schedule: Schedule | None = None  # None: a round closes on the first A arrivals


@dataclass(frozen=True)
class Clock:
    """Where everybody stands at the start of a round."""

    time_s: float
    server: Server
    compute_s: Float[np.ndarray, " n"]  # computing left
    bits: Float[np.ndarray, " n"]  # bits left to send
    arrived_s: Float[np.ndarray, " n"]  # when the update was complete at the server; infinite if it is not


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
    versions: Int[np.ndarray, " n"]  # the model each UE worked from during the round


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
) -> Timeline:
    """Play the protocol on a cell for a number of rounds, or for all rounds that close by ``horizon_s``, or both limits."""
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
    setting = Setting(cell, protocol, float(payload_bits), cell.compute_s(samples), shares, bandwidth, schedule)
    _, timeline = play(setting, start_clock(setting), rounds=rounds, horizon_s=horizon_s, watch=watch)
    return timeline


def start_clock(setting: Setting) -> Clock:
    """Second 0: everybody at work has just been handed w_0."""
    server = open_server(setting.cell.ues, setting.protocol)
    at_work = server.versions != IDLE
    return Clock(
        0.0,
        server,
        np.where(at_work, setting.compute_s, 0.0),
        np.where(at_work, setting.payload_bits, 0.0),
        np.full(setting.cell.ues, np.inf),
    )


def play(
    setting: Setting,
    clock: Clock,
    past: Timeline | None = None,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    watch: Callable[[RoundInfo], None] | None = None,
) -> tuple[Clock, Timeline]:
    """Go on from a clock for so many more rounds. Returns where it stopped, and the timeline: the past and what followed."""
    past = _nothing_yet(setting) if past is None else past
    if past.rounds != clock.server.round:
        raise ValueError(f"the clock stands at round {clock.server.round}, but the past has {past.rounds} rounds.")
    ues, staleness, arrivals, times = [past.ues], [past.staleness], [past.arrival_s], [past.time_s]
    lost_ue, lost_version, lost_round, lost_arrival = (
        [past.lost_ue],
        [past.lost_version],
        [past.lost_round],
        [past.lost_arrival_s],
    )
    while rounds is None or clock.server.round < past.rounds + rounds:
        later, info = tick(setting, clock)
        if horizon_s is not None and later.time_s > horizon_s:
            break
        merged, lost = info.closing.merged, info.hand_out.lost
        ues.append(merged[None])
        staleness.append(info.staleness[None])
        arrivals.append(info.arrival_s[None, merged])
        times.append(np.array([later.time_s]))
        if lost.size:
            lost_ue.append(lost)
            lost_version.append(info.versions[lost])
            lost_round.append(np.full(lost.size, clock.server.round))
            lost_arrival.append(np.where(info.arrival_s[lost] <= later.time_s, info.arrival_s[lost], np.inf))
        if watch is not None:
            watch(info)
        clock = later
    timeline = Timeline(
        np.concatenate(ues),
        np.concatenate(staleness),
        np.concatenate(arrivals),
        np.concatenate(times),
        setting.compute_s,
        np.concatenate(lost_ue),
        np.concatenate(lost_version),
        np.concatenate(lost_round),
        np.concatenate(lost_arrival),
        clock.server.versions,
        clock.arrived_s,
    )
    return clock, timeline


def _nothing_yet(setting: Setting) -> Timeline:
    quorum, n = setting.protocol.quorum, setting.cell.ues
    none, never = np.empty(0, np.int64), np.empty(0)
    table = (0, quorum)
    return Timeline(
        none.reshape(table), none.reshape(table), never.reshape(table), never, setting.compute_s,
        none, none, none, never, np.zeros(n, np.int64), np.full(n, np.inf),
    )  # fmt: skip


def tick(setting: Setting, clock: Clock) -> tuple[Clock, RoundInfo]:
    """Play one round."""
    server, n = clock.server, setting.cell.ues
    planned = None if setting.schedule is None else _planned(setting.schedule, server.round, setting.protocol.quorum, n)
    uplink = Uplink(
        server.round,
        setting.cell.bandwidth_hz,
        setting.cell.signal_hz(server.round),
        clock.compute_s,
        clock.bits,
        setting.shares,
        None if planned is None else _mask(planned, n),
    )
    bandwidth = allocate(setting.bandwidth, uplink)
    rate = rate_bps(bandwidth, uplink.signal_hz)
    arrival_s = _arrivals(clock, rate)
    closing = close_round(server, arrival_s, setting.protocol, planned)
    if not math.isfinite(closing.time_s):
        obstacle = _obstacle(server, arrival_s, setting.protocol, planned)
        raise ValueError(f"round {server.round} never closes: {obstacle}")
    staleness = server.round - server.versions[closing.merged]
    later_server, handed = hand_out(server, closing, setting.protocol)
    info = RoundInfo(clock.time_s, closing, handed, staleness, uplink, bandwidth, rate, arrival_s, server.versions)
    return _carry_over(setting, clock, info, later_server), info


def _planned(schedule: Schedule, round_: int, quorum: int, n: int) -> Int[np.ndarray, " A"]:
    planned = np.asarray(schedule(round_))
    whole = planned.shape == (quorum,) and np.issubdtype(planned.dtype, np.integer)
    if not whole or planned.min() < 0 or planned.max() >= n or np.count_nonzero(_mask(planned, n)) != quorum:
        raise ValueError(
            f"the schedule plans {planned} for round {round_}; expected {quorum} different UEs from 0 to {n - 1}."
        )
    return planned


def _mask(ues: Int[np.ndarray, " A"], n: int) -> Bool[np.ndarray, " n"]:
    mask = np.zeros(n, bool)
    mask[ues] = True
    return mask


def _arrivals(clock: Clock, rate: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """When each update is complete at the server if this round lasts long enough: now, computing, sending."""
    arrival_s = clock.time_s + clock.compute_s
    with np.errstate(divide="ignore", invalid="ignore"):  # no rate: never; no bits at no rate: replaced below
        arrival_s += clock.bits / rate
    # A job that is open when the round opens is over later, however few bits rounding left it.
    np.maximum(arrival_s, math.nextafter(clock.time_s, math.inf), out=arrival_s)
    np.copyto(arrival_s, clock.arrived_s, where=clock.bits == 0)
    return arrival_s


def _obstacle(
    server: Server, arrival_s: Float[np.ndarray, " n"], protocol: Protocol, planned: Int[np.ndarray, " A"] | None
) -> str:
    """Why a round cannot close, and what to do."""
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


def _carry_over(setting: Setting, clock: Clock, info: RoundInfo, server: Server) -> Clock:
    """Take what was computed and sent in the round off everybody's remaining work, and start the new jobs."""
    compute_s = clock.compute_s - (info.closing.time_s - clock.time_s)
    bits = np.minimum(compute_s, 0.0)
    bits *= info.rate_bps  # minus the bits sent
    bits += clock.bits
    np.maximum(bits, LEAST_LEFT * setting.payload_bits, out=bits)
    np.maximum(compute_s, 0.0, out=compute_s)
    arrived_s = np.full(bits.size, np.inf)
    arrived = np.flatnonzero(info.arrival_s <= info.closing.time_s)
    arrived_s[arrived] = info.arrival_s[arrived]
    compute_s[arrived] = bits[arrived] = 0.0
    if setting.protocol.waits:  # a UE without a job has nothing left to do
        idle = np.flatnonzero(server.versions == IDLE)
        compute_s[idle], bits[idle], arrived_s[idle] = 0.0, 0.0, np.inf
    handed = info.hand_out.handed
    compute_s[handed], bits[handed], arrived_s[handed] = setting.compute_s[handed], setting.payload_bits, np.inf
    return Clock(info.closing.time_s, server, compute_s, bits, arrived_s)
