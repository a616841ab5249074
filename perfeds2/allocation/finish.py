"""Let UEs finish at the same, earliest possible time on links that carry Shannon's rate, up to a limit."""

import numpy as np

from perfeds2.network.link import Array, closer_nats_per_hz, nats_per_hz

MAX_STEPS = 200  # the hardest of thousands of cells over twelve decades took 14
BLOCK = 32_768  # UEs per block: as many as fit in the processor's cache
NO_BITS = 1e-100  # lower limit on bits, so that what rounding leaves does not underflow to a bandwidth of 0


def finish_together(
    bandwidth_hz: float,
    signal_hz: Array,
    bits: Array,
    compute_s: Array,
    least_hz: Array,
    most: float = np.inf,
) -> Array:
    """Share the band so that the last UE finishes as early as possible and every UE gets at least ``least_hz``.

    To finish at time T, a UE needs b_i(T) = R_i/u_i with R_i = bits·ln2/(T − compute) in nat/s and u_i = ln(1 +
    g_i/b_i), capped at ``most``, the limit of the modulation. We solve Σ max(b_i(T), least_i) = B. No bandwidth lets
    UE i finish before compute_i + bits_i·ln2/g_i. The unknown is the time after the latest of these limits, which
    stays accurate even when a UE is close to its limit.

    1/Σb is nearly linear in that time, both far from the limits (b ~ 1/T) and close to them, so Newton's method on
    it, kept inside a bracket, takes about four steps. Each step starts from the u of the previous one.
    """
    nats = np.maximum(bits, NO_BITS) * np.log(2)
    limit_s = nats / signal_hz
    last = int((compute_s + limit_s).argmax())
    spare_s = np.maximum((compute_s[last] - compute_s) + (limit_s[last] - limit_s), 0.0)
    spare_hz = bandwidth_hz - float(least_hz.sum())
    if spare_hz <= 1e-12 * bandwidth_hz:
        return least_hz
    # With equal parts of the spare band all UEs finish by ``high``; with all of it the last one still needs ``low``.
    snr = signal_hz / (least_hz + spare_hz / bits.size)
    high = float((limit_s * _excess(snr, most) - spare_s).max())
    low = float(limit_s[last] * _excess(signal_hz[last : last + 1] / bandwidth_hz, most)[0])
    after_s, efficiency, given = high, np.log1p(snr), np.empty(bits.size)
    blocks = [slice(start, start + BLOCK) for start in range(0, bits.size, BLOCK)]
    for _ in range(MAX_STEPS):
        slope = unsure = 0.0
        for at in blocks:
            needed, fall, wrong = _needs(after_s, nats[at], limit_s[at], spare_s[at], efficiency[at], most)
            np.maximum(needed, least_hz[at], out=given[at])
            slope += fall.sum(where=needed >= least_hz[at])
            unsure = max(unsure, wrong)
        total = given.sum()
        miss = total / bandwidth_hz - 1
        if (unsure < 1e-11 and abs(miss) * bandwidth_hz < 1e-11 * spare_hz) or high <= low * (1 + 1e-14):
            break
        if abs(miss) > unsure:  # otherwise the error may hide on which side of the root we are
            low, high = (max(low, after_s), high) if miss > 0 else (low, min(high, after_s))
        newton = float(after_s + miss * total / slope) if slope > 0 else low
        after_s = newton if low < newton < high else float(np.sqrt(low * high))
    above = given - least_hz
    return least_hz + above * (spare_hz / above.sum()) if above.any() else least_hz


def _needs(
    after_s: float, nats: Array, limit_s: Array, spare_s: Array, efficiency: Array, most: float
) -> tuple[Array, Array, float]:
    """Return the bandwidths with which these UEs finish at a given time, their slopes, and a bound on their error.

    Update the efficiencies u in place. Start from their old values if every UE is far from its limit and u changes
    little.
    """
    headroom_s = after_s + spare_s
    sending_s = headroom_s + limit_s
    load = limit_s / sending_s  # Γ
    unsure = 1.0
    if load.max() < 0.1:
        np.maximum(efficiency, 3.6, out=efficiency)  # lower limit of u at such loads, safe for Halley's method
        for _ in range(3):
            closer = closer_nats_per_hz(load, efficiency)
            unsure = float(np.abs(closer / efficiency - 1).max()) ** 3
            efficiency[:] = closer
            if unsure < 0.01:
                break
    if not unsure < 0.01:
        efficiency[:], unsure = nats_per_hz(np.log1p(headroom_s / limit_s)), 0.0
    carried = efficiency if most == np.inf else np.minimum(efficiency, most)
    needed = nats / (sending_s * carried)
    # −db/dT = b/(T − compute) · (Γ + u)/(Γ + u − 1); the factor stays below 4/u, even if Γ + u − 1 has lost its digits
    reach = load + efficiency
    fall = needed / sending_s * reach / np.maximum(reach - 1, efficiency / 4)
    if most < np.inf:
        fall = np.where(efficiency < most, fall, needed / sending_s)
    return needed, fall, unsure


def _excess(snr: Array, most: float) -> Array:
    """Return x/ln(1+x) − 1: how much longer than its limit a UE sends at a signal-to-noise ratio of x."""
    excess = snr / np.minimum(np.log1p(snr), most) - 1
    weak = snr < 1e-3
    if weak.any():
        x = snr[weak]
        excess[weak] = x * (1 / 2 - x * (1 / 12 - x * (1 / 24 - x * (19 / 720))))
    return excess
