"""Do TiFL, FedAT, FedCompass and SAFA merge the UEs that their papers say, in the way they say?"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from in_numpy import evaluate_in_numpy
from twins import World
from twins_tiers import fedat, fedcompass, safa, steps_of_compass, tifl

from perfeds2.allocation.shares import expected_sending_s
from perfeds2.allocation.tiers import AllTiers, OneTier, Tiers, tiers_by_latency
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import Ditto
from perfeds2.learning.methods.fedat import TierAverage
from perfeds2.learning.methods.fedcompass import OwnSteps
from perfeds2.learning.methods.safa import ModelCache
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, FedProx
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import replay
from perfeds2.learning.task import parameters
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.runs.store import Store
from perfeds2.runs.trainer import load_checkpoint, save_checkpoint
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.jobs import LOST
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

DIGITS = digits(6, 3, 0)
TASK = replace(DIGITS, model=MLP((64, 10)))  # compiles in two thirds of the time
CELL = Cell.draw(6, 0, cpu_hz=(2e6, 2e9))  # the slow ones compute longer than a round lasts
RUN: dict[str, Any] = {"payload_bits": 1e5, "samples": 60, "rounds": 14}
FEW: dict[str, Any] = RUN | {"rounds": 4}
SYNCHRONOUS = simulate(CELL, Protocol(6), **FEW)


def world(line) -> Any:
    return World(TASK, line, 0, 8, 3, 0.07)


def made(name, **settings):
    """The algorithm of a name and its timeline, as ``compare`` makes them."""
    spec = spec_from(
        task="digits",
        ues=6,
        batch=8,
        algorithms=[name],
        rounds=14,
        **{"cpu_hz": "2e6,2e9", "local_steps": 3} | settings,
    )
    stage = Stage.of(spec, 0)
    (algorithm,) = make_algorithms(spec, stage)
    (line,) = make_timelines(spec, stage, [algorithm])
    return algorithm, line


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def assert_close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# ---- tiers


def test_tiers_are_of_equal_size_and_sorted_by_speed():
    cell = Cell.draw(23, 3)
    tiers = tiers_by_latency(cell, 1e5, 120, 5)
    assert sorted(np.bincount(tiers.of)) == [4, 4, 5, 5, 5]
    alone_s = cell.compute_s(120)
    near = replace(cell, distance_m=np.full(23, 50.0))  # then only computing differs
    of = np.array(tiers_by_latency(near, 1e5, 120, 5).of)
    assert all(alone_s[of == m].max() <= alone_s[of == m + 1].min() for m in range(4))
    assert tiers_by_latency(Cell.draw(3), 1e5, 120, 5).count == 3


def test_tifl_draws_every_tier_alike_and_every_ue_of_it():
    schedule = OneTier(Tiers((0, 0, 0, 1, 1, 1, 2, 2, 2)), 2, seed=5)
    rows = np.array([schedule(k) for k in range(3000)])
    assert (rows // 3 == rows[:, :1] // 3).all()  # of one tier
    assert (np.diff(rows, axis=1) > 0).all()
    assert np.bincount(rows[:, 0] // 3) == pytest.approx([1000] * 3, rel=0.1)
    assert np.bincount(rows.ravel()) == pytest.approx([2000 / 3] * 9, rel=0.12)
    assert (OneTier(schedule.tiers, 2, 6)(0) != schedule(0)).any() or (
        OneTier(schedule.tiers, 2, 6)(1) != schedule(1)
    ).any()


def test_fedats_tiers_go_at_their_own_pace_and_no_one_outside_the_chosen_works():
    tiers = Tiers((0, 1, 0, 1, 0, 1))
    versions = []
    line = simulate(
        CELL,
        Protocol(2, rests=True),
        schedule=AllTiers(tiers, 2, 0),
        watch=lambda info: versions.append(info.versions),
        **RUN,
    )
    for row in versions:
        assert np.bincount(np.array(tiers.of)[row >= 0]).tolist() == [2, 2]
    assert all(len({tiers.of[ue] for ue in row}) == 1 for row in line.ues.tolist())
    assert all(len(set(row)) == 1 for row in line.staleness.tolist())
    assert line.staleness.max() > 1


# ---- against the papers' pseudocode


@pytest.mark.slow
def test_tifl_is_its_papers_pseudocode():
    algorithm, line = made("TiFL", tiers=2, quorum=2)
    assert isinstance(algorithm.schedule, OneTier)
    assert_close(flat(replay(TASK, line, algorithm.learner)), tifl(world(line), algorithm.schedule.tiers.of))


def compass(steps=8, **settings):
    """FedCompass with three groups of two UEs: the algorithm, its timeline, the steps and the seconds of every UE."""
    algorithm, line = made("FedCompass", quorum=2, local_steps=steps, **{"cpu_hz": "2e7,2e8"} | settings)
    assert isinstance(algorithm.learner.objective, OwnSteps)
    spec = spec_from(task="digits", ues=6, cpu_hz=settings.get("cpu_hz", "2e7,2e8"), algorithms=["FedCompass"])
    cell = Stage.of(spec, 0).cell
    taken = np.asarray(algorithm.learner.objective.shares) * steps
    return algorithm, line, taken, cell.compute_s(steps * 8), expected_sending_s(cell, DIGITS.payload_bits)


@pytest.mark.slow
def test_fedcompass_is_its_papers_pseudocode():
    algorithm, line, taken, full_s, upload_s = compass()
    assert isinstance(algorithm.schedule, AllTiers)
    groups = [own.tolist() for own in algorithm.schedule.tiers.members]
    steps = steps_of_compass(full_s, upload_s, groups, most=8, least=1)
    assert [steps[ue] for ue in range(6)] == taken.round().tolist()
    assert 1 <= min(steps.values()) < max(steps.values()) == 8
    twin = fedcompass(World(TASK, line, 0, 8, 8, 0.07), steps, 0.9)
    assert_close(flat(replay(TASK, line, algorithm.learner)), twin)
    assert np.abs(twin - world(line).first).max() > 1e-3


def test_groups_of_fedcompass_wait_less_for_their_slowest_ue():
    """With own numbers of steps, the jobs of a group last the same to within a step, unless they would be too few."""
    algorithm, line, taken, full_s, upload_s = compass(steps=50)
    assert isinstance(algorithm.schedule, AllTiers)
    np.testing.assert_allclose(line.compute_s, full_s * taken / 50, rtol=1e-6)
    for own in algorithm.schedule.tiers.members:
        job_s = (full_s * taken / 50 + upload_s)[own]
        free = taken[own] > 10  # Q_min
        assert np.ptp(job_s[free]) <= (full_s / 50)[own].max() * 1.01
    _, without, all_steps, *_ = compass(steps=50, methods={"FedCompass": {"fewest": 1.0}})
    assert all_steps.tolist() == [50] * 6
    assert line.time_s[-1] < without.time_s[-1]


@pytest.mark.slow
def test_fedat_is_its_papers_pseudocode():
    algorithm, line = made("FedAT", tiers=3, quorum=2, methods={"FedAT": {"proximal": 0.4}})
    assert isinstance(algorithm.schedule, AllTiers)
    tiers = algorithm.schedule.tiers.of
    expected = fedat(world(line), tiers, 0.4)
    assert {tiers[ue] for ue in line.ues.ravel().tolist()} == {0, 1, 2}
    assert np.abs(expected - world(line).first).max() > 1e-3
    assert_close(flat(replay(TASK, line, algorithm.learner)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quorum", "lag", "cell"),
    [
        (2, 1, {"bandwidth_hz": 1e4, "cycles": "per-parameter"}),
        (2, 2, {"cpu_hz": "2e7,2e9"}),
        (4, 3, {"cpu_hz": "2e8,2e9"}),
    ],
    ids=["left behind", "undrafted", "drafted twice"],
)
def test_safa_is_its_papers_pseudocode(quorum, lag, cell):
    """With two of six, some are left behind; with four, some are drafted twice running, and not always the same."""
    algorithm, line = made("SAFA", quorum=quorum, max_staleness=lag, **cell)
    expected, undrafted = safa(world(line), lag)
    rows = [set(row) for row in line.ues.tolist()]
    if quorum == 2:
        assert any(
            set(bypass) - row for bypass, row in zip(undrafted, rows[1:], strict=False)
        )  # their entries are merged as such
        assert not line.rows(LOST).arrived.all()  # and someone is too far behind
    else:
        assert any((rows[k] & rows[k - 1]) - rows[k + 1] for k in range(1, line.rounds - 1))
    assert np.abs(expected - world(line).first).max() > 1e-3
    assert_close(flat(replay(TASK, line, algorithm.learner)), expected)


# ---- where one equals another


@pytest.mark.slow
def test_with_everybody_in_every_round_they_are_fedavg():
    plain = Learner(FedAvg(), batch=8, local_steps=3)
    expected = flat(replay(TASK, SYNCHRONOUS, plain))
    drafted = simulate(CELL, Protocol(6, drafts=True), **FEW)
    assert_close(drafted.time_s, SYNCHRONOUS.time_s)
    assert_close(flat(replay(TASK, drafted, replace(plain, merge=ModelCache()))), expected, 1e-6)
    one = Tiers((0,) * 6)
    whole = simulate(CELL, Protocol(6, rests=True), schedule=AllTiers(one, 6, 0), **FEW)
    assert_close(
        flat(replay(TASK, whole, replace(plain, objective=FedProx(0.0), merge=TierAverage.of(one.of)))), expected, 1e-6
    )
    turn = simulate(CELL, Protocol(6, rests=True), schedule=OneTier(one, 6, 0), **FEW)
    assert_close(turn.time_s, SYNCHRONOUS.time_s)
    assert_close(flat(replay(TASK, turn, plain)), expected, 1e-6)


def test_who_keeps_something_cannot_do_a_job_again():
    line = simulate(CELL, Protocol(2, 1, drafts=True), **FEW)
    with pytest.raises(ValueError, match="use an objective without state"):
        replay(TASK, line, Learner(Ditto(), batch=8, merge=ModelCache(1.0)))


# ---- by name


def test_a_tier_that_is_smaller_than_the_quorum_gives_all_it_has():
    algorithm, line = made("FedAT", quorum=4)
    assert algorithm.protocol.quorum == line.quorum == 1  # five tiers of six UEs
    algorithm, line = made("TiFL", quorum=4, tiers=2)
    assert algorithm.protocol.quorum == line.quorum == 3
    assert not line.staleness.any()


@pytest.mark.parametrize("name", ["FedAT", "TiFL", "SAFA"])
def test_a_federation_does_not_follow_rounds_of_ones_own(name):
    with pytest.raises(InputError, match="has rounds of its own"):
        Setup.from_texts({"algorithm": name})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedAT", "SAFA"])
def test_a_checkpoint_carries_what_the_server_keeps(name, tmp_path, monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    algorithm, line = made(name, quorum=2, tiers=3, max_staleness=1)
    points = [EvaluationPoint(k, float(k)) for k in (0, 7, line.rounds)]
    trial, folder = Lane(TASK, line, algorithm.learner, points), Store(tmp_path / "run")
    *_, whole = train(TASK, line, algorithm.learner, points)
    for training in train(TASK, line, algorithm.learner, points):
        if len(training.values) == 2:
            save_checkpoint(folder, name, training)
            break
    resumed = load_checkpoint(folder, name, trial)
    assert resumed is not None
    *_, again = train(TASK, line, algorithm.learner, points, resume=resumed)
    assert again.values == whole.values
    assert (flat(again.state.params) == flat(whole.state.params)).all()
    assert parameters(TASK.model) == flat(again.state.params).size


@pytest.mark.slow
def test_together_is_the_same_as_alone(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    algorithm, line = made("SAFA", quorum=2, tiers=3, max_staleness=1)
    points = [[EvaluationPoint(k, float(k)) for k in rounds] for rounds in ((0, 5, line.rounds), (0, 9, 10))]
    trials = [Lane(TASK, line, algorithm.learner, own, seed) for seed, own in enumerate(points)]
    *_, stand = train_together(trials)
    for number, trial in enumerate(trials):
        *_, alone = train(TASK, line, algorithm.learner, trial.points, seed=trial.seed)
        assert_close(flat(stand[number].state.params), flat(alone.state.params))
