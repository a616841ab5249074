"""Does the compiled loop train two levels exactly as the timeline says?"""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import optax
import pytest
from in_numpy import evaluate_in_numpy
from two_levels_twin import cloud_of, many_cells, replay_cells_slowly

from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Optax
from perfeds2.learning.methods.fedasync import FedAsync
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.replay import Prepared, advance, replay, start
from perfeds2.learning.script import Script
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.runs.store import Store
from perfeds2.runs.trainer import load_checkpoint, save_checkpoint
from perfeds2.spec.build import check
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

ONE = Protocol(1, 2)


@cache
def task():
    return replace(digits(6, 3, 0), model=MLP((64, 10)))  # compiles in two thirds of the time


@cache
def uneven() -> Timeline:
    """Three edges of two UEs; the cloud merges the first two edges to arrive."""
    return many_cells([1.0, 1.5, 4.0], ONE, 2, cloud_quorum=2)


def assert_close(ours, theirs, tolerance=1e-6):
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance)


def same(ours, theirs) -> bool:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def plain(ues: np.ndarray, staleness: np.ndarray) -> Timeline:
    """A timeline of one cell with these merges."""
    empty = simulate(Cell.draw(6, 0), Protocol(ues.shape[1]), payload_bits=1e5, samples=60, rounds=0)
    seconds = 1.0 + np.arange(len(ues))
    arrival_s = np.repeat(seconds[:, None], ues.shape[1], axis=1)
    return replace(empty, ues=ues, staleness=staleness, arrival_s=arrival_s, time_s=seconds)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [FedAvg(), PerFed(0.1)], ids=lambda o: type(o).__name__)
def test_replay_matches_the_slow_twin(objective):
    learner = Learner(objective, batch=8)
    assert cloud_of(uneven()).staleness.max() > 0
    assert uneven().staleness.max() > 2
    assert_close(replay(task(), uneven(), learner, 3), replay_cells_slowly(task(), uneven(), learner, 3))


@pytest.mark.slow
def test_edges_with_more_ues_weigh_more():
    line, learner = uneven(), Learner(FedAvg(), batch=8)
    cloud = replace(cloud_of(line), sizes=np.array([1, 2, 3]))
    other = replace(line, cloud=cloud)
    weights = replay(task(), other, learner)
    assert_close(weights, replay_cells_slowly(task(), other, learner))
    assert not same(weights, replay(task(), line, learner))


@pytest.mark.slow
def test_one_edge_round_per_cloud_round_with_everybody_is_flat_averaging():
    learner = Learner(FedAvg(), beta=0.1, batch=8)
    line = many_cells([1.0, 2.0, 3.0], Protocol(2), 2, edge_rounds=1, backhaul_s=0.0)
    everybody = np.tile(np.arange(6), (6, 1))
    flat = plain(everybody, np.zeros_like(everybody))
    assert_close(replay(task(), line.prefix(18), learner), replay(task(), flat, learner))


@pytest.mark.slow
def test_cells_are_trainings_of_their_own_until_the_first_cloud_round():
    line, learner = many_cells([1.0, 1.5, 1.2], ONE, 2, edge_rounds=4), Learner(FedAvg(), batch=8)
    before = line.prefix(int(cloud_of(line).rows[0]) - 1)
    script = Script.of(before)
    state = advance(Prepared.of(task(), script, learner, 0), start(task(), script, learner, 0), 0, before.rounds)
    assert state.edges is not None
    assert same(state.params, start(task(), script, learner, 0).params)
    for edge in range(3):
        rows = np.flatnonzero(cloud_of(before).cell == edge)
        versions = np.searchsorted(rows, before.versions[rows])
        alone = plain(before.ues[rows], np.arange(rows.size)[:, None] - versions)
        newest = {name: weights[edge] for name, weights in state.edges.newest.items()}
        assert_close(newest, replay(task(), alone, learner), 1e-7)


@pytest.mark.slow
def test_a_training_continues_from_a_checkpoint_to_the_same_bytes(tmp_path, monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    line, learner = uneven(), Learner(PerFed(0.1), batch=8)
    points = evaluation_points(line, every_s=2.0)
    lane = Lane(task(), line, learner, points)
    store = Store(tmp_path)
    for state in train(task(), line, learner, points):
        if len(state.values) == len(points) // 2:
            save_checkpoint(store, "one", state)
    *_, whole = train(task(), line, learner, points)
    early = load_checkpoint(store, "one", lane)
    assert early is not None
    *_, end = train(task(), line, learner, points, resume=early)
    assert len(early.values) < len(end.values)
    assert whole.values == end.values
    assert same(whole.state, end.state)


def test_no_accuracy_is_reported_before_its_model_exists():
    line = uneven()
    for point in evaluation_points(line, every_s=0.5):
        done = np.count_nonzero(cloud_of(line).rows <= point.round)
        assert (cloud_of(line).time_s[:done] <= point.time_s).all()
    points = evaluation_points(line)
    assert [point.time_s for point in points[1:]] == line.visible_s[[point.round - 1 for point in points[1:]]].tolist()


@pytest.mark.slow
def test_trainings_side_by_side_are_those_of_each_alone(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    learner = Learner(FedAvg(), batch=8)
    lines = [uneven(), many_cells([3.0, 1.0, 1.2], ONE, 2, cloud_quorum=2, cloud_rounds=4)]
    lanes = [Lane(task(), line, learner, evaluation_points(line, about=3), seed) for seed, line in enumerate(lines)]
    *_, together = train_together(lanes)
    for number, lane in enumerate(lanes):
        assert_close(together[number].state.params, replay(task(), lane.timeline, learner, number), 1e-5)
    assert Lane(task(), plain(np.zeros((1, 1), int), np.zeros((1, 1), int)), learner, []).shape != lanes[0].shape


@pytest.mark.slow
def test_rounds_in_blocks_change_nothing():
    """The form a GPU runs, on the CPU."""
    line, learner = uneven(), Learner(FedAvg(), batch=8)
    expected = replay(task(), line, learner)
    script = Script.of(line)
    blocks = Prepared.of(task(), script, learner, 0, block=16)
    assert_close(advance(blocks, start(task(), script, learner, 0), 0, line.rounds).params, expected)


@pytest.mark.slow
def test_staleness_is_that_of_the_edge():
    line, learner = uneven(), Learner(FedAvg(), batch=8, merge=FedAsync())
    assert line.staleness.max() > 2
    assert int(Script.of(line).staleness.max()) <= 2
    assert not same(replay(task(), line, learner), replay(task(), line, Learner(FedAvg(), batch=8)))


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (Learner(FedAvg(), merge=Optax(optax.adam(0.01))), "the merge Optax keeps state at one server"),
        (Learner(FedAvg(), clip=1.0, noise=1.0, bands=2), "noise that rounds share is drawn"),
    ],
)
def test_what_needs_one_server_is_refused(learner, words):
    with pytest.raises(ValueError, match=f"{words}.*--merge-at cloud"):
        replay(task(), uneven(), learner)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedAdam", "CA2FL"])
def test_a_method_that_needs_one_server_is_refused_before_anything_is_simulated(name):
    spec = spec_from(task="synthetic", ues=6, cells=3, rounds=6, algorithms=[name])
    with pytest.raises(InputError, match=r"keeps state at one server.*--merge-at cloud"):
        check(spec, trains=False)
