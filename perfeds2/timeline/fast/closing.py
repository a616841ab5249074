"""Close a round, end its jobs and hand out the new model, in plain loops that Numba compiles.

The rules are those of ``timeline.protocol``; the two share no function.
"""

import numpy as np

from perfeds2.timeline.fast.numbers import compiled, smallest, sort

IDLE = -1  # version of a UE without a job
RESTART, WAIT, IGNORE = range(3)
MANY_LOST = 256  # above this many jobs lost at once, consecutive UEs that lost the same job share a row


@compiled
def close(rules, followed, plan, round_, earliest_s, scratch):
    """Return when the round closes; write the merged UEs in order of arrival, ties by number."""
    versions, arrival, eligible, merged = followed.versions, scratch.arrival, scratch.eligible, scratch.merged
    oldest = 0 if rules.bound < 0 else max(round_ - rules.bound, 0)
    for i in range(versions.size):
        scratch.spare[i] = eligible[i] = arrival[i] if versions[i] >= oldest else np.inf
    close_s = earliest_s
    if rules.planned:
        for slot in range(rules.quorum):
            merged[slot] = plan[slot]  # in ascending order
            close_s = max(close_s, eligible[merged[slot]])
        sort(merged, rules.quorum, eligible, scratch.order)
    else:
        close_s = max(smallest(scratch.spare, versions.size, rules.quorum), earliest_s)
        waits = rules.stale == WAIT and rules.bound >= 0
        if waits:
            close_s = max(close_s, _everyone_in_time(rules, versions, eligible, scratch.spare, round_))
        if close_s < np.inf:
            _pick(waits, rules.quorum, versions, close_s, scratch)
    return close_s


@compiled
def _everyone_in_time(rules, versions, arrival, copy, round_):
    """Return the earliest time the round can close so that all other jobs can still be merged within the bound."""
    close_s = -np.inf
    for later in range(rules.bound + 1):
        due = 0
        for i in range(versions.size):
            if versions[i] != IDLE and versions[i] + rules.bound - round_ <= later:
                copy[due] = arrival[i]
                due += 1
        needed = due - rules.quorum * later
        if needed > 0:
            close_s = max(close_s, smallest(copy, due, needed))
    return close_s


@compiled
def _pick(waits, quorum, versions, close_s, scratch):
    """Select the A updates to merge, in order of arrival: the earliest, or with ``wait`` the stalest."""
    arrival, merged, key, order, count = scratch.eligible, scratch.merged, scratch.key, scratch.order, 0
    for i in range(versions.size):
        if arrival[i] <= close_s:
            merged[count] = i
            count += 1
    sort(merged, count, arrival, order)
    if waits and count > quorum:
        for i in range(versions.size):
            key[i] = versions[i]
        sort(merged, count, key, order)
        for i in range(versions.size):
            key[i] = i
        sort(merged, quorum, key, order)
        sort(merged, quorum, arrival, order)


@compiled
def merge(rules, followed, round_, close_s, record, played, lost_rows, scratch):
    """Close a round, record it and end its jobs; return the next row for lost jobs, or -1 if there is none."""
    end = _lose(rules, followed, scratch.arrival, round_, close_s, scratch.merged, scratch.lost, record, lost_rows)
    if end >= 0:
        for slot in range(rules.quorum):
            i = scratch.merged[slot]
            record.ues[played, slot] = followed.ues[i]
            record.staleness[played, slot] = round_ - followed.versions[i]
            record.arrival_s[played, slot], record.model_s[played, slot] = scratch.arrival[i], followed.model_s[i]
            followed.versions[i] = IDLE
        record.time_s[played] = close_s
        if rules.bound >= 0:
            for i in range(followed.versions.size):
                if scratch.lost[i]:
                    followed.versions[i] = IDLE
    return end


@compiled
def _lose(rules, followed, arrival, round_, close_s, merged, lost, record, row):
    """Record the jobs that end without a merge; return the next free row, or -1 if the buffer is full."""
    n, versions, others, new = followed.versions.size, followed.versions, 0, round_ + 1
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
            row = _write_lost(record, row, first, before - between, others_version, round_, np.inf, between, 0.0)
        if lost[i]:
            arrived_s = arrival[i] if arrival[i] <= close_s else np.inf
            wait_s = followed.model_s[i]
            row = _write_lost(record, row, first, followed.ues[i], versions[i], round_, arrived_s, 1, wait_s)
        if row < 0:
            return row
    behind = n + rules.others - before - 1
    if others and behind:
        row = _write_lost(record, row, first, before + 1, others_version, round_, np.inf, behind, 0.0)
    return row


@compiled
def _write_lost(record, row, first, ue, version, round_, arrived_s, count, model_s):
    """Record one lost job; after row ``first``, extend the last row if the UE follows it and lost the same job."""
    if (
        row > first
        and arrived_s == np.inf
        and record.lost_ue[row - 1] + record.lost_count[row - 1] == ue
        and record.lost_version[row - 1] == version
        and record.lost_arrival_s[row - 1] == np.inf
        and record.lost_model_s[row - 1] == model_s
    ):
        record.lost_count[row - 1] += count
        return row
    if row < 0 or row == record.lost_ue.size:
        return -1
    record.lost_ue[row], record.lost_version[row], record.lost_round[row] = ue, version, round_
    record.lost_arrival_s[row], record.lost_count[row], record.lost_model_s[row] = arrived_s, count, model_s
    return row + 1


@compiled
def assign_model(rules, followed, new, scratch):
    """Hand the new model to the idle UEs; with ``wait``, to those longest without a merge, as many as may work."""
    order, key, versions, idle = scratch.order, scratch.key, followed.versions, 0
    for i in range(versions.size):
        if versions[i] == IDLE:
            order[idle], key[i] = i, followed.merged_in[i]
            idle += 1
    handed = idle
    if rules.stale == WAIT and rules.bound >= 0:
        sort(order, idle, key, scratch.merged)
        handed = min(rules.at_work - (versions.size - idle), idle)
    for slot in range(handed):
        versions[order[slot]] = new
