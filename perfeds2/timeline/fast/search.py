"""Which bands make UEs end together, or are fair, in plain loops that a compiler can read?

Those policies of ``allocation.bandwidth`` that look for a number, with the same formulas in the same order, so that a band is the
same to the last bit; the two share no function. Sums are added up in NumPy's order. It is a file of its own because it takes as
long to compile as all the rest of the clock, and most runs do without.
"""

import math

import numpy as np

from perfeds2.timeline.fast.kernel import ASK, DONE, LN2, new_desk, settle, who_is_served
from perfeds2.timeline.fast.numbers import apply, compiled, entrance

EQUAL_FINISH, WEIGHTED_RATE, BETWEEN, MAX_THROUGHPUT = range(2, 6)
MOST_STEPS, STRETCH, NO_BITS = 200, 32_768, 1e-100  # of the iterations: steps, UEs at a time, the fewest bits


@entrance
def play_searching(loops, rules, people, signals, rows, round_, time_s, hope, record):
    """What ``play_rounds`` does, with these policies."""
    desk, work, lost_rows = new_desk(people.ues.size), np.empty((16, max(people.ues.size, 256))), 0
    for played in range(signals.shape[0]):
        who_is_served(rules, people, rows, played, desk.serve)
        if not _share_band(loops, rules, people, signals[played], desk.serve, desk.band, work, desk.call):
            return ASK, played, lost_rows, time_s
        why, lost_rows, time_s = settle(
            loops, rules, people, signals[played], rows, played, round_ + played, time_s, hope, record, lost_rows, desk
        )
        if why != DONE:
            return why, played, lost_rows, time_s
    return DONE, signals.shape[0], lost_rows, time_s


@compiled
def _share_band(loops, rules, people, signal, serve, band, work, call):
    """Everybody's band in this round. False where a policy would complain."""
    n, policy, served = signal.size, rules.policy, 0
    for i in range(n):
        served += serve[i]
        band[i] = 0.0
    if policy == EQUAL_FINISH:
        for i in range(n):
            work[0, i] = 0.0
        if served:
            _to_end_together(loops, rules, rules.bandwidth_hz, people, signal, serve, work[0], band, work, call)
    elif policy == WEIGHTED_RATE:
        _weighted_rate(loops, rules, people, signal, band, work, call)
    elif policy == BETWEEN:
        _between(loops, rules, people, signal, serve, served, band, work, call)
    else:  # MAX_THROUGHPUT
        for i in range(n):
            work[0, i] = signal[i] if people.bits[i] > 0 else 0.0
        total = sum_of(work[0], 0, n, work[15])
        if total > 0:
            for i in range(n):
                band[i] = rules.bandwidth_hz * work[0, i] / total
    least = np.inf
    for i in range(n):
        least = min(least, band[i])
    return least >= 0 and sum_of(band, 0, n, work[15]) <= rules.bandwidth_hz * (1 + 1e-9)


@compiled
def _to_end_together(loops, rules, band_hz, people, signal, serve, least, band, work, call):
    """The bands with which those served end together, nobody of them having less than its least."""
    count = 0
    for i in range(signal.size):
        if serve[i]:
            work[1, count], work[2, count] = signal[i], max(people.bits[i], NO_BITS) * LN2
            work[3, count], work[4, count] = people.compute_s[i], least[i]
            count += 1
    _finish(loops, band_hz, rules.most_nats, count, work, call)
    _spread(serve, work[5], band)


@compiled
def _weighted_rate(loops, rules, people, signal, band, work, call):
    """Rates in proportion to the shares: to send η bits each in the same time."""
    count = 0
    for i in range(signal.size):
        if people.bits[i] > 0 and people.shares[i] > 0:
            work[1, count], work[2, count] = signal[i], max(people.shares[i], NO_BITS) * LN2
            work[3, count] = work[4, count] = 0.0
            count += 1
    if not count:
        return
    _finish(loops, rules.bandwidth_hz, rules.most_nats, count, work, call)
    count = 0
    for i in range(signal.size):
        if people.bits[i] > 0 and people.shares[i] > 0:
            band[i] = work[5, count]
            count += 1


@compiled
def _between(loops, rules, people, signal, serve, served, band, work, call):
    """Those not served keep 1 − θ of their weighted-rate band; what they give up goes to the others."""
    _weighted_rate(loops, rules, people, signal, band, work, call)
    if rules.theta == 0 or not served:
        return
    kept, rest = work[0], 0
    for i in range(signal.size):
        kept[i] = band[i] if serve[i] and rules.planned else (1 - rules.theta) * band[i]
        if not serve[i]:
            work[1, rest] = band[i] = kept[i]
            rest += 1
    band_hz = rules.bandwidth_hz - sum_of(work[1], 0, rest, work[15])
    _to_end_together(loops, rules, band_hz, people, signal, serve, kept, band, work, call)


@compiled
def _spread(serve, given, band):
    place = 0
    for i in range(serve.size):
        if serve[i]:
            band[i] = given[place]
            place += 1


@compiled
def _finish(loops, band_hz, most, count, work, call):
    """Share a band so that the last ends as early as it can: signals, nats, computing and least bands in, bands (work[5]) out."""
    signal, nats, compute_s, least, given = work[1], work[2], work[3], work[4], work[5]
    limit_s, spare_s, efficiency, fall, excess = work[6], work[7], work[8], work[9], work[10]
    last, latest_s = 0, -np.inf
    for i in range(count):
        limit_s[i] = nats[i] / signal[i]
        if compute_s[i] + limit_s[i] > latest_s:
            last, latest_s = i, compute_s[i] + limit_s[i]
    spare_hz = band_hz - sum_of(least, 0, count, work[15])
    if spare_hz <= 1e-12 * band_hz:
        for i in range(count):
            given[i] = least[i]
        return
    for i in range(count):
        spare_s[i] = max((compute_s[last] - compute_s[i]) + (limit_s[last] - limit_s[i]), 0.0)
        excess[i] = efficiency[i] = signal[i] / (least[i] + spare_hz / count)
    apply(loops[0], efficiency, count, call)
    high = -np.inf
    for i in range(count):
        high = max(high, limit_s[i] * _excess(excess[i], efficiency[i], most) - spare_s[i])
    snr = excess[0] = signal[last] / band_hz
    apply(loops[0], excess, 1, call)
    low = limit_s[last] * _excess(snr, excess[0], most)
    after_s = high
    for _ in range(MOST_STEPS):
        slope = unsure = 0.0
        for start in range(0, count, STRETCH):
            stop = min(start + STRETCH, count)
            wrong = _needs(loops, after_s, most, start, stop, work, call)
            slope += _sum_of_those_above(fall, given, least, start, stop, work[15])
            for i in range(start, stop):
                given[i] = max(given[i], least[i])
            unsure = max(unsure, wrong)
        total = sum_of(given, 0, count, work[15])
        miss = total / band_hz - 1
        if (unsure < 1e-11 and abs(miss) * band_hz < 1e-11 * spare_hz) or high <= low * (1 + 1e-14):
            break
        if abs(miss) > unsure:  # only then is it certain on which side we are
            if miss > 0:
                low = max(low, after_s)
            else:
                high = min(high, after_s)
        newton = after_s + miss * total / slope if slope > 0 else low
        after_s = newton if low < newton < high else math.sqrt(low * high)
    above = False
    for i in range(count):
        excess[i] = given[i] - least[i]
        above = above or excess[i] != 0
    factor = spare_hz / sum_of(excess, 0, count, work[15]) if above else 0.0
    for i in range(count):
        given[i] = least[i] + excess[i] * factor if above else least[i]


@compiled
def _needs(loops, after_s, most, start, stop, work, call):
    """The bands (work[5]) that bring these home at a time, how fast they fall with it (work[9]), and how far off they may be."""
    nats, given, limit_s, spare_s, efficiency, fall = work[2], work[5], work[6], work[7], work[8], work[9]
    load, sending_s, closer = work[11], work[12], work[13]
    largest, unsure = -np.inf, 1.0
    for i in range(start, stop):
        sending_s[i] = (after_s + spare_s[i]) + limit_s[i]
        load[i] = limit_s[i] / sending_s[i]
        largest = max(largest, load[i])
    if largest < 0.1:
        for i in range(start, stop):
            efficiency[i] = max(efficiency[i], 3.6)
        for _ in range(3):
            for i in range(start, stop):
                closer[i] = efficiency[i]
            _closer(loops[1], load, closer, work[10], start, stop, call)
            off = 0.0
            for i in range(start, stop):
                off = max(off, abs(closer[i] / efficiency[i] - 1))
                efficiency[i] = closer[i]
            unsure = off**3.0
            if unsure < 0.01:
                break
    if not unsure < 0.01:
        _efficiency(loops, after_s, start, stop, work, call)
        unsure = 0.0
    for i in range(start, stop):
        u = efficiency[i]
        given[i] = nats[i] / (sending_s[i] * min(u, most))
        reach = load[i] + u
        fall[i] = given[i] / sending_s[i] * reach / max(reach - 1, u / 4)
        if u >= most:
            fall[i] = given[i] / sending_s[i]
    return unsure


@compiled
def _efficiency(loops, after_s, start, stop, work, call):
    """u = ln(1 + u/Γ) from scratch: by Halley's rule, near saturation by a series."""
    limit_s, spare_s, efficiency = work[6], work[7], work[8]
    load, closer, headroom, count = work[10], work[13], work[9], stop - start
    for i in range(start, stop):
        headroom[i] = (after_s + spare_s[i]) / limit_s[i]
    apply(loops[0], headroom[start:], count, call)
    for i in range(start, stop):
        capped = min(headroom[i], 690.0)
        load[i], efficiency[i], closer[i] = -capped, capped, capped
    apply(loops[2], load[start:], count, call)
    apply(loops[0], closer[start:], count, call)
    for i in range(start, stop):
        efficiency[i] += closer[i]
    spare = work[14]
    _closer(loops[1], load, efficiency, spare, start, stop, call)
    _closer(loops[1], load, efficiency, spare, start, stop, call)
    for i in range(start, stop):
        if headroom[i] < 0.05:
            u = 2 * headroom[i] - headroom[i] * headroom[i] / 3
            for _ in range(2):
                square = u * u
                value = u * (1 / 2 + u * (1 / 24 + square * (-1 / 2880 + square / 181440)))
                slope = 1 / 2 + u * (1 / 12 + square * (-1 / 720 + square / 30240))
                u = u - (value - headroom[i]) / slope
            efficiency[i] = u


@compiled
def _closer(log, load, guess, spare, start, stop, call):
    """One step of Halley's rule on u − ln(1 + u/Γ), in place."""
    for i in range(start, stop):
        spare[i] = (load[i] + guess[i]) / load[i]
    apply(log, spare[start:], stop - start, call)
    for i in range(start, stop):
        total = load[i] + guess[i]
        miss, slope = guess[i] - spare[i], total - 1
        guess[i] -= miss * slope * total / (slope * slope - miss * 0.5)


@compiled
def _excess(snr, log, most):
    """x/ln(1+x) − 1, by a series where x is small."""
    if snr < 1e-3:
        return snr * (1 / 2 - snr * (1 / 12 - snr * (1 / 24 - snr * (19 / 720))))
    return snr / min(log, most) - 1


@compiled
def _sum_of_those_above(values, given, least, start, stop, stack):
    """As NumPy sums where a condition holds: stretch by stretch."""
    total, i = 0.0, start
    while i < stop:
        while i < stop and not given[i] >= least[i]:
            i += 1
        first = i
        while i < stop and given[i] >= least[i]:
            i += 1
        if i > first:
            total += sum_of(values, first, i, stack)
    return total


@compiled
def sum_of(values, start, stop, stack):
    """In NumPy's order: halves, halves of halves, … of at most 128 numbers. The stack has four numbers for each halving.

    (A function that calls itself would be shorter; Numba cannot read such a one back from its cache.)
    """
    depth = 0
    while True:
        while stop - start > 128:  # the left half now, the right one later
            half = (stop - start) // 2
            half -= half % 8
            stack[depth], stack[depth + 1], stack[depth + 2] = start + half, stop, 1.0  # waits
            stop = start + half
            depth += 4
        total = _short_sum(values, start, stop)
        while depth and stack[depth - 2] == 0.0:
            depth -= 4
            total = stack[depth + 3] + total
        if not depth:
            return total
        stack[depth - 2], stack[depth - 1] = 0.0, total
        start, stop = int(stack[depth - 4]), int(stack[depth - 3])


@compiled
def _short_sum(values, start, stop):
    """Eight sums side by side, then those, then what is left over."""
    if stop - start < 8:
        total = 0.0
        for i in range(start, stop):
            total += values[i]
        return total
    a, b, c, d = values[start], values[start + 1], values[start + 2], values[start + 3]
    e, f, g, h = values[start + 4], values[start + 5], values[start + 6], values[start + 7]
    whole = stop - (stop - start) % 8
    for i in range(start + 8, whole, 8):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
        e += values[i + 4]
        f += values[i + 5]
        g += values[i + 6]
        h += values[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, stop):
        total += values[i]
    return total
