"""Is LeNet-5 the network it says, and can it be differentiated twice?"""

import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curvature import assert_hessian_is_what_differences_say
from needs import needs

from perfeds2.learning.models import first_convolution, lenet
from perfeds2.learning.models.lenet import CNN, LENET, LENET_RELU, LeNet, by_patches, by_rows, patches, pooled

pytestmark = pytest.mark.slow
RELU_LOGITS = [
    [0.05043742, -0.06507089, 0.08431815],
    [0.04493557, -0.0835398, 0.10606116],
]  # before tanh was the default
every = pytest.mark.parametrize("model", [LENET, CNN], ids=["1998", "cnn"])


def pixels(*shape):
    return jnp.asarray(np.random.default_rng(0).integers(0, 256, shape), jnp.uint8)


def test_it_has_the_69_656_numbers_of_lenet_5_on_cifar_100():
    shapes = jax.eval_shape(LeNet().init, jax.random.key(0))
    assert {name: shape.shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "conv1.weight": (75, 6),
        "conv2.weight": (150, 16),
        "dense1.weight": (400, 120),
        "dense2.weight": (120, 84),
        "dense3.weight": (84, 100),
    }
    assert sum(shape.size for shape in shapes.values()) == 69_656


def test_weights_are_drawn_up_to_one_over_the_root_of_the_inputs():
    drawn = jax.jit(LeNet().init)(jax.random.key(0))
    for name, inputs in (("conv1", 75), ("conv2", 150), ("dense1", 400)):
        largest = float(np.abs(drawn[f"{name}.weight"]).max())
        assert largest == pytest.approx(inputs**-0.5, rel=0.02)
        assert largest <= inputs**-0.5


def test_the_network_of_the_field_has_its_924_708_numbers():
    shapes = jax.eval_shape(CNN.init, jax.random.key(0))
    assert sum(shape.size for shape in shapes.values()) == 924_708


def as_others_write_it(params, x, activation, window):
    """LeNet-5 with XLA's own convolutions and windows, sample after row after column: activation, then pooling."""

    def convolved(maps, number):
        weight = params[f"conv{number}.weight"].reshape(5, 5, maps.shape[-1], -1)
        out = jax.lax.conv_general_dilated(
            maps, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )
        return window(activation(out + params[f"conv{number}.bias"]))

    mean, deviation = jnp.array([0.5071, 0.4865, 0.4409]), jnp.array([0.2673, 0.2564, 0.2762])
    maps = (x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255 - mean) / deviation
    now = convolved(convolved(maps, 1), 2).transpose(0, 3, 1, 2).reshape(len(x), -1)
    last = sum(name.startswith("dense") for name in params) // 2
    for number in range(1, last + 1):
        now = now @ params[f"dense{number}.weight"] + params[f"dense{number}.bias"]
        now = activation(now) if number < last else now
    return now


def window_of(start, reduce):
    return lambda maps: jax.lax.reduce_window(maps, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def with_relu(params, x):
    return as_others_write_it(params, x, jax.nn.relu, window_of(-jnp.inf, jax.lax.max))


OTHERS = {
    LENET: lambda params, x: as_others_write_it(params, x, jnp.tanh, lambda m: window_of(0.0, jax.lax.add)(m) / 4),
    CNN: with_relu,
}


@every
def test_patches_and_matrices_are_convolutions_and_so_is_their_gradient(model):
    params, x, y = jax.jit(model.init)(jax.random.key(1)), pixels(7, 3072), jnp.arange(7)

    def loss(w, f):
        logits = f(w, x)
        return -jax.nn.log_softmax(logits)[jnp.arange(7), y].mean(), logits

    (ours, logits), (theirs, expected) = (
        jax.jit(jax.grad(partial(loss, f=f), has_aux=True))(params) for f in (model, OTHERS[model])
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    for name in params:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-6)


def test_the_default_is_the_network_of_1998_and_both_start_alike():
    assert LeNet() == LENET != LENET_RELU
    jax.tree.map(np.testing.assert_array_equal, *(jax.jit(m.init)(jax.random.key(2)) for m in (LENET, LENET_RELU)))


def test_the_relu_variant_gives_the_numbers_it_always_gave():
    params = jax.jit(LENET_RELU.init)(jax.random.key(1))
    logits = jax.jit(LENET_RELU)(params, pixels(2, 3072))[:, :3]
    np.testing.assert_allclose(logits, RELU_LOGITS, rtol=1e-5, atol=1e-6)


def test_a_patch_is_what_surrounds_a_point():
    maps = np.arange(3 * 6 * 7 * 2, dtype=np.float32).reshape(3, 6, 7, 2)
    cut = np.asarray(jax.jit(patches)(maps))
    assert cut.shape == (75, 2, 3, 2)
    np.testing.assert_array_equal(cut[:, 1, 2, 1], maps[:, 1:6, 2:7, 1].transpose(1, 2, 0).ravel())


def test_pooling_makes_one_of_four():
    maps = jnp.array([[1.0, 5.0, 0.0, 0.0], [2.0, 3.0, 0.0, -1.0]]).reshape(1, 2, 4, 1)
    np.testing.assert_array_equal(pooled(maps, "largest").ravel(), [5.0, 0.0])
    np.testing.assert_array_equal(pooled(maps, "average").ravel(), [2.75, -0.25])


def test_batches_of_batches_are_as_good_as_one():
    model, x = LeNet(), pixels(2, 3, 3072)
    params = jax.jit(model.init)(jax.random.key(1))
    together, second = jax.jit(lambda w: (model(w, x), model(w, x[1])))(params)
    assert together.shape == (2, 3, 100)
    np.testing.assert_allclose(together[1], second, rtol=1e-5, atol=1e-6)


@every
def test_the_hessian_is_what_differences_of_gradients_say(model):
    with jax.enable_x64(True):
        model = replace(model, side=16, channels=(3, 2, 3), dense=(5, 4, 3))
        assert_hessian_is_what_differences_say(model, pixels(4, 16 * 16 * 3), jnp.array([0, 1, 2, 1]), absolute=1e-7)


# ---- a GPU's ways to convolve


@partial(jax.jit, static_argnums=0)
def twice_differentiated(convolve, weight, images, direction):
    """What a convolution says, its weights' gradient, and the change of both along a direction; of UEs side by side."""

    def loss(weight, images):
        said = convolve(weight, images)
        return (jnp.sin(said) * jnp.arange(said.size).reshape(said.shape) / said.size).sum(), said

    def one(weight, images, direction):
        return jax.jvp(lambda w: jax.grad(loss, has_aux=True)(w, images), (weight,), (direction,))

    return jax.vmap(one)(weight, images, direction)


def by_xla(weight, images):
    kernel = weight.reshape(5, 5, images.shape[0], -1)
    order = ("CHWN", "HWIO", "CHWN")
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=order, precision="highest")


def by_kernels(weight, images):
    return first_convolution.convolve(5, weight, images)


@pytest.mark.parametrize("convolve", [by_patches, by_rows, by_kernels])
def test_every_way_to_convolve_is_a_convolution(monkeypatch, convolve):
    channels, maps, samples = 3, 20, 9
    monkeypatch.setattr(first_convolution, "INTERPRETED", True)
    draw = np.random.default_rng(0).normal
    weight, direction = (jnp.asarray(draw(size=(2, 25 * channels, maps)), jnp.float32) for _ in range(2))
    images = jnp.asarray(draw(size=(2, channels, 9, 16, samples)), jnp.float32)
    given = weight, images, direction
    for ours, theirs in zip(
        *map(jax.tree.leaves, (twice_differentiated(f, *given) for f in (convolve, by_xla))), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(jnp.abs(theirs).max()))


@needs("jax<0.11")  # newer ones lower these kernels only where a GPU is
def test_the_kernels_are_ones_a_gpu_takes():
    """As far as can be seen without one: they are lowered to its language, side by side and differentiated twice."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 75, 6), (2, 3, 32, 32, 40), (2, 75, 6))]
    lowered = jax.jit(lambda *given: twice_differentiated(by_kernels, *given)).trace(*shapes)
    text = lowered.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") >= 2
    assert "_said_kernel" in text
    assert "_of_weight_kernel" in text


@pytest.mark.parametrize(
    ("backend", "kind", "first"),
    [("cpu", None, "by_patches"), ("gpu", "9.0", "convolve"), ("gpu", "7.5", "by_rows"), ("gpu", "gfx90a", "by_rows")],
)
def test_data_of_bytes_are_convolved_by_kernels_where_those_run(monkeypatch, backend, kind, first):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "local_devices", lambda: [type("Device", (), {"compute_capability": kind})])
    of_data, other = (lenet._convolution(of_data=of_data) for of_data in (True, False))
    assert getattr(of_data, "func", of_data).__name__ == first
    assert other is (by_patches if backend == "cpu" else by_rows)
    monkeypatch.setitem(
        sys.modules, "perfeds2.learning.models.first_convolution", None
    )  # as if JAX had no such compiler
    assert lenet._convolution(of_data=True) is other
