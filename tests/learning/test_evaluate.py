"""Are the metrics what their names say?"""

import jax
import jax.numpy as jnp
import numpy as np

from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import digits
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.models.model import accuracy, cross_entropy


def test_metrics_equal_a_plain_loop_over_ues():
    task = digits(12, 3, 0)
    assert isinstance(task.data, Shards)
    params = task.model.init(jax.random.key(0))
    ours = evaluate(task, params, 0.5)
    for ue in (0, 3):
        first, train, test = (int(a[ue]) for a in (task.data.start, task.data.train_count, task.data.test_count))
        x, y = task.data.x[first : first + train], task.data.y[first : first + train]
        tx, ty = task.data.x[first + train : first + train + test], task.data.y[first + train : first + train + test]
        all_of_them = jnp.ones(test, bool)
        gradient = jax.grad(lambda w: cross_entropy(task.model, w, x, y))(params)  # noqa: B023 (used at once)
        personal = jax.tree.map(lambda w, g: w - 0.5 * g, params, gradient)
        expected = {
            "train_loss": cross_entropy(task.model, params, x, y),
            "train_loss_personal": cross_entropy(task.model, personal, x, y),
            "test_accuracy": accuracy(task.model, params, tx, ty, all_of_them),
            "test_accuracy_personal": accuracy(task.model, personal, tx, ty, all_of_them),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(ours[name][ue], value, rtol=1e-5)
    assert (np.asarray(ours["train_loss_personal"]) < np.asarray(ours["train_loss"])).all()
