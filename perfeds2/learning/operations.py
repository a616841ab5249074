"""Count what one sample's gradient costs: multiply-adds and memory, from the graph that JAX traces.

Sums, activations and normalisations are not counted. They take few of the operations of a wide network, and a processor
waits for memory rather than for them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.learning.gradients import Batches, BatchLoss
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.model import COUNTING, Model, Params, bare
from perfeds2.learning.objectives import Context
from perfeds2.learning.settings import as_tree

COUNTED_IN = 1024  # samples: what a batch does only once, such as a product of two weights, then hardly counts
CYCLES, MULTIPLY_ADDS = 7_951_000, 159_800  # of one sample's gradient in the paper's 784-100-10 network for MNIST

Jaxpr = Any  # jax.extend.core.Jaxpr or ClosedJaxpr
Sample = jax.ShapeDtypeStruct


@lru_cache(maxsize=64)  # tracing takes up to seconds
def multiply_adds(model: Model, sample: Sample) -> int:
    """Return the multiply-adds of one sample's gradient: forward and backward, frozen layers included.

    Args:
        model: The model.
        sample: The shape and type of one sample.

    Returns:
        The number of products in matrix products and convolutions.

    Example:
        >>> from perfeds2 import digits
        >>> from perfeds2.learning.operations import multiply_adds
        >>> multiply_adds(digits.model, digits.sample)  # 2,368 forward, 2,688 backward
        5056
    """
    return _products(_traced(model, sample, COUNTED_IN)) // COUNTED_IN


@lru_cache(maxsize=64)
def hessian_product_cost(model: Model, sample: Sample) -> float:
    """Return what a Hessian-vector product costs, in gradients: the derivative of the gradient, computed with it."""

    def product(params: Params, direction: Params, x: Array) -> Params:
        return jax.jvp(lambda w: _gradient(model, w, x), (params,), (direction,))[1]

    params, batch = _inputs(model, sample, COUNTED_IN)
    traced = _graph(product, params, params, batch)
    return _products(traced) / _products(_traced(model, sample, COUNTED_IN))


def job_bytes(model: Model, sample: Sample, learner: Learner) -> int:
    """Return the peak memory in bytes of a UE's job: weights, all its batches, and all arrays alive at once.

    Operations run in the order of the graph, and each result is stored. A compiler that fuses operations needs less; one
    that changes their order may need up to twice as much.
    """
    params, _ = _inputs(model, sample, learner.batch)
    objective = as_tree(learner.objective)
    count = learner.local_steps, objective.batches, learner.batch
    batches = jax.ShapeDtypeStruct((*count, *sample.shape), sample.dtype), jax.ShapeDtypeStruct(count, np.int32)
    known = jax.eval_shape(lambda w: (learner.merge.broadcast(learner.merge.init(w, 1)), objective.init(w)), params)
    context = Context(_Squares(model), jnp.float32(learner.beta), jnp.int32(0), jnp.int32(0), jax.random.key(0))
    traced = _graph(lambda *given: objective.job(given[0], *given[1], given[2], context), params, known, batches)
    return _peak(traced.jaxpr)


@dataclass(frozen=True)
class _Squares(BatchLoss):
    """The squares of a model's outputs. Losses have no products, so that any loss will do."""

    model: Model

    def __call__(self, params: Params, batch: Batches) -> Array:
        return jnp.square(self.outputs(params, batch)).sum()

    def outputs(self, params: Params, batch: Batches) -> Array:
        return bare(self.model)(params, batch[0])


def counted_cycles(model: Model, sample: Sample) -> float:
    """Return the CPU cycles per sample of one batch: about 50 per multiply-add of its gradient.

    The paper gives no value. Ours lets its network for MNIST compute about as long as it sends.
    """
    return multiply_adds(model, sample) * CYCLES / MULTIPLY_ADDS


# ---- the graph


def _inputs(model: Model, sample: Sample, batch: int) -> tuple[Mapping[str, Sample], Sample]:
    params = jax.eval_shape(lambda: model.init(jax.random.key(0)))
    return params, jax.ShapeDtypeStruct((batch, *sample.shape), sample.dtype)


def _gradient(model: Model, params: Params, x: Array) -> Params:
    """Return a gradient. A loss has no products, so that any loss will do."""
    return jax.grad(lambda w: jnp.square(bare(model)(w, x)).sum())(params)


def _traced(model: Model, sample: Sample, batch: int) -> Jaxpr:
    return _graph(lambda params, x: _gradient(model, params, x), *_inputs(model, sample, batch))


def _graph(function: Callable[..., Params], *inputs: Any) -> Jaxpr:
    token = COUNTING.set(True)
    try:
        return jax.make_jaxpr(function)(*inputs)
    finally:
        COUNTING.reset(token)


def _products(traced: Jaxpr) -> int:
    """Return the multiply-adds of a graph; those of a loop with a known number of steps count each step."""
    return sum(_products_of(operation) for operation in _plain(traced).eqns)


def _products_of(operation: Any) -> int:
    name, params, shapes = operation.primitive.name, operation.params, [each.aval.shape for each in operation.invars]
    if name == "dot_general":
        (summed, _), _ = params["dimension_numbers"]
        return math.prod(operation.outvars[0].aval.shape) * math.prod(shapes[0][axis] for axis in summed)
    if name == "conv_general_dilated":
        outputs = params["dimension_numbers"].rhs_spec[0]
        return math.prod(operation.outvars[0].aval.shape) * math.prod(shapes[1]) // shapes[1][outputs]
    inner = [_products(each) for each in _inner(operation)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (params["length"] if name == "scan" else 1)


def _inner(operation: Any) -> Iterator[Jaxpr]:
    """Yield the graphs inside an operation, such as the body of a loop."""
    for value in operation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(_plain(each), "eqns"):
                yield each


def _plain(traced: Jaxpr) -> Jaxpr:
    return getattr(traced, "jaxpr", traced)


def _peak(traced: Jaxpr) -> int:
    """Return the largest sum of bytes of arrays that are needed at one time."""
    last = {each: place for place, operation in enumerate(traced.eqns) for each in operation.invars if _is_array(each)}
    last |= dict.fromkeys(filter(_is_array, traced.outvars), len(traced.eqns))
    alive = {each: _bytes(each) for each in (*traced.invars, *traced.constvars)}
    now = most = sum(alive.values())
    for place, operation in enumerate(traced.eqns):
        inside = 0
        for each in map(_plain, _inner(operation)):
            given = sum(map(_bytes, (*each.invars, *each.outvars)))
            inside = max(inside, _peak(each) - given)
        for each in operation.outvars:
            alive[each] = _bytes(each)
            now += alive[each]
        most = max(most, now + inside)
        for each in {*filter(_is_array, operation.invars), *operation.outvars}:
            if last.get(each, -1) <= place and each in alive and each not in traced.invars:
                now -= alive.pop(each)
    return most


def _is_array(value: Any) -> bool:
    return not hasattr(value, "val")  # a literal has a value


def _bytes(value: Any) -> int:
    return math.prod(value.aval.shape) * value.aval.dtype.itemsize
