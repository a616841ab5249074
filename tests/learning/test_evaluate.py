"""Are the metrics what their names say?"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2 import compare
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import digits
from perfeds2.learning.evaluate import View, evaluate, evaluate_ue, evaluated_ues, sum_of_pieces
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import mean_loss, measure
from perfeds2.learning.partition import Partition
from perfeds2.learning.task import Task
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task


@pytest.mark.slow
def test_metrics_equal_a_plain_loop_over_ues():
    task = replace(digits(12, 3, 0), model=MLP((64, 10)))
    assert isinstance(task.data, Shards)
    params = jax.jit(task.model.init)(jax.random.key(0))
    ours = evaluate(task, params, 0.5)

    @jax.jit
    def plainly(x, y, tx, ty):
        all_of_them = jnp.ones(len(ty), bool)
        gradient = jax.grad(lambda w: mean_loss(task.model, w, x, y))(params)
        personal = jax.tree.map(lambda w, g: w - 0.5 * g, params, gradient)
        return {
            "train_loss": mean_loss(task.model, params, x, y),
            "train_loss_personal": mean_loss(task.model, personal, x, y),
            "test_accuracy": measure(task.model, params, tx, ty, all_of_them),
            "test_accuracy_personal": measure(task.model, personal, tx, ty, all_of_them),
        }

    samples, labels = np.asarray(task.data.x), np.asarray(task.data.y)
    for ue in (0, 3):
        first, train, test = (int(a[ue]) for a in (task.data.start, task.data.train_count, task.data.test_count))
        mine, held = slice(first, first + train), slice(first + train, first + train + test)
        for name, value in plainly(samples[mine], labels[mine], samples[held], labels[held]).items():
            np.testing.assert_allclose(ours[name][ue], value, rtol=1e-5)
    assert (np.asarray(ours["train_loss_personal"]) < np.asarray(ours["train_loss"])).all()


@dataclass(frozen=True)
class Bias:
    """The same logits for every sample, and something to differentiate."""

    def init(self, key):  # noqa: ARG002 (the interface)
        return {"bias": jnp.zeros(3)}

    def __call__(self, params, x):
        return jnp.broadcast_to(params["bias"], (*x.shape[:-1], 3))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 7])
def test_so_many_personal_steps_as_one_would_do_them_by_hand(steps):
    """The slope of the loss of logits b, the same for all samples, is softmax(b) − how often each class occurs."""
    y = np.array([0, 0, 1, 1, 2, 0, 2, 2, 1, 2])
    parts = Partition(np.arange(10), np.array([0, 5]), np.array([4, 3]), np.array([1, 2]))
    task = Task("small", Bias(), Shards.of(np.zeros((10, 1), np.float32), y, parts))
    ours = evaluate(task, {"bias": jnp.array([0.3, -0.2, 0.0])}, 0.8, steps=steps)
    for ue, own in enumerate((y[:4], y[5:8])):
        b, often = np.array([0.3, -0.2, 0.0]), np.bincount(own, minlength=3) / own.size
        for _ in range(steps):
            b = b - 0.8 * (np.exp(b) / np.exp(b).sum() - often)
        loss = -(often * np.log(np.exp(b) / np.exp(b).sum())).sum()
        np.testing.assert_allclose(ours["train_loss_personal"][ue], loss, rtol=1e-6)
    np.testing.assert_array_equal(
        ours["train_loss"], evaluate(task, {"bias": jnp.array([0.3, -0.2, 0.0])}, 0.8)["train_loss"]
    )


@pytest.mark.parametrize(("bias", "loss"), [([1.0, 0.0, -jnp.inf], jnp.inf), ([jnp.nan, 0.0, 0.0], jnp.nan)])
def test_a_model_whose_loss_is_not_finite_has_no_accuracy(bias, loss):
    """One UE knows class 0, the other class 2, which the first model thinks impossible: an infinite loss."""
    y = np.array([0, 0, 2, 2])
    parts = Partition(np.arange(4), np.array([0, 2]), np.array([1, 1]), np.array([1, 1]))
    task = Task("small", Bias(), Shards.of(np.zeros((4, 1), np.float32), y, parts))
    metrics = {name: np.asarray(value) for name, value in evaluate(task, {"bias": jnp.array(bias)}, 0.1).items()}
    np.testing.assert_array_equal(metrics["train_loss"][1], loss)
    assert np.isnan(metrics["test_accuracy"][1])
    assert np.isnan(metrics["test_accuracy_personal"][1])
    if np.isfinite(metrics["train_loss"][0]):
        assert metrics["test_accuracy"][0] == 1.0


@pytest.mark.slow
def test_pieces_give_what_the_whole_gives():
    """UEs with nothing, one sample, just a piece, one more, and enough to fill the part."""
    counts = np.array([0, 1, 31, 32, 33, 70, 128])
    start = np.cumsum(counts + 3) - counts - 3
    random = np.random.default_rng(0)
    total = int(counts.sum()) + 3 * counts.size
    x, y = random.normal(size=(total, 4)).astype(np.float32), random.integers(0, 3, total)
    data = Shards.of(x, y, Partition(np.arange(total), start, counts, np.full(counts.size, 3)))
    model = MLP((4, 3))
    params = jax.jit(model.init)(jax.random.key(0))
    assert data.lengths() == (256, 64)

    def all_ues(piece):
        view = View(model, (256, 64), steps=2, samples_at_once=piece)
        look = jax.jit(lambda ue: evaluate_ue(view, params, data, jnp.float32(0.7), ue))
        return np.array([look(ue) for ue in range(counts.size)])

    whole = all_ues(None)
    np.testing.assert_allclose(all_ues(32), whole, rtol=1e-5)
    np.testing.assert_array_equal(all_ues(48), whole)  # 256 samples are no whole number of such pieces
    assert np.isnan(whole[0]).all()  # who has no samples has no loss
    assert np.isfinite(whole[1:]).all()


@pytest.mark.parametrize(("mask", "pieces"), [([1] * 8, 4), ([1, 0, 0, 0, 0, 0, 0, 0], 1), ([0] * 5 + [1, 0, 0], 3)])
def test_only_as_many_pieces_as_there_are_samples(mask, pieces):
    part = jnp.zeros((8, 1)), jnp.zeros(8), jnp.array(mask, bool)
    assert sum_of_pieces(lambda _: jnp.float32(1), part, 2) == pieces


@pytest.mark.slow
def test_ten_thousand_ues_with_a_hundred_at_work_are_evaluated_on_a_sample():
    given = {"task": "synthetic", "ues": 10_000, "schedule": "first"}
    found = compare(**given, quorum=100, algorithms=["FedAvgS2"], seeds=[0], rounds=2, eval_every_s=1e3)
    ues = [row["ue"] for row in found.ue_rows]
    assert ues == evaluated_ues(10_000).tolist()
    assert len(ues) == 1024
    assert (ues[0], ues[-1]) == (0, 9_999)
    assert set(np.diff(ues)) <= {9, 10}
    task, weights = make_task(spec_from(**given), 0), jax.tree.map(jnp.asarray, found.models["FedAvgS2", 0])
    view = View.of(task.model, task.data.lengths(), None, 1)
    metrics = evaluate_ue(view, weights, task.data, jnp.float32(0.03), jnp.int32(ues[700]))
    np.testing.assert_allclose(metrics[0], found.ue_rows[700]["train_loss"], rtol=1e-5)


def test_a_small_population_is_evaluated_completely():
    assert evaluated_ues(7).tolist() == list(range(7))
    assert evaluated_ues(1024).tolist() == list(range(1024))
