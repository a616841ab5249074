"""Compute the meta-gradient of an MLP without materialising the first layer's gradient for every batch.

A dense layer's gradient is inputsᵀ·slopes, so 40 rows of inputs and slopes determine a matrix with 784 rows. An MLP
spends much of its time computing, reading and writing such matrices. Here the weights are read once for all three
batches, the step w − α∇f enters only through its effect on the next batch (inputs·inputsᵀ·slopes), and only the upload
is computed as a matrix. The results are those of ``gradients``, up to the order of summation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning import on_gpu
from perfeds2.learning.gradients import Batches, Hessian, MeanLoss, hessian_row
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model, Params, bare, loss_of
from perfeds2.learning.trees import pick, stepped

WEIGHT, BIAS = "dense1.weight", "dense1.bias"
Slopes = Callable[[int, Array, Params], tuple[Array, Params]]


def loss_for(model: Model, batch: int, *, one_step: bool) -> MeanLoss:
    """Return the loss that a job differentiates, in factors if the job has one step and its meta-gradient is then faster.

    It is less work if a batch has fewer samples than the first layer has outputs. A GPU always gains, because it reads
    less.
    """
    network = bare(model)
    if one_step and isinstance(network, MLP) and (on_gpu.is_there() or batch < network.sizes[1]):
        return FactoredLoss(model, network)
    return MeanLoss(model)


@dataclass(frozen=True)
class FactoredLoss(MeanLoss):
    """The mean loss of an MLP, whose meta-gradient is computed in factors."""

    network: MLP

    def meta_gradient(
        self,
        params: Params,
        batches: Batches,
        alpha: float | Array,
        hessian: Hessian = "exact",
        **rare: Any,
    ) -> Params:
        if hessian == "hf" or any(each is not None for each in rare.values()):
            return super().meta_gradient(params, batches, alpha, hessian, **rare)
        x, on, slopes, said, others = self._first_layer(params, batches)
        first, inner = slopes(0, said[0], others)
        # How a step on one batch changes the first layer's outputs for another; + 1 is for the bias.
        between = x[1] @ (x[0] if on == 0 else jnp.concatenate([x[0], x[on]])).T + 1
        to_second, from_second = between[:, : x.shape[1]], between[:, -x.shape[1] :].T
        adapted = stepped(others, alpha, inner)
        second, outer = slopes(1, said[1] - alpha * (to_second @ first), adapted)
        if hessian == "fo":
            return outer | {WEIGHT: x[1].T @ second, BIAS: second.sum(axis=0)}
        direction = (from_second @ second, outer)
        third, curvature = jax.jvp(lambda z, w: slopes(on, z, w), (said[on], others), direction)[1]
        seen = x[1:].reshape(-1, x.shape[-1]) if on == 2 else jnp.concatenate([x[1], x[0]])
        step = jnp.concatenate([second, -alpha * third])
        exact = stepped(outer, alpha, curvature)
        return exact | {WEIGHT: seen.T @ step, BIAS: step.sum(axis=0)}

    def _first_layer(self, params: Params, batches: Batches) -> tuple[Array, int, Slopes, Array, Params]:
        """Return the inputs, the row of the Hessian's batch, how to differentiate what follows, outputs and weights."""
        x, y = batches
        weight, bias = params[WEIGHT], params[BIAS]
        others = {name: w for name, w in params.items() if name not in (WEIGHT, BIAS)}
        x = jax.lax.optimization_barrier(self.network.scaled(x, weight.dtype))  # gather once, not for each product
        said = (x.reshape(-1, x.shape[-1]) @ weight + bias).reshape(*x.shape[:-1], -1)  # outputs of the first layer

        def after_first(said: Array, others: Params, y: Array) -> Float[Array, ""]:
            return loss_of(self.model)(self.network.after_first(others, said), y).mean()

        def slopes(number: int, said: Array, others: Params) -> tuple[Array, Params]:
            return jax.grad(after_first, argnums=(0, 1))(said, others, pick(y, number))

        return x, hessian_row(batches), slopes, said, others
