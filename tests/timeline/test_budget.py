"""Energy budgets: by hand, against a process per UE with a battery, and against the joules of the timeline."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hand_made import hand_made_cell, one_hz_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_numpy import train_in_numpy
from random_runs import STALE, Run, runs, uneven_share
from test_agrees_with_processes import mast_of
from twin import Battery, Radio, RoundRules, play_with_processes

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.api import compare
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY, EnergyModel
from perfeds2.network.link import Downlink
from perfeds2.network.radios import RADIOS
from perfeds2.spec.build import Stage, check, clock_key, make_algorithms, make_timelines
from perfeds2.spec.cells import make_budget
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.energy import Powers, energy_of, job_joules
from perfeds2.timeline.protocol import IDLE, Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Budget, too_few


@dataclass(frozen=True)
class Limited:
    """A run whose UEs have this many joules each, or one number for all."""

    run: Run
    joules: np.ndarray | float
    model: EnergyModel

    def simulate(self, rounds: int, **more) -> Timeline:
        run = self.run
        return simulate(
            run.cell,
            run.protocol,
            payload_bits=run.payload_bits,
            samples=run.samples,
            rounds=rounds,
            bandwidth=run.bandwidth,
            budget=Budget.of(self.joules, self.model, run.cell, run.samples),
            **more,
        )

    def twin(self, rounds: int):
        run, cell, protocol = self.run, self.run.cell, self.run.protocol
        signal_hz = cell.signal_hz if cell.coherence_s is None else cell.channel.signal_in
        limits = (cell.cap_bits_per_s_hz or np.inf, cell.coherence_s or np.inf)
        battery = Battery(
            self.joules,
            self.model.kappa * cell.cpu_hz**3,
            np.broadcast_to(cell.sent_power_w, cell.ues) * self.model.radiates + self.model.sending_w,
            self.model.joules_per_bit,
            cell.downlink_s,
        )
        return play_with_processes(
            Radio(signal_hz, cell.bandwidth_hz, run.bandwidth, *limits),
            RoundRules(protocol.quorum, protocol.max_staleness, protocol.stale, drafts=protocol.drafts),
            cell.compute_s(run.samples),
            run.payload_bits,
            rounds,
            battery,
            mast_of(run),
        )


def assert_agrees(limited: Limited, rounds: int) -> Timeline:
    timeline, history = limited.simulate(rounds), limited.twin(rounds)
    assert timeline.rounds == len(history)
    np.testing.assert_array_equal(timeline.ues, np.reshape([one.ues for one in history], timeline.ues.shape))
    np.testing.assert_allclose(timeline.time_s, [one.time_s for one in history], rtol=0, atol=1e-9)
    return timeline


def test_three_jobs_by_hand():
    """UEs compute 1 and 2 s and send for 2 s, at 1 W each for both: jobs of 3 and 4 J, rounds on each arrival. Of its 7 J
    UE 1 has spent 8 when its second job is over, at second 8; UE 0 has spent 6 at second 6, and 9 at 9: then no UE is left.
    """
    cell = hand_made_cell([1.0, 2.0])
    budget = Budget(7.0, np.ones(2), np.ones(2), 0.0, cell.compute_s(1))
    line = simulate(cell, Protocol(1), payload_bits=8, samples=1, rounds=99, bandwidth=one_hz_each, budget=budget)
    np.testing.assert_allclose(line.time_s, [3, 4, 6, 8, 9])
    assert line.ues.ravel().tolist() == [0, 1, 0, 1, 0]
    assert line.open_version.tolist() == [IDLE, IDLE]
    assert too_few(line.open_version, line.rounds, Protocol(1))
    # Both are needed: with UE 1 gone at 8, its round is the last.
    line = simulate(cell, Protocol(2), payload_bits=8, samples=1, rounds=99, bandwidth=one_hz_each, budget=budget)
    np.testing.assert_allclose(line.time_s, [4, 8])


def test_each_ue_has_its_own_budget_by_hand():
    """Jobs of 3 and 4 J as above. UE 0 may spend 7 J and leaves after its third job; UE 1 has no budget and goes on alone."""
    cell = hand_made_cell([1.0, 2.0])
    budget = Budget(np.array([7.0, np.inf]), np.ones(2), np.ones(2), 0.0, cell.compute_s(1))
    line = simulate(cell, Protocol(1), payload_bits=8, samples=1, rounds=8, bandwidth=one_hz_each, budget=budget)
    np.testing.assert_allclose(line.time_s, [3, 4, 6, 8, 9, 12, 16, 20])
    assert line.ues.ravel().tolist() == [0, 1, 0, 1, 0, 1, 1, 1]
    assert line.open_version.tolist() == [IDLE, 8]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["yang", "lte"])
@pytest.mark.parametrize("stale", STALE)
def test_simulate_agrees_with_processes_whose_batteries_differ(model, stale):
    cell = Cell.draw(16, seed=3, cpu_hz=(2e7, 2e9), downlink_s=0.01)
    run = Run(cell, Protocol(3, 2, stale), 1e5, 100.0, equal_share, None)
    free = energy_of(run.simulate(60), cell, ENERGY[model], 1e5, np.zeros(0)).ue_j
    joules = np.where(np.arange(16) % 4 == 0, np.inf, np.linspace(0.2, 0.8, 16) * float(np.median(free)))
    line = assert_agrees(Limited(run, joules, ENERGY[model]), 60)
    left = line.open_version == IDLE if stale != "wait" else np.zeros(16, bool)
    assert not left[::4].any()  # who has no budget stays
    assert stale == "wait" or left.any()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["yang", "lte"])
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("quorum", [1, 4])
def test_simulate_agrees_with_processes_that_have_batteries(model, stale, quorum):
    cell = Cell.draw(16, seed=quorum, cpu_hz=(2e7, 2e9), downlink_s=0.01)
    run = Run(cell, Protocol(quorum, 2, stale), 1e5, 100.0, equal_share, None)
    free = run.simulate(40)
    joules = float(np.median(energy_of(free, cell, ENERGY[model], 1e5, np.zeros(0)).ue_j))
    line = assert_agrees(Limited(run, joules / 2, ENERGY[model]), 40)
    assert line.merges.tolist() != free.merges.tolist()


@pytest.mark.parametrize("model", ["chen", "lte"])
def test_simulate_agrees_with_batteries_where_fading_changes_inside_rounds(model):
    cell = Cell.draw(12, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, coherence_s=0.01)
    run = Run(cell, Protocol(3, 2), 1e5, 100.0, equal_share, None)
    free = energy_of(run.simulate(40), cell, ENERGY[model], 1e5, np.zeros(0)).ue_j
    line = assert_agrees(Limited(run, float(np.median(free)) / 3, ENERGY[model]), 400)
    assert line.rounds < 400


def test_simulate_agrees_with_batteries_where_models_take_time():
    cell = Cell.draw(10, seed=4, radio=RADIOS["umi"], bandwidth_hz=5e6, power_w=0.2, cpu_hz=(2e7, 2e9))
    cell = replace(cell, downlink=Downlink("unicast", 25.0, 1e6))
    line = assert_agrees(Limited(Run(cell, Protocol(3, 1), 1e5, 100.0, equal_share, None), 0.05, ENERGY["chen"]), 300)
    assert 10 < line.rounds < 300


def test_simulate_agrees_with_batteries_where_a_round_is_a_draft():
    cell = Cell.draw(10, seed=2, cpu_hz=(2e7, 2e9))
    run = Run(cell, Protocol(3, 4, drafts=True), 1e5, 100.0, equal_share, None)
    line = assert_agrees(Limited(run, 0.02, ENERGY["chen"]), 200)
    assert 10 < line.rounds < 200


@pytest.mark.slow
@given(runs(max_ues=12, scheduled=False), st.floats(0.01, 2.0), st.sampled_from(["chen", "5g-low"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_batteries_on_random_cells(run: Run, part: float, model: str):
    free = energy_of(run.simulate(10), run.cell, ENERGY[model], run.payload_bits, np.zeros(0)).ue_j
    assert_agrees(Limited(run, max(part * float(free.mean()), 1e-12), ENERGY[model]), 15)


@pytest.mark.slow
@given(runs(max_ues=12, scheduled=False), st.floats(0.05, 1.5))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_ue_who_has_spent_its_budget_is_handed_a_model(run: Run, part: float):
    """Job by job, from the timeline alone: what a UE had spent when a job began was less than its budget."""
    model = ENERGY["chen"]
    free = energy_of(run.simulate(12), run.cell, model, run.payload_bits, np.zeros(0)).ue_j
    joules = max(part * float(free.mean()), 1e-12)
    line = Limited(run, joules, model).simulate(12)
    jobs, powers = line.jobs(), Powers(model.computing_w(run.cell), model.radio_w(run.cell))
    spent_j = np.add(*job_joules(jobs, powers))
    for ue in range(line.population):
        own = np.flatnonzero(jobs.ue == ue)
        own = own[np.argsort(jobs.version[own])]
        before_j = np.cumsum(spent_j[own]) - spent_j[own]
        assert (before_j < joules * (1 + 1e-6)).all()
        if line.open_version[ue] == IDLE and own.size and not run.protocol.waits:
            assert before_j[-1] + spent_j[own[-1]] >= joules * (1 - 1e-6)
    energy = energy_of(line, run.cell, model, run.payload_bits, np.zeros(0))
    assert energy.total_j == pytest.approx(spent_j.sum(), rel=1e-12)  # over jobs and over UEs


def test_more_than_anybody_spends_changes_nothing():
    run = Run(Cell.draw(10, 1), Protocol(3, 2), 1e5, 100.0, uneven_share(3), None)
    ours, free = Limited(run, 1e9, ENERGY["yang"]).simulate(40), run.simulate(40)
    np.testing.assert_array_equal(ours.time_s, free.time_s)
    np.testing.assert_array_equal(ours.ues, free.ues)
    np.testing.assert_array_equal(ours.open_version, free.open_version)


def test_a_spec_with_a_budget():
    spec = spec_from(energy_budget=0.02, energy="chen", algorithms=["FedAvgS2"], rounds=5000, seeds=1)
    stage = Stage.of(spec, 0)
    (line,) = make_timelines(spec, stage, make_algorithms(spec, stage))
    assert 0 < line.rounds < 5000
    for bad in ({"schedule": "deficit"}, {"algorithms": ["TiFL"]}):
        with pytest.raises(InputError, match=r"an energy budget cannot be combined with the schedule of"):
            check(spec_from(energy_budget=1, **bad), trains=False)
    with pytest.raises(InputError, match="--energy-budget must be"):
        spec_from(energy_budget=0)
    with pytest.raises(InputError, match="energy-budget is not a setting of a federation"):
        Setup.from_texts({"energy-budget": "1"})
    run = Limited(Run(Cell.draw(4, 0), Protocol(2), 1e5, 10.0, equal_share, None), 1.0, ENERGY["yang"])
    with pytest.raises(ValueError, match="a schedule would wait"):
        run.simulate(3, schedule=lambda _: np.array([0, 1]))


@pytest.mark.slow
def test_a_column_of_the_fleet_file_is_each_ues_own_budget(tmp_path):
    """Devices with equal jobs: 0 has 3 J of its own, 1 has the default, 2 and 3 have far more."""
    file = tmp_path / "fleet.csv"
    file.write_text("rate_bps,samples_per_s,energy_budget_j\n1e6,100,3\n1e6,100,\n1e6,100,1e9\n1e6,100,1e9\n")
    given = {"cell": str(file), "energy": "lte", "algorithms": ["FedAvg-ASY"], "rounds": 400, "seeds": 1}

    def joules(**more):
        spec = spec_from(**given, **more)
        stage = Stage.of(spec, 0)
        (algorithm,) = algorithms = make_algorithms(spec, stage)
        budget = make_budget(spec, stage.cell, algorithm.learner.samples)
        assert budget is not None
        (line,) = make_timelines(spec, stage, algorithms)
        return np.broadcast_to(budget.joules, 4).tolist(), line.merges.tolist()

    limits, merges = joules()
    assert limits == [3, np.inf, 1e9, 1e9]
    assert merges[0] < merges[1]
    assert merges[1] == pytest.approx(merges[2], abs=1)
    limits, same = joules(energy_budget=3)  # the default of those without one
    assert limits == [3, 3, 1e9, 1e9]
    assert same[0] == merges[0] == same[1]
    assert clock_key(spec_from(**given)) != clock_key(spec_from(**given | {"energy": "chen"}))
    with pytest.raises(InputError, match="an energy budget cannot be combined with the schedule of"):
        check(spec_from(**given | {"algorithms": ["TiFL"]}), trains=False)


@pytest.mark.slow
def test_a_run_that_ends_early_says_so_and_keeps_its_last_model(monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    result = compare(
        task="synthetic",
        ues=6,
        quorum=2,
        energy_budget=0.001,
        energy="chen",
        algorithms=["FedAvgS2", "FedAvg-SYN"],
        seeds=[0],
        horizon_s=3.0,
        eval_every_s=0.5,
    )
    line, notes = result.timelines["FedAvgS2", 0], result.summary["notes"]
    assert line.end_s < 2.5
    ended = next(note for note in notes if note.startswith("FedAvgS2: after"))
    assert f"{line.rounds:,} rounds fewer than 2 UEs had energy left" in ended
    assert any(note.startswith("FedAvg-SYN: after") for note in notes)
    rows = result.metrics.query("algorithm == 'FedAvgS2'").to_dict("list")
    total_j = result.summary["algorithms"][0]["joules"]["mean"]
    assert rows["joules"][-2:] == [pytest.approx(total_j)] * 2
    assert rows["round"][-1] == line.rounds
