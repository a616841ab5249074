"""Compute the gradient of an MLP without materialising the first layer's gradient for every batch.

A dense layer's gradient is inputsᵀ·slopes, so 40 rows of inputs and slopes determine a matrix with 784 rows. An MLP
spends much of its time computing, reading and writing such matrices. Here the weights are read once for all three
batches, the step w − α∇f enters only through its effect on the next batch (inputs·inputsᵀ·slopes), and only the upload
is computed as a matrix. The results are those of ``objectives``, up to the order of summation.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning import on_gpu
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import Model, Params, bare, loss_of
from perfeds2.learning.objectives import Batches, FedAvg, Loss, Objective, PerFed, stepped

WEIGHT, BIAS = "dense1.weight", "dense1.bias"


def one_step(model: Model, objective: Objective, loss: Loss, params: Params, batches: Batches) -> Params:
    """Return the gradient of ``objective`` at ``params``, in factors if this is supported and faster."""
    if pays(model, objective, batch=jax.tree.leaves(batches)[0].shape[1]):
        return gradient(model, objective, params, batches)
    return objective(loss, params, params, batches)


def pays(model: Model, objective: Objective, batch: int) -> bool:
    """Return whether ``gradient`` supports this objective and model, with less work.

    It is less work if a batch has fewer samples than the first layer has outputs. A GPU always gains, because it reads
    less.
    """
    network = bare(model)
    if not isinstance(network, MLP) or not (on_gpu.is_there() or batch < network.sizes[1]):
        return False
    if type(objective) is PerFed:
        return objective.inner_clip is None and objective.hessian in ("exact", "fo") and objective.anneal is None
    return type(objective) is FedAvg


def gradient(model: Model, objective: Objective, params: Params, batches: Batches) -> Params:
    """Return the gradient of ``objective`` at ``params``; ``batches`` is stacked along its first axis."""
    x, y = batches
    network = bare(model)
    assert isinstance(network, MLP)
    weight, bias = params[WEIGHT], params[BIAS]
    others = {name: w for name, w in params.items() if name not in (WEIGHT, BIAS)}
    x = jax.lax.optimization_barrier(network.scaled(x, weight.dtype))  # gather once, not again for each product
    said = (x.reshape(-1, x.shape[-1]) @ weight + bias).reshape(*x.shape[:-1], -1)  # outputs of the first layer

    def after_first(said: Array, others: Params, y: Array) -> Float[Array, ""]:
        return loss_of(model)(network.after_first(others, said), y).mean()

    def slopes(number: int, said: Array, others: Params) -> tuple[Array, Params]:
        return jax.grad(after_first, argnums=(0, 1))(said, others, y[number])

    first, inner = slopes(0, said[0], others)
    if isinstance(objective, FedAvg):
        return inner | {WEIGHT: x[0].T @ first, BIAS: first.sum(axis=0)}
    assert isinstance(objective, PerFed)
    alpha, on = objective.alpha, 2 if objective.batches == 3 else 0
    # How a step on one batch changes the first layer's outputs for another; + 1 is for the bias.
    between = x[1] @ (x[0] if on == 0 else jnp.concatenate([x[0], x[on]])).T + 1
    to_second, from_second = between[:, : x.shape[1]], between[:, -x.shape[1] :].T
    adapted = stepped(others, alpha, inner)
    second, outer = slopes(1, said[1] - alpha * (to_second @ first), adapted)
    if objective.hessian == "fo":
        return outer | {WEIGHT: x[1].T @ second, BIAS: second.sum(axis=0)}
    direction = (from_second @ second, outer)
    third, curvature = jax.jvp(lambda z, w: slopes(on, z, w), (said[on], others), direction)[1]
    seen = x[1:].reshape(-1, x.shape[-1]) if on == 2 else jnp.concatenate([x[1], x[0]])
    step = jnp.concatenate([second, -alpha * third])
    exact = stepped(outer, alpha, curvature)
    return exact | {WEIGHT: seen.T @ step, BIAS: step.sum(axis=0)}
