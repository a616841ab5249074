"""What do the errata of the radio and of the band show, in numbers?"""

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy.special import lambertw

from perfeds2.allocation.bandwidth import Uplink, between, equal_finish, weighted_rate
from perfeds2.allocation.schedule import as_schedule, deficit
from perfeds2.allocation.shares import equal_shares
from perfeds2.network.cell import Cell
from perfeds2.network.link import LN2, bandwidth_for_rate, rate_bps
from perfeds2.paper.errata.erratum import Numbers
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate


def theorem_4_closed_form() -> Numbers:
    cell = Cell(np.array([100.0]), np.array([1e9]))
    signal = float(_usual_signal(cell)[0])
    bits, compute_s, end_s = 2e6, 0.2, 1.1
    rate = bits / (end_s - compute_s)
    load = rate * LN2 / signal  # Γ
    principal = float(np.real(lambertw(-load * np.exp(-load))))
    band = float(bandwidth_for_rate(rate, signal))
    reached_s = compute_s + bits / float(rate_bps(band, signal))
    return [
        ("Γ of a UE at 100 m that must send 2 Mbit in 0.9 s", load),
        ("printed denominator |W(−Γe^−Γ) + Γ|", _below(abs(principal + load), 1e-15)),
        ("our bandwidth (Hz)", band),
        ("it misses the finish time by (relative)", _below(abs(reached_s / end_s - 1), 1e-14)),
        ("rate no bandwidth exceeds, Γ = 1 (bit/s)", signal / LN2),
    ]


def sharing_against_turns() -> Numbers:
    numbers: Numbers = []
    for distance_m in (10.0, 50.0, 200.0):
        cell = Cell(np.full(4, distance_m), np.full(4, 1e9))
        first_two = np.array([True, True, False, False])
        turn = Uplink(
            0, cell.bandwidth_hz, _usual_signal(cell), np.zeros(4), np.full(4, 1e6), equal_shares(4), first_two
        )
        in_turns_s = 2 * _last_s(turn, equal_finish(turn))
        sharing_s = _last_s(replace(turn, planned=None), weighted_rate(turn))
        numbers.append(
            (f"4 UEs at {distance_m:g} m, A = 2: taking turns is slower by (%)", _percent(in_turns_s, sharing_s))
        )
    cell = Cell(np.full(4, 200.0), np.full(4, 1e9), cycles_per_sample=0.0)
    turns = as_schedule(np.array([[0, 1], [2, 3]]))
    end_s = [
        simulate(cell, Protocol(2), payload_bits=1e6, samples=0.0, rounds=100, bandwidth=policy, schedule=turns).end_s
        for policy in (equal_finish, between(0.5), weighted_rate)
    ]
    numbers.append(("on the clock, with fading, 200 m, 100 rounds: turns slower by (%)", _percent(end_s[0], end_s[2])))
    numbers.append(("the same, halfway between the extremes: slower by (%)", _percent(end_s[1], end_s[2])))
    return numbers


def nats_for_bits() -> Numbers:
    cell = Cell.draw(20)
    band, signal = cell.bandwidth_hz / cell.ues, _usual_signal(cell)
    bits_a_second = rate_bps(band, signal)
    nats_a_second = band * np.log1p(signal / band)
    computing = [
        float(np.median(cell.compute_s(120.0) / (cell.compute_s(120.0) + 8e4 / rate)))
        for rate in (bits_a_second, nats_a_second)
    ]
    return [
        ("rate in bit/s over rate in nat/s, every UE", float(np.mean(bits_a_second / nats_a_second))),
        ("1/ln 2", 1 / LN2),
        ("computing, of a median UE's job, with log2 (%)", 100 * computing[0]),
        ("the same with ln (%)", 100 * computing[1]),
    ]


def ties() -> Numbers:
    cell = Cell.draw(20, seed=7)
    uplink = Uplink(
        0, cell.bandwidth_hz, cell.signal_hz(0), cell.compute_s(40.0), np.full(20, 1e6), equal_shares(20), None
    )
    ends = _ends_s(uplink, equal_finish(uplink))
    rows = deficit(equal_shares(20), 5, 40)
    run = simulate(
        cell, Protocol(5), payload_bits=1e6, samples=40.0, rounds=40, bandwidth=equal_finish, schedule=as_schedule(rows)
    )
    kept = (np.sort(run.ues, axis=1) == rows).all(axis=1)
    return [
        (
            "20 UEs served by Theorem 2: first and last arrival differ by (relative)",
            _below(float(np.ptp(ends) / ends.max()), 1e-12),
        ),
        ("with a plan, rounds that close on the planned set (%)", float(100 * kept.mean())),
    ]


def theorem_2_against_4() -> Numbers:
    planned = np.array([True, True, False, False])
    uplink = Uplink(0, 1e6, np.full(4, 1e8), np.zeros(4), np.array([1e2, 1e6, 1e6, 1e6]), equal_shares(4), planned)
    least, fastest, kept = weighted_rate(uplink), equal_finish(uplink), between(1.0)(uplink)
    return [
        ("4 UEs, 2 planned, one of them with 100 bits left: its least band by Theorem 4 (Hz)", float(least[0])),
        ("its band where the planned end together, Theorem 2 (Hz)", float(fastest[0])),
        ("round with Theorem 2 (s)", _last_s(uplink, fastest)),
        ("round with the bound of Theorem 4 kept (s)", _last_s(uplink, kept)),
        ("keeping it is slower by (%)", _percent(_last_s(uplink, kept), _last_s(uplink, fastest))),
    ]


def _usual_signal(cell: Cell) -> Float[np.ndarray, " n"]:
    """At the mean of the Rayleigh fading."""
    return cell.mean_signal_hz * cell.fading_scale * math.sqrt(math.pi / 2)


def _ends_s(uplink: Uplink, bandwidth_hz: Float[np.ndarray, " n"]) -> Float[np.ndarray, " s"]:
    """When those the round waits for are done."""
    serve = np.ones(uplink.bits.size, bool) if uplink.planned is None else uplink.planned
    return uplink.compute_s[serve] + uplink.bits[serve] / rate_bps(bandwidth_hz[serve], uplink.signal_hz[serve])


def _last_s(uplink: Uplink, bandwidth_hz: Float[np.ndarray, " n"]) -> float:
    return float(_ends_s(uplink, bandwidth_hz).max())


def _percent(slow: float, fast: float) -> float:
    return 100 * (slow / fast - 1)


def _below(value: float, limit: float) -> str:
    """An error that rounding makes, and each machine differently."""
    return f"below {limit:g}" if value < limit else f"{value:.1e}"


NUMBERS = {1: theorem_4_closed_form, 2: sharing_against_turns, 3: nats_for_bits, 12: ties, 23: theorem_2_against_4}
