"""Do losses and metrics say what the textbook, or scikit-learn, says?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

from perfeds2 import Task
from perfeds2.learning.losses import LOSSES, MEASURES, R2, accuracy, binary, cross_entropy, mse
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import ModelWithLoss, mean_loss, measure
from perfeds2.learning.partition import Natural, Quantity
from perfeds2.learning.target import Targets, tenths, with_loss

random = np.random.default_rng(1)
LOGITS, LABELS = random.normal(size=(50, 4)).astype(np.float32), random.integers(0, 4, 50)
SAID, NUMBERS = (random.normal(size=(50, 2)).astype(np.float32) for _ in range(2))
ALL = jnp.ones(50, bool)


@pytest.mark.slow
def test_losses_are_scikit_learns():
    probability = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    found = np.mean(jax.jit(cross_entropy)(LOGITS, LABELS))
    np.testing.assert_allclose(found, metrics.log_loss(LABELS, probability, labels=range(4)), rtol=1e-5)
    two = LABELS % 2
    found = np.mean(jax.jit(binary)(LOGITS[:, :1], two))
    np.testing.assert_allclose(found, metrics.log_loss(two, 1 / (1 + np.exp(-LOGITS[:, 0]))), rtol=1e-5)
    found = np.mean(jax.jit(mse)(SAID, NUMBERS))
    np.testing.assert_allclose(found, metrics.mean_squared_error(NUMBERS, SAID), rtol=1e-5)


def test_one_logit_is_the_same_as_two_of_which_the_first_is_0():
    one, y = LOGITS[:, :1], LABELS % 2
    both = np.concatenate([np.zeros_like(one), one], axis=1)
    np.testing.assert_allclose(jax.jit(binary)(one, y), jax.jit(cross_entropy)(both, y), rtol=1e-5, atol=1e-6)
    assert jax.jit(accuracy)(one, y, ALL) == jax.jit(accuracy)(both, y, ALL)
    assert np.isfinite(jax.jit(binary)(np.array([[1e4], [-1e4]]), np.array([0, 1]))).all()


def test_metrics_are_scikit_learns_and_more_is_better():
    said, y = jnp.asarray(SAID), jnp.asarray(NUMBERS)
    np.testing.assert_allclose(
        MEASURES["rmse"](said, y, ALL), -np.sqrt(metrics.mean_squared_error(NUMBERS, SAID)), rtol=1e-5
    )
    np.testing.assert_allclose(MEASURES["mae"](said, y, ALL), -metrics.mean_absolute_error(NUMBERS, SAID), rtol=1e-5)
    spread = tuple(NUMBERS.std(axis=0).tolist())
    np.testing.assert_allclose(R2(spread)(said, y, ALL), metrics.r2_score(NUMBERS, SAID), rtol=1e-4)
    some = jnp.arange(50) < 20
    np.testing.assert_allclose(MEASURES["mae"](said, y, some), -np.abs(SAID - NUMBERS)[:20].mean(), rtol=1e-5)
    assert R2(spread)(y, y, ALL) == 1


def test_the_mean_of_r2_over_ues_is_the_r2_of_all_where_they_are_alike():
    spread = tuple(NUMBERS.std(axis=0).tolist())
    each = [R2(spread)(jnp.asarray(SAID), jnp.asarray(NUMBERS), (jnp.arange(50) % 5) == ue) for ue in range(5)]
    np.testing.assert_allclose(np.mean(each), metrics.r2_score(NUMBERS, SAID), rtol=1e-4)


@pytest.mark.slow
def test_numbers_are_learned_in_units_of_their_own_and_measured_as_they_were():
    x = random.normal(size=(60, 3))
    y = 1000 + 50 * x[:, 0]
    task = Task.of_arrays("mine", x, y, ues=3, seed=0, split=Quantity(0.5), metric="rmse")
    assert isinstance(task.model, ModelWithLoss)
    shapes = jax.eval_shape(task.model.init, jax.random.key(0))
    params = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}  # says the mean to everybody
    given = params, x.astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
    everyone = jnp.ones(60, bool)
    both = jax.jit(lambda w, x, y: (mean_loss(task.model, w, x, y), measure(task.model, w, x, y, everyone)))
    loss, metric = both(*given)
    np.testing.assert_allclose(loss, 1, rtol=1e-5)
    np.testing.assert_allclose(metric, -y.std(), rtol=1e-4)
    ys = np.asarray(task.data.y)  # type: ignore[attr-defined]
    assert (abs(ys.mean()), ys.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))


def test_by_cross_entropy_and_accuracy_a_model_is_as_it_was():
    model, labels = MLP((3, 2)), Targets(2)
    assert with_loss(model, labels, None, None) is model
    assert with_loss(model, labels, "cross-entropy", "accuracy") is model
    assert with_loss(ModelWithLoss(model, mse, MEASURES["rmse"]), labels, None, None) is model


@pytest.mark.parametrize(
    ("target", "loss", "metric", "sentence"),
    [
        (Targets(3), "mse", None, "--loss mse is for numbers, and the target is one of 3 labels"),
        (Targets(3), "binary", None, "--loss binary is for 2 labels, and there are 3"),
        (Targets(3), None, "r2", "--metric r2 is for numbers"),
        (
            Targets(0, (0.0,), (1.0,)),
            "cross-entropy",
            None,
            "--loss cross-entropy is for labels, and the target is a number",
        ),
        (Targets(0, (0.0,), (1.0,)), None, "accuracy", "--metric accuracy is for labels"),
    ],
)
def test_a_loss_that_does_not_fit_its_target_is_refused(target, loss, metric, sentence):
    with pytest.raises(ValueError, match=sentence):
        with_loss(MLP((3, 2)), target, loss, metric)


def test_tenths_of_numbers_are_alike_in_size_and_few_values_make_few():
    assert np.bincount(tenths(random.normal(size=1000))).tolist() == [100] * 10
    assert set(tenths(np.array([1.0] * 90 + [2.0] * 10))) <= {0, 1}


def test_own_arrays_may_say_whose_they_are():
    x, owners = random.normal(size=(60, 3)), np.arange(60) % 4
    task = Task.of_arrays("mine", x, LABELS[np.arange(60) % 50], ues=4, seed=0, split=Natural(), owners=owners)
    assert np.asarray(task.data.train_count).sum() + np.asarray(task.data.test_count).sum() == 60  # type: ignore[attr-defined]


def test_every_loss_has_a_name_and_every_metric_a_word():
    from perfeds2.learning.metrics import SCORES

    assert set(LOSSES) == {"cross-entropy", "mse", "binary"}
    assert set(SCORES) == set(MEASURES)
