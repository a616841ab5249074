"""In a crowd, whose work need not be followed, because it cannot be done in time?

Of a million UEs a round takes the first A. With ``restart`` a job has S + 1 rounds, then it starts over; a UE at the edge
of the cell cannot send all its bits in that time even in the best of fadings. It never arrives, so how far it got is
nobody's business. Who is *hopeful* is a guess, and every round a bound says whether it was a safe one: a guess that
fails costs time, never a digit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.timeline.clock import arrivals, work_left
from perfeds2.timeline.protocol import close_round, hand_out, open_server
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder, nothing_yet
from perfeds2.timeline.state import Clock, Conditions

LEAST_CROWD = 50_000  # UEs; with fewer, following everybody is quick
HOPE = 8  # times as many are followed as can be merged in S + 1 rounds: A·(S + 1)
MARGIN = 1e-12  # far above what rounding does to the bits of a job


@dataclass(frozen=True)
class Crowd:
    """Those who are followed, and the best that the others can hope for."""

    hopeful: Int[np.ndarray, " h"]  # UEs, in rising order
    place: Int[np.ndarray, " n"]  # of each UE among the hopeful; -1 for the hopeless
    strongest_hz: float  # no hopeless UE's signal is ever above this
    least_s: float = 0.0  # no hopeless UE computes for less
    cap: float | None = None  # bit/s/Hz that no link exceeds


def split_crowd(cell: Cell, hopeful: int, compute_s: Float[np.ndarray, " n"], payload_bits: float) -> Crowd:
    """Hope for those with the best mean signals; where modulation sets the rate, for those with the shortest jobs."""
    worth, cap = cell.mean_signal_hz, cell.cap_bits_per_s_hz
    if cap is not None:
        worth = -(compute_s + payload_bits / rate_bps(cell.bandwidth_hz / cell.ues, worth, cap))
    order = np.argpartition(worth, cell.ues - hopeful)
    hopeless, chosen = order[: cell.ues - hopeful], np.sort(order[cell.ues - hopeful :])
    place = np.full(cell.ues, -1)
    place[chosen] = np.arange(hopeful)
    strongest_hz = float(cell.mean_signal_hz[hopeless].max()) * cell.most_fading
    return Crowd(chosen, place, strongest_hz, float(compute_s[hopeless].min()), cap)


def most_bits(crowd: Crowd, bandwidth_hz: float, lasting_s: float) -> float:
    """What the hopeless can send at most in so many seconds on this band."""
    return float(rate_bps(bandwidth_hz, crowd.strongest_hz, crowd.cap)) * lasting_s


def crowd_size(conditions: Conditions) -> int | None:
    """Return how many UEs of a crowd to follow; None where all must be: their work counts, or they are few."""
    cell, protocol = conditions.cell, conditions.protocol
    most = protocol.most_at_work
    if protocol.stale != "restart" or most is None or conditions.schedule is not None or protocol.drafts:
        return None
    known = conditions.bandwidth is equal_share and type(cell).signal_hz is Cell.signal_hz
    known = known and cell.coherence_s is None and cell.is_plain
    known = known and conditions.budget is None and cell.downlink is None
    return HOPE * most if known and cell.ues >= LEAST_CROWD and HOPE * most <= cell.ues // 4 else None


def play_crowd(
    conditions: Conditions,
    crowd: Crowd,
    *,
    rounds: int | None = None,
    horizon_s: float | None = None,
    tell: Callable[[int, float], None] | None = None,
    fast: Callable[..., Clock | None] | None = None,
) -> Timeline | None:
    """Return the timeline of ``play`` from second 0, or None if a UE that is not followed might arrive.

    ``fast`` is ``play_fast``, where the compiled loops may play.
    """
    cell, protocol, n, ues = conditions.cell, conditions.protocol, conditions.cell.ues, crowd.hopeful
    if protocol.stale != "restart" or protocol.max_staleness is None or conditions.schedule is not None:
        raise ValueError("only a crowd that restarts, without a schedule, can be played without following everybody.")
    few = replace(conditions, compute_s=conditions.compute_s[ues], shares=conditions.shares[ues])
    clock = Clock(
        0.0, open_server(n, protocol), few.compute_s, np.full(ues.size, few.payload_bits), np.full(ues.size, np.inf)
    )
    record = Recorder(nothing_yet(conditions.compute_s, protocol.quorum))
    if fast is not None:
        later = fast(conditions, clock, record, rounds, horizon_s, tell, crowd)
        if later is None:
            return None
        if later is not clock:
            return _timeline(record, later, crowd)
    sent_bits = 0.0  # by a hopeless UE in its job, at most
    since_s = crowd.least_s  # no hopeless UE sends before
    arrival_s = np.full(n, np.inf)  # of the hopeless: never
    while rounds is None or clock.server.round < rounds:
        server, sending = clock.server, clock.bits > 0
        band_hz = cell.bandwidth_hz / (n - ues.size + np.count_nonzero(sending))
        signal_hz = cell.signal_hz(server.round, ues)
        rate, arrival_s[ues] = arrivals(cell, clock, np.where(sending, band_hz, 0.0), signal_hz)
        closing = close_round(server, arrival_s, protocol)
        if server.round % (protocol.max_staleness + 1) == 0:
            sent_bits, since_s = 0.0, clock.time_s + crowd.least_s  # never merged, the hopeless all start over together
        sent_bits += most_bits(crowd, band_hz, max(closing.time_s - max(clock.time_s, since_s), 0.0))
        if not sent_bits < (1 - MARGIN) * conditions.payload_bits:
            return None
        if horizon_s is not None and closing.time_s > horizon_s:
            break
        later, hand = hand_out(server, closing, protocol)
        record.add(server.round, server.versions, closing, hand.lost, arrival_s)
        handed = crowd.place[hand.handed]
        handed = handed[handed >= 0]
        compute_s, bits, arrived_s = work_left(few, clock, later.opened_s, rate, arrival_s[ues])
        compute_s[handed], bits[handed], arrived_s[handed] = few.compute_s[handed], few.payload_bits, np.inf
        clock = Clock(later.opened_s, later, compute_s, bits, arrived_s)
        if tell is not None:
            tell(later.round, later.opened_s)
    return _timeline(record, clock, crowd)


def _timeline(record: Recorder, clock: Clock, crowd: Crowd) -> Timeline:
    arrived_s = np.full(crowd.place.size, np.inf)
    arrived_s[crowd.hopeful] = clock.arrived_s
    return record.timeline(clock.server.versions, arrived_s)
