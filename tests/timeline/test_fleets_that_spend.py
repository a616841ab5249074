"""Fleets that come and go with batteries, a downlink and jobs that differ: a process-per-UE model agrees."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import STALE, Run, assert_same
from test_agrees_with_processes import mast_of, radio_of
from test_budget import Limited
from test_fleets import Drawn, closes, drawn_fleet, fleet_runs
from twin import Battery, RoundRules, play_with_processes

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.fleet import CUT, Fleet, Spread
from perfeds2.network.link import Downlink
from perfeds2.network.radios import RADIOS
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import play, simulate, start_clock
from perfeds2.timeline.state import Budget

SPENT = EnergyModel(1e-27, True, 0.7, 1e-7)  # a bit of everything
FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_agrees(run: Run, rounds: int, joules: float | None = None) -> Timeline:
    """Rounds and seconds as the processes have them; spreads by the formula, job after job."""
    cell, protocol = run.cell, run.protocol
    compute_s, fleet = cell.compute_s(run.samples), cell.fleet
    assert fleet is not None

    def job(phone: int, version: int) -> tuple[float, float]:
        spread = fleet.spread
        if spread is None:
            return float(compute_s[phone]), 1.0
        z = np.random.default_rng([cell.seed, 15, version]).standard_normal((cell.ues, 2))[phone]
        longer, faster = (
            math.exp(s[phone] * min(max(x, -4.0), 4.0)) for s, x in zip((spread.compute, spread.rate), z, strict=True)
        )
        return (float(compute_s[phone]) - cell.downlink_s) * longer + cell.downlink_s, faster

    battery = None
    if joules is not None:
        sending_w = np.broadcast_to(cell.sent_power_w, cell.ues) * SPENT.radiates + SPENT.sending_w
        battery = Battery(joules, SPENT.kappa * cell.cpu_hz**3, sending_w, SPENT.joules_per_bit, cell.downlink_s)
    rules = RoundRules(
        protocol.quorum, protocol.max_staleness, protocol.stale, run.schedule, protocol.rests, protocol.drafts
    )
    radio = replace(radio_of(run), job=job)
    history = play_with_processes(radio, rules, compute_s, run.payload_bits, rounds, battery, mast_of(run))
    line = run.simulate(rounds) if joules is None else Limited(run, joules, SPENT).simulate(rounds)
    assert line.rounds == len(history)
    np.testing.assert_array_equal(line.ues, np.reshape([one.ues for one in history], line.ues.shape))
    np.testing.assert_array_equal(line.staleness, np.reshape([one.staleness for one in history], line.ues.shape))
    np.testing.assert_allclose(line.time_s, [one.time_s for one in history], rtol=0, atol=1e-9)
    return line


def varied(run: Run, seed: int) -> Run:
    rng = np.random.default_rng([seed, 9])
    assert run.cell.fleet is not None
    own = np.isfinite(run.cell.fleet.rate_bps)
    spread = Spread(rng.uniform(0, 1, run.cell.ues), rng.uniform(0, 1, run.cell.ues) * own)
    return replace(run, cell=replace(run.cell, fleet=replace(run.cell.fleet, spread=spread)))


@given(fleet_runs(), st.integers(1, 10))
@FEW
def test_jobs_that_differ_agree_with_processes(drawn: Drawn, rounds: int):
    run = varied(drawn.make(), drawn.seed)
    assert_agrees(run, closes(run, rounds))


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("stale", STALE)
def test_batteries_of_those_who_come_and_go_agree_with_processes(stale, keeps):
    cell = Cell.draw(10, seed=4, cpu_hz=(2e8, 2e9), downlink_s=0.01)
    cell = replace(cell, fleet=drawn_fleet(10, 3, own=True, traced=True, hours=True, keeps=keeps))
    run = varied(Run(cell, Protocol(2, 3, stale), 1e5, 100.0, equal_share, None), 1)
    free = run.simulate(40)
    half_j = float(np.median(energy_of(free, cell, SPENT, 1e5, np.zeros(0)).ue_j)) / 2
    line = assert_agrees(run, 40, half_j)
    assert (line.rounds, line.ues.tolist()) != (free.rounds, free.ues.tolist())  # a UE has left


@pytest.mark.slow
@pytest.mark.parametrize(("keeps", "way"), [(False, "multicast"), (True, "unicast")])
@pytest.mark.parametrize("stale", STALE)
def test_models_take_time_to_those_who_come_and_go_as_with_processes(stale, keeps, way):
    cell = Cell.draw(10, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, downlink=Downlink(way, 25.0, 1e6))
    cell = replace(cell, fleet=drawn_fleet(10, 3, own=False, traced=False, hours=True, keeps=keeps))
    run = Run(cell, Protocol(2, 3, stale), 1e5, 100.0, equal_share, None)
    free = assert_agrees(run, 20)
    assert_agrees(run, 20, float(np.median(energy_of(free, cell, SPENT, 1e5, np.zeros(0)).ue_j)) / 2)


def test_energy_of_a_job_that_is_interrupted_while_it_waits_computes_and_sends_by_hand():
    # 1 s for the model, 2 s of computing at 1 W, 4 s of sending at 1 W. There for 0.5 s, away, there again.
    cell = Cell(np.ones(1), np.ones(1), cycles_per_sample=1.0, downlink_s=1.0, power_w=1.0)
    hours = Hours(((0.0, 0.5), (10.0, 12.0), (20.0, 22.0), (30.0, math.inf)))
    cell = replace(cell, fleet=Fleet(np.full(1, np.nan), np.full(1, 250.0), None, Availability([hours], keeps=True)))
    run = Run(cell, Protocol(1), 1000.0, 2.0, equal_share, None)
    line = run.simulate(1)
    assert line.time_s.tolist() == [32.5]  # 0.5 + 2 + 2 s of seven are over, the others from second 30 on
    spent = energy_of(line, cell, EnergyModel(1.0), 1000.0, np.array([0.5, 10.5, 12.0, 22.0, 32.5]))
    assert [*spent.computing_j, *spent.sending_j] == pytest.approx([2.0, 4.0])
    assert spent.by_time_j.tolist() == pytest.approx([0.0, 0.0, 1.5, 3.5, 6.0])


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_budget_counts_is_what_the_timeline_tells(keeps):
    cell = Cell.draw(8, seed=4, cpu_hz=(2e8, 2e9), downlink_s=0.01)
    cell = replace(cell, fleet=drawn_fleet(8, 3, own=True, traced=True, hours=True, keeps=keeps))
    model = ENERGY["yang"]
    budget = Budget.of(1e9, model, cell, 100.0)
    setting = replace(Run(cell, Protocol(2), 1e5, 100.0, equal_share, None).setting, budget=budget)
    clock = start_clock(setting)
    line = play(clock, rounds=30)
    assert clock.spent_j is not None
    told = energy_of(line, cell, model, 1e5, np.zeros(0)).ue_j
    np.testing.assert_allclose(clock.spent_j, told, rtol=1e-9)


@pytest.mark.slow
@given(fleet_runs(), st.lists(st.integers(0, 4), min_size=1, max_size=4))
@FEW
def test_chunks_of_rounds_with_jobs_that_differ_make_the_whole(drawn: Drawn, chunks: list[int]):
    run = varied(drawn.make(), drawn.seed)
    total = closes(run, sum(chunks))
    clock, past = start_clock(run.setting), None
    for rounds in chunks:
        past = play(clock, rounds=min(rounds, total - clock.server.round))
    assert past is not None
    assert_same(past, run.simulate(total))


def test_spreads_are_log_normal_around_the_median_and_belong_to_the_job():
    spread = Spread(np.array([0.5, 0.0, 0.5]), np.array([0.2, 0.3, 0.0]))
    drawn = np.array([spread.factors(7, version) for version in range(4000)])
    logs = np.log(drawn)
    np.testing.assert_allclose(logs.std(axis=0), [spread.compute, spread.rate], rtol=0.05)
    np.testing.assert_allclose(np.median(logs, axis=0), np.zeros((2, 3)), atol=0.03)
    assert np.abs(logs).max() <= CUT * 0.5
    more = Spread(np.append(spread.compute, 1.0), np.append(spread.rate, 1.0))
    np.testing.assert_array_equal(
        more.factors(7, 5)[0][:3], spread.factors(7, 5)[0]
    )  # whichever other devices there are
    assert abs(np.corrcoef(logs[:-1, 0, 0], logs[1:, 0, 0])[0, 1]) < 0.05


def test_a_downlink_to_uplinks_of_their_own_is_refused():
    cell = Cell.draw(3, seed=0, downlink=Downlink("multicast", 1.0, 1e5))
    cell = replace(cell, fleet=Fleet(np.full(3, np.nan), np.array([1e6, np.nan, np.nan])))
    with pytest.raises(ValueError, match="the downlink of UEs with dedicated uplinks is unknown"):
        simulate(cell, Protocol(1), payload_bits=1e4, samples=1, rounds=1)
