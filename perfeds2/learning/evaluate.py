"""Evaluate a model on every UE: before and after personal steps, or as the UE's own model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from perfeds2.learning.data import Data, Part
from perfeds2.learning.losses import Number
from perfeds2.learning.metrics import METRICS, NEW_UES_STEPS
from perfeds2.learning.models.adapter import Adapted, narrowed
from perfeds2.learning.models.from_torch import TorchModel
from perfeds2.learning.models.model import Model, Params, bare, measure, summed_loss
from perfeds2.learning.objectives import ClientState, OwnModel
from perfeds2.learning.task import Task
from perfeds2.learning.trees import stepped

MOST_UES = 1024  # only this many UEs of a larger population are evaluated
UES_AT_ONCE = 32  # for one model, per 16 GiB of GPU memory
PIECE = 32  # samples at once on a CPU, so that UEs with few samples cost less than the largest one


def evaluate(
    task: Task, params: Params, alpha: float, kept: ClientState = None, own: OwnModel | None = None, steps: int = 1
) -> dict[str, Float[Array, " n"]]:
    """Return the loss and accuracy of the global and the personalised model for each UE.

    The personalised model is w − α∇f_i(w), a step on the UE's training part, so its training loss is F_i(w) of eq.
    (4). The plain means over UEs are f(w) and F(w), eqs. (1) and (3). At most 1024 UEs are evaluated.

    Args:
        task: The data of the UEs and the model.
        params: The weights w by name.
        alpha: Step size α of the personal step.
        kept: What each UE keeps, one row per UE; needed with ``own``.
        own: How a UE's own model is made from the weights and what it keeps. It then replaces the personal step.
        steps: Number of personal steps, taken one after the other on the same data.

    Returns:
        An array with one number per UE for each of train_loss, train_loss_personal, test_accuracy and
        test_accuracy_personal. The accuracy of a model whose loss is not finite is NaN.

    Example:
        >>> import jax
        >>> from perfeds2 import digits, evaluate
        >>> task = digits(4, labels_per_ue=2, seed=0)
        >>> evaluate(task, task.model.init(jax.random.key(0)), alpha=0.03)["test_accuracy"].shape
        (4,)
    """
    view = View.of(task.model, task.data.lengths(), own, steps)
    columns = _evaluate(view, params, task.data, jnp.asarray(alpha, jnp.float32), kept if own is not None else None)
    return dict(zip(METRICS, columns, strict=True))


@dataclass(frozen=True)
class View:
    """What an evaluation is compiled for."""

    model: Model
    lengths: tuple[int, int]  # of the longest training part and the longest test part
    own: OwnModel | None = None
    steps: int = 1
    ues_at_once: int | None = None  # None: one after the other
    samples_at_once: int | None = None  # of a training part; None: all

    @classmethod
    def of(cls, model: Model, lengths: tuple[int, int], own: OwnModel | None, steps: int, models: int = 1) -> "View":
        """Return a view for the device: a GPU takes as many UEs at once as its memory allows, a CPU one at a time."""
        if jax.default_backend() == "cpu":
            return cls(model, lengths, own, steps, None, PIECE)
        at_once = max(1, UES_AT_ONCE * max(1, device_bytes() // (16 << 30)) // models)
        return cls(model, lengths, own, steps, at_once)


def device_bytes() -> int:
    """Return the memory of a device in bytes, or 16 GiB if it is unknown."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", 16 << 30)


def evaluated_ues(ues: int) -> Int[np.ndarray, " m"]:
    """Return which UEs are evaluated: all, or 1,024 at equal distances, because the UEs of a file may be sorted."""
    return np.linspace(0, ues - 1, min(ues, MOST_UES)).round().astype(np.int32)


def evaluate_ues(
    view: View, params: Params, data: Data, alpha: Number, kept: ClientState = None
) -> Float[Array, "n 4"]:
    """Return the metrics of every evaluated UE, one column per metric."""

    def look(ue: Array) -> Array:
        mine = None if view.own is None else view.own(params, jax.tree.map(lambda rows: rows[ue], kept))
        return evaluate_ue(view, params, data, alpha, ue, mine)

    return jax.lax.map(look, jnp.asarray(evaluated_ues(data.ues)), batch_size=view.ues_at_once)


_evaluate = partial(jax.jit, static_argnums=0)(lambda *given: tuple(evaluate_ues(*given).T))


def evaluate_ue(
    view: View, params: Params, data: Data, alpha: Number, ue: Int[Array, ""], own: Params | None = None
) -> Float[Array, " 4"]:
    """Return the metrics of one UE in the order of ``METRICS``; ``own`` is its own model, if it keeps one."""
    samples = _UeParts(view, data.train_part(ue, view.lengths[0]), data.test_part(ue, view.lengths[1]))
    params, own = narrowed(view.model, (params, own), ue)
    params = samples.fitted(params)
    loss, gradient = samples.slope(params)
    personal = stepped(params, alpha, gradient) if own is None else own
    if own is None and view.steps > 1:
        personal = samples.descended(personal, alpha, view.steps - 1)
    personal = samples.fitted(personal)
    losses = jnp.stack([loss, samples.mean(lambda part: summed_loss(view.model, personal, *part))])
    right = jnp.stack([samples.metric(params), samples.metric(personal)])
    return jnp.concatenate([losses, jnp.where(jnp.isfinite(losses), right, jnp.nan)])


def evaluate_new_ues(view: View, params: Params, data: Data, alpha: Number) -> Float[Array, "n 4"]:
    """Return the test accuracy of UEs that never trained, after each number of ``NEW_UES_STEPS``.

    All of them step from the global model, also with an objective whose UEs keep models of their own: these have none
    yet. The accuracy of a model whose loss is not finite is NaN.
    """

    def look(ue: Array) -> Array:
        samples = _UeParts(view, data.train_part(ue, view.lengths[0]), data.test_part(ue, view.lengths[1]))
        model, taken, found = params, 0, list[Array]()
        for steps in NEW_UES_STEPS:
            model = samples.descended(model, alpha, steps - taken)
            fitted, taken = samples.fitted(model), steps
            loss = samples.mean(lambda part, w=fitted: summed_loss(view.model, w, *part))
            found.append(jnp.where(jnp.isfinite(loss), samples.metric(fitted), jnp.nan))
        return jnp.stack(found)

    return jax.lax.map(look, jnp.asarray(evaluated_ues(data.ues)), batch_size=view.ues_at_once)


_evaluate_new = partial(jax.jit, static_argnums=0)(evaluate_new_ues)


def evaluate_new(task: Task, params: Params, alpha: float) -> Float[Array, "n 4"]:
    """Return how accurate the model is for UEs that never trained.

    Args:
        task: The model, and the data of these UEs.
        params: The weights w by name.
        alpha: Step size α of the personal steps.

    Returns:
        A row per UE with its test accuracy after 0, 1, 5 and 10 personal steps on its training part.

    Example:
        >>> import jax
        >>> from perfeds2 import digits
        >>> from perfeds2.learning.evaluate import evaluate_new
        >>> task = digits(5, labels_per_ue=2, seed=0).with_new_ues(2, seed=0)
        >>> evaluate_new(task, task.model.init(jax.random.key(0)), alpha=0.03).shape
        (2, 4)
    """
    assert task.new is not None
    view = View.of(task.model, task.new.lengths(), None, 1)
    return _evaluate_new(view, params, task.new, jnp.asarray(alpha, jnp.float32))


@dataclass(frozen=True)
class _UeParts:
    """The samples of one UE, and what is computed on them."""

    view: View
    train: tuple[Array, Array, Array]  # inputs, targets and mask
    test: tuple[Array, Array, Array]

    def mean(self, sum_over: Callable[[Part], PyTree]) -> PyTree:
        """Return the mean over the training samples."""
        total = sum_of_pieces(sum_over, self.train, self.view.samples_at_once)
        return jax.tree.map(lambda each: each / self.train[2].sum(), total)

    def slope(self, params: Params) -> tuple[Number, Params]:
        """Return the training loss and its gradient."""
        model = self.view.model
        return self.mean(lambda part: jax.value_and_grad(lambda w: summed_loss(model, w, *part))(params))

    def descended(self, params: Params, alpha: Number, steps: int) -> Params:
        """Return the weights after some personal steps."""
        return jax.lax.fori_loop(0, steps, lambda _, w: stepped(w, alpha, self.slope(w)[1]), params)

    def fitted(self, params: Params) -> Params:
        """Return the weights with BatchNorm's statistics of the training samples, if the model has any."""
        network = bare(self.view.model)
        if not isinstance(network, TorchModel | Adapted):
            return params
        places = jnp.arange(self.view.lengths[0]) % self.train[2].sum()  # not the padding
        return network.with_statistics(params, self.train[0][places])

    def metric(self, params: Params) -> Number:
        return measure(self.view.model, params, *self.test)


def sum_of_pieces(sum_over: Callable[[Part], PyTree], part: Part, piece: int | None) -> PyTree:
    """Sum ``sum_over`` over the pieces of a part that hold samples.

    A part that does not divide into such pieces is taken as a whole.
    """
    mask = part[2]
    if piece is None or mask.size % piece:
        return sum_over(part)
    last = jnp.where(mask, jnp.arange(1, mask.size + 1), 0).max()

    def add(number: Array, total: PyTree) -> PyTree:
        some = jax.tree.map(lambda rows: jax.lax.dynamic_slice_in_dim(rows, number * piece, piece), part)
        return jax.tree.map(jnp.add, total, sum_over(some))

    nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(sum_over, part))
    return jax.lax.fori_loop(0, -(-last // piece), add, nothing)
