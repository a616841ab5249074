"""Simulate rounds in plain loops that Numba compiles.

The loops evaluate the same formulas in the same order as the NumPy clock, so the times agree bit for bit; the two
share no function. Logarithms and long sums differ between implementations, so the loops call NumPy's own by address
(``loops``). Only ``loading`` imports this module, and only when that saves time, because Numba takes a second to
load.
"""

from typing import NamedTuple

import numpy as np

from perfeds2.timeline.fast.buffers import new_buffers, new_scratch, new_search
from perfeds2.timeline.fast.closing import IDLE, RESTART, assign_model, close, merge
from perfeds2.timeline.fast.numbers import apply, compiled, entrance
from perfeds2.timeline.fast.search import LN2, share_band

DONE, LATE, FULL, UNPROVEN, ASK, DRAW = range(6)  # why the loop stopped; ASK: the NumPy clock must play this round
EQUAL_SHARE = 0  # the first policy of ``play``
MIN_LEFT = float(np.finfo(float).eps)  # fraction of the payload that a job keeps until it has arrived
MARGIN = 1e-12  # safety margin of the proof that no other UE arrives


class Rules(NamedTuple):
    """What stays the same from round to round."""

    quorum: int
    bound: int  # S; below 0 for no bound
    stale: int
    policy: int
    planned: bool  # whether rounds close on given rows of UEs
    at_work: int  # UEs that may hold a job at once, with ``WAIT`` and a bound
    most_nats: float  # most nat/s/Hz that modulation carries; infinite for no limit
    horizon_s: float
    others: int  # UEs that are not followed: they send but never arrive
    others_hz: float  # none of their signals is stronger
    others_s: float  # none of them computes for less time
    others_bits: float  # none of them sends less


class Servers(NamedTuple):
    """Servers that each play rounds with UEs of their own. If they are edges, the last row is their cloud."""

    first: np.ndarray  # where the UEs of each begin among all that are followed; the last row is where they end
    bandwidth_hz: np.ndarray
    round: np.ndarray  # the open round
    time_s: np.ndarray  # now
    closed_s: np.ndarray  # when the last round closed
    opened_s: np.ndarray  # when the open round opened; infinite while an edge waits for the cloud
    opens_s: np.ndarray  # when the cloud's model will be at an edge that waits for it, if that is settled
    left: np.ndarray  # rounds to play, then an edge needs a model; -1: too late; cloud: rounds of all edges
    drawn: np.ndarray  # round of the first row of signals
    rival: np.ndarray  # of a single server: bits that the best UE that is not followed has sent, and since when


class Followed(NamedTuple):
    """The UEs that are followed, in ascending order, and the state of each. The UEs of a cloud are edges."""

    ues: np.ndarray
    job_s: np.ndarray
    job_bits: np.ndarray
    compute_s: np.ndarray
    bits: np.ndarray
    arrived_s: np.ndarray
    versions: np.ndarray
    merged_in: np.ndarray
    model_s: np.ndarray  # how long after the closing that made it each UE was handed its model


# ---- Rounds


@entrance
def play_rounds(
    loops, rules, servers, followed, signals, rows, search, record, scratch, above, edges, edge_rounds, merges
):
    """Play the rounds that servers have left until there is a reason to stop, DRAW if signals are used up.

    Servers are edges if ``edge_rounds`` is above 0. Then ``above`` has the rules of their cloud, whose UEs are
    ``edges``, and ``merges`` the buffers for its rounds. Without ``search``, UEs share the band equally.

    Returns (reason, rounds played, rows of lost jobs, rounds of the cloud).
    """
    played = lost_rows = merged = 0
    while True:
        why = DONE
        for server in range(servers.first.size - 1):
            if servers.left[server] <= 0:
                continue
            first, end = servers.first[server], servers.first[server + 1]
            own = Followed(
                followed.ues[first:end],
                followed.job_s[first:end],
                followed.job_bits[first:end],
                followed.compute_s[first:end],
                followed.bits[first:end],
                followed.arrived_s[first:end],
                followed.versions[first:end],
                followed.merged_in[first:end],
                followed.model_s[first:end],
            )
            while servers.left[server] > 0:
                row = servers.round[server] - servers.drawn[server]
                if row == rows.shape[0]:
                    why = DRAW
                    break
                signal, plan = signals[row, first:end], rows[row]
                stopped = DONE
                if servers.opens_s[server] < np.inf:
                    stopped = _open_round(loops, rules, servers, server, own, signal, plan, search, scratch)
                if stopped == DONE:
                    hands_out = edge_rounds == 0 or servers.left[server] > 1  # an edge waits for the cloud first
                    stopped, lost_rows = _play_round(
                        *(loops, rules, servers, server, own, signal, plan, search),
                        *(record, played, lost_rows, hands_out, scratch),
                    )
                if stopped == LATE:
                    servers.left[server] = -1
                elif stopped != DONE:
                    return stopped, played, lost_rows, merged
                else:
                    servers.left[server] -= 1
                    played += 1
        if (
            why != DONE
            or not edge_rounds
            or not _play_cloud(above, servers, edges, edge_rounds, merges, merged, scratch)
        ):
            return why, played, lost_rows, merged
        _tell_edges(servers, edges, edge_rounds)
        merged += 1


def play_one_round(draw, loops, searching):
    """Call both entry points once, so that everything is compiled or read from the cache."""
    signals, two, one = np.ones((1, 2)), np.ones(2), np.ones(1, np.int64)
    draw(signals, np.uint64(0), 0, 0, np.arange(2))
    rules = Rules(1, 1, RESTART, EQUAL_SHARE, False, 2, np.inf, np.inf, 0, 0.0, 0.0, 1.0)
    zero, never = np.zeros(1), np.full(1, np.inf)
    servers = Servers(np.array([0, 2]), np.full(1, 1e6), 0 * one, zero, zero, zero, never, one, 0 * one, two)
    numbers = np.zeros(2, int), np.full(2, -1)
    followed = Followed(np.arange(2), two, two, two.copy(), two.copy(), np.full(2, np.inf), *numbers, np.zeros(2))
    record, scratch, search = new_buffers(1, 1, 8), new_scratch(2), new_search(2) if searching else None
    rows = np.empty((1, 0), np.int64)
    play_rounds(
        loops, rules, servers, followed, np.ones((1, 2)), rows, search, record, scratch, rules, followed, 0, record
    )


@compiled
def _forecast(loops, rules, followed, signal, plan, search, time_s, band_hz, scratch):
    """Share the band and compute rates and arrivals; return whether the policy gave a share."""
    _who_is_served(rules, followed, plan, scratch.serve)
    if search is None:
        _equal_parts(rules, followed, band_hz, scratch)
    elif not share_band(loops, rules, followed, signal, band_hz, search, scratch):
        return False
    _arrivals(loops[0], rules, followed, signal, time_s, scratch)
    return True


@compiled
def _open_round(loops, rules, servers, server, followed, signal, plan, search, scratch):
    """Let UEs work until the cloud's model is at an edge, and hand it out; return the reason to stop."""
    round_, time_s, opens_s = servers.round[server], servers.time_s[server], servers.opens_s[server]
    if opens_s > rules.horizon_s:
        return LATE
    if not _forecast(loops, rules, followed, signal, plan, search, time_s, servers.bandwidth_hz[server], scratch):
        return ASK
    _carry_over(followed, scratch.rate, scratch.arrival, time_s, opens_s)
    assign_model(rules, followed, round_, scratch)
    _begin_jobs(followed, round_, opens_s - servers.closed_s[server])
    servers.time_s[server], servers.opened_s[server], servers.opens_s[server] = opens_s, opens_s, np.inf
    return DONE


@compiled
def _play_round(
    loops, rules, servers, server, followed, signal, plan, search, record, played, lost_rows, hands_out, scratch
):
    """Play one round of a server; return the reason to stop and the next row for lost jobs."""
    round_, time_s, band_hz = servers.round[server], servers.time_s[server], servers.bandwidth_hz[server]
    if not _forecast(loops, rules, followed, signal, plan, search, time_s, band_hz, scratch):
        return ASK, lost_rows
    close_s = close(rules, followed, plan, round_, max(time_s, servers.opened_s[server]), scratch)
    if close_s == np.inf:
        return ASK, lost_rows
    if rules.others and not _none_else_arrives(
        loops[0], rules, followed, round_, time_s, close_s, band_hz, servers.rival, scratch
    ):
        return UNPROVEN, lost_rows
    if close_s > rules.horizon_s:
        return LATE, lost_rows
    end = merge(rules, followed, round_, close_s, record, played, lost_rows, scratch)
    if end < 0:
        return FULL, lost_rows
    _carry_over(followed, scratch.rate, scratch.arrival, time_s, close_s)
    servers.round[server], servers.time_s[server], servers.closed_s[server] = round_ + 1, close_s, close_s
    servers.opened_s[server] = close_s if hands_out else np.inf
    if hands_out:
        assign_model(rules, followed, round_ + 1, scratch)
        _begin_jobs(followed, round_ + 1, 0.0)
    return DONE, end


@compiled
def _play_cloud(rules, servers, edges, edge_rounds, record, played, scratch):
    """Play one round of the cloud; return whether it closes within the horizon and the number of rounds."""
    cloud, ready = servers.first.size - 1, 0
    for edge in range(cloud):
        sent = servers.left[edge] == 0
        scratch.arrival[edge] = servers.time_s[edge] + edges.job_s[edge] if sent else np.inf
    round_ = servers.round[cloud]
    close_s = close(rules, edges, edges.ues, round_, servers.opened_s[cloud], scratch)
    for edge in range(cloud):
        ready += servers.left[edge] == 0 and servers.time_s[edge] <= close_s
    known = edge_rounds * (round_ * rules.quorum + ready)
    if close_s == np.inf or close_s > rules.horizon_s or known > servers.left[cloud]:
        return False
    merge(rules, edges, round_, close_s, record, played, 0, scratch)
    assign_model(rules, edges, round_ + 1, scratch)
    servers.round[cloud], servers.time_s[cloud], servers.opened_s[cloud] = round_ + 1, close_s, close_s
    return True


@compiled
def _tell_edges(servers, edges, edge_rounds):
    """Settle when the cloud's model is at the edges that it has handed it to."""
    cloud = servers.first.size - 1
    for edge in range(cloud):
        if edges.versions[edge] == servers.round[cloud]:
            servers.left[edge], servers.opens_s[edge] = edge_rounds, servers.time_s[cloud] + edges.job_s[edge]


@compiled
def _who_is_served(rules, followed, plan, serve):
    """Mark the UEs with something to send: the planned ones, or all of them for equal shares or without a plan."""
    planned = rules.planned and rules.policy != EQUAL_SHARE
    for i in range(followed.bits.size):
        serve[i] = followed.bits[i] > 0 and not planned
    if planned:
        for ue in plan:
            serve[ue] = followed.bits[ue] > 0


@compiled
def _equal_parts(rules, followed, band_hz, scratch):
    """Give the same bandwidth to every UE that is served."""
    count = rules.others
    for i in range(followed.bits.size):
        count += scratch.serve[i]
    part = band_hz / max(count, 1)
    for i in range(followed.bits.size):
        scratch.band[i] = part if scratch.serve[i] else 0.0


@compiled
def _arrivals(log1p, rules, followed, signal, time_s, scratch):
    """Compute the rate and the arrival time of every UE, if the round stays open long enough."""
    n, band, rate, arrival = signal.size, scratch.band, scratch.rate, scratch.arrival
    for i in range(n):
        rate[i] = signal[i] / band[i] if band[i] > 0 else 0.0
    apply(log1p, rate, n, scratch.call)
    soonest_s = np.nextafter(time_s, np.inf)  # an open job arrives later, even with almost no bits left
    for i in range(n):
        rate[i] = min(rate[i], rules.most_nats) * (band[i] / LN2)
        if followed.bits[i] == 0:
            arrival[i] = followed.arrived_s[i]
        else:
            arrival[i] = max(followed.bits[i] / rate[i] + (time_s + followed.compute_s[i]), soonest_s)


@compiled
def _none_else_arrives(log1p, rules, followed, round_, time_s, close_s, band_hz, rival, scratch):
    """Return whether no unfollowed UE can have arrived, even with the strongest fading since its job began."""
    if round_ % (rules.bound + 1) == 0:
        rival[0], rival[1] = 0.0, time_s + rules.others_s  # they are never merged, so they all restart together
    sending = rules.others
    for i in range(followed.bits.size):
        sending += followed.bits[i] > 0
    part = band_hz / sending
    scratch.key[0] = rules.others_hz / part
    apply(log1p, scratch.key, 1, scratch.call)
    rival[0] += min(scratch.key[0], rules.most_nats) * (part / LN2) * max(close_s - max(time_s, rival[1]), 0.0)
    return rival[0] < (1 - MARGIN) * rules.others_bits


@compiled
def _carry_over(followed, rate, arrival, time_s, now_s):
    """Subtract the work done between two times."""
    lasted_s = now_s - time_s
    for i in range(followed.bits.size):
        if followed.versions[i] == IDLE:
            followed.compute_s[i], followed.bits[i], followed.arrived_s[i] = 0.0, 0.0, np.inf
        elif arrival[i] <= now_s:
            followed.compute_s[i], followed.bits[i], followed.arrived_s[i] = 0.0, 0.0, arrival[i]
        else:
            left_s, least_bits = followed.compute_s[i] - lasted_s, MIN_LEFT * followed.job_bits[i]
            followed.bits[i] = max(min(left_s, 0.0) * rate[i] + followed.bits[i], least_bits)
            followed.compute_s[i], followed.arrived_s[i] = max(left_s, 0.0), np.inf


@compiled
def _begin_jobs(followed, new, model_s):
    """Start the jobs of UEs that were handed the new model ``model_s`` seconds after it was made."""
    for i in range(followed.bits.size):
        if followed.versions[i] == new:
            followed.compute_s[i], followed.bits[i] = followed.job_s[i], followed.job_bits[i]
            followed.arrived_s[i], followed.model_s[i] = np.inf, model_s
