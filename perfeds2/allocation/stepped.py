"""Let UEs finish at the same, earliest possible time on links with modulation steps.

The band that all UEs need to finish at a time T falls with T. It jumps where a UE's power reaches a faster step, and in
between it is a sum of fractions a / (T − c). We search the jumps first, then solve the sum by Newton's method.
"""

import numpy as np

from perfeds2.network.link import Array
from perfeds2.network.modulation import Steps

NUDGE = 1e-12  # so that a step counts as reached at its own jump, despite rounding
MAX_STEPS = 100


def finish_together(
    link: Steps, bandwidth_hz: float, signal_hz: Array, bits: Array, compute_s: Array, least_hz: Array
) -> Array:
    """Share the band so that the last UE finishes as early as possible and every UE gets at least ``least_hz``.

    Args:
        link: The steps.
        bandwidth_hz: The band, in Hz.
        signal_hz: The signal of each UE, shape (n,).
        bits: What each UE has to send, above 0.
        compute_s: When each UE can begin to send, in seconds from now.
        least_hz: Least bandwidth of each UE.

    Returns:
        The bandwidth of each UE in Hz, shape (n,).
    """
    spare_hz = bandwidth_hz - float(least_hz.sum())
    if spare_hz <= 1e-12 * bandwidth_hz:
        return least_hz

    def needed(end_s: float) -> Array:
        return link.least_hz(bits / (end_s - compute_s), signal_hz)

    def until_s(hz: Array | float) -> float:
        return float((compute_s + bits / (hz * link.bits_per_s_hz(signal_hz / hz))).max())

    low, high = until_s(bandwidth_hz), until_s(least_hz + spare_hz / bits.size) * (1 + NUDGE)
    jumps_s = compute_s[:, None] + link.least_s(bits, signal_hz) * (1 + NUDGE)
    jumps_s = np.append(np.sort(jumps_s[(jumps_s > low) & (jumps_s < high)]), high)
    first, last = 0, jumps_s.size - 1  # the first jump from which on the band is enough
    while first < last:
        middle = (first + last) // 2
        if np.maximum(needed(jumps_s[middle]), least_hz).sum() <= bandwidth_hz:
            last = middle
        else:
            first = middle + 1
    high = float(jumps_s[last])
    low = max(low, float(jumps_s[last - 1])) if last else low
    given = _between_jumps(link, low, high, bandwidth_hz, signal_hz, bits, compute_s, least_hz)
    above = given - least_hz
    return least_hz + above * (spare_hz / above.sum()) if above.any() else least_hz


def _between_jumps(
    link: Steps,
    low: float,
    high: float,
    bandwidth_hz: float,
    signal_hz: Array,
    bits: Array,
    compute_s: Array,
    least_hz: Array,
) -> Array:
    """Return the bandwidths at the earliest end from ``low`` to ``high``, before which every UE keeps its step."""
    middle = (low + high) / 2
    hertz_seconds = link.least_hz(bits / (middle - compute_s), signal_hz) * (middle - compute_s)
    if not np.isfinite(hertz_seconds).all():  # some UE cannot finish before the jump
        return np.maximum(link.least_hz(bits / (high - compute_s), signal_hz), least_hz)
    end_s, above_s = high, low
    for _ in range(MAX_STEPS):
        wanted = hertz_seconds / (end_s - compute_s)
        given = np.maximum(wanted, least_hz)
        total = float(given.sum())
        if abs(total / bandwidth_hz - 1) < 1e-13:
            return given
        if high <= above_s * (1 + 1e-15):
            break
        above_s, high = (end_s, high) if total > bandwidth_hz else (above_s, end_s)
        slope = float((wanted / (end_s - compute_s)).sum(where=wanted >= least_hz))
        newton = end_s + (total / bandwidth_hz - 1) * total / slope if slope > 0 else above_s
        end_s = newton if above_s < newton < high else (above_s + high) / 2
    return np.maximum(link.least_hz(bits / (high - compute_s), signal_hz), least_hz)
