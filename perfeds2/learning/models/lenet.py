"""LeNet-5 for small images."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import COUNTING, DoesNotFit, Params, RandomKey

KERNEL = 5
Pooling = Literal["average", "largest"]
GREY_MEAN, GREY_DEVIATION = (0.1307,), (0.3081,)  # of MNIST's training pixels


@dataclass(frozen=True)
class LeNet:
    """Two 5×5 convolutions, each with 2×2 pooling, then three dense layers. As published: tanh and average pooling.

    As in LeCun et al. (1998), a convolution is followed by tanh and then by the average of four neighbours. These
    things differ: the image has three colours; the second convolution sees all maps of the first; an average has no
    coefficient, bias and squashing of its own; tanh is not stretched to 1.7159·tanh(2x/3); a softmax replaces the
    distances to drawn letters; weights and pixels are initialised and scaled as everywhere here. ``LENET_RELU`` is
    what many call LeNet-5 today: ReLU and max pooling. With the step sizes of Table I its personalised training
    diverges (docs/reports/reproduction.md).

    The input is pixels of 8 bits, channel after channel. They are normalised here, so the data need a quarter of the
    memory. A convolution is a matrix times patches, or a variant of it for GPUs. XLA's own convolution is slower: its weights
    differ between UEs, which makes it many small groups. Samples are the last axis of all arrays, so that shifting an image copies long runs.
    """

    side: int = 32
    channels: tuple[int, int, int] = (3, 6, 16)  # of the image, and after each convolution
    dense: tuple[int, ...] = (120, 84, 100)  # two hidden layers, and the classes
    mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409)  # of CIFAR-100's training pixels, scaled to 0…1
    deviation: tuple[float, ...] = (0.2673, 0.2564, 0.2762)
    activation: Callable[[Array], Array] = jnp.tanh
    pooling: Pooling = "average"
    input_scale: float = 255  # largest value of a pixel
    head: MLP = field(init=False, repr=False)

    def __post_init__(self) -> None:
        side = ((self.side - KERNEL + 1) // 2 - KERNEL + 1) // 2
        sizes = (side * side * self.channels[-1], *self.dense)
        object.__setattr__(self, "head", MLP(sizes, activation=self.activation))

    def fitting(self, inputs: int, classes: int, dtype: np.dtype) -> "LeNet":
        """Return the same network for other images.

        They are squares of one or three colours, whose side is at least 16 and a multiple of 4. Pixels are from 0 to
        255 (uint8) or from 0 to 1.

        Raises:
            DoesNotFit: The samples are not such images.
        """
        side, colours, mean, deviation = of_images(inputs)
        return replace(
            self,
            side=side,
            channels=(colours, *self.channels[1:]),
            dense=(*self.dense[:-1], classes),
            mean=mean,
            deviation=deviation,
            input_scale=255 if dtype == np.uint8 else 1,
        )

    def init(self, key: RandomKey) -> Params:
        """Draw weights and biases uniformly in ±1/√inputs."""
        params = {}
        for number in (1, 2):
            inputs, outputs = KERNEL * KERNEL * self.channels[number - 1], self.channels[number]
            limit = 1 / math.sqrt(inputs)
            layer = jax.random.uniform(
                jax.random.fold_in(key, number), (inputs + 1, outputs), minval=-limit, maxval=limit
            )
            params[f"conv{number}.weight"], params[f"conv{number}.bias"] = layer[:-1], layer[-1]
        return params | self.head.init(jax.random.fold_in(key, 3))

    def __call__(self, params: Params, x: Shaped[Array, "*s x"]) -> Float[Array, "*s c"]:
        kind = params["conv1.weight"].dtype
        mean, deviation = (jnp.asarray(a, kind)[:, None, None, None] for a in (self.mean, self.deviation))
        images = x.reshape(-1, x.shape[-1]).T.reshape(self.channels[0], self.side, self.side, -1)
        maps = (images.astype(kind) / self.input_scale - mean) / deviation
        squash = self.activation
        for number in (1, 2):
            convolve = _convolution(of_data=number == 1 and x.dtype == jnp.uint8)
            maps = convolve(params[f"conv{number}.weight"], maps) + params[f"conv{number}.bias"][:, None, None, None]
            # Max pooling comes first: the result is the same, with fewer numbers and no ties between zeros.
            largest_first = self.pooling == "largest"
            maps = squash(pooled(maps, "largest")) if largest_first else pooled(squash(maps), "average")
        logits = self.head(params, maps.reshape(-1, maps.shape[-1]).T)
        return logits.reshape(*x.shape[:-1], logits.shape[-1])


def of_images(inputs: int) -> tuple[int, int, tuple[float, ...], tuple[float, ...]]:
    """Return the side and colours of square images of this many numbers, and the mean and deviation of such pixels.

    Raises:
        DoesNotFit: The samples are not such images.
    """
    for colours, mean, deviation in ((3, LENET.mean, LENET.deviation), (1, GREY_MEAN, GREY_DEVIATION)):
        side = math.isqrt(inputs // colours)
        if inputs == colours * side**2 and side % 4 == 0 and side >= 16:
            return side, colours, mean, deviation
    raise DoesNotFit(
        "it needs square images with one or three channels and a side of at least 16 that is a multiple of 4"
    )


def _convolution(*, of_data: bool) -> Callable[[Array, Array], Array]:
    """Return the fastest convolution on this device.

    Weights are columns of (row, column, channel). Data (``of_data``) need no gradient.
    """
    if COUNTING.get() or jax.default_backend() == "cpu":
        return by_patches
    if not (of_data and _kernels_run()):
        return by_rows
    try:
        from perfeds2.learning.models.first_convolution import convolve  # late: only a GPU needs its compiler
    except ImportError:  # JAX has announced that it will remove this compiler
        return by_rows
    return functools.partial(convolve, KERNEL)


def _kernels_run() -> bool:
    """Return whether the device runs our kernels: NVIDIA GPUs since Ampere."""
    try:
        return float(jax.local_devices()[0].compute_capability) >= 8
    except (AttributeError, ValueError):  # another kind of device, or a name like gfx90a
        return False


def by_patches(weight: Float[Array, "p o"], maps: Float[Array, "c h w b"]) -> Float[Array, "o i j b"]:
    """Multiply weights by patches: one product, but the most memory."""
    around = patches(maps)
    return (weight.T @ around.reshape(around.shape[0], -1)).reshape(-1, *around.shape[1:])


def patches(maps: Float[Array, "c h w b"]) -> Float[Array, "p i j b"]:
    """Return the 5×5 neighbourhood of every inner point as columns of (row, column, channel)."""
    return neighbours(neighbours(maps, 2), 1)


def by_rows(weight: Float[Array, "p o"], maps: Float[Array, "c h w b"]) -> Float[Array, "o i j b"]:
    """Apply each row of the weights everywhere, then shift and add up: a fifth of the patches."""
    rows = maps.shape[1] - KERNEL + 1
    said = jnp.einsum("kpo,phjb->kohjb", weight.reshape(KERNEL, -1, weight.shape[-1]), neighbours(maps, 2))
    return functools.reduce(jnp.add, (said[i, :, i : i + rows] for i in range(KERNEL)))


def neighbours(maps: Array, axis: int, count: int = KERNEL, step: int = 1, apart: int = 1) -> Array:
    """Concatenate, along the first axis, the ``count`` neighbours along another axis of every point that has them all.

    Points are ``step`` apart, and neighbours ``apart``.
    """
    points = (maps.shape[axis] - apart * (count - 1) - 1) // step + 1
    starts = range(0, count * apart, apart)
    return jnp.concatenate([jax.lax.slice_in_dim(maps, i, i + step * (points - 1) + 1, step, axis) for i in starts])


def pooled(maps: Float[Array, "c h w b"], pooling: Pooling) -> Float[Array, "c i j b"]:
    """Return the mean or the maximum of every 2×2 square."""
    channels, height, width, samples = maps.shape
    squares = maps.reshape(channels, height // 2, 2, width // 2, 2, samples)
    return squares.max(axis=(2, 4)) if pooling == "largest" else squares.mean(axis=(2, 4))


LENET = LeNet()
LENET_RELU = LeNet(activation=jax.nn.relu, pooling="largest")
# Common for CIFAR: 32 and 64 maps, a dense layer of 512 (McMahan et al. 2017; without padding, as in PFLlib).
CNN = LeNet(channels=(3, 32, 64), dense=(512, 100), activation=jax.nn.relu, pooling="largest")
