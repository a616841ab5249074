"""How good is a model, as it is and after one personal step?"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.data import Data
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models import Model, Params, accuracy, cross_entropy
from perfeds2.learning.tasks import Task

MOST_UES = 1024  # of a larger population the first so many are looked at


def evaluate(task: Task, params: Params, alpha: float) -> dict[str, Float[Array, " n"]]:
    """Per UE: training loss and test accuracy of the model, and of the model after one gradient step on the UE's data.

    The personal step is w − α∇f_i(w) with the UE's training part, so the personal training loss is F_i(w) of eq. (4).
    Their plain means over UEs are f(w) and F(w), eqs. (1) and (3).
    """
    table = _evaluate(params, task.data, jnp.asarray(alpha, jnp.float32), model=task.model, lengths=task.data.lengths())
    return dict(zip(METRICS, table.T, strict=True))


@partial(jax.jit, static_argnames=("model", "lengths"))
def _evaluate(
    params: Params, data: Data, alpha: Float[Array, ""], *, model: Model, lengths: tuple[int, int]
) -> Float[Array, "n 4"]:
    def look(ue: Array) -> Float[Array, " 4"]:
        train, test = data.train_part(ue, lengths[0]), data.test_part(ue, lengths[1])
        loss, gradient = jax.value_and_grad(lambda w: cross_entropy(model, w, *train))(params)
        personal = jax.tree.map(lambda w, g: w - alpha * g, params, gradient)
        return jnp.stack(
            [
                loss,
                cross_entropy(model, personal, *train),
                accuracy(model, params, *test),
                accuracy(model, personal, *test),
            ]
        )

    return jax.lax.map(
        look, jnp.arange(min(data.ues, MOST_UES)), batch_size=None if jax.default_backend() == "cpu" else 32
    )
