"""Simulate rounds in compiled loops, where these apply and save time.

The result equals that of the NumPy clock bit for bit, so the compiled loops can take over in the middle of a run and
hand back. The NumPy clock simulates what the loops do not support (``supports``), everything if Numba is missing, and
the rounds until compiling the loops is worth its time.

In a crowd of a million UEs, the loops follow only the UEs that can arrive. A round takes the first A updates, and
with ``restart`` a job has S + 1 rounds before it starts over; a UE at the edge of the cell cannot send all its bits
in that time even with the best fading. Which UEs to follow is a guess, and in every round a bound proves that no
other UE could have arrived. A wrong guess costs time but never changes the result.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation import bandwidth as policies
from perfeds2.network.cell import Cell
from perfeds2.network.channel import Channel
from perfeds2.network.link import LN2, rate_bps
from perfeds2.timeline.fast import loading
from perfeds2.timeline.protocol import Protocol, Server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import CloudState, Recorder
from perfeds2.timeline.state import FOREVER, CellState, ClockState, Conditions, ServerState

if TYPE_CHECKING:  # the module imports Numba
    from perfeds2.timeline.fast.kernel import Followed, Rules, Servers

Tell = Callable[[int, float], None]  # gets the number of closed rounds and the simulated time
ROUND_S, UE_S = 2.5e-4, 1e-7  # seconds that the NumPy clock takes per round, and per UE and round
AT_A_TIME = 65_536  # signals drawn in advance: as many as fit in the processor's cache
FEW_ROUNDS = 64  # for which a schedule is asked in advance
LOST_ROWS = 4_096
MIN_CROWD = 50_000  # UEs; smaller crowds are followed completely
FOLLOW = 8  # follow this many times A·(S + 1), the updates merged in S + 1 rounds

KNOWN_CONDITIONS = ["cell", "protocol", "payload_bits", "compute_s", "shares", "bandwidth", "schedule"]
KNOWN_RULES = ["quorum", "max_staleness", "stale"]
KNOWN_CELL = [
    "distance_m",
    "cpu_hz",
    "cycles_per_sample",
    "power_w",
    "bandwidth_hz",
    "path_loss_exponent",
    "noise_dbm_per_hz",
    "fading_scale",
    "downlink_s",
    "seed",
    "radio",
    "rician_k",
    "most_bits_per_s_hz",
    "angle_rad",
    "fleet",
]
POLICIES: list[policies.Policy] = [
    policies.equal_share,
    policies.planned_share,
    policies.equal_finish,
]  # in the order of their numbers in ``kernel``
STALE = {"restart": 0, "wait": 1, "ignore": 2}


def supports(conditions: Conditions) -> bool:
    """Return whether the compiled loops support these conditions. Fields they do not know must have their defaults."""
    if conditions.needs_moment or not loading.allowed():
        return False
    cell = conditions.cell
    return (
        _nothing_else(conditions, KNOWN_CONDITIONS)
        and _nothing_else(conditions.protocol, KNOWN_RULES)
        and _nothing_else(cell, KNOWN_CELL)
        and cell.is_plain
        and type(cell.channel) is Channel
        and any(conditions.bandwidth is policy for policy in POLICIES)
        and bool(1e-200 < cell.mean_signal_hz.min() <= cell.mean_signal_hz.max() < 1e200)  # none is 0 or infinite
    )


def _nothing_else(record: Conditions | Protocol | Cell, known: list[str]) -> bool:
    """Return whether every field that is not in ``known`` has its default."""
    return all(getattr(record, f.name) is f.default or f.name in known for f in fields(record))


@dataclass(frozen=True)
class ReachableUes:
    """The UEs to follow, and bounds on the best case of the others."""

    followed: Int[np.ndarray, " h"]  # UEs, in ascending order
    strongest_hz: float  # no other UE's signal ever exceeds this
    least_s: float  # no other UE computes for less time


def play_fast(
    states: Sequence[ClockState],
    records: Sequence[Recorder],
    horizon_s: float | None,
    tell: Tell | None,
    crowd: ReachableUes | None = None,
    above: CloudState | None = None,
) -> bool:
    """Play the rounds that stations have left in the compiled loops, as far as the loops apply and save time.

    Args:
        states: States of one station with conditions that ``supports`` accepts; changed in place.
        records: Where their rounds are recorded.
        horizon_s: Stop before the first round that closes after this time, in seconds.
        tell: Called with the number of closed rounds and the simulated time.
        crowd: The UEs to follow at a single station; the clock has only their state. The loops prove in every round
            that no other UE could have arrived.
        above: The cloud, if the stations are edges; changed in place.

    Returns:
        Whether the crowd is safe: False if that proof failed.
    """
    stations = [state.servers[0] for state in states]
    some, count = stations[0].conditions, len(states)
    left = [station.left if above is None else above.rounds // count for station in stations]
    work_s = sum(_seconds_left(state, rounds, horizon_s) for state, rounds in zip(states, left, strict=True))
    searching = some.bandwidth is policies.equal_finish
    unknown = crowd is not None and left[0] == FOREVER
    kernel = loading.loaded(searching, math.inf if unknown else work_s)
    if kernel is None:
        return True
    names, followed = kernel.names, _followed(kernel, states, crowd)
    n, most = followed.ues.size, max(count, *(state.bits.size for state in states))
    scratch, search = names.new_scratch(most), names.new_search(most) if searching else None
    rules = _rules(kernel, some, horizon_s, crowd)
    higher, edges, edge_rounds, top = rules, followed, 0, stations[0].server  # not used without a cloud
    if above is not None:
        higher, edge_rounds, top = rules._replace(**_round_rules(above.protocol)), above.edge_rounds, above.server
        of_server = {"versions": top.versions.copy(), "merged_in": top.merged_in.copy()}
        edges = followed._replace(ues=np.arange(count), job_s=above.transfer_s, **of_server)
    servers = _servers(kernel, states, top, FOREVER if above is None else above.rounds)
    block = max(1, min(FEW_ROUNDS if some.schedule else AT_A_TIME, AT_A_TIME // n, *left))
    signals, rows, lost_rows = np.empty((block, n)), np.empty((block, 0)), LOST_ROWS
    servers.drawn[:], servers.rival[1] = servers.round - block, rules.others_s
    written, lost, merges, why = [], [], [], names.DRAW
    while why in (names.DRAW, names.FULL):
        for number in np.flatnonzero((servers.round - servers.drawn)[:count] == rows.shape[0]).tolist():
            part, round_ = slice(*servers.first[number : number + 2]), int(servers.round[number])
            ues, cell = followed.ues[part] - part.start, stations[number].conditions.cell
            signals[:, part], servers.drawn[number] = _signals(kernel, cell, ues, round_, block), round_
        rows = _rows(some, int(servers.drawn[0]), block)
        if not rows.shape[0]:
            break
        record = names.new_buffers(count * block, rules.quorum, lost_rows)
        of_cloud = names.new_buffers(count * (block + 1) // higher.quorum + 1, higher.quorum, 0)
        why, played, gone, merged = names.play_rounds(
            *(kernel.loops, rules, servers, followed, signals, rows, search, record, scratch),
            *(higher, edges, edge_rounds, of_cloud),
        )
        written.append([column[:played] for column in record[:5]])
        lost.append([column[:gone].copy() for column in record[5:]])
        merges.append([column[:merged] for column in of_cloud[:5]])
        lost_rows *= 2 if why == names.FULL else 1
        if tell is not None and played:
            tell(int(servers.round[:count].sum()), float(servers.time_s[:count].max()))
    if why == names.UNPROVEN or (why == names.ASK and rules.others):
        return False
    for number, state in enumerate(states):
        _write_back(servers, followed, number, state)
    if above is None:
        for rounds, jobs in zip(written, lost, strict=True):
            records[0].add_rounds(rounds, jobs)
        return True
    by_station = (_by_station(parts, servers.first) for parts in (written, lost))
    for record, rounds, jobs in zip(records, *by_station, strict=True):
        record.add_rounds(rounds, jobs)
    for rounds in merges:
        above.record.add_rounds(rounds)
    above.server = Server(int(servers.round[-1]), edges.versions, edges.merged_in, float(servers.opened_s[-1]))
    return True


def _seconds_left(state: ClockState, rounds: float, horizon_s: float | None) -> float:
    """Estimate the seconds that the NumPy clock would take for the remaining rounds."""
    (station,) = state.servers
    if horizon_s is not None:
        by_then = (horizon_s - state.time_s) * station.server.round / state.time_s if state.time_s > 0 else 0.0
        rounds = min(rounds, by_then)
    round_s = ROUND_S + UE_S * station.conditions.cell.ues
    loading.Loaded.spent_s += round_s
    return rounds * round_s


def _followed(kernel: loading.Kernel, states: Sequence[ClockState], crowd: ReachableUes | None) -> "Followed":
    """Return the state of the followed UEs of all stations, numbered one after the other."""
    stations = [state.servers[0] for state in states]
    job_s = np.concatenate([station.conditions.compute_s for station in stations])
    job_bits = np.concatenate([station.conditions.full_bits for station in stations])
    ues = np.arange(job_s.size) if crowd is None else crowd.followed
    columns = []
    for state, station in zip(states, stations, strict=True):
        waits_s = np.zeros(state.bits.size) if station.model_s is None else station.model_s
        of_server = station.arrived_s, station.server.versions, station.server.merged_in
        columns.append((state.compute_s, state.bits, *of_server, waits_s))
    return kernel.names.Followed(ues, job_s[ues], job_bits[ues], *map(np.concatenate, zip(*columns, strict=True)))


def _servers(kernel: loading.Kernel, states: Sequence[ClockState], cloud: Server, rounds: int) -> "Servers":
    """Return the servers of all stations, and the cloud that stops after this many rounds of all stations."""
    stations = [state.servers[0] for state in states]
    below = [station.server for station in stations]
    return kernel.names.Servers(
        np.append(0, np.cumsum([state.bits.size for state in states])),
        np.array([station.conditions.cell.bandwidth_hz for station in stations], float),
        np.array([server.round for server in [*below, cloud]]),
        np.array([*(state.time_s for state in states), cloud.opened_s], float),
        np.array([station.closed_s for station in stations], float),
        np.array([server.opened_s for server in [*below, cloud]], float),
        np.array([station.opens_s for station in stations], float),
        np.array([*(station.left for station in stations), rounds]),
        np.empty(len(stations) + 1, np.int64),
        np.zeros(2),
    )


def _rules(
    kernel: loading.Kernel, conditions: Conditions, horizon_s: float | None, crowd: ReachableUes | None
) -> "Rules":
    cap = conditions.cell.cap_bits_per_s_hz
    return kernel.names.Rules(
        **_round_rules(conditions.protocol),
        policy=POLICIES.index(conditions.bandwidth),
        planned=conditions.schedule is not None,
        most_nats=math.inf if cap is None else float(cap) * LN2,
        horizon_s=math.inf if horizon_s is None else float(horizon_s),
        others=0 if crowd is None else conditions.cell.ues - crowd.followed.size,
        others_hz=0.0 if crowd is None else crowd.strongest_hz,
        others_s=0.0 if crowd is None else crowd.least_s,
        others_bits=float(conditions.full_bits.min()),
    )


def _round_rules(protocol: Protocol) -> dict[str, int]:
    bound = -1 if protocol.max_staleness is None else int(protocol.max_staleness)
    quorum = int(protocol.quorum)
    return {"quorum": quorum, "bound": bound, "stale": STALE[protocol.stale], "at_work": quorum * (bound + 1)}


def _write_back(servers: "Servers", followed: "Followed", number: int, state: ClockState) -> None:
    """Change a state to what the loops have played."""
    (station,), (cell,), part = state.servers, state.cells, slice(*servers.first[number : number + 2])
    round_ = int(servers.round[number])
    station.server = Server(round_, followed.versions[part], followed.merged_in[part], float(servers.opened_s[number]))
    station.arrived_s = station.sent_s = followed.arrived_s[part]
    station.begun_s = state.time_s = float(servers.time_s[number])
    station.closed_s, station.opens_s = float(servers.closed_s[number]), float(servers.opens_s[number])
    station.model_s = None if station.model_s is None else followed.model_s[part]
    station.left, station.planned, cell.uplink = int(servers.left[number]), None, None
    cell.signal_hz = cell.cell.channel.signal_at(round_, state.time_s)
    state.compute_s, state.bits, state.before = followed.compute_s[part], followed.bits[part], None


def _by_station(parts: list[list[np.ndarray]], first: Int[np.ndarray, " _"]) -> list[tuple[np.ndarray, ...]]:
    """Join columns that begin with UEs and split them by station, with the UEs numbered by each."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    station = np.repeat(np.arange(first.size - 1), np.diff(first))[columns[0]]
    columns[0] -= first[station]
    station = np.atleast_2d(station.T)[0]  # of each row
    order, ends = np.argsort(station, kind="stable"), np.bincount(station, minlength=first.size - 1).cumsum()[:-1]
    return list(zip(*(np.split(column[order], ends) for column in columns), strict=True))


def _rows(conditions: Conditions, first: int, rounds: int) -> Int[np.ndarray, "rounds A"]:
    """Return the sorted UEs of the coming rounds, up to the first round that the schedule plans incorrectly."""
    if conditions.schedule is None:
        return np.empty((rounds, 0), np.int64)
    quorum, n = conditions.protocol.quorum, conditions.cell.ues
    rows = np.empty((rounds, quorum), np.int64)
    for row in range(rounds):
        try:
            planned = np.asarray(conditions.schedule(first + row))
        except Exception:  # the NumPy clock asks again if it reaches the round, and raises then
            rounds = row
            break
        if planned.shape != (quorum,) or planned.dtype.kind not in "iu":
            rounds = row
            break
        rows[row] = planned
    rows = np.sort(rows[:rounds], axis=1)
    good = (rows[:, 0] >= 0) & (rows[:, -1] < n) & (np.diff(rows, axis=1) > 0).all(axis=1)
    return rows if good.all() else rows[: int(good.argmin())]


def _signals(
    kernel: loading.Kernel, cell: Cell, ues: Int[np.ndarray, " f"], first: int, rounds: int
) -> Float[np.ndarray, "rounds f"]:
    """Return the signals of UEs in successive rounds, as ``Channel.signal_hz`` does for one round."""
    mean_hz, k = cell.mean_signal_hz, cell.rician_k
    mean_hz = mean_hz if ues.size == mean_hz.size else mean_hz[ues]
    if k == math.inf:
        return np.broadcast_to(mean_hz * cell.fading.signal_of_amplitude(1.0), (rounds, ues.size)).copy()
    signals, angle = np.empty((rounds, ues.size)), None
    kernel.draw(signals, np.uint64(cell.seed), first, 0, ues)
    if k > 0:
        angle = np.empty_like(signals)
        kernel.draw(angle, np.uint64(cell.seed), first, 1, ues)
    cell.fading.apply(signals, angle, mean_hz, slice(None))
    return signals


# ---- Crowds


def find_crowd(conditions: Conditions) -> ReachableUes | None:
    """Return the UEs to follow, or None if all must be followed. ``supports`` must accept ``conditions``."""
    protocol, n = conditions.protocol, conditions.cell.ues
    most = protocol.most_at_work
    if protocol.stale != "restart" or most is None or conditions.schedule is not None:
        return None
    few = n >= MIN_CROWD and FOLLOW * most <= n // 4
    return split_crowd(conditions, FOLLOW * most) if few and conditions.bandwidth is policies.equal_share else None


def split_crowd(conditions: Conditions, count: int) -> ReachableUes:
    """Follow the UEs with the best mean signals or, if modulation limits the rate, with the shortest jobs."""
    cell, compute_s = conditions.cell, conditions.compute_s
    worth, cap = cell.mean_signal_hz, cell.cap_bits_per_s_hz
    if cap is not None:
        worth = -(compute_s + conditions.payload_bits / rate_bps(cell.bandwidth_hz / cell.ues, worth, cap))
    order = np.argpartition(worth, cell.ues - count)
    others, chosen = order[: cell.ues - count], np.sort(order[cell.ues - count :])
    strongest_hz = float(cell.mean_signal_hz[others].max()) * cell.fading.max_ratio
    return ReachableUes(chosen, strongest_hz, float(compute_s[others].min()))


def play_crowd(
    conditions: Conditions, crowd: ReachableUes, rounds: int | None, horizon_s: float | None, tell: Tell | None
) -> Timeline | None:
    """Return the timeline from time 0, or None if no round was played or an unfollowed UE might arrive."""
    n, ues, protocol = conditions.cell.ues, crowd.followed, conditions.protocol
    server = Server(0, np.zeros(ues.size, np.int64), np.full(ues.size, -1), 0.0)
    full_bits, never = conditions.full_bits[ues], np.full(ues.size, np.inf)
    station = ServerState(conditions, server, never, never, left=FOREVER if rounds is None else rounds)
    record = Recorder(conditions.compute_s, protocol.quorum, conditions.cell.downlink_s)
    state = ClockState(0.0, conditions.compute_s[ues], full_bits, [station], [CellState(conditions.cell)])
    if not play_fast([state], [record], horizon_s, tell, crowd) or station.server.round == 0:
        return None
    assert protocol.max_staleness is not None
    round_, arrived_s = station.server.round, np.full(n, np.inf)
    versions = np.full(n, round_ - round_ % (protocol.max_staleness + 1))  # unfollowed UEs all restart together
    versions[ues], arrived_s[ues] = station.server.versions, station.arrived_s
    return record.timeline(versions, arrived_s)
