"""Uploads of the largest numbers only, with what is left out kept for the next: by hand, and against a twin in NumPy."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_numpy import evaluate_in_numpy
from twins import World, ditto, sparse_fedavg

from perfeds2.errors import InputError
from perfeds2.learning import replay as module
from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import Ditto, FedPer
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import Prepared, advance, replay, start
from perfeds2.learning.script import Script
from perfeds2.learning.train import train, train_together
from perfeds2.learning.transforms import largest, numbers_sent, place_bits
from perfeds2.network.cell import Cell
from perfeds2.runs.store import Store
from perfeds2.runs.trainer import load_checkpoint, save_checkpoint
from perfeds2.spec.build import check
from perfeds2.spec.cells import model_bits, upload_bits
from perfeds2.spec.learners import make_learner
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.jobs import LOST
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

TASK = replace(digits(6, 3, 0), model=MLP((64, 10)))  # compiles in two thirds of the time
CELL = Cell.draw(6, 0)
LINE = simulate(CELL, Protocol(2, 3), payload_bits=1e5, samples=60, rounds=12)
WORLD = World(TASK, LINE, 0, 8, 3, 0.07)
PLAIN = Learner(FedAvg(), batch=8, local_steps=3)
TENTH = replace(PLAIN, top_k=0.1)


def final(learner, line=LINE, task=TASK):
    script = Script.of(line, learner.merge)
    return advance(Prepared.of(task, script, learner, 0), start(task, script, learner, 0), 0, line.rounds)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def row(rows, ue):
    return flat(jax.tree.map(lambda each: np.asarray(each)[ue], rows))


def test_the_largest_by_hand():
    upload = {"a": np.array([[3.0, -5.0], [0.5, 2.0]]), "b": np.array([-4.0, 2.0])}
    chosen = jax.jit(largest, static_argnums=1)
    three = chosen(upload, 3)
    np.testing.assert_array_equal(three["a"], [[3, -5], [0, 0]])
    np.testing.assert_array_equal(three["b"], [-4, 0])
    np.testing.assert_array_equal(chosen(upload, 4)["a"], [[3, -5], [0, 2]])  # of equal ones the first
    assert all(np.array_equal(one, two) for one, two in zip(chosen(upload, 6).values(), upload.values(), strict=True))


def test_where_numbers_stand_is_counted():
    # 10 of 1,000 numbers: 10 bits each to say which. 500 of them: a bit for each of the 1,000 is shorter.
    assert place_bits(10, 1000) == 100
    assert place_bits(500, 1000) == 1000
    assert place_bits(1000, 1000) == 0
    assert [numbers_sent(share, 2410) for share in (1.0, 0.1, 1e-9)] == [2410, 241, 1]


def test_an_upload_is_as_long_as_what_is_in_it():
    """The digits' model: 2,410 numbers in 4 arrays, so a place is 12 bits; models on their way to UEs are whole."""
    spec = spec_from(top_k=0.01)
    assert upload_bits(spec) == 24 * (32 + 12)
    assert upload_bits(spec_from(top_k=0.01, bits=8)) == 24 * (8 + 12) + 4 * 32
    assert upload_bits(spec_from(top_k=0.1)) == 241 * 32 + 2410
    assert upload_bits(spec_from(top_k=1)) == upload_bits(spec_from()) == model_bits(spec) == 77_120
    assert upload_bits(spec, FedPer()) == 21 * (32 + 12)  # of the 2,080 that are uploaded
    assert upload_bits(spec_from(top_k=0.1, payload_bits=500)) == 500


@pytest.mark.slow
def test_replay_agrees_with_a_twin_in_numpy():
    state, (model, unsent) = final(TENTH), sparse_fedavg(WORLD, 0.1)
    np.testing.assert_allclose(flat(state.params), model, atol=1e-5)
    assert np.abs(flat(state.params) - flat(final(PLAIN).params)).max() > 1e-3
    for ue in range(TASK.ues):
        np.testing.assert_allclose(row(state.unsent, ue), unsent[ue], atol=1e-5)
    assert np.abs(unsent).max() > 1e-2


@pytest.mark.slow
def test_all_of_the_numbers_is_no_compression_to_the_last_bit():
    plain = replay(TASK, LINE, PLAIN)
    one, two = (spec_from(algorithms=["FedAvgS2"], **more) for more in ({}, {"top_k": 1.0}))
    assert make_learner(one, "FedAvgS2", ALGORITHMS["FedAvgS2"]) == make_learner(
        two, "FedAvgS2", ALGORITHMS["FedAvgS2"]
    )
    # Also where it is not recognised beforehand, but for the order in which a round is added up:
    state = final(replace(PLAIN, top_k=1.0))
    np.testing.assert_allclose(flat(state.params), flat(plain), atol=1e-6)
    assert not flat(state.unsent).any()


@pytest.mark.slow
def test_with_few_bits_what_was_rounded_away_is_kept_too():
    """What a UE owed is what it sent and what it keeps; so the first upload of a UE and its rest make up its gradient."""
    line = LINE.prefix(1)
    whole, few = final(PLAIN, line), final(replace(TENTH, bits=4), line)
    first = flat(module.first_weights(TASK.model, np.int32(0)))
    owed = sum(row(few.unsent, ue) for ue in line.ues[0]) / 2 + (first - flat(few.params)) / 0.07
    np.testing.assert_allclose(owed, (first - flat(whole.params)) / 0.07, atol=1e-4)
    moved = np.count_nonzero(first - flat(few.params))
    assert 0 < moved <= 2 * 65


@pytest.mark.slow
def test_a_lost_job_leaves_no_trace():
    """Only merged uploads change what a UE has not sent. Who is always restarted has nothing to send but its gradient."""
    line = simulate(Cell.draw(6, 0, cpu_hz=(2e6, 2e9)), Protocol(2, 1), payload_bits=1e5, samples=60, rounds=12)
    starved, lost = line.starved, np.bincount(line.rows(LOST).ue, minlength=6)
    assert (lost[starved] > 1).all()
    assert (np.delete(lost, starved) > 0).any()
    (model, unsent), state = sparse_fedavg(replace(WORLD, line=line), 0.1), final(TENTH, line)
    np.testing.assert_allclose(flat(state.params), model, atol=1e-5)
    for ue in range(6):
        np.testing.assert_allclose(row(state.unsent, ue), unsent[ue], atol=1e-5)
        assert row(state.unsent, ue).any() == (ue not in starved)


@pytest.mark.slow
def test_beside_a_model_of_ones_own():
    """Ditto's own models do not see what is left out of the uploads but through the model they are held near."""
    free, (plain, own) = final(replace(PLAIN, objective=Ditto(0.0), top_k=0.1)), ditto(WORLD, lam=0.0)
    for ue in range(TASK.ues):
        np.testing.assert_allclose(row(free.client_state, ue), own[ue], atol=1e-5)
    assert np.abs(flat(free.params) - plain).max() > 1e-3


@pytest.mark.slow
def test_side_by_side_and_together_is_the_same_as_alone(monkeypatch, tmp_path):
    evaluate_in_numpy(monkeypatch.setattr)
    points = [[EvaluationPoint(k, float(k)) for k in rounds] for rounds in ((0, 5, 12), (0, 9, 10))]
    trials = [Lane(TASK, LINE, TENTH, own, seed) for seed, own in enumerate(points)]
    *_, stand = train_together(trials)
    for number, trial in enumerate(trials):
        *_, alone = train(TASK, LINE, TENTH, trial.points, seed=trial.seed)
        np.testing.assert_allclose(flat(stand[number].state.unsent), flat(alone.state.unsent), atol=1e-5)
        np.testing.assert_allclose(flat(stand[number].state.params), flat(alone.state.params), atol=1e-5)
    # A checkpoint has what was not sent, too.
    folder = Store(tmp_path / "run")
    half = next(one for one in train(TASK, LINE, TENTH, points[0]) if len(one.values) == 2)
    save_checkpoint(folder, "a", half)
    *_, resumed = train(TASK, LINE, TENTH, points[0], resume=load_checkpoint(folder, "a", trials[0]))
    np.testing.assert_array_equal(flat(resumed.state.params), flat(final(TENTH).params))
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(flat(final(TENTH).unsent), flat(stand[0].state.unsent), atol=1e-5)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8), st.sampled_from([1, 3, 8]))
@settings(max_examples=40, deadline=None)
def test_no_number_that_is_left_out_is_larger_than_one_that_is_sent(numbers, count):
    upload = np.array(numbers, np.float32)
    sent = np.asarray(jax.jit(largest, static_argnums=1)({"a": upload}, count)["a"])
    left = upload - sent
    assert np.count_nonzero(sent) <= count
    assert (left[sent != 0] == 0).all()
    assert np.abs(left).max() <= np.sort(np.abs(upload))[-count]


def test_what_bears_no_compression_says_so():
    for algorithm in ("SCAFFOLD", "SAFA"):
        with pytest.raises(InputError, match=rf"--top-k 0.1 .*{algorithm}"):
            check(spec_from(top_k=0.1, algorithms=[algorithm]), trains=False)
        check(spec_from(top_k=1.0, algorithms=[algorithm]), trains=False)
    for share in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match="--top-k must be"):
            spec_from(top_k=share)
