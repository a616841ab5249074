"""Do the counterparts of PyTorch's operations compute what they should? Without PyTorch: by hand, and by XLA's own."""

from typing import Any

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
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def channels(values):
    return np.asarray(values)[:, None, None]


def centred(x, axis):
    return x - x.mean(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [((1, 1), (0, 0), (1, 1), 1), ((2, 1), (1, 2), (1, 2), 1), ((1, 2), (1, 0), (2, 1), 2)],
)
def test_a_convolution_is_xlas(stride, padding, dilation, groups):
    x, weight, bias = normal(2, 4, 8, 9), normal(4, 4 // groups, 3, 2), np.arange(4.0, dtype=np.float32)
    how = {"rhs_dilation": dilation, "feature_group_count": groups, "precision": "highest"}
    theirs = jax.lax.conv_general_dilated(jnp.asarray(x), jnp.asarray(weight), stride, [(p, p) for p in padding], **how)
    convolved = jax.jit(lambda x, w, b: aten.convolution(x, w, b, stride, padding, dilation, False, (0, 0), groups))
    ours = convolved(x, weight, bias)
    np.testing.assert_allclose(ours, theirs + bias[:, None, None], rtol=1e-4, atol=1e-5)


X, IMAGE = normal(3, 4), normal(2, 4, 6, 6)
HALVES = IMAGE.reshape(2, 2, -1)  # two groups of channels


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("clamp", (X, -0.5, 0.5), X.clip(-0.5, 0.5)),
        ("clamp", (X, None, 0.5), np.minimum(X, 0.5)),
        ("clamp", (X, 0.5), np.maximum(X, 0.5)),
        ("hardtanh", (3 * X,), (3 * X).clip(-1, 1)),
        ("leaky_relu", (X,), np.maximum(X, 0.01 * X)),
        ("softplus", (X, 2.0), np.log1p(np.exp(2 * X)) / 2),
        ("elu", (X, 0.5, 2.0), 2 * np.where(X > 0, X, 0.5 * np.expm1(X))),
        ("add", (X, 2.0), X + 2),
        ("sub", (X, 2.0, 3), X - 6),
        ("addmm", (X[:, :3], X, X.T, 2, 3), 2 * X[:, :3] + 3 * (X @ X.T)),
        ("linear", (X, X), X @ X.T),
        ("sum", (X, []), X.sum()),
        ("sum", (X, [1], True), X.sum(axis=1, keepdims=True)),
        ("mean", (X, 0), X.mean(axis=0)),
        ("var", (X, [1]), X.var(axis=1, ddof=1)),
        ("max.dim", (X, 1), (X.max(axis=1), X.argmax(axis=1))),
        ("max.dim", (X, 0, True), (X.max(axis=0)[None], X.argmax(axis=0)[None])),
        ("linalg_vector_norm", (X, 2, [1]), np.linalg.norm(X, axis=1)),
        ("linalg_vector_norm", (0 * X,), 0.0),
        ("squeeze.dims", (X[None], [0, 1]), X),
        ("expand", (X[:, None], [-1, 2, 4]), np.stack([X, X], axis=1)),
        ("expand", (X, [2, 3, 4]), np.stack([X, X])),
        ("slice", (X, -1, 1, None, 2), X[:, 1::2]),
        ("slice", (X,), X),
        ("split_with_sizes", (X, [1, 3], 1), (X[:, :1], X[:, 1:])),
        ("constant_pad_nd", (X, [1, 2], 7), np.pad(X, [(0, 0), (1, 2)], constant_values=7)),
        ("constant_pad_nd", (X, [0, -1, 2, 1]), np.pad(X[:, :-1], [(2, 1), (0, 0)])),
        ("avg_pool2d", (IMAGE, [3, 2]), IMAGE.reshape(2, 4, 2, 3, 3, 2).mean(axis=(3, 5))),
        ("max_pool2d", (IMAGE[..., :5, :], [2, 2]), IMAGE[..., :4, :].reshape(2, 4, 2, 2, 3, 2).max(axis=(3, 5))),
        ("max_pool1d", (X, [2], [1]), np.maximum(X[:, :-1], X[:, 1:])),
        ("_adaptive_avg_pool2d", (IMAGE, [2, 3]), IMAGE.reshape(2, 4, 2, 3, 3, 2).mean(axis=(3, 5))),
        (
            "layer_norm",
            (X, [4], X[0], X[1], 0.1),
            centred(X, 1) / np.sqrt(X.var(axis=1, keepdims=True) + 0.1) * X[0] + X[1],
        ),
        ("group_norm", (IMAGE, 2), (centred(HALVES, 2) / HALVES.std(axis=2, keepdims=True)).reshape(IMAGE.shape)),
        (
            "_native_batch_norm_legit_no_training",
            (IMAGE, X[0], X[1], X[2], X[0] ** 2, 0.1, 0.5),
            ((IMAGE - channels(X[2])) / np.sqrt(channels(X[0]) ** 2 + 0.5) * channels(X[0]) + channels(X[1]),),
        ),
        ("embedding", (X, np.array([2, 0])), X[[2, 0]]),
    ],
)
def test_an_operation_is_numpys(name, given, expected):
    def operation(arrays):  # compiled as a whole: its parts one by one would be compiled one by one
        return ATEN[name](*(arrays.get(at, each) for at, each in enumerate(given)))

    found = jax.jit(operation)({at: each for at, each in enumerate(given) if isinstance(each, np.ndarray)})
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        tuple(jax.tree.leaves(found)),
        tuple(jax.tree.leaves(expected)),
    )


@pytest.mark.parametrize("own", [True, False])
def test_a_batch_is_normalised_by_the_statistics_that_are_given_or_else_its_own(own):
    mean, variance = IMAGE.mean(axis=(0, 2, 3)), IMAGE.var(axis=(0, 2, 3))
    given = (None, None) if own else (X[0], X[1] ** 2)
    normalised = jax.jit(lambda x, *given: aten.batch_norm_in_training(x, None, None, *given, True, 0.1, 0.5))
    found, *_, own_mean, own_variance = normalised(IMAGE, *given)
    used = (mean, variance) if own else (X[0], X[1] ** 2)
    expected = (IMAGE - channels(used[0])) / np.sqrt(channels(used[1]) + 0.5)
    pairs: list[Any] = [(found, expected), (own_mean, mean), (own_variance, variance * 72 / 71)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_of_equal_numbers_the_first_gets_the_gradient():
    x = jnp.array([[[[1.0, 1.0, 0.0], [1.0, 1.0, 2.0]]]])
    gradient = jax.jit(jax.grad(lambda x: aten.largest(x, (2, 2), (1, 1)).sum()))(x)
    np.testing.assert_array_equal(gradient[0, 0], [[1, 0, 0], [0, 0, 1]])


def test_windows_beyond_the_edge_count():
    x = jnp.ones((1, 1, 2, 2))
    found = jax.jit(lambda x: aten.average(x, (3, 3), (1, 1), (1, 1)))(x)
    np.testing.assert_allclose(found, np.full((1, 1, 2, 2), 4 / 9), rtol=1e-6)


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
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(curve)))(at), slopes)


def test_softmax_of_nothing_but_minus_infinity_has_a_gradient_of_zero():
    x = jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]])
    gradient = jax.jit(jax.grad(lambda x: (aten.softmax(x, 1, False) * np.array([1.0, 2.0])).sum()))(x)
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))


def test_an_lstm_from_zero_and_one_from_a_state_of_zeros_are_the_same():
    x, weights = normal(2, 5, 3), [jnp.asarray(normal(*shape)) for shape in ((16, 3), (16, 4), (16,), (16,))]
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
