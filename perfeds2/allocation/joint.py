"""Choose bandwidth, transmit power and processor frequency together, after Yang et al. (arXiv 1911.02417).

A UE that shares a round sends its bits in t seconds on b Hz, and computes in the rest of the time. With u = nats/(t·b), the
nats per second and Hz, it radiates P/g·nats·(e^u − 1)/u joules, where g is its signal at its highest power P. This depends
on t·b only, and the energy is convex in (t, b). So the band has one price ν in joules per Hz, and each UE a convex
problem of its own. We take Newton steps on the logarithms of t and b, of all UEs at once, with Σb = B after every step.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfeds2.allocation.bandwidth import Allocation, Uplink, equal_finish
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.link import LN2, Array, nats_per_hz, rate_bps
from perfeds2.network.modulation import Attenuated, Steps

MAX_STEPS = 60  # the hardest of thousands of random rounds took 25
CLOSE = 1e-4  # relative difference of bandwidths and times; the energy is off by some hundred times its square
WORTH = 1e-4  # relative difference of the worth of a second
TINY = 1e-300
LEAST_PART = 1e-9  # of the longest upload; rounding may leave less of one


class Terms(NamedTuple):
    """What the energy of each served UE depends on."""

    nats: Array  # to send, over the link's share of Shannon's rate
    signal_hz: Array  # at the highest power
    send_w: Array  # highest radiated power, as far as the energy model counts it
    phone_w: float  # what the phone takes besides, while it sends
    cube: Array  # κ·cycles³ of jobs that begin now: computing in s seconds takes cube/s² joules
    ready_s: Array  # when each can begin to send at its highest frequency
    start_s: Array  # when its computing can begin
    most: float  # nats per second and Hz that no link exceeds


class BandAndTime(NamedTuple):
    """What each served UE gets."""

    band_hz: Array
    send_s: Array
    saved_w: Array  # joules that a second more of time would save


@dataclass(frozen=True)
class LeastEnergy:
    """Let all planned UEs finish by a deadline with the fewest joules; the other UEs compute by then.

    A round that cannot close by the deadline gets ``equal_finish`` at the highest powers and frequencies. Only a job that begins now
    can have another frequency. On links with modulation steps, bandwidths follow the part of Shannon's rate that the steps
    never fall below, and powers are the least that the steps need.

    Attributes:
        deadline_s: Seconds from the opening of a round.
        energy: The energy model.

    Example:
        >>> from perfeds2 import Cell, Protocol, simulate
        >>> from perfeds2.allocation.joint import LeastEnergy
        >>> rounds = {"bandwidth": LeastEnergy(2.0), "rounds": 2}
        >>> simulate(Cell.draw(4, seed=0), Protocol(4), payload_bits=77_120, samples=120, **rounds).time_s.round(6)
        array([2., 4.])
    """

    deadline_s: float
    energy: EnergyModel = ENERGY["yang"]

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < math.inf:
            raise ValueError(f"deadline must be above 0 and finite, got {self.deadline_s}.")

    def __call__(self, uplink: Uplink) -> Allocation:
        return _Round(uplink, self.energy).by(self.deadline_s - uplink.elapsed_s)

    @cached_property
    def __name__(self) -> str:
        return f"least_energy({self.deadline_s:g})"


@dataclass(frozen=True)
class TimeAndEnergy:
    """Minimise the joules of the planned UEs plus a price per second of the round, as ``LeastEnergy`` at the best deadline.

    Attributes:
        joules_per_s: What a second is worth.
        energy: The energy model.
    """

    joules_per_s: float
    energy: EnergyModel = ENERGY["yang"]

    def __post_init__(self) -> None:
        if not 0 < self.joules_per_s < math.inf:
            raise ValueError(f"the price of a second must be above 0 and finite, got {self.joules_per_s}.")

    def __call__(self, uplink: Uplink) -> Allocation:
        open_ = _Round(uplink, self.energy)
        return open_.by(open_.best_s(self.joules_per_s))

    @cached_property
    def __name__(self) -> str:
        return f"time_and_energy({self.joules_per_s:g})"


class _Round:
    """The UEs of a round, and what they may choose."""

    def __init__(self, uplink: Uplink, energy: EnergyModel) -> None:
        n, planned = uplink.bits.size, uplink.planned
        self.uplink, self.serve = uplink, (uplink.bits > 0) & (True if planned is None else planned)
        self.cycles = np.zeros(n) if uplink.cycles is None else uplink.cycles
        self.cpu_hz = np.ones(n) if uplink.cpu_hz is None else uplink.cpu_hz
        self.power_w = np.broadcast_to(1.0 if uplink.power_w is None else uplink.power_w, (n,))
        self.start_s = np.maximum(uplink.compute_s - self.cycles / self.cpu_hz, 0.0)
        link, most = uplink.link, uplink.most_bits_per_s_hz
        if isinstance(link, Steps):
            link = link.below_steps
        link = Attenuated(most=math.inf if most is None else most) if link is None else link
        at = self.serve
        self.terms = Terms(
            uplink.bits[at] * (LN2 / link.share),
            uplink.signal_hz[at],
            self.power_w[at] * energy.radiates,
            energy.sending_w,
            energy.kappa * self.cycles[at] ** 3,
            uplink.compute_s[at],
            self.start_s[at],
            link.most / link.share * LN2,
        )

    @cached_property
    def fastest(self) -> tuple[Array, float]:
        """Bandwidths with which all served UEs finish at the same, earliest time, and this time."""
        uplink, link, at = self.uplink, self.uplink.link, self.serve
        band_hz = equal_finish(uplink)
        if not at.any():
            return band_hz, 0.0
        limit = uplink.most_bits_per_s_hz if link is None else link
        rate = rate_bps(band_hz[at], uplink.signal_hz[at], limit)
        return band_hz, float((uplink.compute_s[at] + uplink.bits[at] / rate).max())

    def by(self, time_s: float) -> Allocation:
        """Return the allocation of fewest joules with which the served UEs finish by a time."""
        uplink, at, terms = self.uplink, self.serve, self.terms
        choice = None if not at.any() else least_joules(terms, time_s, uplink.bandwidth_hz)
        if choice is None and at.any():
            return Allocation(self.fastest[0], self.power_w, self.cpu_hz)
        left_s, band_hz, power_w = time_s - self.start_s, np.zeros(at.size), self.power_w.copy()
        if choice is not None:
            band_hz[at] = choice.band_hz
            left_s[at] -= choice.send_s
            snr = uplink.signal_hz[at] / choice.band_hz
            if isinstance(uplink.link, Steps):
                needed = uplink.link.least_snr(uplink.bits[at] / (choice.send_s * choice.band_hz))
            else:
                needed = np.expm1(terms.nats / (choice.send_s * choice.band_hz))
            power_w[at] *= np.minimum(needed / snr, 1.0)
        can = (self.cycles > 0) & (self.cycles < self.cpu_hz * left_s)
        return Allocation(band_hz, power_w, np.where(can, self.cycles / np.where(can, left_s, 1.0), self.cpu_hz))

    def best_s(self, joules_per_s: float) -> float:
        """Return the time after which another second saves fewer joules than it costs."""
        low, high = self.fastest[1], math.inf
        if not self.serve.any():
            return low
        time_s, last, choice = 2 * low, None, None
        slope = -3.0  # d ln(saved_w) / d ln(time): computing in s seconds takes 1/s² joules
        for _ in range(MAX_STEPS):
            choice = least_joules(self.terms, time_s, self.uplink.bandwidth_hz, choice)
            saved_w = math.inf if choice is None else max(float(choice.saved_w.sum()), TINY)
            excess = math.log(min(saved_w, 1 / TINY) / joules_per_s)
            low, high = (time_s, high) if excess > 0 else (low, time_s)
            if abs(excess) < WORTH or high <= low * (1 + 1e-7):
                break
            if last is not None:
                slope = min((excess - last[1]) / math.log(time_s / last[0]), -0.1)
            last, time_s = (time_s, excess), time_s * math.exp(min(-excess / slope, 10.0))
            if not low < time_s < high:
                time_s = math.sqrt(low * high)
        return time_s


def least_joules(
    terms: Terms, time_s: float, bandwidth_hz: float, near: BandAndTime | None = None
) -> BandAndTime | None:
    """Return the choice of fewest joules with which all UEs have sent by a time; None if no choice is fast enough.

    Args:
        terms: The served UEs, at least one.
        time_s: When the last upload has to be complete, in seconds from now.
        bandwidth_hz: The band, B.
        near: Where to begin the search; None if nothing is known.
    """
    nats, signal_hz, send_w, phone_w, cube, ready_s, start_s, most = terms
    nats = np.maximum(nats, LEAST_PART * nats.max())
    longest_s = time_s - ready_s  # at the highest frequency
    if not longest_s.min() > 0:
        return None
    load = nats / (longest_s * signal_hz)
    if not load.max() < 1:
        return None
    least_hz = nats / (longest_s * np.minimum(nats_per_hz(-np.log(load)), most))
    spare = bandwidth_hz / least_hz.sum()
    if spare <= 1:
        return None
    floor, slack_s, cube = np.log(least_hz), np.where(cube > 0, time_s - start_s, np.inf), 2 * cube
    radiated, nearly_s = send_w / signal_hz, longest_s * (1 - 1e-9)
    worth = np.log(radiated * nats + TINY)
    kink = np.log(signal_hz) - math.log(math.expm1(most)) if most < math.inf else -np.inf  # where the cap begins
    log_hz, send_s, level, worst = floor + math.log(spare), np.minimum(longest_s, slack_s / 2), 0.0, math.inf
    if near is not None:
        log_hz, send_s = np.maximum(np.log(near.band_hz), floor), np.minimum(near.send_s, longest_s)
    for _ in range(MAX_STEPS):
        band_hz = np.exp(log_hz)
        snr = signal_hz / band_hz
        full = np.log1p(snr)
        fastest_s = nats / (band_hz * np.minimum(full, most))
        # t: a second more of sending costs c + 2κW³/(time − t)³ joules, and saves what the lower power saves
        u, idle_s = nats / (band_hz * send_s), slack_s - send_s
        gain, steep = _gain(u)
        saved_w = cube / (idle_s * idle_s * idle_s)
        cost_w = saved_w + (phone_w + TINY)
        step = (worth - np.log(send_s * cost_w * u / gain)) / (steep + 3 * saved_w * send_s / (idle_s * cost_w))
        wanted_s = send_s * np.exp(np.minimum(step, 30.0))
        last_s, send_s = send_s, np.minimum(np.maximum(wanted_s, fastest_s), longest_s)
        # b: its price ν, and how fast both fall with b
        u, idle_s = nats / (band_hz * send_s), slack_s - send_s
        gain, steep = _gain(u)
        saved_w = cube / (idle_s * idle_s * idle_s)
        left_w = 3 * saved_w * send_s / idle_s
        curve = left_w / (saved_w + (phone_w + TINY))
        shrink = np.where(send_s < nearly_s, (1 - steep) / (curve + steep), 0.0)  # d ln t / d ln b
        fall = shrink - steep * (1 + shrink)
        more = less = np.log(radiated * gain * send_s + TINY)
        fall_less, bound = fall, wanted_s < fastest_s
        if bound.any():
            share, capped = snr / (1 + snr), full > most * (1 + 1e-9)
            reach = np.where(capped, 1.0, 1 - share / full)  # −d ln(fastest_s) / d ln b
            bend = np.where(capped, 0.0, share * (1 - share - share / full) / (full * reach))
            fixed_w = np.where(capped, phone_w, send_w + phone_w)
            cost_w = saved_w + fixed_w + TINY
            more = np.where(bound, np.log(cost_w * reach * send_s / band_hz), more)
            fall = np.where(bound, bend - 1 - reach * (1 + left_w / cost_w), fall)
            shrink = np.where(bound, -reach, shrink)
            less, fall_less, stuck = more, fall, bound & (log_hz == kink)
            if stuck.any():  # its price may lie in between
                cost_w = saved_w + (phone_w + TINY)
                less = np.where(stuck, np.log(cost_w * send_s / band_hz), more)
                fall_less = np.where(stuck, -2 - left_w / cost_w, fall)
        free, weight, far = log_hz > floor, band_hz / fall, worst > 1
        # At the lower level every UE would take e⁴ times its band, at the higher one every UE e⁻⁴ of it.
        low, high = float((more + 4 * fall).min()), float((less - 4 * fall_less).max())
        level = float((weight * more).sum(where=free)) / float(weight.sum(where=free)) if free.any() else level
        for _ in range(MAX_STEPS):  # who takes how much at a level of prices
            change = (level - more) / fall
            if less is not more:
                change = np.where(change > 0, change, np.minimum((level - less) / fall_less, 0.0))
            log_next = np.maximum(log_hz + np.minimum(np.maximum(change, -4.0), 4.0), floor)
            if most < math.inf:
                log_next = np.where((log_hz - kink) * (log_next - kink) < 0, kink, log_next)
            next_hz = np.exp(log_next)
            total_hz = float(next_hz.sum())
            over = math.log(total_hz / bandwidth_hz)
            if abs(over) < (1e-3 if far else 1e-12):
                break
            free = log_next == log_hz + change
            low, high = (level, high) if over > 0 else (low, level)
            level -= over * total_hz / float((next_hz / fall).sum(where=free if free.any() else True))
            if not low < level < high:
                level = (low + high) / 2
        change, log_hz = log_next - log_hz, log_next
        worst = max(float(np.abs(change).max()), float(np.abs(send_s / last_s - 1).max()))
        send_s = np.minimum(send_s * np.exp(shrink * change), longest_s)
        if worst < CLOSE and not far:
            break
    band_hz = np.exp(log_hz)
    send_s = np.maximum(send_s, nats / (band_hz * np.minimum(np.log1p(signal_hz / band_hz), most)))
    # With a second more, a UE that sends all the time it has needs less band, or less power.
    capped = (log_hz > floor) | (full > most * (1 + 1e-9))
    fixed_w = phone_w + np.where(capped, 0.0, send_w)
    reach = np.where(capped, 1.0, 1 - snr / (1 + snr) / full)
    at_limit = math.exp(level) * band_hz / (send_s * reach) - fixed_w
    return BandAndTime(band_hz, send_s, np.where(send_s < nearly_s, saved_w, at_limit))


def _gain(u: Array) -> tuple[Array, Array]:
    """Return (u − 1)·e^u + 1, and the slope of its logarithm against that of u."""
    growth = np.exp(u)
    gain = (u - 1) * growth + 1
    few = u < 0.03
    if few.any():
        u_few = u[few]
        gain[few] = (
            u_few
            * u_few
            * (1 / 2 + u_few * (1 / 3 + u_few * (1 / 8 + u_few * (1 / 30 + u_few * (1 / 144 + u_few / 840)))))
        )
    return gain, u * u * growth / gain
