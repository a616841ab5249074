"""Do robust merges compute what their papers say, and do hostile UEs upload what their attack says?"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_numpy import evaluate_in_numpy

from perfeds2.deployment.merging import merged
from perfeds2.deployment.transport import Arrays
from perfeds2.errors import InputError
from perfeds2.learning.attacks import ATTACKS, FACTOR, hostile_ues
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import digits
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Arrived, mean_of
from perfeds2.learning.methods import ROBUST
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import first_weights, merge_now
from perfeds2.learning.robust import TrimmedMean
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.runs.notes import robustness
from perfeds2.spec.build import Stage, make_algorithms
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

# ---- the statistics in plain NumPy: rows of uploads in, one row out


def median(rows):
    return np.array([sorted(column)[len(column) // 2] for column in rows.T])


def trimmed_mean(rows):
    cut = -(-len(rows) // 5)  # 0.2 at each end, rounded up
    return np.array([np.mean(sorted(column)[cut : len(column) - cut]) for column in rows.T])


def geometric_median(rows):
    point = rows.mean(axis=0)
    for _ in range(16):
        weights = [1 / np.linalg.norm(row - point) for row in rows]
        point = sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)
    return point


def by_krum(rows):
    bad = -(-len(rows) // 5)
    near = [sorted(np.linalg.norm(one - other) ** 2 for other in rows)[1:][: len(rows) - bad - 2] for one in rows]
    return np.argsort([float(sum(own)) for own in near]), bad


def krum(rows):
    return rows[by_krum(rows)[0][0]]


def multi_krum(rows):
    order, bad = by_krum(rows)
    return rows[order[: len(rows) - bad]].mean(axis=0)


def clipped_mean(rows):
    most = np.median([np.linalg.norm(row) for row in rows])
    return np.mean([row * min(1, most / np.linalg.norm(row)) for row in rows], axis=0)


TWINS = {
    "median": median,
    "trimmed-mean": trimmed_mean,
    "geometric-median": geometric_median,
    "krum": krum,
    "multi-krum": multi_krum,
    "clipped-mean": clipped_mean,
}


def test_every_robust_merge_has_a_twin():
    assert TWINS.keys() == ROBUST.keys()


def uploads_of(rows):
    return {"a": rows[:, :4].reshape(-1, 2, 2), "b": rows[:, 4:]}


def arrival_of(rows):
    numbers = np.arange(len(rows), dtype=np.int32)
    return Arrived(np.float32(0.5), uploads=uploads_of(rows), staleness=numbers, ues=numbers)


def flat(arrays):
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays)])


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 7])
@pytest.mark.parametrize("name", TWINS)
def test_a_robust_merge_equals_its_twin(name, count):
    rows = np.random.default_rng(count).normal(size=(count, 7)).astype(np.float32) + 1
    rows[2] *= 5
    params = {"a": np.ones((2, 2), np.float32), "b": np.zeros(3, np.float32)}
    new, _ = merge_now(ROBUST[name](), params, arrival_of(rows), None)
    expected = np.array([1, 1, 1, 1, 0, 0, 0]) - 0.5 * TWINS[name](rows.astype(np.float64))
    np.testing.assert_allclose(flat(new), expected, rtol=1e-4, atol=1e-5)
    updates: list[Arrays] = [{name: values[i] for name, values in uploads_of(rows).items()} for i in range(count)]
    learner = Learner(FedAvg(), 0.5, merge=ROBUST[name]())
    same, _ = merged(params, updates, learner, None, [(ue, 0) for ue in range(count)])  # in a federation
    assert all(np.array_equal(same[key], new[key]) for key in params)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBUST)
def test_one_huge_upload_of_five_moves_a_robust_merge_no_further_than_an_honest_one(name):
    rows = np.random.default_rng(3).normal(size=(5, 7)).astype(np.float32)
    rows[4] = 1e6
    nowhere = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}
    moved = 2 * np.linalg.norm(flat(merge_now(ROBUST[name](), nowhere, arrival_of(rows), None)[0]))
    assert moved <= np.linalg.norm(rows[:4], axis=1).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBUST)
def test_one_upload_that_is_not_finite_or_too_long_to_measure_is_withstood(name):
    """The square of 3e38 overflows; the upload counts as zeros."""
    rows = np.random.default_rng(3).normal(size=(5, 7)).astype(np.float32)
    nowhere = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}
    for value in (np.nan, np.inf, 3e38):
        rows[4, :2] = value
        moved = 2 * np.linalg.norm(flat(merge_now(ROBUST[name](), nowhere, arrival_of(rows), None)[0]))
        assert moved <= np.linalg.norm(rows[:4], axis=1).max()


def test_a_trimmed_mean_keeps_one_or_two_uploads_whatever_the_share():
    rows = np.array([[9.0], [1.0], [2.0], [-5.0]], np.float32)
    for count, middle in ((4, 1.5), (3, 2.0)):
        kept = TrimmedMean(0.5).statistic({"a": jnp.asarray(rows[:count])})
        np.testing.assert_allclose(kept["a"], [middle])


# ---- attacks

TASK = replace(digits(6, 2, 0), model=MLP((64, 10)))  # compiles in two thirds of the time
LEARNER = Learner(FedAvg(), batch=8, local_steps=2)
SHARE = 1 / 3
HOSTILE = hostile_ues(SHARE, 6, 0)
BAD, GOOD = int(np.flatnonzero(HOSTILE)[0]), int(np.flatnonzero(~HOSTILE)[0])
JOB = jax.jit(local_update, static_argnames="program")


def attack(name, share=SHARE):
    return ATTACKS[f"{name}:SHARE"](share)


@cache
def params():
    return first_weights(TASK.model, np.int32(0))


def upload(ue, how=None, task=TASK, clip=None):
    learner = replace(LEARNER, attack=how, clip=clip)
    given = (Program.of(task.model, learner), Known.of(task, learner, 0), params())
    return flat(JOB(*given, jnp.int32(ue), jnp.int32(0))[0])


@pytest.fixture(scope="module")
def honest():
    """What the hostile UE would upload otherwise."""
    return upload(BAD)


def test_a_model_of_one_array_has_a_mean():
    np.testing.assert_allclose(mean_of({"w": jnp.array([[1.0, 2.0], [3.0, 6.0]])})["w"], [2.0, 4.0])


def test_the_share_of_hostile_ues_is_drawn_from_the_seed():
    assert HOSTILE.sum() == 2
    assert [int(hostile_ues(share, 20, 1).sum()) for share in (0, 0.1, 0.3, 1)] == [0, 2, 6, 20]
    assert len({hostile_ues(0.3, 20, seed).tobytes() for seed in range(5)}) == 5


@pytest.mark.parametrize("name", [each.partition(":")[0] for each in ATTACKS])
@pytest.mark.slow
def test_honest_ues_upload_what_they_would_without_an_attack(name):
    assert np.array_equal(upload(GOOD, attack(name)), upload(GOOD, attack("scale", 0.0)))
    np.testing.assert_allclose(upload(GOOD, attack(name)), upload(GOOD), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sign-flip", lambda own, _: -FACTOR * own),
        ("scale", lambda own, _: FACTOR * own),
        ("shrink", lambda own, _: own / FACTOR),
        ("proportional", lambda own, w: FACTOR * np.linalg.norm(own) * w / np.linalg.norm(w)),
    ],
)
def test_hostile_ues_upload_what_the_attack_says(name, expected, honest):
    np.testing.assert_allclose(upload(BAD, attack(name)), expected(honest, flat(params())), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_noise_is_as_long_as_the_other_attacks_and_has_no_direction(honest):
    noise, length = upload(BAD, attack("noise")), np.linalg.norm(honest)
    assert np.linalg.norm(noise) == pytest.approx(FACTOR * length, rel=1e-4)
    assert abs(noise @ honest) < 0.1 * FACTOR * length**2


@pytest.mark.parametrize("name", ["sign-flip", "scale", "noise", "proportional"])
@pytest.mark.slow
def test_with_a_norm_bound_an_attack_is_exactly_as_long(name):
    for most in (0.25, 1e3):  # shorter and longer than without a bound
        assert np.linalg.norm(upload(BAD, attack(name), clip=most)) == pytest.approx(most, rel=1e-4)


def test_flipping_labels_trains_on_the_mirrored_labels(honest):
    data = TASK.data
    assert isinstance(data, Shards)
    labels = np.asarray(data.y)
    start, count = int(data.start[BAD]), int(data.train_count[BAD])
    own = labels[start : start + count]
    assert len(set(own.tolist())) == 2  # so mirroring swaps the two
    mirrored = labels.copy()
    mirrored[start : start + count] = own.max() + own.min() - own
    other = replace(TASK, data=replace(data, y=jnp.asarray(mirrored)))
    np.testing.assert_allclose(upload(BAD, attack("label-flip")), upload(BAD, task=other), rtol=1e-4, atol=1e-6)
    assert not np.allclose(upload(BAD, attack("label-flip")), honest, atol=1e-3)


@pytest.mark.slow
def test_trainings_under_different_attacks_run_in_one_batch_as_they_do_alone(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    line = simulate(Cell.draw(6, 0), Protocol(5, 3), payload_bits=1e5, samples=16, rounds=3)
    points = [EvaluationPoint(3, 1.0)]
    lanes = [
        Lane(TASK, line, replace(LEARNER, merge=ROBUST["median"](), attack=attack(name, 1 / 6)), points)
        for name in ("noise", "label-flip")
    ]
    (*_, together) = train_together(lanes)
    for number, lane in enumerate(lanes):
        (*_, alone) = train(TASK, line, lane.learner, points)
        np.testing.assert_allclose(flat(together[number].state.params), flat(alone.state.params), rtol=1e-4, atol=1e-5)
    assert np.abs(flat(together[0].state.params) - flat(together[1].state.params)).max() > 1e-3


# ---- settings


def test_an_attack_and_a_merge_are_settings_like_any_other():
    spec = spec_from(
        task="digits", ues=6, attack="sign-flip:0.2", merge="trimmed-mean", methods={"trimmed-mean": {"trim": 0.4}}
    )
    learners = [each.learner for each in make_algorithms(spec, Stage.of(spec, 0))]
    assert all(each.attack == attack("sign-flip", 0.2) and each.merge == TrimmedMean(0.4) for each in learners)


@pytest.mark.parametrize(
    ("given", "said"),
    [("scale:2", "expected a share from 0 to 1"), ("scale", "needs a number as in"), ("sclae:0.2", "is")],
)
def test_a_wrong_attack_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        spec_from(attack=given)


@pytest.mark.parametrize("given", [{"merge": "median"}, {"attack": "noise:0.1"}])
def test_a_note_says_that_two_uploads_cannot_be_robust(given):
    assert "with A = 2 no merge can tell" in str(robustness(spec_from(**given), "PerFedS2", 2))
    assert robustness(spec_from(**given), "PerFedS2", 3) == robustness(spec_from(), "PerFedS2", 2) == []


def test_a_note_says_what_krum_costs_honest_ues():
    (note,) = robustness(spec_from(merge="krum"), "PerFedS2", 10)
    assert "lost 8, 6 and 52 points of accuracy at A = 3, 5 and 10" in note
    assert robustness(spec_from(merge="multi-krum"), "PerFedS2", 10) == []
