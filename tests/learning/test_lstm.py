"""Is the LSTM an LSTM, and can it be differentiated twice?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context

from perfeds2.learning.models import lstm as module
from perfeds2.learning.models.lstm import LSTM, LSTM_LEAF
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.objectives import PerFed

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


def test_it_has_81_104_numbers_and_leafs_has_817_872():
    def numbers(model):
        return sum(shape.size for shape in jax.eval_shape(model.init, jax.random.key(0)).values())

    assert numbers(LSTM()) == 80 * 8 + (8 + 128) * 512 + 512 + 128 * 80 + 80 == 81_104
    assert numbers(LSTM_LEAF) == 80 * 8 + (8 + 256) * 1024 + 1024 + 512 * 1024 + 1024 + 256 * 80 + 80 == 817_872


def test_the_forget_gates_start_open():
    params = jax.tree.map(np.asarray, jax.jit(LSTM(hidden=4, layers=2).init)(jax.random.key(0)))
    for layer in ("", "2"):
        bias = params[f"gates{layer}.bias"].reshape(4, 4)
        assert (bias[1] > 0.4).all()
        assert (np.abs(bias[[0, 2, 3]]) <= 0.5).all()


@pytest.mark.parametrize("model", [LSTM(), LSTM_LEAF], ids=["ours", "leaf"])
def test_it_agrees_with_a_step_by_step_loop(model):
    x = letters(2, 20)
    params = jax.jit(model.init)(jax.random.key(1))
    ours = jax.jit(model)(params, x)
    np.testing.assert_allclose(ours, [step_by_step(params, text) for text in x], rtol=1e-4, atol=1e-5)


def test_its_gradient_is_that_of_the_step_by_step_loop():
    """Of one layer; the one below is of two."""
    model, x, y = LSTM(letters=6, embedding=2, hidden=3), letters(2, 3, of=6), jnp.array([0, 5])
    params = jax.jit(model.init)(jax.random.key(1))

    def slowly(w, x):
        return jnp.stack([step_by_step(w, text, jnp) for text in np.asarray(x)])

    ours, theirs = (
        jax.jit(jax.grad(lambda w, f=f: -jax.nn.log_softmax(f(w, x))[jnp.arange(2), y].mean()))(params)
        for f in (model, slowly)
    )
    assert jnp.abs(ours["input.weight"]).max() > 1e-4
    for name in params:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-7)


def test_batches_of_batches_are_as_good_as_one():
    model, x = LSTM(hidden=8, layers=2), letters(2, 3, 10)
    params = jax.jit(model.init)(jax.random.key(1))
    together, second = jax.jit(lambda w: (model(w, x), model(w, x[1])))(params)
    assert together.shape == (2, 3, 80)
    np.testing.assert_allclose(together[1], second, rtol=1e-5, atol=1e-6)


def plain_scan(keep, entering, recurrent):
    """A layer as a textbook has it, differentiated by JAX."""

    def step(state, now):
        hidden, cell = state
        into, forget, candidate, out = jnp.split(now + hidden @ recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    if isinstance(entering, tuple):
        text, table = entering
        entering = table[text]
    nothing = jnp.zeros((entering.shape[1], recurrent.shape[0]), entering.dtype)
    states = jax.lax.scan(step, (nothing, nothing), entering)[1]
    return states if keep else states[-1]


def meta_gradient(model):
    """Two gradients and a Hessian's product."""
    return lambda w, x, y: PerFed(0.1).gradient(w, w, (x, y), context(lambda w, xy: mean_loss(model, w, *xy)))


def test_gradient_and_hessian_are_a_plain_scans(monkeypatch):
    """A gradient and the Hessian's product with a direction, of two UEs with weights of their own side by side, to 1e-10."""
    model, x, y = LSTM(letters=6, embedding=2, hidden=3, layers=2), letters(2, 4, 7, of=6), letters(2, 4, of=6)
    shapes, draw = jax.eval_shape(model.init, jax.random.key(0)), np.random.default_rng(1).uniform

    def curved():
        def one(w, direction, x, y):
            return jax.jvp(jax.grad(lambda w: mean_loss(model, w, x, y)), (w,), (direction,))

        return jax.jit(jax.vmap(one))(*given, x, y)

    with jax.enable_x64(True):
        given = [{name: draw(-1, 1, (2, *shape.shape)) for name, shape in shapes.items()} for _ in range(2)]
        ours = curved()
        monkeypatch.setattr(module, "recur", plain_scan)
        for mine, theirs in zip(ours, curved(), strict=True):
            for name, values in theirs.items():
                assert np.abs(values).max() > 1e-4
                np.testing.assert_allclose(mine[name], values, rtol=1e-10, atol=1e-12)


def test_no_loop_carries_anything_of_the_weights_size():
    """Neither of the two gradients nor of the Hessian's product, of seeds and UEs side by side."""
    model, seeds, ues = LSTM(letters=6, embedding=2, hidden=5, layers=2), 2, 3
    params = jax.eval_shape(jax.vmap(jax.vmap(model.init)), jax.random.split(jax.random.key(0), (seeds, ues)))
    x, y = (jax.ShapeDtypeStruct((seeds, ues, 3, 4, *more), jnp.int32) for more in ((7,), ()))
    carried = carries(jax.make_jaxpr(jax.vmap(jax.vmap(meta_gradient(model))))(params, x, y).jaxpr)
    assert len(carried) >= 8
    assert not [shape for loop in carried for shape in loop if shape[-2:] == (5, 20)]


def test_a_plain_scan_carries_the_weights_gradient():
    """What the one above avoids, found by the same search."""
    x = jnp.zeros((7, 4, 20))
    carried = carries(jax.make_jaxpr(jax.grad(lambda w: plain_scan(False, x, w).sum()))(jnp.zeros((5, 20))).jaxpr)
    assert [shape for loop in carried for shape in loop if shape[-2:] == (5, 20)]


def carries(jaxpr):
    """The shapes that each scan carries from step to step, of all scans within."""
    found = []
    for equation in jaxpr.eqns:
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
            if is_program(part):
                found += carries(getattr(part, "jaxpr", part))
        if equation.primitive.name == "scan":
            given, made = equation.outvars, getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"]).outvars
            shapes = [(each.aval.shape, of_a_step.aval.shape) for each, of_a_step in zip(given, made, strict=True)]
            found.append([shape for shape, of_a_step in shapes if shape == of_a_step])  # the others are stacked
    return found


def is_program(part):
    return hasattr(part, "eqns") or hasattr(part, "jaxpr")
