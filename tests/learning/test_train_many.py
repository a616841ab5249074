"""Does a training get the same numbers in company as alone?"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from perfeds2.learning import lanes as module
from perfeds2.learning.datasets import digits, synthetic
from perfeds2.learning.datasets.shakespeare import Role, Windows
from perfeds2.learning.devices import stack
from perfeds2.learning.lanes import Lane, bytes_of, group_lanes
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Optax
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import loss_of
from perfeds2.learning.objectives import FedAvg, FedProx, PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.task import Task
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

pytestmark = pytest.mark.slow

TASKS = [replace(digits(6, 3, seed), model=MLP((64, 10))) for seed in range(3)]  # compiles in two thirds of the time


def trial(protocol, seed=0, learner=None, *, task=None, rounds=25, every_s=None, about=4):
    line = simulate(Cell.draw(6, seed), protocol, payload_bits=1e5, samples=24, rounds=rounds)
    points = evaluation_points(line, every_s=every_s, about=about)
    return Lane(task or TASKS[seed], line, learner or Learner(FedAvg(), batch=8), points, seed)


def alone(one, **options):
    return list(
        train(one.task, one.timeline, one.learner, one.points, seed=one.seed, **options),
    )[-1]


def assert_same(ours, theirs, tolerance=1e-5):
    assert len(ours.values) == len(theirs.values)
    for mine, other in zip(ours.values, theirs.values, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6, nan_ok=True)
    for name, weights in theirs.state.params.items():
        np.testing.assert_allclose(ours.state.params[name], weights, rtol=tolerance, atol=tolerance)


def test_one_compiled_loop_serves_all_chunks(monkeypatch):
    """The loss is called only while a loop is traced, so counting its calls counts compilations.

    It is the first test, so that the others need not compile that loop.
    """
    jax.clear_caches()
    calls = []

    def counted(*arguments):
        calls.append(1)
        return loss_of(*arguments)

    monkeypatch.setattr("perfeds2.learning.models.model.loss_of", counted)
    monkeypatch.setattr("perfeds2.learning.factored.loss_of", counted)
    trials = [trial(Protocol(2, 2), seed, rounds=20 + seed) for seed in range(3)]
    steps = train_together(trials)
    next(steps)
    traced = len(calls)
    assert traced > 0
    assert len(list(steps)) == len(trials[0].points) - 1
    assert len(calls) == traced


def test_each_seed_gets_what_it_gets_alone():
    trials = [trial(Protocol(2, 2), seed) for seed in range(3)]
    end = list(train_together(trials))[-1]
    for number, one in enumerate(trials):
        assert_same(end[number], alone(one))


def test_trials_may_differ_in_rounds_points_step_sizes_and_data():
    """They have several local steps, and their optimisers have states."""
    learner = Learner(FedProx(0.1), batch=8, local_steps=2, merge=Optax(optax.sgd(0.05, momentum=0.9)))
    trials = [
        trial(Protocol(2, 2), 0, replace(learner, beta=0.05), rounds=9, every_s=0.3),
        trial(Protocol(2, None), 0, replace(learner, objective=FedProx(0.9), beta=0.2), rounds=40, about=7),
        trial(Protocol(2, 1, "wait"), 2, learner, rounds=3, about=2),
    ]
    assert len({len(one.points) for one in trials}) == 3
    end = list(train_together(trials))[-1]
    for number, one in enumerate(trials):
        assert_same(end[number], alone(one))


def test_each_is_evaluated_with_its_own_alpha():
    learners = [Learner(FedAvg(), batch=8, alpha=alpha) for alpha in (0.0, 0.5, None)]
    trials = [trial(Protocol(2, 2), 0, learner) for learner in learners]
    assert group_lanes(trials) == [[0, 1, 2]]
    end = list(train_together(trials))[-1]
    for number, one in enumerate(trials):
        assert_same(end[number], alone(one))
    personal = [[row["train_loss_personal"] for row in own] for own in end.values]
    assert personal[0] == pytest.approx([row["train_loss"] for row in end.values[0]])  # a step of 0 is none
    assert (np.array(personal[1]) < personal[2]).all()  # 0.5 goes further than the default


def test_beside_others_a_ue_draws_what_it_draws_alone():
    chance = np.random.default_rng(0)
    texts = ["".join(chance.choice(list("abcdefgh "), 400 + 10 * number)) for number in range(6)]
    roles = [Role(f"r{number}", "p", text) for number, text in enumerate(texts)]

    @jax.jit
    def looked_at(data, ue):
        return data.batches(jax.random.key(5), ue, (2, 4)), data.train_part(ue, 64), data.test_part(ue, 64)

    short = Task.of_arrays("short", np.eye(64)[:50], np.arange(50) % 3, ues=6, labels_per_ue=1, seed=0).data
    for each in (
        [Windows.of(roles[:3]), Windows.of(roles[3:])],
        [TASKS[0].data, short, TASKS[1].data],
        [synthetic(6, 3, seed).data for seed in range(2)],
    ):
        together = stack(each)
        for number, own in enumerate(each):
            among = jax.tree.map(lambda leaf, number=number: leaf[number], together)
            np.testing.assert_array_equal(among.train_count, own.train_count)
            for ue in range(own.ues):
                jax.tree.map(np.testing.assert_array_equal, looked_at(among, ue), looked_at(own, ue))


def test_groups_hold_equal_shapes_and_no_more_than_memory_allows():
    wide = Task("wide", MLP((64, 16, 10)), TASKS[0].data)
    trials = [
        trial(Protocol(2, 2), 0, Learner(PerFed(0.1), batch=8)),
        trial(Protocol(2, 5), 1, Learner(PerFed(0.3), 0.5, batch=8)),  # other numbers, same shape
        trial(Protocol(3, 2), 0, Learner(PerFed(0.1), batch=8)),
        trial(Protocol(2, 2), 2, Learner(PerFed(0.1), batch=8)),
        trial(Protocol(2, 2), 0, Learner(PerFed(0.1, "fo"), batch=8)),
        trial(Protocol(2, 2), 0, Learner(PerFed(0.1), batch=8), task=wide),
        trial(Protocol(2, 2), 0, Learner(PerFed(0.1), batch=9)),
    ]
    assert group_lanes(trials) == [[0, 1, 3], [2], [4], [5], [6]]
    two = 2 * max(bytes_of(trials[number]) for number in (0, 1, 3))
    assert group_lanes(trials, two) == [[0, 1], [3], [2], [4], [5], [6]]
    assert group_lanes(trials, 1)[:3] == [[0], [1], [3]]
    with pytest.raises(ValueError, match="differ in shape"):
        next(train_together(trials))


def test_resumed_from_different_points_all_end_the_same():
    """A kill can leave one trial saved further on than another."""
    trials = [trial(Protocol(2, 2), seed, rounds=9 + 8 * seed) for seed in range(3)]
    whole = list(train_together(trials))[-1]
    resume = []
    for stop, one in zip((0, 2, 3), trials, strict=True):
        steps = train(one.task, one.timeline, one.learner, one.points, seed=one.seed)
        training = None
        for _ in range(stop):
            training = next(steps)
        resume.append(training)
    stands = list(train_together(trials, resume=resume))
    assert stands[0].moved == [0]
    assert stands[2].moved == [0, 1]
    for number in range(3):
        assert_same(stands[-1][number], whole[number])


def test_one_of_a_group_can_be_resumed_alone():
    trials = [trial(Protocol(2, bound), seed) for seed, bound in enumerate((2, None, 1))]
    halfway = next(stand for stand in train_together(trials) if len(stand.values[0]) == 3)
    for number, one in enumerate(trials):
        saved = halfway[number]
        saved = replace(saved, state=jax.tree.map(lambda w: jnp.asarray(np.asarray(w)), saved.state))
        assert_same(alone(one, resume=saved), alone(one))


def test_a_diverged_trial_stops_and_leaves_the_others_alone():
    trials = [
        trial(Protocol(2, 2), seed, Learner(FedAvg(), beta, batch=8)) for seed, beta in enumerate((0.1, 3e38, 0.2))
    ]
    stands = list(train_together(trials, stop_when_diverged=True))
    for number in (0, 2):
        assert_same(stands[-1][number], alone(trials[number]))
    values = stands[-1].values[1]
    assert math.isfinite(values[0]["train_loss"])
    assert all(math.isnan(row["test_accuracy_personal"]) for row in values[1:])
    assert len(values) == len(trials[1].points)
    assert len(stands[1].values[1]) == len(values)  # all of it is known when the first loss is no number
    expected = alone(trials[1], stop_when_diverged=True).values
    for mine, other in zip(values, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, nan_ok=True)


def test_memory_known_of_a_device_limits_the_groups(monkeypatch):
    trials = [trial(Protocol(2, 2), seed, rounds=3) for seed in range(3)]
    monkeypatch.setattr(module, "device_bytes", lambda: 4 * bytes_of(trials[0]) + 8)
    assert group_lanes(trials) == [[0, 1], [2]]
