"""Does the benchmark divide images, go through epochs and average models as PFLlib does?"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.pfllib import (
    BATCH,
    CLIENTS,
    METHODS,
    STEP,
    Epoch,
    dirichlet,
    loss_of_some,
    make_learner,
    make_task,
    pathological,
    play,
    share_right,
)
from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.losses import accuracy
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import ModelWithLoss
from perfeds2.learning.objectives import Context
from perfeds2.learning.replay import replay
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LABELS = np.repeat(np.arange(100), 60)
MODEL = MLP((6, 100))


def small_task(split="pathological"):
    x = np.random.default_rng(1).normal(size=(LABELS.size, 6)).astype(np.float32)
    return make_task(x, LABELS, split, MODEL, seed=3)


def test_clients_have_ten_classes_and_unequal_amounts():
    owners = pathological(LABELS, CLIENTS, 10, np.random.default_rng(0))
    assert (owners >= 0).all()
    assert [np.unique(LABELS[owners == client]).size for client in range(CLIENTS)] == [10] * CLIENTS
    assert np.ptp(np.bincount(owners)) > 50


def test_dirichlet_shares_leave_nobody_with_too_little_and_fill_nobody_further():
    owners = dirichlet(LABELS, CLIENTS, 0.1, np.random.default_rng(0))
    sizes = np.bincount(owners, minlength=CLIENTS)
    assert sizes.sum() == LABELS.size
    assert sizes.min() >= 40
    assert sizes.max() < LABELS.size / CLIENTS + 60  # full clients get no other class


def test_a_quarter_of_every_clients_images_is_for_tests():
    data: Any = small_task().data
    train, test = (np.asarray(each) for each in (data.train_count, data.test_count))
    assert (test == np.ceil((train + test) / 4)).all()


def test_an_epoch_has_every_image_once_before_any_comes_again():
    data: Any = small_task().data
    ue = int(np.asarray(data.train_count).argmin())
    count = int(data.train_count[ue])
    x, _ = data.batches(jax.random.key(0), jnp.int32(ue), (2 * count, 1, 1))
    own = np.sort(np.asarray(data.x)[int(data.start[ue]) :][:count], axis=0)
    for epoch in (x[:count], x[count:]):
        np.testing.assert_array_equal(np.sort(np.asarray(epoch).reshape(count, -1), axis=0), own)
    assert not np.array_equal(x[:count], x[count:])


def test_a_round_is_the_mean_of_local_models_weighted_by_their_images():
    task = small_task("dirichlet")
    learner = make_learner("FedAvg", task)
    timeline = simulate(Cell.draw(CLIENTS, 0), Protocol(CLIENTS), payload_bits=1.0, samples=1, rounds=1)
    found = replay(task, timeline, learner, seed=5)
    data: Any = task.data
    first = MODEL.init(jax.random.fold_in(jax.random.key(5), 0))
    key, models = jax.random.fold_in(jax.random.key(5), 1), []
    for ue in range(CLIENTS):
        own = jax.random.fold_in(jax.random.fold_in(key, ue), 0)
        x, y = data.batches(own, jnp.int32(ue), (learner.local_steps, 1, BATCH))
        weight, bias = (np.asarray(first[name], float) for name in ("dense1.weight", "dense1.bias"))
        for step in (*range(int(data.train_count[ue]) // BATCH - 1), learner.local_steps - 1):
            rows, labels = np.asarray(x[step, 0], float), np.asarray(y[step, 0])
            scores = np.exp(rows @ weight + bias)
            error = scores / scores.sum(axis=1, keepdims=True) - np.eye(100)[labels]
            weight, bias = weight - STEP * rows.T @ error / BATCH, bias - STEP * error.mean(axis=0)
        models.append(weight)
    mean = np.average(models, axis=0, weights=np.asarray(data.train_count))
    np.testing.assert_allclose(found["dense1.weight"], mean, atol=2e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_that_a_client_does_not_take_changes_nothing(name):
    inner, random = METHODS[name][0], np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(4, inner.batches, BATCH, 6)), jnp.float32)
    y = jnp.asarray(random.integers(0, 100, (4, inner.batches, BATCH)))
    model, epoch = ModelWithLoss(MODEL, loss_of_some, accuracy), Epoch(inner, np.full(1, 2.0), np.ones(1))
    start, other = (MODEL.init(jax.random.key(number)) for number in (0, 1))
    context = Context(MeanLoss(model), jnp.float32(STEP), jnp.int32(0), jnp.int32(0), jax.random.key(2))
    results = []
    for rows in (jnp.arange(4), jnp.asarray([0, 3])):
        results.append(epoch.job(start, None, epoch.init(other), (x[rows], y[rows]), context))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), *results)  # FedProx pulls a little in such a step too


def test_the_best_round_counts_and_images_weigh_equally():
    task, curves = small_task(), []
    data: Any = task.data
    play("Ditto", task, 0, rounds=2, seconds=100.0, every=1, tell=lambda curve, _: curves.append(list(curve)))
    assert [done for done, _ in curves[-1]] == [0, 1, 2]
    params = MODEL.init(jax.random.key(0))
    share = share_right(MODEL, params, data, None, length=int(np.asarray(data.lengths()[1])), adapts=False)
    right = 0
    for ue in range(CLIENTS):
        part = task.ue(ue)
        right += int((np.asarray(MODEL(params, jnp.asarray(part.test_x))).argmax(axis=-1) == part.test_y).sum())
    assert np.isclose(float(share), right / int(np.asarray(data.test_count).sum()))
