"""How good is a model, as it is and after a personal step (or a few), or a UE's own beside it?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from perfeds2.learning.data import Data, Part
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models.model import Model, Params, measure, summed_loss
from perfeds2.learning.objectives import Personal, stepped
from perfeds2.learning.task import Task

MOST_UES = 1024  # of a larger population the first so many are looked at
UES_AT_ONCE = 32  # on a GPU of 16 GiB, of one model
PIECE = 32  # samples of a training part at once, on a processor: who has few does not pay for who has most
OwnModel = Callable[[Params, Any], Params]  # from the newest model and what a UE keeps


def own_model(objective: Any) -> OwnModel | None:
    """How an objective's UEs make a model of their own; None: by personal steps, as everybody can."""
    return type(objective).personal if isinstance(objective, Personal) else None


def evaluate(
    task: Task, params: Params, alpha: float, memory: Any = None, own: OwnModel | None = None, steps: int = 1
) -> dict[str, Float[Array, " n"]]:
    """Per UE: training loss and test accuracy of the model, and of the model after one gradient step on the UE's data.

    The personal step is w − α∇f_i(w) with the UE's training part, so the personal training loss is F_i(w) of eq. (4).
    Their plain means over UEs are f(w) and F(w), eqs. (1) and (3). A model whose loss is not finite has no accuracy.
    With more ``steps`` the model is fine-tuned: so many of them, one after the other, on the same data.
    Where UEs keep ``own`` models in their ``memory``, those stand in the place of the model after the personal step.
    """
    view = View.of(task.model, task.data.lengths(), own, steps)
    table = _evaluate(view, params, task.data, jnp.asarray(alpha, jnp.float32), memory if own is not None else None)
    return dict(zip(METRICS, table.T, strict=True))


@dataclass(frozen=True)
class View:
    """What an evaluation is compiled for."""

    model: Model
    lengths: tuple[int, int]  # of the longest training part and test part
    own: OwnModel | None = None
    steps: int = 1
    ues_at_once: int | None = None  # None: one after the other
    samples_at_once: int | None = None  # of a training part; None: all

    @classmethod
    def of(cls, model: Model, lengths: tuple[int, int], own: OwnModel | None, steps: int, models: int = 1) -> "View":
        """A GPU looks at as many UEs side by side as memory does for, of so many models; a processor at one at a time."""
        if jax.default_backend() == "cpu":
            return cls(model, lengths, own, steps, None, PIECE)
        at_once = max(1, UES_AT_ONCE * max(1, device_bytes() // (16 << 30)) // models)
        return cls(model, lengths, own, steps, at_once)


def device_bytes() -> int:
    """The memory of a device, as far as it says."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", 16 << 30)


def look_at_ues(
    view: View, params: Params, data: Data, alpha: Float[Array, ""], memory: Any = None
) -> Float[Array, "n 4"]:
    """The metrics of every UE, as columns."""

    def look(ue: Array) -> Array:
        mine = None if view.own is None else view.own(params, jax.tree.map(lambda rows: rows[ue], memory))
        return look_at_ue(view, params, data, alpha, ue, mine)

    return jax.lax.map(look, jnp.arange(min(data.ues, MOST_UES)), batch_size=view.ues_at_once)


_evaluate = partial(jax.jit, static_argnums=0)(look_at_ues)


def look_at_ue(
    view: View, params: Params, data: Data, alpha: Float[Array, ""], ue: Int[Array, ""], own: Params | None = None
) -> Float[Array, " 4"]:
    """The metrics of one UE, in the order of ``METRICS``. ``own`` is its own model, where it keeps one."""
    model, lengths = view.model, view.lengths
    train, test = data.train_part(ue, lengths[0]), data.test_part(ue, lengths[1])

    def mean(sum_over: Callable[[Part], Any]) -> Any:
        return jax.tree.map(lambda each: each / train[2].sum(), sum_of_pieces(sum_over, train, view.samples_at_once))

    def slope(w: Params) -> tuple[Float[Array, ""], Params]:
        return mean(lambda part: jax.value_and_grad(lambda w: summed_loss(model, w, *part))(w))

    loss, gradient = slope(params)
    personal = stepped(params, alpha, gradient) if own is None else own
    if own is None and view.steps > 1:
        personal = jax.lax.fori_loop(1, view.steps, lambda _, w: stepped(w, alpha, slope(w)[1]), personal)
    losses = jnp.stack([loss, mean(lambda part: summed_loss(model, personal, *part))])
    right = jnp.stack([measure(model, params, *test), measure(model, personal, *test)])
    return jnp.concatenate([losses, jnp.where(jnp.isfinite(losses), right, jnp.nan)])


def sum_of_pieces(sum_over: Callable[[Part], Any], part: Part, piece: int | None) -> Any:
    """What ``sum_over`` says of a part, piece after piece as far as there are samples; of the whole, if it cannot be cut so."""
    mask = part[2]
    if piece is None or mask.size % piece:
        return sum_over(part)
    last = jnp.where(mask, jnp.arange(1, mask.size + 1), 0).max()

    def add(number: Array, total: Any) -> Any:
        some = jax.tree.map(lambda rows: jax.lax.dynamic_slice_in_dim(rows, number * piece, piece), part)
        return jax.tree.map(jnp.add, total, sum_over(some))

    nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(sum_over, part))
    return jax.lax.fori_loop(0, -(-last // piece), add, nothing)
