"""Play rounds in compiled loops, where they apply and save time.

The result equals that of the NumPy clock bit for bit, so the compiled loops can take over in the middle of a run and
hand back. The NumPy clock plays what the loops do not support (``knows``), everything if Numba is missing, and the
rounds until a background process has compiled the loops, which it does beside a long run or after a short one.

In a crowd of a million UEs, the loops follow only the UEs that can arrive. A round takes the first A updates, and
with ``restart`` a job has S + 1 rounds before it starts over; a UE at the edge of the cell cannot send all its bits
in that time even with the best fading. Which UEs to follow is a guess, and in every round a bound proves that no
other UE could have arrived. A wrong guess costs time but never changes the result.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation import bandwidth as policies
from perfeds2.network.cell import Cell
from perfeds2.network.link import LN2, rate_bps
from perfeds2.timeline.fast import loading
from perfeds2.timeline.protocol import Protocol, Server, most_at_work, open_server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder, nothing_yet
from perfeds2.timeline.state import Clock, Conditions

if TYPE_CHECKING:  # the module imports Numba
    from perfeds2.timeline.fast.kernel import Followed, Rules

Tell = Callable[[int, float], None]  # gets the number of closed rounds and the simulated time
ROUND_S, UE_S = 2.5e-4, 1e-7  # seconds that the NumPy clock takes per round, and per UE and round
AT_A_TIME = 65_536  # signals drawn in advance: as many as fit in the processor's cache
FEW_ROUNDS = 64  # first block, when the number of rounds is unknown
LOST_ROWS = 4_096
LEAST_CROWD = 50_000  # UEs; smaller crowds are followed completely
HOPE = 8  # follow this many times A·(S + 1), the updates merged in S + 1 rounds

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


def knows(conditions: Conditions) -> bool:
    """Return whether the compiled loops support these conditions. Fields they do not know must have their defaults."""
    if conditions.looks or not loading.allowed():
        return False
    cell = conditions.cell
    own = type(cell)
    return (
        _nothing_else(conditions, KNOWN_CONDITIONS)
        and _nothing_else(conditions.protocol, KNOWN_RULES)
        and _nothing_else(cell, KNOWN_CELL)
        and cell.is_plain
        and own.signal_hz is Cell.signal_hz
        and own.signal_at is Cell.signal_at
        and own.changes_s is Cell.changes_s
        and own.signal_of_amplitude is Cell.signal_of_amplitude
        and any(conditions.bandwidth is policy for policy in POLICIES)
        and bool(1e-200 < cell.mean_signal_hz.min() <= cell.mean_signal_hz.max() < 1e200)  # none is 0 or infinite
    )


def _nothing_else(record: Conditions | Protocol | Cell, known: list[str]) -> bool:
    """Return whether every field that is not in ``known`` has its default."""
    return all(getattr(record, f.name) is f.default or f.name in known for f in fields(record))


@dataclass(frozen=True)
class Crowd:
    """The UEs to follow, and bounds on the best case of the others."""

    hopeful: Int[np.ndarray, " h"]  # UEs, in ascending order
    strongest_hz: float  # no other UE's signal ever exceeds this
    least_s: float  # no other UE computes for less time


def play_fast(
    conditions: Conditions,
    clock: Clock,
    record: Recorder,
    last: int | None,
    horizon_s: float | None,
    tell: Tell | None,
    crowd: Crowd | None = None,
) -> Clock | None:
    """Play rounds in the compiled loops and record them, as far as the loops apply and save time.

    Args:
        conditions: Conditions that ``knows`` accepts.
        clock: Where to start; for a crowd, the state of the followed UEs only.
        record: Receives the rounds.
        last: Stop before this round.
        horizon_s: Stop before the first round that closes after this time, in seconds.
        tell: Called with the number of closed rounds and the simulated time.
        crowd: The UEs to follow; the loops prove in every round that no other UE could have arrived.

    Returns:
        The clock after the last round, the given clock if no round was played, or None if that proof failed.
    """
    server, n, bound = clock.server, conditions.cell.ues, conditions.protocol.max_staleness
    if last is not None and server.round >= last:
        return clock
    searching = conditions.bandwidth is policies.equal_finish
    work_s = _seconds_left(clock, last, horizon_s, n)
    kernel = loading.loaded(searching, math.inf if crowd and last is None else work_s, wait=crowd is not None)
    if kernel is None:
        return clock
    ues = np.arange(n) if crowd is None else crowd.hopeful
    rules = _rules(kernel, conditions, horizon_s)
    if crowd is not None:
        rules = rules._replace(others=n - ues.size, others_hz=crowd.strongest_hz, others_s=crowd.least_s)
    work = (clock.compute_s.copy(), clock.bits.copy(), clock.arrived_s.copy())
    own = slice(None) if crowd is None else ues
    of_server = (server.versions[own].copy(), server.merged_in[own].copy())
    followed = kernel.names.Followed(ues, conditions.compute_s[own], *work, *of_server)
    played = _play(kernel, conditions, rules, followed, server.round, clock.time_s, server.opened_s, record, last, tell)
    if played is None:
        return None
    round_, time_s = played
    if round_ == server.round:
        return clock
    versions, merged_in = followed.versions, followed.merged_in
    if crowd is not None:
        versions, merged_in = server.versions.copy(), server.merged_in.copy()
        if bound is not None:
            versions[:] = round_ - round_ % (bound + 1)  # UEs that are never merged all restart together
        versions[ues], merged_in[ues] = followed.versions, followed.merged_in
    later = Server(round_, versions, merged_in, time_s)
    return Clock(time_s, later, followed.compute_s, followed.bits, followed.arrived_s)


def _seconds_left(clock: Clock, last: int | None, horizon_s: float | None, ues: int) -> float:
    """Estimate the seconds that the NumPy clock would take for the remaining rounds."""
    round_, rounds = clock.server.round, math.inf if last is None else last - clock.server.round
    if horizon_s is not None:
        by_then = (horizon_s - clock.time_s) * round_ / clock.time_s if clock.time_s > 0 else 0.0
        rounds = min(rounds, by_then)
    round_s = ROUND_S + UE_S * ues
    loading.Loaded.spent_s += round_s
    return rounds * round_s


def _rules(kernel: loading.Kernel, conditions: Conditions, horizon_s: float | None) -> "Rules":
    protocol, cell = conditions.protocol, conditions.cell
    bound, cap = protocol.max_staleness, cell.cap_bits_per_s_hz
    return kernel.names.Rules(
        quorum=int(protocol.quorum),
        bound=-1 if bound is None else int(bound),
        stale=STALE[protocol.stale],
        policy=POLICIES.index(conditions.bandwidth),
        planned=conditions.schedule is not None,
        at_work=most_at_work(cell.ues, protocol),
        payload_bits=float(conditions.payload_bits),
        bandwidth_hz=float(cell.bandwidth_hz),
        most_nats=math.inf if cap is None else float(cap) * LN2,
        horizon_s=math.inf if horizon_s is None else float(horizon_s),
        others=0,
        others_hz=0.0,
        others_s=0.0,
    )


def _play(
    kernel: loading.Kernel,
    conditions: Conditions,
    rules: "Rules",
    followed: "Followed",
    round_: int,
    time_s: float,
    opened_s: float,
    record: Recorder,
    last: int | None,
    tell: Tell | None,
) -> tuple[int, float] | None:
    """Play rounds in blocks; return the open round and when it opened, or None if an unfollowed UE might arrive."""
    hope = np.array([0.0, rules.others_s, opened_s])
    scratch = kernel.names.new_scratch(followed.ues.size, rules.policy == kernel.names.EQUAL_FINISH)
    loops, most, rounds, lost_rows = kernel.loops, max(AT_A_TIME // followed.ues.size, 1), FEW_ROUNDS, LOST_ROWS
    while last is None or round_ < last:
        rounds = min(rounds, most, most if last is None else last - round_)
        rows = _rows(conditions, round_, rounds)
        signals = _signals(kernel, conditions.cell, followed.ues, round_, rows.shape[0])
        at, why = 0, kernel.names.DONE
        while at < signals.shape[0]:
            written = kernel.names.new_buffers(signals.shape[0] - at, rules.quorum, lost_rows)
            why, played, lost, time_s = kernel.play(
                loops, rules, followed, signals[at:], rows[at:], round_, time_s, hope, written, scratch
            )
            record.add_rounds([field[:played] for field in written[:4]], [field[:lost].copy() for field in written[4:]])
            at, round_ = at + played, round_ + played
            if why == kernel.names.FULL and not played:
                lost_rows *= 2
            elif why != kernel.names.FULL:
                break
        if tell is not None and at:
            tell(round_, time_s)
        if why == kernel.names.LOST_HOPE or (why == kernel.names.ASK and rules.others):
            return None
        if why != kernel.names.DONE or not at:
            break
        rounds *= 2
    return round_, time_s


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
    """Return the signals of UEs in successive rounds, as ``Cell.signal_hz`` does for one round."""
    mean_hz, k = cell.mean_signal_hz, cell.rician_k
    mean_hz = mean_hz if ues.size == mean_hz.size else mean_hz[ues]
    if k == math.inf:
        return np.broadcast_to(mean_hz * cell.signal_of_amplitude(1.0), (rounds, ues.size)).copy()
    signals, angle = np.empty((rounds, ues.size)), None
    kernel.draw(signals, np.uint64(cell.seed), first, 0, ues)
    if k > 0:
        angle = np.empty_like(signals)
        kernel.draw(angle, np.uint64(cell.seed), first, 1, ues)
    cell.fade(signals, angle, mean_hz, slice(None))
    return signals


# ---- Crowds


def find_crowd(conditions: Conditions) -> Crowd | None:
    """Return the UEs to follow, or None if all must be followed. ``knows`` must accept ``conditions``."""
    protocol, n = conditions.protocol, conditions.cell.ues
    most = protocol.most_at_work
    if protocol.stale != "restart" or most is None or conditions.schedule is not None:
        return None
    few = n >= LEAST_CROWD and HOPE * most <= n // 4
    return split_crowd(conditions, HOPE * most) if few and conditions.bandwidth is policies.equal_share else None


def split_crowd(conditions: Conditions, hopeful: int) -> Crowd:
    """Follow the UEs with the best mean signals or, if modulation limits the rate, with the shortest jobs."""
    cell, compute_s = conditions.cell, conditions.compute_s
    worth, cap = cell.mean_signal_hz, cell.cap_bits_per_s_hz
    if cap is not None:
        worth = -(compute_s + conditions.payload_bits / rate_bps(cell.bandwidth_hz / cell.ues, worth, cap))
    order = np.argpartition(worth, cell.ues - hopeful)
    others, chosen = order[: cell.ues - hopeful], np.sort(order[cell.ues - hopeful :])
    strongest_hz = float(cell.mean_signal_hz[others].max()) * cell.most_fading
    return Crowd(chosen, strongest_hz, float(compute_s[others].min()))


def play_crowd(
    conditions: Conditions, crowd: Crowd, rounds: int | None, horizon_s: float | None, tell: Tell | None
) -> Timeline | None:
    """Return the timeline from time 0, or None if no round was played or an unfollowed UE might arrive."""
    n, ues = conditions.cell.ues, crowd.hopeful
    full_bits, never = np.full(ues.size, conditions.payload_bits), np.full(ues.size, np.inf)
    clock = Clock(0.0, open_server(n, conditions.protocol), conditions.compute_s[ues], full_bits, never)
    record = Recorder(nothing_yet(conditions.compute_s, conditions.protocol.quorum))
    later = play_fast(conditions, clock, record, rounds, horizon_s, tell, crowd)
    if later is None or later is clock:
        return None
    arrived_s = np.full(n, np.inf)
    arrived_s[ues] = later.arrived_s
    return record.timeline(later.server.versions, arrived_s)
