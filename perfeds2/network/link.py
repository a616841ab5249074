"""Convert between the bandwidth and the rate of a link.

One number describes a link: ``signal_hz`` = p·h·d^−κ / N0, the received power over the noise density. It is the
bandwidth at which the signal-to-noise ratio is 1 and, divided by ln 2, the rate that no bandwidth exceeds.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

Array = Float[np.ndarray, "..."]
PerUe = Float[np.ndarray, " n"]
Numbers = Int[np.ndarray, " n"]  # a whole number per UE
LN2 = float(np.log(2))
UE_NOISE_FIGURE_DB = 7.0  # ITU-R M.2412


@runtime_checkable
class Carries(Protocol):
    """What a link carries at a signal-to-noise ratio (see ``modulation``)."""

    def bits_per_s_hz(self, snr: Array) -> Array: ...


Limit = float | Carries | None  # bit/s/Hz that no link exceeds, or what links carry instead of Shannon's rate


def rate_bps(bandwidth_hz: Array | float, signal_hz: Array | float, limit: Limit = None) -> Array:
    """Return the uplink rate r = b·log2(1 + g/b) in bit/s (the paper's eq. (9) with log2, erratum 3); 0 if b = 0.

    ``limit`` is the limit of the modulation in bit/s/Hz, or what the link carries instead; None for no limit.
    """
    bandwidth = np.asarray(bandwidth_hz, float)
    ratio = np.asarray(signal_hz / np.where(bandwidth > 0, bandwidth, np.inf))
    if limit is not None and not isinstance(limit, float | int):
        return np.asarray(limit.bits_per_s_hz(ratio) * bandwidth)
    rate = np.log1p(ratio, out=ratio)
    if limit is not None:
        np.minimum(rate, limit * LN2, out=rate)
    rate *= bandwidth / LN2
    return rate


def bandwidth_for_rate(rate_bps: Array | float, signal_hz: Array | float) -> Array:
    """Return the bandwidth in Hz at which a UE reaches a rate: b = −R / (W₋₁(−Γe^−Γ) + Γ), Γ = R/g (erratum 1).

    A UE's rate saturates at g/ln 2 for any bandwidth, so a rate at or above that needs infinite bandwidth.
    """
    rate, signal = np.broadcast_arrays(np.asarray(rate_bps, float), np.asarray(signal_hz, float))
    nats = rate * np.log(2)
    load = np.divide(nats, signal, out=np.full(rate.shape, np.inf), where=signal > 0)  # Γ
    load = np.where(rate == 0, 0.0, load)
    feasible = load < 1
    solvable = feasible & (load > 0)
    bandwidth = np.where(feasible, 0.0, np.inf)
    bandwidth[solvable] = nats[solvable] / nats_per_hz(-np.log(load[solvable]))
    return bandwidth


def nats_per_hz(headroom: Array) -> Array:
    """Return the efficiency u = ln(1 + x) of a link at load Γ = e^−headroom, the fraction of its largest rate.

    It solves u = ln(1 + u/Γ), which is u = −W₋₁(−Γe^−Γ) − Γ in terms of Lambert's W. Halley's method from u ≈ L +
    ln(1 + L), L being the headroom (at most 3.5 % off), reaches 1e-14 for every headroom > 0. It is several times
    faster than Lambert's W and stays accurate as Γ → 1.
    """
    near = headroom < 0.05
    if near.any():
        efficiency = np.empty_like(headroom)
        efficiency[near] = _nats_per_hz_near_saturation(headroom[near])
        if not near.all():
            efficiency[~near] = nats_per_hz(headroom[~near])
        return efficiency
    headroom = np.minimum(headroom, 690.0)  # a load of 1e-300; below it 1/Γ would overflow
    load = np.exp(-headroom)
    guess = headroom + np.log1p(headroom)
    return closer_nats_per_hz(load, closer_nats_per_hz(load, guess))


def closer_nats_per_hz(load: Array, guess: Array) -> Array:
    """Take one step of Halley's method on u − ln(1 + u/Γ): an error of ε becomes about ε³. Not for Γ near 1."""
    total = load + guess
    miss = guess - np.log(total / load)
    slope = total - 1
    step = miss * slope  # in place from here on: with a million UEs, memory is the bottleneck
    step *= total
    slope *= slope
    miss *= 0.5
    slope -= miss
    step /= slope
    return guess - step


def _nats_per_hz_near_saturation(headroom: Array) -> Array:
    """Return the efficiency for Γ → 1; the series L = u/2 + u²/24 − u⁴/2880 + … avoids cancellation."""
    u = 2 * headroom - headroom * headroom / 3
    for _ in range(2):
        square = u * u
        value = u * (1 / 2 + u * (1 / 24 + square * (-1 / 2880 + square / 181440)))
        slope = 1 / 2 + u * (1 / 12 + square * (-1 / 720 + square / 30240))
        u = u - (value - headroom) / slope
    return u


@dataclass(frozen=True)
class Downlink:
    """How models are sent, at which power, and their size.

    The base station uses a band of its own, as wide as the uplink's, and sends one hand-out after the other. A model
    is long and well coded, so fading averages out: rates follow from the mean signals at the UEs' positions when
    sending begins.
    """

    way: Literal["multicast", "unicast"]
    power_w: float
    model_bits: float

    def seconds(self, signal_hz: PerUe, bandwidth_hz: float, at_once: int, cap: Limit) -> PerUe:
        """Return the seconds to send a model to each UE.

        Multicast sends once, at the rate of the weakest of these UEs. Unicast gives each of ``at_once`` UEs an equal
        part of band and power. ``signal_hz`` is the base station's full power as received, over the noise density.
        """
        if self.way == "multicast":
            signal_hz = np.full(signal_hz.size, signal_hz.min())
            return self.model_bits / rate_bps(bandwidth_hz, signal_hz, cap)
        return self.model_bits / rate_bps(bandwidth_hz / at_once, signal_hz / at_once, cap)
