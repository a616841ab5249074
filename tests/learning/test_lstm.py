"""Is the LSTM an LSTM, and can it be differentiated twice?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curvature import assert_hessian_is_what_differences_say

from perfeds2.learning.models.lstm import LSTM, LSTM_LEAF

pytestmark = pytest.mark.slow


def letters(*shape, of=80):
    return jnp.asarray(np.random.default_rng(0).integers(0, of, shape), jnp.uint8)


def step_by_step(params, text, xp=np):
    """One window, letter after letter through all layers, in plain NumPy (or in JAX, to be differentiated)."""
    w = {name: xp.asarray(value) for name, value in params.items()}
    size = w["hidden.weight"].shape[0]
    sigmoid = lambda z: 1 / (1 + xp.exp(-z))  # noqa: E731 (read it as a formula)
    layers = [""] + ["2"] * ("hidden2.weight" in w)
    hidden, cell = ({layer: xp.zeros(size) for layer in layers} for _ in range(2))
    for letter in np.asarray(text):
        below = w["letters"][letter]
        for layer in layers:
            gates = below @ w[f"input{layer}.weight"] + hidden[layer] @ w[f"hidden{layer}.weight"]
            into, forget, candidate, out = (gates + w[f"gates{layer}.bias"]).reshape(4, size)
            cell[layer] = sigmoid(forget) * cell[layer] + sigmoid(into) * xp.tanh(candidate)
            below = hidden[layer] = sigmoid(out) * xp.tanh(cell[layer])
    return below @ w["dense.weight"] + w["dense.bias"]


one_and_two_layers = pytest.mark.parametrize("layers", [1, 2])


def test_it_has_81_104_numbers_and_leafs_has_817_872():
    def numbers(model):
        return sum(shape.size for shape in jax.eval_shape(model.init, jax.random.key(0)).values())

    assert numbers(LSTM()) == 80 * 8 + (8 + 128) * 512 + 512 + 128 * 80 + 80 == 81_104
    assert numbers(LSTM_LEAF) == 80 * 8 + (8 + 256) * 1024 + 1024 + 512 * 1024 + 1024 + 256 * 80 + 80 == 817_872


def test_the_forget_gates_start_open():
    params = LSTM(hidden=4, layers=2).init(jax.random.key(0))
    for layer in ("", "2"):
        bias = params[f"gates{layer}.bias"].reshape(4, 4)
        assert (bias[1] > 0.4).all()
        assert (jnp.abs(bias[jnp.array([0, 2, 3])]) <= 0.5).all()


@pytest.mark.parametrize("model", [LSTM(), LSTM_LEAF], ids=["ours", "leaf"])
def test_it_agrees_with_a_step_by_step_loop(model):
    x = letters(5, 80)
    params = jax.jit(model.init)(jax.random.key(1))
    np.testing.assert_allclose(model(params, x), [step_by_step(params, text) for text in x], rtol=1e-4, atol=1e-5)


@one_and_two_layers
def test_its_gradient_is_that_of_the_step_by_step_loop(layers):
    model, x, y = LSTM(letters=6, embedding=2, hidden=3, layers=layers), letters(4, 7, of=6), jnp.array([0, 1, 2, 5])
    params = jax.jit(model.init)(jax.random.key(1))

    def slowly(w, x):
        return jnp.stack([step_by_step(w, text, jnp) for text in np.asarray(x)])

    ours, theirs = (
        jax.grad(lambda w, f=f: -jax.nn.log_softmax(f(w, x))[jnp.arange(4), y].mean())(params) for f in (model, slowly)
    )
    assert jnp.abs(ours["input.weight"]).max() > 1e-4
    for name in params:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-7)


@one_and_two_layers
def test_batches_of_batches_are_as_good_as_one(layers):
    model, x = LSTM(hidden=8, layers=layers), letters(2, 3, 10)
    params = jax.jit(model.init)(jax.random.key(1))
    together = model(params, x)
    assert together.shape == (2, 3, 80)
    np.testing.assert_allclose(together[1], model(params, x[1]), rtol=1e-5, atol=1e-6)


@one_and_two_layers
def test_the_hessian_is_what_differences_of_gradients_say(layers):
    with jax.enable_x64(True):
        model = LSTM(letters=6, embedding=2, hidden=3, layers=layers)
        assert_hessian_is_what_differences_say(model, letters(4, 7, of=6), jnp.array([0, 1, 2, 5]), absolute=1e-8)
