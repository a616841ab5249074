"""Bandwidth, power and frequency chosen together: as few joules as a general solver finds, and energy and time of the choice."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from perfeds2.allocation.bandwidth import Allocation, Uplink, allocate, equal_finish
from perfeds2.allocation.joint import LeastEnergy, Terms, TimeAndEnergy, least_joules
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.link import LN2
from perfeds2.network.modulation import LINKS, Attenuated
from perfeds2.network.radios import RADIOS


def random_terms(seed: int) -> tuple[Terms, float, float]:
    """Draw UEs over decades of signals, powers and processors, a time and a band."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    cycles = rng.uniform(0.1, 1, n) * 1e9 * (rng.random(n) < 0.7)
    start_s = rng.uniform(0, 0.1, n) * (rng.random(n) < 0.3) + rng.uniform(0, 1, n) * (cycles == 0)
    ready_s = start_s + cycles / 10 ** rng.uniform(8.5, 9.3, n)
    phone_w = float(rng.choice([0.0, 2.9]))
    counts = 1.0 if phone_w == 0 else float(rng.choice([0.0, 1.0]))
    terms = Terms(
        rng.uniform(0.1, 1, n) * 1e5 * LN2,
        10 ** rng.uniform(5, 9, n),
        10 ** rng.uniform(-2, -0.5, n) * counts,
        phone_w,
        10 ** rng.uniform(-28, -26) * cycles**3,
        ready_s,
        start_s,
        float(rng.choice([np.inf, 7.4 * LN2, 2 * LN2])),
    )
    return terms, (ready_s.max() + 0.01) * rng.uniform(1, 4), 10 ** rng.uniform(5, 7)


def joules(terms: Terms, band_hz, send_s, time_s: float) -> float:
    """Add up the energy from its definition: radiated, of the phone, of the processor."""
    total = 0.0
    for ue in range(len(band_hz)):
        rate_nats = terms.nats[ue] / send_s[ue]
        power = band_hz[ue] / terms.signal_hz[ue] * math.expm1(rate_nats / band_hz[ue])  # of the highest
        total += (power * terms.send_w[ue] + terms.phone_w) * send_s[ue]
        if terms.cube[ue] > 0:
            total += terms.cube[ue] / (time_s - terms.start_s[ue] - send_s[ue]) ** 2
    return total


def fastest_s(terms: Terms, ue: int, band_hz: float) -> float:
    return terms.nats[ue] / (band_hz * min(math.log1p(terms.signal_hz[ue] / band_hz), terms.most))


def joules_by_solver(terms: Terms, time_s: float, bandwidth_hz: float) -> float | None:
    """Minimise over log b and log t with SciPy's SLSQP; None if no choice is fast enough."""
    n = terms.nats.size
    longest_s = time_s - terms.ready_s
    if longest_s.min() <= 0 or (terms.nats / terms.signal_hz >= longest_s).any():
        return None

    def late(log_hz: float, ue: int) -> float:
        return math.log(fastest_s(terms, ue, math.exp(log_hz)) / longest_s[ue])

    least_hz = np.exp([float(brentq(late, -30, 60, args=(ue,), xtol=1e-14)) for ue in range(n)])  # type: ignore[arg-type]  # one number
    if least_hz.sum() >= bandwidth_hz:
        return None
    start = np.log(np.concatenate([least_hz * (0.999 * bandwidth_hz / least_hz.sum()), 0.999 * longest_s]))
    unit = joules(terms, *np.split(np.exp(start), 2), time_s=time_s)

    def in_time(values):
        return [values[n + ue] - math.log(fastest_s(terms, ue, math.exp(values[ue]))) for ue in range(n)]

    constraints = [
        {"type": "ineq", "fun": lambda values: 1 - np.exp(values[:n]).sum() / bandwidth_hz},
        {"type": "ineq", "fun": in_time},
    ]
    bounds = [(math.log(hz), None) for hz in least_hz] + [(None, math.log(s)) for s in longest_s]
    found = minimize(
        lambda values: joules(terms, *np.split(np.exp(values), 2), time_s=time_s) / unit,
        start,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    assert found.success
    return found.fun * unit


@pytest.mark.slow
def test_no_choice_takes_fewer_joules():
    feasible = 0
    for seed in range(30):
        terms, time_s, bandwidth_hz = random_terms(seed)
        choice, least_j = least_joules(terms, time_s, bandwidth_hz), joules_by_solver(terms, time_s, bandwidth_hz)
        assert (choice is None) == (least_j is None)
        if choice is None or least_j is None:
            continue
        feasible += 1
        assert joules(terms, choice.band_hz, choice.send_s, time_s) <= least_j * (1 + 1e-6)
        assert choice.band_hz.sum() == pytest.approx(bandwidth_hz, rel=1e-9)
        for ue, (band_hz, send_s) in enumerate(zip(choice.band_hz, choice.send_s, strict=True)):
            assert fastest_s(terms, ue, band_hz) * (1 - 1e-9) <= send_s <= (time_s - terms.ready_s[ue]) * (1 + 1e-12)
    assert feasible > 12


def test_a_second_more_saves_what_the_choice_says():
    """The derivative of the fewest joules, by differences."""
    checked = 0
    for seed in range(30):
        terms, time_s, bandwidth_hz = random_terms(seed)
        fewest = []
        for at_s in (time_s * (1 - 1e-4), time_s, time_s * (1 + 1e-4)):
            choice = least_joules(terms, at_s, bandwidth_hz)
            fewest.append(None if choice is None else (joules(terms, *choice[:2], at_s), choice.saved_w.sum()))
        if None in fewest:
            continue
        saved_w = (fewest[0][0] - fewest[2][0]) / (2e-4 * time_s)  # type: ignore[index]
        if terms.most == np.inf:  # where the modulation has a limit, the derivative jumps
            assert fewest[1][1] == pytest.approx(saved_w, rel=1e-4, abs=1e-9)  # type: ignore[index]
            checked += 1
    assert checked > 5


def opening(ues: int = 12, seed: int = 0, *, planned: bool = False, **settings) -> Uplink:
    """Return the first round of a cell, in which all jobs begin."""
    cell = Cell.draw(ues, seed, **settings)
    compute_s = cell.compute_s(120.0)
    plan = np.arange(ues) % 3 == 0 if planned else None
    shares, bits = np.full(ues, 1 / ues), np.full(ues, 77_120.0)
    rest = cell.cap_bits_per_s_hz, cell.link, compute_s * cell.cpu_hz, cell.cpu_hz, cell.sent_power_w
    return Uplink(0, cell.bandwidth_hz, cell.signal_hz(0), compute_s, bits, shares, plan, *rest)


def ends_s(uplink: Uplink, chosen: Allocation) -> np.ndarray:
    """Return when the served UEs have sent, from their frequencies, powers and bandwidths."""
    sends = chosen.bandwidth_hz > 0
    snr = uplink.signal_hz * (chosen.power_w / uplink.power_w) / np.maximum(chosen.bandwidth_hz, 1e-9)
    shannon = np.minimum(np.log2(1 + snr), uplink.most_bits_per_s_hz or np.inf)
    rate = chosen.bandwidth_hz * (shannon if uplink.link is None else uplink.link.bits_per_s_hz(snr))
    return (uplink.cycles / chosen.cpu_hz)[sends] + (uplink.bits[sends] / rate[sends])


@pytest.mark.parametrize("radio", [{}, {"radio": RADIOS["umi"], "power_w": 0.2, "bandwidth_hz": 2e7}])
@pytest.mark.parametrize("planned", [False, True])
def test_all_planned_ues_finish_at_the_deadline_and_the_others_compute_by_then(radio, planned):
    uplink = opening(planned=planned, **radio)
    chosen = LeastEnergy(3.0)(uplink)
    assert ends_s(uplink, chosen) == pytest.approx(3.0, rel=1e-9)
    if planned:
        waits = chosen.bandwidth_hz == 0
        assert waits.sum() == 8
        assert (uplink.cycles / chosen.cpu_hz)[waits] == pytest.approx(3.0)


@pytest.mark.parametrize("link", ["cqi", "cqi-64qam", "attenuated"])
@pytest.mark.parametrize("energy", ["yang", "5g-low"])
def test_the_deadline_holds_on_every_link(link, energy):
    uplink = opening(radio=RADIOS["umi"], power_w=0.2, bandwidth_hz=2e7, link=LINKS[link])
    chosen = LeastEnergy(2.0, ENERGY[energy])(uplink)
    assert ends_s(uplink, chosen).max() <= 2.0 * (1 + 1e-9)
    assert ends_s(uplink, chosen).min() > 1.5  # not far below it either


@pytest.mark.parametrize("link", ["cqi", "cqi-64qam"])
def test_steps_never_fall_below_their_share_of_shannons_rate(link):
    below = LINKS[link].below_steps  # type: ignore[union-attr]
    snr = np.geomspace(1e-6, 1e6, 100_000)
    ratio = LINKS[link].bits_per_s_hz(snr) / below.bits_per_s_hz(snr)
    assert isinstance(below, Attenuated)
    assert 1 <= ratio.min() < 1.001
    bits = np.linspace(0.01, below.most, 1000)
    least = LINKS[link].least_snr(bits)  # type: ignore[union-attr]
    assert LINKS[link].bits_per_s_hz(least) == pytest.approx(bits)
    assert (LINKS[link].bits_per_s_hz(least * 0.999) < bits).all()


def test_a_deadline_that_is_too_short_gives_equal_finish_at_full_power():
    uplink = opening()
    chosen = LeastEnergy(1e-3)(uplink)
    assert np.array_equal(chosen.bandwidth_hz, equal_finish(uplink))
    assert uplink.cpu_hz is not None
    assert np.array_equal(chosen.cpu_hz, uplink.cpu_hz)
    assert np.array_equal(chosen.power_w, np.full(12, 0.0 if uplink.power_w is None else uplink.power_w))


@pytest.mark.parametrize("worth_w", [1e-3, 1e-1, 10.0])
@pytest.mark.parametrize("energy", [ENERGY["chen"], EnergyModel(1e-28, sending_w=1.0)])
def test_no_other_deadline_costs_less_time_and_energy(worth_w, energy):
    uplink = opening(seed=2)

    def cost(chosen: Allocation) -> float:
        end_s = ends_s(uplink, chosen)
        send_s = end_s - uplink.cycles / chosen.cpu_hz
        computing_j = energy.kappa * uplink.cycles * chosen.cpu_hz**2
        return worth_w * end_s.max() + (computing_j + (chosen.power_w + energy.sending_w) * send_s).sum()

    chosen = TimeAndEnergy(worth_w, energy)(uplink)
    best_s = ends_s(uplink, chosen).max()
    others = [cost(LeastEnergy(best_s * factor, energy)(uplink)) for factor in (0.8, 0.95, 0.99, 1.01, 1.05, 1.2)]
    assert cost(chosen) < min(others)


def test_policies_refuse_impossible_settings_and_answers():
    for make in (LeastEnergy, TimeAndEnergy):
        for wrong in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="above 0"):
                make(wrong)
    uplink = opening()

    def unsaid(uplink: Uplink):
        return LeastEnergy(1.0)(uplink)

    def strong(uplink: Uplink) -> Allocation:
        return replace(LeastEnergy(1.0)(uplink), power_w=np.full(12, 1.0))

    with pytest.raises(ValueError, match="-> Allocation"):
        allocate(unsaid, replace(uplink, cycles=None))
    with pytest.raises(ValueError, match=r"power_w .* at most uplink\.power_w"):
        allocate(strong, uplink)


def test_ues_of_very_different_loads_share_a_round():
    """In the middle of a round some UEs have sent nearly everything, and others have just begun."""
    nats = np.full(12, 400.0)
    nats[[0, 1, 6]], nats[3] = 53_455.0, 2e-11
    cube, ready_s = np.zeros(12), np.zeros(12)
    cube[:2], ready_s[:2] = 2.7e-6, (0.14, 0.03)
    terms = Terms(nats, np.geomspace(2e13, 3e14, 12), np.full(12, 0.01), 0.0, cube, ready_s, np.zeros(12), np.inf)
    choice = least_joules(terms, 0.5, 1e6)
    assert choice is not None
    assert choice.band_hz.sum() == pytest.approx(1e6, rel=1e-9)
    assert all(fastest_s(terms, ue, choice.band_hz[ue]) <= choice.send_s[ue] * (1 + 1e-9) for ue in range(12))
    assert (choice.send_s <= 0.5 - ready_s).all()


def test_all_of_the_band_is_taken_wherever_the_search_begins():
    for seed in range(30):
        terms, time_s, bandwidth_hz = random_terms(seed)
        choice = None
        for factor in (1.0, 1.0, 1 + 1e-6, 1.001, 1.2, 0.99):
            choice = least_joules(terms, time_s * factor, bandwidth_hz, choice)
            assert choice is None or choice.band_hz.sum() == pytest.approx(bandwidth_hz, rel=1e-9)
