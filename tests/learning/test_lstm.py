"""Is the LSTM an LSTM, and can it be differentiated twice?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curvature import assert_hessian_is_what_differences_say

from perfeds2.learning.models.lstm import LSTM

pytestmark = pytest.mark.slow


def letters(*shape, of=80):
    return jnp.asarray(np.random.default_rng(0).integers(0, of, shape), jnp.uint8)


def step_by_step(params, text):
    """One window, letter after letter, in plain NumPy."""
    w = {name: np.asarray(value, float) for name, value in params.items()}
    size = w["hidden.weight"].shape[0]
    hidden, cell = np.zeros(size), np.zeros(size)
    for letter in np.asarray(text):
        gates = w["letters"][letter] @ w["input.weight"] + hidden @ w["hidden.weight"] + w["gates.bias"]
        into, forget, candidate, out = gates.reshape(4, size)
        sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731 (read it as a formula)
        cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(candidate)
        hidden = sigmoid(out) * np.tanh(cell)
    return hidden @ w["dense.weight"] + w["dense.bias"]


def test_it_has_81_104_numbers_and_leafs_layer_would_have_more():
    def numbers(model):
        return sum(shape.size for shape in jax.eval_shape(model.init, jax.random.key(0)).values())

    assert numbers(LSTM()) == 80 * 8 + (8 + 128) * 512 + 512 + 128 * 80 + 80 == 81_104
    assert numbers(LSTM(hidden=256)) == 80 * 8 + (8 + 256) * 1024 + 1024 + 256 * 80 + 80


def test_the_forget_gate_starts_open():
    bias = LSTM(hidden=4).init(jax.random.key(0))["gates.bias"].reshape(4, 4)
    assert (bias[1] > 0.4).all()
    assert (jnp.abs(bias[jnp.array([0, 2, 3])]) <= 0.5).all()


def test_it_agrees_with_a_step_by_step_loop():
    model, x = LSTM(), letters(5, 80)
    params = jax.jit(model.init)(jax.random.key(1))
    np.testing.assert_allclose(model(params, x), [step_by_step(params, text) for text in x], rtol=1e-4, atol=1e-5)


def test_batches_of_batches_are_as_good_as_one():
    model, x = LSTM(hidden=8), letters(2, 3, 10)
    params = jax.jit(model.init)(jax.random.key(1))
    together = model(params, x)
    assert together.shape == (2, 3, 80)
    np.testing.assert_allclose(together[1], model(params, x[1]), rtol=1e-5, atol=1e-6)


def test_the_hessian_is_what_differences_of_gradients_say():
    with jax.enable_x64(True):
        model = LSTM(letters=6, embedding=2, hidden=3)
        assert_hessian_is_what_differences_say(model, letters(4, 7, of=6), jnp.array([0, 1, 2, 5]), absolute=1e-8)
