"""Do the counterparts of PyTorch's operations compute what they should? Without PyTorch: by hand, and by XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.learning.models import aten
from perfeds2.learning.models.aten import ATEN
from perfeds2.learning.models.from_torch import BATCH, Exported, Ref, Step, TorchModel, is_torch
from perfeds2.learning.models.model import Model


def normal(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 2))])
def test_a_matrix_times_patches_is_xlas_convolution(stride, padding, dilation):
    x, weight = normal(2, 3, 8, 9), normal(4, 3, 3, 2)
    edges = [(p, p) for p in padding]
    theirs = jax.lax.conv_general_dilated(x, weight, stride, edges, rhs_dilation=dilation, precision="highest")
    ours = aten.convolution(x, weight, None, stride, padding, dilation, False, (0, 0), 1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_of_equal_numbers_the_first_gets_the_gradient():
    x = jnp.array([[[[1.0, 1.0, 0.0], [1.0, 1.0, 2.0]]]])
    gradient = jax.grad(lambda x: aten.largest(x, (2, 2), (1, 1)).sum())(x)
    np.testing.assert_array_equal(gradient[0, 0], [[1, 0, 0], [0, 0, 1]])


def test_windows_beyond_the_edge_count():
    x = jnp.ones((1, 1, 2, 2))
    np.testing.assert_allclose(aten.average(x, (3, 3), (1, 1), (1, 1)), np.full((1, 1, 2, 2), 4 / 9), rtol=1e-6)


@pytest.mark.parametrize(
    ("curve", "slopes"),
    [
        (lambda x: aten.clamp(x, -1, 1), [0, 1, 1, 1, 0]),
        (aten.hardtanh, [0, 0, 1, 0, 0]),
        (lambda x: ATEN["leaky_relu"](x, 0.5), [0.5, 0.5, 0.5, 1, 1]),
        (ATEN["relu"], [0, 0, 0, 1, 1]),
        (ATEN["abs"], [-1, -1, 0, 1, 1]),
    ],
)
def test_at_a_kink_the_slope_is_pytorchs(curve, slopes):
    at = jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(curve))(at), slopes)


def test_softmax_of_nothing_but_minus_infinity_has_a_gradient_of_zero():
    x = jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]])
    gradient = jax.grad(lambda x: (aten.softmax(x, 1, False) * jnp.array([1.0, 2.0])).sum())(x)
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))


def test_an_lstm_from_zero_and_one_from_a_state_of_zeros_are_the_same():
    x, weights = normal(2, 5, 3), [normal(16, 3), normal(16, 4), normal(16), normal(16)]
    zeros, how = aten.full((1, 2, 4), 0.0), (True, 1, 0.0, False, False, True)
    fast = jax.jit(lambda x: aten.lstm(x, (zeros, zeros), weights, *how))(x)
    slow = jax.jit(lambda x, start: aten.lstm(x, (start, start), weights, *how))(x, zeros)
    for ours, theirs in zip(fast, slow, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def linear(*steps, result="out"):
    weights = {"weight": np.ones((2, 3), np.float32)}
    module = Exported(steps, (("x", BATCH), ("p_weight", "weight")), result, weights, {}, {})
    return TorchModel("by hand", None, (3,), module)


def test_a_model_is_its_steps():
    double = Step("twice", "mul", (Ref("x"), 2), {}, "the model")
    model = linear(double, Step("out", "linear", (Ref("twice"), Ref("p_weight")), {}, "the model"))
    assert isinstance(model, Model)
    np.testing.assert_allclose(model(model.init(jax.random.key(0)), jnp.ones((4, 5, 3))), np.full((4, 5, 2), 6.0))


def test_an_operation_that_fails_is_named_with_its_layer():
    model = linear(Step("out", "view", (Ref("x"), (5, 5)), {}, "head (Linear)"))
    with pytest.raises(
        InputError,
        match=r"^PyTorch's view in head \(Linear\) is not supported with these settings \(TypeError: .*\)\.$",
    ):
        model(model.init(jax.random.key(0)), jnp.ones((4, 3)))


def test_what_is_no_module_is_none():
    assert not any(map(is_torch, (int, 3, TorchModel, jnp.tanh)))


def test_a_setting_that_is_not_supported_is_refused_by_name():
    model = linear(Step("out", "max_pool1d", (Ref("x"), (2,), (2,), (0,), (1,), True), {}, "pool (MaxPool1d)"))
    with pytest.raises(
        InputError, match=r"^PyTorch's max_pool1d in pool \(MaxPool1d\) is not supported with these settings"
    ):
        model(model.init(jax.random.key(0)), jnp.ones((4, 3)))
