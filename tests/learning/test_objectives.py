"""Is the meta-gradient really (I − αH)∇f(w − α∇f), Hessian and all?"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context
from jax.flatten_util import ravel_pytree

from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.objectives import FedAvg, FedProx, PerFed
from perfeds2.learning.trees import clip

MODEL = MLP((3, 4, 3))
ALPHA = 0.3


def loss(params, batch):
    return mean_loss(MODEL, params, *map(jnp.asarray, batch))


@pytest.fixture
def small():
    """A 31-parameter model and three different batches, in float64."""
    random, shapes = np.random.default_rng(1), jax.eval_shape(MODEL.init, jax.random.key(0))
    with jax.enable_x64(True):
        params = {name: random.uniform(-0.5, 0.5, shape.shape) for name, shape in shapes.items()}
        yield params, (random.standard_normal((3, 5, 3)), random.integers(0, 3, (3, 5)))


@jax.jit
def by_hand(params, batches):
    """Forms the whole Hessian of the third batch."""
    flat, unflatten = ravel_pytree(params)
    x, y = batches
    f = [lambda w, i=i: loss(unflatten(w), (x[i], y[i])) for i in range(3)]
    outer = jax.grad(f[1])(flat - ALPHA * jax.grad(f[0])(flat))
    return (jnp.eye(flat.size) - ALPHA * jax.hessian(f[2])(flat)) @ outer, outer


def computed(objective, params, start, batches):
    """Compiled as a whole: its operations one by one would be compiled one by one."""
    return flat(compiled(objective, params, start, batches))


@partial(jax.jit, static_argnums=0)
def compiled(objective, *given):
    return objective.gradient(*given, context(loss))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.slow
def test_exact_meta_gradient_equals_the_one_formed_with_the_hessian(small):
    params, batches = small
    expected, _ = by_hand(params, batches)
    np.testing.assert_allclose(computed(PerFed(ALPHA), params, params, batches), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_first_order_leaves_the_hessian_out_and_that_matters(small):
    params, batches = small
    expected, first_order = by_hand(params, batches)
    ours = computed(PerFed(ALPHA, "fo"), params, params, batches)
    np.testing.assert_allclose(ours, first_order, rtol=1e-12, atol=1e-14)
    assert np.linalg.norm(ours - expected) > 1e-3 * np.linalg.norm(expected)


@pytest.mark.slow
def test_hessian_free_is_close_to_exact_but_not_equal(small):
    params, batches = small
    expected, first_order = by_hand(params, batches)
    ours = computed(PerFed(ALPHA, "hf"), params, params, batches)
    error = np.linalg.norm(ours - expected)
    assert 0 < error < 1e-2 * np.linalg.norm(first_order - expected)


@pytest.mark.slow
def test_the_three_batches_have_different_roles(small):
    """Swapping any two changes the result: none is used twice, none is forgotten."""
    params, (x, y) = small
    results = [
        computed(PerFed(ALPHA), params, params, (x[order], y[order]))
        for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0])
    ]
    assert all(np.abs(a - b).max() > 1e-6 for i, a in enumerate(results) for b in results[:i])


@pytest.mark.slow
def test_alpha_zero_is_the_plain_gradient_of_the_outer_batch(small):
    params, (x, y) = small
    plain = computed(FedAvg(), params, params, (x[1:2], y[1:2]))
    np.testing.assert_allclose(computed(PerFed(0.0), params, params, (x, y)), plain, rtol=1e-14)


@pytest.mark.slow
def test_the_meta_gradient_is_the_gradient_of_the_personal_loss(small):
    """On one and the same batch, (I − αH)∇f(w − α∇f) is ∇F for F(w) = f(w − α∇f(w)), eq. (4): by finite differences."""
    params, (x, y) = small
    same = (x[[0, 0, 0]], y[[0, 0, 0]])
    start, unflatten = flat(params), ravel_pytree(params)[1]

    @jax.jit
    def personal(w):
        f = lambda v: loss(unflatten(v), (x[0], y[0]))  # noqa: E731 (as the paper writes it)
        return f(w - ALPHA * jax.grad(f)(w))

    ours = computed(PerFed(ALPHA), params, params, same)
    step = 1e-6
    ahead, behind = (jax.jit(jax.vmap(personal))(start + sign * step * np.eye(start.size)) for sign in (1, -1))
    by_difference = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(ours, by_difference, rtol=1e-5, atol=1e-8)


def test_fedprox_pulls_towards_the_model_it_started_from(small):
    params, (x, y) = small
    elsewhere = {name: w + 1.0 for name, w in params.items()}
    pulled = computed(FedProx(0.5), elsewhere, params, (x, y))
    free = computed(FedAvg(), elsewhere, params, (x, y))
    np.testing.assert_allclose(pulled - free, 0.5, rtol=1e-12)
    at_start = computed(FedProx(0.5), params, params, (x, y))
    np.testing.assert_array_equal(at_start, computed(FedAvg(), params, params, (x, y)))


def test_a_gradient_is_shortened_to_the_bound_and_to_zero_if_it_is_not_finite():
    long, short = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}, {"a": jnp.array([0.3]), "b": jnp.array([0.4])}
    np.testing.assert_allclose(flat(clip(long, 1.0)), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(flat(clip(long, 1.0, must_be_finite=True)), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(flat(clip(short, 1.0)), [0.3, 0.4], rtol=1e-6)
    broken = {"a": jnp.array([jnp.nan]), "b": jnp.array([4.0])}
    assert np.isnan(flat(clip(broken, 1.0))).any()
    np.testing.assert_array_equal(flat(clip(broken, 1.0, must_be_finite=True)), [0, 0])
