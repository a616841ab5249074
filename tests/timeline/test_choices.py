"""A policy that chooses powers and frequencies: times and joules are those of SimPy processes that compute and send so."""

from dataclasses import replace

import numpy as np
import pytest
from twin import play_with_processes
from twin_inputs import Battery, Radio, RoundRules

from perfeds2.allocation.bandwidth import Allocation, Uplink, equal_finish, in_each_cell
from perfeds2.allocation.joint import LeastEnergy
from perfeds2.allocation.schedule import round_robin
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import conditions_of, play, simulate, start_clock
from perfeds2.timeline.state import Budget

BITS, SAMPLES, UES = 1e5, 100.0, 9


def uneven(uplink: Uplink) -> Allocation:
    """Other fractions of band, power and frequency in every round, for every UE; none for a UE without bits."""
    rng = np.random.default_rng(uplink.round)
    band, power, speed = rng.uniform(0.1, 1.0, (3, uplink.bits.size))
    if uplink.planned is not None:
        band[~uplink.planned & (rng.random(band.size) < 0.5)] = 0.0
    band *= uplink.bandwidth_hz / band.sum()
    assert uplink.cpu_hz is not None
    return Allocation(band, power * uplink.power_w, speed * uplink.cpu_hz)


def cell_of(seed: int, coherence_s: float | None) -> Cell:
    return Cell.draw(UES, seed, coherence_s=coherence_s, cpu_hz=(5e7, 2e9))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [uneven, LeastEnergy(0.4), LeastEnergy(0.05)], ids=["uneven", "0.4 s", "0.05 s"])
@pytest.mark.parametrize("stale", ["restart", "wait", "ignore"])
@pytest.mark.parametrize("coherence_s", [None, 0.03])
@pytest.mark.parametrize("model", ["chen", "5g-low"])
def test_simulate_agrees_with_processes_that_choose(policy, stale, coherence_s, model):
    cell, rounds, quorum = cell_of(3, coherence_s), 12, 3
    plan = None if policy is uneven and stale != "wait" else round_robin(cell, quorum)
    energy = ENERGY[model]
    terms = {"bandwidth": policy, "schedule": plan, "rounds": rounds}
    timeline = simulate(cell, Protocol(quorum, 4, stale), payload_bits=BITS, samples=SAMPLES, **terms)
    radio = Radio(
        lambda block: cell.signal_hz(block),
        cell.bandwidth_hz,
        policy,
        coherence_s=np.inf if coherence_s is None else coherence_s,
        cpu_hz=cell.cpu_hz,
        power_w=float(cell.power_w),  # type: ignore[arg-type]
    )
    # Without a cost per bit and of the phone, power while sending is what is radiated.
    radiated = np.full(UES, float(cell.power_w))  # type: ignore[arg-type]
    battery = Battery(np.inf, energy.computing_w(cell), radiated * energy.radiates)
    joules: list[float] = []
    rules = RoundRules(quorum, 4, stale, plan)
    history = play_with_processes(radio, rules, cell.compute_s(SAMPLES), BITS, rounds, battery, joules=joules)
    for each, ues, staleness in zip(history, timeline.ues.tolist(), timeline.staleness.tolist(), strict=True):
        # Rounding decides the order of UEs that finish together.
        assert set(zip(each.ues, each.staleness, strict=True)) == set(zip(ues, staleness, strict=True))
    assert [each.time_s for each in history] == pytest.approx(timeline.time_s.tolist(), rel=1e-9)
    plain = replace(energy, sending_w=0.0, joules_per_bit=0.0)
    found = energy_of(timeline, cell, plain, BITS, timeline.time_s)
    assert found.ue_j.tolist() == pytest.approx(joules, rel=1e-9, abs=1e-15)
    assert found.by_time_j[-1] == pytest.approx(sum(joules), rel=1e-9)
    assert (np.diff(found.by_time_j) >= 0).all()


def test_slower_processors_save_energy_and_end_at_the_deadline():
    cell, protocol = cell_of(1, None), Protocol(UES)
    terms = {"payload_bits": BITS, "samples": SAMPLES, "rounds": 4}
    fast = simulate(cell, protocol, bandwidth=equal_finish, **terms)
    slow = simulate(cell, protocol, bandwidth=LeastEnergy(2.0), **terms)
    assert slow.time_s == pytest.approx([2.0, 4.0, 6.0, 8.0])
    energies = [energy_of(each, cell, ENERGY["yang"], BITS, np.zeros(0)).total_j for each in (fast, slow)]
    assert energies[1] < energies[0] / 50


def test_a_phone_draws_its_power_only_while_it_has_a_part_of_the_band():
    cell, plan = cell_of(1, None), round_robin(cell_of(1, None), 3)
    terms = {"payload_bits": BITS, "samples": SAMPLES, "rounds": 6, "schedule": plan}
    timeline = simulate(cell, Protocol(3, 4), bandwidth=LeastEnergy(0.5), **terms)
    model = replace(ENERGY["5g-low"], kappa=0.0, joules_per_bit=0.0)
    energy = energy_of(timeline, cell, model, BITS, np.zeros(0))
    assert energy.total_j <= model.sending_w * 6 * 3 * 0.5  # 6 rounds of half a second, in which 3 send
    assert energy.total_j > 0.5 * model.sending_w * 6 * 3 * 0.5


def test_choices_survive_files_cuts_and_chunks(tmp_path):
    cell, protocol = cell_of(2, 0.05), Protocol(3, 4)
    load = {"payload_bits": BITS, "samples": SAMPLES, "bandwidth": uneven}
    whole = simulate(cell, protocol, rounds=12, **load)
    whole.save(tmp_path / "timeline.npz")
    shorter = simulate(cell, protocol, rounds=5, **load)
    clock = start_clock(conditions_of(cell, protocol, BITS, SAMPLES, uneven))
    play(clock, rounds=5)
    both = play(clock, rounds=7)
    for one, other in ((whole, Timeline.load(tmp_path / "timeline.npz")), (whole.prefix(5), shorter), (whole, both)):
        assert one.columns.keys() == other.columns.keys()
        assert all(np.array_equal(column, other.columns[name]) for name, column in one.columns.items())


def test_budgets_are_refused_and_cells_of_a_server_choose_apart():
    cell = cell_of(0, None)
    budget = Budget.of(1.0, ENERGY["yang"], cell, SAMPLES)
    with pytest.raises(ValueError, match="takes no policy that chooses powers"):
        simulate(cell, Protocol(3), payload_bits=BITS, samples=SAMPLES, bandwidth=uneven, rounds=1, budget=budget)
    halves = [np.arange(0, UES, 2), np.arange(1, UES, 2)]
    apart = in_each_cell(LeastEnergy(1.0), halves, [5e5, 5e5])
    timeline = simulate(cell, Protocol(UES), payload_bits=BITS, samples=SAMPLES, bandwidth=apart, rounds=2)
    assert timeline.time_s == pytest.approx([1.0, 2.0])
