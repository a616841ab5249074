"""The virtual clock and a process-per-UE model of the same protocol tell the same story."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import STALE, Run, round_robin, runs, uneven
from twin import Mast, Radio, RoundRules, play_with_processes

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.network.availability import Availability
from perfeds2.network.cell import Cell
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import GaussMarkov, Moves, Waypoints
from perfeds2.network.radios import RADIOS
from perfeds2.timeline.jobs import MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline


def radio_of(run: Run) -> Radio:
    cell = run.cell
    limits = (cell.cap_bits_per_s_hz or np.inf, cell.coherence_s or np.inf)
    signal_hz = cell.signal_hz if cell.coherence_s is None else cell.channel.signal_in
    own, hours, keeps, own_bps = {}, {}, False, None
    if (fleet := cell.fleet) is not None:
        own_bps = fleet.own_bps
        own = {ue: ([(0.0, rate)], np.inf) for ue, rate in enumerate(fleet.rate_bps.tolist()) if rate > 0}
        for ue, trace in zip(fleet.traces.ues, fleet.traces.traces, strict=True) if fleet.traces else ():
            period_s = trace.lasts_s if fleet.traces and fleet.traces.end == "repeat" else np.inf
            own[int(ue)] = list(zip(trace.time_s.tolist(), trace.bps.tolist(), strict=True)), period_s
        if isinstance(fleet.presence, Availability):
            hours = {ue: (each.intervals, each.period_s) for ue, each in enumerate(fleet.presence.hours)}
            keeps = fleet.presence.keeps
    return Radio(signal_hz, cell.bandwidth_hz, run.bandwidth, *limits, own, hours, keeps, own_bps)


def mast_of(run: Run) -> Mast | None:
    """What a base station sends models with, by the definition: its power at the gain of each UE, which hears 7 dB of noise."""
    cell, downlink = run.cell, run.cell.downlink
    if downlink is None:
        return None

    def heard_hz(time_s: float) -> np.ndarray:
        here = cell
        if cell.moves is not None:
            assert cell.coherence_s is not None
            block = next(b for b in itertools.count() if (b + 1) * cell.coherence_s > time_s)
            metre = max(1, int(1.0 / (cell.moves.speed_mps * cell.coherence_s)))
            here = cell.at(block // metre * metre * cell.coherence_s)
        if here.radio is None:  # Table I's: h of mean square 2 · 40², and no noise figure
            gain, figure_db = cell.fading_scale * 2**0.5 * here.distance_m**-cell.path_loss_exponent, 0.0
        else:
            gain, figure_db = here.radio.gain(here.where), 7.0
        return downlink.power_w * gain / (1e-3 * 10 ** ((cell.noise_dbm_per_hz + figure_db) / 10))

    usual_s = run.cell.job_s(run.samples, run.protocol.quorum) - run.cell.compute_s(run.samples)
    return Mast(downlink.way, downlink.model_bits, heard_hz, usual_s)


def assert_agrees(run: Run, rounds: int) -> Timeline:
    timeline = run.simulate(rounds)
    protocol = run.protocol
    history = play_with_processes(
        radio_of(run),
        RoundRules(
            protocol.quorum,
            protocol.max_staleness,
            protocol.stale,
            run.schedule,
            protocol.rests,
            protocol.drafts,
            protocol.rest_rounds,
        ),
        run.cell.compute_s(run.samples),
        run.payload_bits,
        rounds,
        mast=mast_of(run),
    )
    np.testing.assert_array_equal(timeline.ues, [one.ues for one in history])
    np.testing.assert_array_equal(timeline.staleness, [one.staleness for one in history])
    np.testing.assert_allclose(timeline.time_s, [one.time_s for one in history], rtol=0, atol=1e-9)
    return timeline


@pytest.mark.slow
@given(runs(max_ues=50), st.integers(1, 25))
@settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_processes_on_random_cells(run: Run, rounds: int):
    assert_agrees(run, rounds)


@pytest.mark.slow
@given(runs(max_ues=20).map(uneven), st.integers(1, 15))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_processes_where_uploads_differ_in_size(run: Run, rounds: int):
    assert_agrees(run, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("quorum", [1, 4, 50])
def test_simulate_agrees_with_processes_where_the_bound_binds(stale, quorum):
    # 50 UEs of very unequal speed and a bound that the slow ones cannot meet by themselves.
    cell = Cell.draw(50, seed=quorum, cpu_hz=(2e7, 2e9))
    assert_agrees(Run(cell, Protocol(quorum, 2, stale), 1e5, 100.0, equal_share, None), rounds=20)


def test_simulate_agrees_with_processes_on_a_plan():
    cell = Cell.draw(24, seed=3)
    assert_agrees(Run(cell, Protocol(5, 4, "wait"), 1e6, 100.0, equal_share, round_robin(24, 5, 0)), rounds=40)


@pytest.mark.parametrize("name", ["umi", "uma"])
@pytest.mark.parametrize("quorum", [1, 7])
def test_simulate_agrees_with_processes_on_real_radios(name, quorum):
    # 1 MHz for each: some links are at the cap, others far below.
    cell = Cell.draw(20, seed=quorum, radio=RADIOS[name], radius_m=500.0, bandwidth_hz=2e7, power_w=0.2)
    capped = np.mean(cell.signal_hz(0) * cell.ues / cell.bandwidth_hz > 2**7.4)
    assert 0.05 < capped < 1
    assert_agrees(Run(cell, Protocol(quorum, 3, "restart"), 1e6, 100.0, equal_share, None), rounds=25)


@pytest.mark.slow
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("coherence_s", [0.003, 0.036, 0.5])
def test_simulate_agrees_with_processes_where_fading_changes_inside_rounds(stale, coherence_s):
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, coherence_s=coherence_s)
    assert_agrees(Run(cell, Protocol(3, 2, stale), 1e5, 100.0, equal_share, None), rounds=25)


def test_simulate_agrees_with_processes_on_a_plan_where_fading_changes_inside_rounds():
    cell = Cell.draw(9, seed=3, coherence_s=0.02)
    assert_agrees(Run(cell, Protocol(3, 4, "wait"), 1e6, 100.0, equal_share, round_robin(9, 3, 0)), rounds=30)


@pytest.mark.slow
@given(runs(max_ues=20), st.integers(1, 12), st.floats(2e-2, 1.0))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_processes_at_any_coherence_time(run: Run, rounds: int, coherence_s: float):
    assert_agrees(replace(run, cell=replace(run.cell, coherence_s=coherence_s)), rounds)


@pytest.mark.parametrize("walk", [Waypoints, GaussMarkov])
def test_simulate_agrees_with_processes_where_ues_move(walk):
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, coherence_s=0.02)
    cell = replace(cell, moves=Moves(walk, 30.0, 200.0))
    assert_agrees(Run(cell, Protocol(3, 2), 1e5, 100.0, equal_share, None), rounds=40)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "quorum"), [("multicast", 1), ("unicast", 1), ("unicast", 4)])
@pytest.mark.parametrize("stale", STALE)
def test_simulate_agrees_with_processes_where_models_take_time(way, stale, quorum):
    """Models of 1 Mbit over 5 MHz: with A = 1 the base station has a queue."""
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, downlink=Downlink(way, 25.0, 1e6))
    run = Run(cell, Protocol(quorum, 3, stale), 1e5, 100.0, equal_share, None)
    timeline = assert_agrees(run, rounds=25)
    model_s = timeline.rows(MERGED).model_s[::quorum]
    assert len(np.unique(model_s.round(9))) > 3  # it differs from round to round


@pytest.mark.slow
@pytest.mark.parametrize("way", ["multicast", "unicast"])
def test_simulate_agrees_with_processes_where_models_take_time_and_ues_move(way):
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], power_w=0.2, coherence_s=0.1, downlink=Downlink(way, 25.0, 1e6))
    cell = replace(cell, moves=Moves(Waypoints, 30.0, 200.0))
    assert_agrees(Run(cell, Protocol(3, 2), 1e5, 100.0, equal_share, None), rounds=30)


@pytest.mark.slow
@given(runs(max_ues=12), st.integers(1, 12), st.sampled_from(["multicast", "unicast"]), st.floats(1e3, 1e7))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_processes_on_any_downlink(run: Run, rounds: int, way, model_bits: float):
    cell = replace(run.cell, radio=RADIOS["umi"], power_w=0.2, downlink=Downlink(way, 25.0, model_bits))
    assert_agrees(replace(run, cell=cell), rounds)


@pytest.mark.parametrize("stale", ["restart", "wait"])
@pytest.mark.parametrize(("quorum", "rest_rounds", "bound"), [(1, 8, None), (3, 4, 2), (4, 3, 6)])
def test_simulate_agrees_with_processes_where_merged_ues_rest(stale, quorum, rest_rounds, bound):
    cell = Cell.draw(12, seed=quorum, cpu_hz=(2e7, 2e9))
    run = Run(cell, Protocol(quorum, bound, stale, rest_rounds=rest_rounds), 1e5, 100.0, equal_share, None)
    timeline = assert_agrees(run, 40)
    for ue in range(12):
        rounds = np.flatnonzero((timeline.ues == ue).any(axis=1))
        assert (np.diff(rounds) >= rest_rounds).all()


def test_resting_is_refused_where_a_round_could_wait_for_it():
    with pytest.raises(ValueError, match="might wait for UEs that rest"):
        Protocol(2, 3, "ignore", rest_rounds=2)
    with pytest.raises(ValueError, match="rest_rounds must be at least 1"):
        Protocol(2, rest_rounds=0)
    with pytest.raises(ValueError, match="must be at most the number of UEs, 5"):
        Protocol(2, rest_rounds=3).check(5)
    cell = Cell.draw(6, seed=0)
    with pytest.raises(ValueError, match="takes no schedule"):
        Run(cell, Protocol(2, rest_rounds=2), 1e5, 10.0, equal_share, round_robin(6, 2, 0)).simulate(2)
