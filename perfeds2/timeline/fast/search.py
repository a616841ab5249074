"""Share the band so that UEs finish together, in plain loops that Numba compiles.

This is the policy ``equal_finish`` of ``allocation.bandwidth`` with the same formulas in the same order, so the
bandwidths agree bit for bit; the two share no function. It is a separate module because it takes as long to compile
as the rest of the clock, and most runs do not need it.
"""

import math

import numpy as np

from perfeds2.timeline.fast.numbers import add_up, apply, compiled

MAX_STEPS, STRETCH, NO_BITS = 200, 32_768, 1e-100  # iterations, UEs per block, lower limit on bits
LN2 = float(np.log(2))
SEARCH_ROWS = 13
# Rows of the scratch array, with one value per served UE:
SIGNAL, NATS, COMPUTE_S, GIVEN, LIMIT_S, SPARE_S, EFFICIENCY, FALL, LOAD, SENDING_S, CLOSER, SPARE, TOTAL = range(
    SEARCH_ROWS
)


@compiled
def share_band(loops, rules, followed, signal, band_hz, work, scratch):
    """Compute every UE's bandwidth; return False if the result is NaN or exceeds the band."""
    count = 0
    for i in range(signal.size):
        if scratch.serve[i]:
            work[SIGNAL, count], work[NATS, count] = signal[i], max(followed.bits[i], NO_BITS) * LN2
            work[COMPUTE_S, count] = followed.compute_s[i]
            count += 1
    if count:
        _finish_together(loops, band_hz, rules.most_nats, count, work, scratch.call)
    count = 0
    for i in range(signal.size):
        scratch.band[i] = work[GIVEN, count] if scratch.serve[i] else 0.0
        count += scratch.serve[i]
    return add_up(loops[3], scratch.band, signal.size, work[TOTAL], scratch.call) <= band_hz * (1 + 1e-9)


@compiled
def _finish_together(loops, band_hz, most, count, work, call):
    """Share the band so that the last UE finishes as early as possible; inputs and bandwidths are rows of ``work``."""
    signal, nats, compute_s, given = work[SIGNAL], work[NATS], work[COMPUTE_S], work[GIVEN]
    limit_s, spare_s, efficiency, snr = work[LIMIT_S], work[SPARE_S], work[EFFICIENCY], work[LOAD]
    last, latest_s = 0, -np.inf
    for i in range(count):
        limit_s[i] = nats[i] / signal[i]
        if compute_s[i] + limit_s[i] > latest_s:
            last, latest_s = i, compute_s[i] + limit_s[i]
    for i in range(count):
        spare_s[i] = max((compute_s[last] - compute_s[i]) + (limit_s[last] - limit_s[i]), 0.0)
        snr[i] = efficiency[i] = signal[i] / (band_hz / count)
    apply(loops[0], efficiency, count, call)
    high = -np.inf
    for i in range(count):
        high = max(high, limit_s[i] * _excess(snr[i], efficiency[i], most) - spare_s[i])
    with_all = snr[0] = signal[last] / band_hz
    apply(loops[0], snr, 1, call)
    low = limit_s[last] * _excess(with_all, snr[0], most)
    after_s, total = high, 0.0
    for _ in range(MAX_STEPS):
        slope = unsure = 0.0
        for start in range(0, count, STRETCH):
            stop = min(start + STRETCH, count)
            unsure = max(unsure, _needs(loops, after_s, most, start, stop, work, call))
            slope += add_up(loops[3], work[FALL][start:], stop - start, work[TOTAL], call)
        total = add_up(loops[3], given, count, work[TOTAL], call)
        miss = total / band_hz - 1
        if (unsure < 1e-11 and abs(miss) * band_hz < 1e-11 * band_hz) or high <= low * (1 + 1e-14):
            break
        if abs(miss) > unsure:  # otherwise the error may hide on which side of the root we are
            if miss > 0:
                low = max(low, after_s)
            else:
                high = min(high, after_s)
        newton = after_s + miss * total / slope if slope > 0 else low
        after_s = newton if low < newton < high else math.sqrt(low * high)
    for i in range(count):
        given[i] *= band_hz / total


@compiled
def _needs(loops, after_s, most, start, stop, work, call):
    """Compute the bandwidths with which UEs finish at a given time, and their slopes; return their error bound."""
    nats, given, limit_s, spare_s = work[NATS], work[GIVEN], work[LIMIT_S], work[SPARE_S]
    efficiency, fall, load, sending_s, closer = work[EFFICIENCY], work[FALL], work[LOAD], work[SENDING_S], work[CLOSER]
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
            _closer(loops[1], load, closer, work[SPARE], start, stop, call)
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
        u, load_i = efficiency[i], limit_s[i] / sending_s[i]
        given[i] = nats[i] / (sending_s[i] * min(u, most))
        reach = load_i + u
        fall[i] = given[i] / sending_s[i] * reach / max(reach - 1, u / 4)
        if u >= most:
            fall[i] = given[i] / sending_s[i]
    return unsure


@compiled
def _efficiency(loops, after_s, start, stop, work, call):
    """Solve u = ln(1 + u/Γ) by Halley's method, or near saturation by a series. Overwrites the rows LOAD and FALL."""
    limit_s, spare_s, efficiency = work[LIMIT_S], work[SPARE_S], work[EFFICIENCY]
    load, closer, headroom, count = work[LOAD], work[CLOSER], work[FALL], stop - start
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
    for _ in range(2):
        _closer(loops[1], load, efficiency, work[SPARE], start, stop, call)
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
    """Take one step of Halley's method on u − ln(1 + u/Γ), in place."""
    for i in range(start, stop):
        spare[i] = (load[i] + guess[i]) / load[i]
    apply(log, spare[start:], stop - start, call)
    for i in range(start, stop):
        total = load[i] + guess[i]
        miss, slope = guess[i] - spare[i], total - 1
        guess[i] -= miss * slope * total / (slope * slope - miss * 0.5)


@compiled
def _excess(snr, log, most):
    """Return x/ln(1+x) − 1, by a series for small x."""
    if snr < 1e-3:
        return snr * (1 / 2 - snr * (1 / 12 - snr * (1 / 24 - snr * (19 / 720))))
    return snr / min(log, most) - 1
