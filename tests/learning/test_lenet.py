"""Is LeNet-5 the network it says, and can it be differentiated twice?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curvature import assert_hessian_is_what_differences_say

from perfeds2.learning.models.lenet import LeNet, patches, pool

pytestmark = pytest.mark.slow


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


def test_patches_and_matrices_are_convolutions():
    model = LeNet()
    params, x = jax.jit(model.init)(jax.random.key(1)), pixels(7, 3072)

    def convolved(maps, number):
        weight = params[f"conv{number}.weight"].reshape(5, 5, maps.shape[-1], -1)
        out = jax.lax.conv_general_dilated(
            maps, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )
        out = jax.nn.relu(out + params[f"conv{number}.bias"])
        return jax.lax.reduce_window(out, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    maps = (x.reshape(7, 3, 32, 32).transpose(0, 2, 3, 1) / 255 - jnp.array(model.mean)) / jnp.array(model.deviation)
    flat = convolved(convolved(maps, 1), 2).transpose(0, 3, 1, 2).reshape(7, 400)
    np.testing.assert_allclose(model(params, x), model.head(params, flat), rtol=1e-4, atol=1e-5)


def test_a_patch_is_what_surrounds_a_point():
    maps = jnp.arange(3 * 6 * 7 * 2.0).reshape(3, 6, 7, 2)
    cut = patches(maps)
    assert cut.shape == (75, 2, 3, 2)
    np.testing.assert_array_equal(cut[:, 1, 2, 1], maps[:, 1:6, 2:7, 1].transpose(1, 2, 0).ravel())


def test_pooling_keeps_the_largest_of_four():
    maps = jnp.array([[1.0, 5.0, 0.0, 0.0], [2.0, 3.0, 0.0, -1.0]]).reshape(1, 2, 4, 1)
    np.testing.assert_array_equal(pool(maps).ravel(), [5.0, 0.0])


def test_batches_of_batches_are_as_good_as_one():
    model, x = LeNet(), pixels(2, 3, 3072)
    params = jax.jit(model.init)(jax.random.key(1))
    together = model(params, x)
    assert together.shape == (2, 3, 100)
    np.testing.assert_allclose(together[1], model(params, x[1]), rtol=1e-5, atol=1e-6)


def test_the_hessian_is_what_differences_of_gradients_say():
    with jax.enable_x64(True):
        model = LeNet(side=16, channels=(3, 2, 3), dense=(5, 4, 3))
        assert_hessian_is_what_differences_say(model, pixels(4, 16 * 16 * 3), jnp.array([0, 1, 2, 1]), absolute=1e-7)
