"""Joules: by hand, conserved, and against a sum over every UE's day."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from in_numpy import train_in_numpy
from random_runs import Run, runs

from perfeds2.api import compare
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.radios import RADIOS
from perfeds2.spec.cells import make_energy
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.energy import Powers, energy_of, job_joules
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.usage import long_rows


def of(run: Run, timeline: Timeline, model: EnergyModel, times_s=()):
    return energy_of(timeline, run.cell, model, run.payload_bits, np.array(times_s, float))


def test_one_job_by_hand():
    # 1e6 cycles a sample, 100 samples at 1 GHz: 0.1 s and κ·cycles·f² = 1e-28·1e8·1e18 = 10 mJ; then 1 Mbit at 0.01 W.
    cell = Cell(np.array([100.0]), np.array([1e9]), cycles_per_sample=1e6, rician_k=np.inf)
    timeline = simulate(cell, Protocol(1), payload_bits=1e6, samples=100.0, rounds=1)
    sending_s = timeline.end_s - 0.1
    assert sending_s == pytest.approx(0.0461, abs=1e-3)
    energy = energy_of(timeline, cell, ENERGY["yang"], 1e6, np.array([0.0, 0.05, timeline.end_s, 99.0]))
    assert energy.computing_j[0] == pytest.approx(0.01)
    assert energy.sending_j[0] == pytest.approx(0.01 * sending_s)
    np.testing.assert_allclose(energy.by_time_j, [0, 0.005, energy.total_j, energy.total_j])
    assert energy_of(timeline, cell, ENERGY["chen"], 1e6, np.zeros(0)).computing_j[0] == pytest.approx(0.1)
    # A whole phone draws constant watts while it sends, plus energy per megabit.
    for name, watts, mj in (("lte", 2.9, 77), ("5g-low", 3.2, 32), ("5g-mmwave", 5.7, 9)):
        phone = energy_of(timeline, cell, ENERGY[name], 1e6, np.zeros(0))
        assert phone.sending_j[0] == pytest.approx(watts * sending_s + mj / 1000, rel=1e-9)


def test_waiting_for_the_model_is_free():
    cell = Cell(np.array([100.0]), np.array([1e9]), cycles_per_sample=1e6, downlink_s=5.0)
    timeline = simulate(cell, Protocol(1), payload_bits=1e6, samples=100.0, rounds=1)
    assert energy_of(timeline, cell, ENERGY["yang"], 1e6, np.zeros(0)).computing_j[0] == pytest.approx(0.01)


@given(runs(max_ues=12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_energy_is_conserved(run: Run):
    """The sum over jobs is the sum over UEs, the sum over their days, and what has been spent at the end."""
    timeline, model = run.simulate(8), ENERGY["chen"]
    half_s = timeline.end_s / 2
    energy = of(run, timeline, model, [0.0, half_s, timeline.end_s])
    powers = Powers(model.computing_w(run.cell), model.radio_w(run.cell))
    over_jobs = sum(part.sum() for part in job_joules(timeline.jobs(), powers))
    assert energy.total_j == pytest.approx(over_jobs, rel=1e-12)
    assert energy.by_time_j[-1] == pytest.approx(energy.total_j, rel=1e-9)
    by_day, until_half = np.zeros(timeline.population), 0.0
    for ue in range(timeline.population):
        watts = {"computing": powers.computing_w[ue], "sending": powers.sending_w[ue]}
        for state, start_s, end_s in timeline.activity(ue):
            by_day[ue] += watts.get(state, 0.0) * (end_s - start_s)
            until_half += watts.get(state, 0.0) * max(min(end_s, half_s) - start_s, 0.0)
    np.testing.assert_allclose(energy.ue_j, by_day, rtol=1e-9)
    assert energy.by_time_j[1] == pytest.approx(until_half, rel=1e-9)


@pytest.mark.parametrize("model", ["yang", "lte"])
def test_a_crowds_rows_cost_what_its_jobs_do(model):
    cell = Cell.draw(3_000, 0)
    timeline = simulate(cell, Protocol(5, 2), payload_bits=44_352.0, samples=120, rounds=12)
    log = timeline.log
    assert long_rows(log, timeline.compute_s).any()
    row, after = np.repeat(np.arange(log.ue.size), log.count), []
    for count in log.count:
        after += range(count)
    shared, ue = log.count[row] > 1, log.ue[row] + after
    sending_s = np.where(shared, log.start_s[row] + timeline.compute_s[ue], log.sending_s[row])
    sending_s = np.minimum(sending_s, log.end_s[row])
    written_out = replace(timeline, log=replace(log.take(row), ue=ue, sending_s=sending_s, count=np.ones_like(ue)))
    times_s = np.array([timeline.end_s])
    ours, theirs = (energy_of(one, cell, ENERGY[model], 44_352.0, times_s) for one in (timeline, written_out))
    np.testing.assert_allclose(ours.computing_j, theirs.computing_j)
    np.testing.assert_allclose(ours.sending_j, theirs.sending_j)
    np.testing.assert_allclose(ours.by_time_j, theirs.by_time_j)


def test_power_control_saves_energy():
    radio = RADIOS["umi"]
    assert radio is not None
    full = Cell.draw(10, 1, radio=radio, power_w=0.2)
    less = replace(full, radio=replace(radio, power_control=(-100.0, 0.8)))
    assert (ENERGY["yang"].radio_w(full) == 0.2).all()
    assert (ENERGY["yang"].radio_w(less) < 0.2).any()


def test_a_spec_says_which_model():
    assert make_energy(spec_from()) == ENERGY["yang"]
    assert make_energy(spec_from(energy="lte", kappa=3e-28)).kappa == 3e-28
    assert "energy" not in spec_from().values()


@pytest.mark.slow
def test_a_run_says_what_it_cost(monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    result = compare(ues=6, algorithms=["FedAvgS2"], seeds=[0], horizon_s=1, target_accuracy=0.05)
    (row,) = result.summary["algorithms"]
    metrics = result.metrics
    assert metrics["joules"].is_monotonic_increasing
    assert metrics["joules"].iloc[-1] <= row["joules"]["mean"] * (1 + 1e-9)
    assert row["joules_per_merge"]["mean"] == pytest.approx(row["joules"]["mean"] / row["merges"]["mean"])
    timeline = result.timelines["FedAvgS2", 0]
    assert metrics["merged_bits"].iloc[-1] == timeline.ues.size * 32 * 2410
    assert row["joules_to_target"]["median"] == metrics["joules"].iloc[0]
