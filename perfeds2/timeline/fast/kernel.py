"""Play rounds in plain loops that Numba compiles.

The loops evaluate the same formulas in the same order as the NumPy clock, so the times agree bit for bit; the two
share no function. Logarithms and long sums differ between implementations, so the loops call NumPy's own by address
(``loops``). Only ``loading`` imports this module, and only when that saves time, because Numba takes a second to
load.
"""

from typing import NamedTuple

import numpy as np

from perfeds2.timeline.fast.numbers import apply, compiled, entrance

IDLE = -1  # version of a UE without a job
DONE, LATE, FULL, LOST_HOPE, ASK = range(5)  # why the loop stopped; ASK: the NumPy clock must play this round
RESTART, WAIT, IGNORE = range(3)
EQUAL_SHARE, PLANNED_SHARE, EQUAL_FINISH = range(3)
LN2 = float(np.log(2))
LEAST_LEFT = float(np.finfo(float).eps)  # fraction of the payload that a job keeps until it has arrived
MANY_LOST = 256  # above this many jobs lost at once, consecutive UEs that lost the same job share a row
SEARCH_ROWS = 13  # scratch arrays of ``search``
MARGIN = 1e-12  # safety margin of the proof that no other UE arrives


class Rules(NamedTuple):
    """What stays the same from round to round."""

    quorum: int
    bound: int  # S; below 0 for no bound
    stale: int
    policy: int
    planned: bool  # whether rounds close on given rows of UEs
    at_work: int  # UEs that may hold a job at once
    payload_bits: float
    bandwidth_hz: float
    most_nats: float  # most nat/s/Hz that modulation carries; infinite for no limit
    horizon_s: float
    others: int  # UEs that are not followed: they send but never arrive
    others_hz: float  # none of their signals is stronger
    others_s: float  # none of them computes for less time


class Followed(NamedTuple):
    """The UEs that are followed, in ascending order, and the state of each."""

    ues: np.ndarray
    job_s: np.ndarray
    compute_s: np.ndarray
    bits: np.ndarray
    arrived_s: np.ndarray
    versions: np.ndarray
    merged_in: np.ndarray


class RoundBuffers(NamedTuple):
    """Output buffers for the rounds played and the jobs lost in them."""

    ues: np.ndarray
    staleness: np.ndarray
    arrival_s: np.ndarray
    time_s: np.ndarray
    lost_ue: np.ndarray
    lost_version: np.ndarray
    lost_round: np.ndarray
    lost_arrival_s: np.ndarray
    lost_count: np.ndarray


class Scratch(NamedTuple):
    """Scratch arrays for one round, each with a value per followed UE."""

    band: np.ndarray
    rate: np.ndarray
    arrival: np.ndarray
    eligible: np.ndarray
    spare: np.ndarray
    key: np.ndarray
    merged: np.ndarray
    order: np.ndarray
    lost: np.ndarray
    serve: np.ndarray
    call: np.ndarray  # the arguments of a call of NumPy
    search: np.ndarray  # rows for the search for bandwidths


# ---- Rounds


@entrance
def play_rounds(loops, rules, followed, signals, rows, round_, time_s, hope, record, scratch):
    """Play rounds with equal bandwidths until the signals are used up or there is a reason to stop.

    Returns (reason, rounds played, rows of lost jobs, time reached in seconds).
    """
    lost_rows = 0
    for played in range(signals.shape[0]):
        who_is_served(rules, followed, rows, played, scratch.serve)
        _equal_parts(rules, scratch)
        why, lost_rows, time_s = settle(
            loops,
            rules,
            followed,
            signals[played],
            rows,
            played,
            round_ + played,
            time_s,
            hope,
            record,
            lost_rows,
            scratch,
        )
        if why != DONE:
            return why, played, lost_rows, time_s
    return DONE, signals.shape[0], lost_rows, time_s


def play_one_round(play, draw, loops, searching):
    """Call both entry points once, so that everything is compiled or read from the cache."""
    signals, two = np.ones((1, 2)), np.ones(2)
    draw(signals, np.uint64(0), 0, 0, np.arange(2))
    policy = EQUAL_FINISH if searching else EQUAL_SHARE
    rules = Rules(1, 1, RESTART, policy, False, 2, 1.0, 1e6, np.inf, np.inf, 0, 0.0, 0.0)
    state = (np.ones(2), np.ones(2), np.full(2, np.inf), np.zeros(2, np.int64), np.full(2, -1))
    followed = Followed(np.arange(2), two, *state)
    buffers = new_buffers(1, 1, 8), new_scratch(2, searching)
    play(loops, rules, followed, np.ones((1, 2)), np.empty((1, 0), np.int64), 0, 0.0, np.zeros(3), *buffers)


def new_buffers(rounds, quorum, lost_rows):
    """Return empty buffers for this many rounds and rows of lost jobs."""
    table, whole = (rounds, quorum), np.int64
    return RoundBuffers(
        *(np.empty(table, whole), np.empty(table, whole), np.empty(table), np.empty(rounds)),
        *(np.empty(lost_rows, whole), np.empty(lost_rows, whole), np.empty(lost_rows, whole)),
        *(np.empty(lost_rows), np.empty(lost_rows, whole)),
    )


def new_scratch(n, searching):
    """Return scratch arrays for ``n`` followed UEs; a search for bandwidths needs more of them."""
    values, whole, masks = np.empty((6, n)), np.empty((2, n), np.int64), np.zeros((2, n), np.bool_)
    search = np.empty((SEARCH_ROWS if searching else 0, n))
    return Scratch(*values, *whole, *masks, call=np.empty(7, np.int64), search=search)


@compiled
def who_is_served(rules, followed, rows, played, serve):
    """Mark the UEs with something to send: the planned ones, or all of them for equal shares or without a plan."""
    planned = rules.planned and rules.policy != EQUAL_SHARE
    for i in range(serve.size):
        serve[i] = followed.bits[i] > 0 and not planned
    if planned:
        for slot in range(rules.quorum):
            ue = rows[played, slot]
            serve[ue] = followed.bits[ue] > 0


@compiled
def _equal_parts(rules, scratch):
    """Give the same bandwidth to every UE that is served."""
    count = rules.others
    for i in range(scratch.band.size):
        count += scratch.serve[i]
    part = rules.bandwidth_hz / max(count, 1)
    for i in range(scratch.band.size):
        scratch.band[i] = part if scratch.serve[i] else 0.0


@compiled
def settle(loops, rules, followed, signal, rows, played, round_, time_s, hope, record, lost_rows, scratch):
    """Play a round whose bandwidths are set; return the reason, the next row for lost jobs and the closing time."""
    _arrivals(loops[0], rules, followed, signal, time_s, scratch)
    close_s = _close(rules, followed, rows, played, round_, scratch)
    if close_s == np.inf:
        return ASK, lost_rows, time_s
    close_s = max(close_s, time_s, hope[2])
    if rules.others and not _hopeless(loops[0], rules, followed, round_, time_s, close_s, hope, scratch):
        return LOST_HOPE, lost_rows, time_s
    if close_s > rules.horizon_s:
        return LATE, lost_rows, time_s
    end = _lose(rules, followed, scratch.arrival, round_, close_s, scratch.merged, scratch.lost, record, lost_rows)
    if end < 0:
        return FULL, lost_rows, time_s
    for slot in range(rules.quorum):
        i = scratch.merged[slot]
        record.ues[played, slot] = followed.ues[i]
        record.staleness[played, slot] = round_ - followed.versions[i]
        record.arrival_s[played, slot] = scratch.arrival[i]
    record.time_s[played] = close_s
    _hand_out(rules, followed, round_ + 1, scratch)
    _carry_over(rules, followed, scratch.rate, scratch.arrival, round_ + 1, time_s, close_s)
    return DONE, end, close_s


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
def _close(rules, followed, rows, played, round_, scratch):
    """Return when the round closes; write the merged UEs in order of arrival, ties by number."""
    versions, arrival, eligible, merged = followed.versions, scratch.arrival, scratch.eligible, scratch.merged
    oldest = 0 if rules.bound < 0 else max(round_ - rules.bound, 0)
    for i in range(arrival.size):
        scratch.spare[i] = eligible[i] = arrival[i] if versions[i] >= oldest else np.inf
    close_s = -np.inf
    if rules.planned:
        for slot in range(rules.quorum):
            merged[slot] = rows[played, slot]  # in ascending order
            close_s = max(close_s, eligible[merged[slot]])
        _sort(merged, rules.quorum, eligible, scratch.order)
    else:
        close_s = _smallest(scratch.spare, arrival.size, rules.quorum)
        waits = rules.stale == WAIT and rules.bound >= 0
        if waits:
            close_s = max(close_s, _everyone_in_time(rules, versions, eligible, scratch.spare, round_))
        if close_s < np.inf:
            _pick(waits, rules.quorum, versions, close_s, scratch)
    return close_s


@compiled
def _smallest(values, count, rank):
    """Return the ``rank``-th smallest value, counting from 1. Reorders the values."""
    low, high, place = 0, count - 1, rank - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return values[place]


@compiled
def _everyone_in_time(rules, versions, arrival, copy, round_):
    """Return the earliest time the round can close so that all other jobs can still be merged within the bound."""
    close_s = -np.inf
    for later in range(rules.bound + 1):
        due = 0
        for i in range(arrival.size):
            if versions[i] != IDLE and versions[i] + rules.bound - round_ <= later:
                copy[due] = arrival[i]
                due += 1
        needed = due - rules.quorum * later
        if needed > 0:
            close_s = max(close_s, _smallest(copy, due, needed))
    return close_s


@compiled
def _pick(waits, quorum, versions, close_s, scratch):
    """Select the A updates to merge, in order of arrival: the earliest, or with ``wait`` the stalest."""
    arrival, merged, key, order, count = scratch.eligible, scratch.merged, scratch.key, scratch.order, 0
    for i in range(arrival.size):
        if arrival[i] <= close_s:
            merged[count] = i
            count += 1
    _sort(merged, count, arrival, order)
    if waits and count > quorum:
        for i in range(arrival.size):
            key[i] = versions[i]
        _sort(merged, count, key, order)
        for i in range(arrival.size):
            key[i] = i
        _sort(merged, quorum, key, order)
        _sort(merged, quorum, arrival, order)


@compiled
def _sort(places, count, key, spare):
    """Sort stably by key: insertion sort on runs of 16, then merge the runs."""
    for start in range(0, count, 16):
        for i in range(start + 1, min(start + 16, count)):
            place, value, j = places[i], key[places[i]], i
            while j > start and key[places[j - 1]] > value:
                places[j] = places[j - 1]
                j -= 1
            places[j] = place
    width = 16
    while width < count:
        for start in range(0, count, 2 * width):
            i, middle, stop = start, min(start + width, count), min(start + 2 * width, count)
            j = middle
            for k in range(start, stop):
                if i < middle and (j >= stop or key[places[i]] <= key[places[j]]):
                    spare[k] = places[i]
                    i += 1
                else:
                    spare[k] = places[j]
                    j += 1
        for k in range(count):
            places[k] = spare[k]
        width *= 2


@compiled
def _hopeless(log1p, rules, followed, round_, time_s, close_s, hope, scratch):
    """Return whether no unfollowed UE can have arrived, even with the strongest fading since its job began."""
    if round_ % (rules.bound + 1) == 0:
        hope[0], hope[1] = 0.0, time_s + rules.others_s  # they are never merged, so they all restart together
    sending = rules.others
    for i in range(followed.bits.size):
        sending += followed.bits[i] > 0
    part = rules.bandwidth_hz / sending
    scratch.key[0] = rules.others_hz / part
    apply(log1p, scratch.key, 1, scratch.call)
    hope[0] += min(scratch.key[0], rules.most_nats) * (part / LN2) * max(close_s - max(time_s, hope[1]), 0.0)
    return hope[0] < (1 - MARGIN) * rules.payload_bits


@compiled
def _lose(rules, followed, arrival, round_, close_s, merged, lost, record, row):
    """Record the jobs that end without a merge; return the next free row, or -1 if the buffer is full."""
    n, versions, others, new = arrival.size, followed.versions, 0, round_ + 1
    for slot in range(rules.quorum):
        followed.merged_in[merged[slot]] = round_
    if rules.bound < 0:
        return row
    count, others_version = 0, round_ - round_ % (rules.bound + 1)
    for i in range(n):
        if rules.stale == RESTART:  # a UE that would be merged too stale restarts
            lost[i] = versions[i] < new - rules.bound and followed.merged_in[i] != round_
        else:  # an update that is too stale is refused when it has arrived
            lost[i] = versions[i] != IDLE and versions[i] < round_ - rules.bound and arrival[i] <= close_s
        count += lost[i]
    if rules.others and others_version < new - rules.bound:
        others = rules.others
    if count + others == 0:
        return row
    first, before = (row if count + others > MANY_LOST else record.lost_ue.size), -1
    for i in range(n):
        between = followed.ues[i] - before - 1
        before = followed.ues[i]
        if others and between:
            row = _write_lost(record, row, first, before - between, others_version, round_, np.inf, between)
        if lost[i]:
            arrived_s = arrival[i] if arrival[i] <= close_s else np.inf
            row = _write_lost(record, row, first, followed.ues[i], versions[i], round_, arrived_s, 1)
        if row < 0:
            return row
    behind = n + rules.others - before - 1
    if others and behind:
        row = _write_lost(record, row, first, before + 1, others_version, round_, np.inf, behind)
    return row


@compiled
def _write_lost(record, row, first, ue, version, round_, arrived_s, count):
    """Record one lost job; after row ``first``, extend the last row if the UE follows it and lost the same job."""
    if (
        row > first
        and record.lost_ue[row - 1] + record.lost_count[row - 1] == ue
        and record.lost_version[row - 1] == version
        and record.lost_arrival_s[row - 1] == arrived_s
    ):
        record.lost_count[row - 1] += count
        return row
    if row < 0 or row == record.lost_ue.size:
        return -1
    record.lost_ue[row], record.lost_version[row], record.lost_round[row] = ue, version, round_
    record.lost_arrival_s[row], record.lost_count[row] = arrived_s, count
    return row + 1


@compiled
def _hand_out(rules, followed, new, scratch):
    """Hand the new model to the merged and lost UEs, or with ``wait`` to the idle UEs longest without a merge."""
    merged, lost, order, key = scratch.merged, scratch.lost, scratch.order, scratch.key
    versions, waits = followed.versions, rules.stale == WAIT and rules.bound >= 0
    ended = IDLE if waits else new
    for slot in range(rules.quorum):
        versions[merged[slot]] = ended
    if rules.bound >= 0:
        for i in range(versions.size):
            if lost[i]:
                versions[i] = ended
    if not waits:
        return
    idle = 0
    for i in range(versions.size):
        if versions[i] == IDLE:
            order[idle], key[i] = i, followed.merged_in[i]
            idle += 1
    _sort(order, idle, key, merged)
    for slot in range(min(rules.at_work - (versions.size - idle), idle)):
        versions[order[slot]] = new


@compiled
def _carry_over(rules, followed, rate, arrival, new, time_s, now_s):
    """Subtract the work done in the round, and start the new jobs."""
    lasted_s, least_bits = now_s - time_s, LEAST_LEFT * rules.payload_bits
    for i in range(rate.size):
        if followed.versions[i] == new:
            followed.compute_s[i], followed.bits[i], followed.arrived_s[i] = (
                followed.job_s[i],
                rules.payload_bits,
                np.inf,
            )
        elif followed.versions[i] == IDLE:
            followed.compute_s[i], followed.bits[i], followed.arrived_s[i] = 0.0, 0.0, np.inf
        elif arrival[i] <= now_s:
            followed.compute_s[i], followed.bits[i], followed.arrived_s[i] = 0.0, 0.0, arrival[i]
        else:
            left_s = followed.compute_s[i] - lasted_s
            followed.bits[i] = max(min(left_s, 0.0) * rate[i] + followed.bits[i], least_bits)
            followed.compute_s[i], followed.arrived_s[i] = max(left_s, 0.0), np.inf
