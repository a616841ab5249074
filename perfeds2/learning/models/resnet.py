"""ResNet-18 with group normalisation, for small images."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from perfeds2.learning.models.lenet import LENET, neighbours, of_images
from perfeds2.learning.models.mlp import EPSILON
from perfeds2.learning.models.model import DoesNotFit, Params, RandomKey

Maps = Float[Array, "c h w b"]


@dataclass(frozen=True)
class ResNet:
    """He et al.'s ResNet-18 (2016), as usual for images of 32×32: a first convolution of 3×3, and no pooling after it.

    Batch normalisation is replaced by group normalisation (Hsieh et al. 2020), because a UE's few samples have no useful
    batch statistics and a model of statistics would have to be merged.
    """

    side: int = 32
    channels: int = 3
    classes: int = 10
    groups: int = 2  # of channels that are normalised together
    width: int = 64  # maps in the first stage; each further stage doubles them and halves the sides
    blocks: tuple[int, ...] = (2, 2, 2, 2)  # of two convolutions, per stage
    input_scale: float = 255  # largest value of a pixel
    mean: tuple[float, ...] = LENET.mean
    deviation: tuple[float, ...] = LENET.deviation

    def _blocks(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield the name, the numbers of maps before and after, and the stride of each block."""
        before = self.width
        for stage, count in enumerate(self.blocks):
            after = self.width << stage
            for block in range(count):
                yield f"stage{stage + 1}.block{block + 1}", before, after, 2 if stage and not block else 1
                before = after

    def init(self, key: RandomKey) -> Params:
        """Draw weights from N(0, 2/inputs), as He et al. do. Scales are 1 but for 0 at the end of each block."""
        shapes = {"first.weight": (9 * self.channels, self.width)}
        ones, zeros = {"first.scale": self.width}, {"first.shift": self.width}
        for name, before, after, stride in self._blocks():
            shapes |= {f"{name}.conv1.weight": (9 * before, after), f"{name}.conv2.weight": (9 * after, after)}
            ones[f"{name}.norm1.scale"] = after
            zeros |= {f"{name}.norm1.shift": after, f"{name}.norm2.shift": after, f"{name}.norm2.scale": after}
            if stride > 1 or before != after:
                shapes[f"{name}.skip.weight"] = (before, after)
                ones[f"{name}.skip.scale"], zeros[f"{name}.skip.shift"] = after, after
        last = self.width << len(self.blocks) - 1
        shapes["dense.weight"] = (last, self.classes)
        sizes = [math.prod(shape) for shape in shapes.values()]
        normal = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1].tolist())
        params = {
            name: draw.reshape(shape) * math.sqrt(2 / shape[0])
            for draw, (name, shape) in zip(normal, shapes.items(), strict=True)
        }
        params |= {name: jnp.ones(size) for name, size in ones.items()}
        params |= {name: jnp.zeros(size) for name, size in zeros.items()}
        return params | {"dense.bias": jnp.zeros(self.classes)}

    def __call__(self, params: Params, x: Shaped[Array, "*s x"]) -> Float[Array, "*s c"]:
        kind = params["first.weight"].dtype
        mean, deviation = (jnp.asarray(a, kind)[:, None, None, None] for a in (self.mean, self.deviation))
        images = x.reshape(-1, x.shape[-1]).T.reshape(self.channels, self.side, self.side, -1)
        maps = (images.astype(kind) / self.input_scale - mean) / deviation
        maps = jax.nn.relu(self._normalised(params, "first", _convolved(params["first.weight"], maps, 1)))
        for name, before, after, stride in self._blocks():
            inner = _convolved(params[f"{name}.conv1.weight"], maps, stride)
            inner = jax.nn.relu(self._normalised(params, f"{name}.norm1", inner))
            inner = self._normalised(params, f"{name}.norm2", _convolved(params[f"{name}.conv2.weight"], inner, 1))
            if stride > 1 or before != after:
                maps = _product(params[f"{name}.skip.weight"], maps[:, ::stride, ::stride])
                maps = self._normalised(params, f"{name}.skip", maps)
            maps = jax.nn.relu(maps + inner)
        logits = maps.mean(axis=(1, 2)).T @ params["dense.weight"] + params["dense.bias"]
        return logits.reshape(*x.shape[:-1], self.classes)

    def _normalised(self, params: Params, name: str, maps: Maps) -> Maps:
        """Normalise each sample's groups of maps, then scale and shift each map."""
        grouped = maps.reshape(self.groups, -1, *maps.shape[1:])
        grouped = jax.nn.standardize(grouped, axis=(1, 2, 3), epsilon=EPSILON)
        scale, shift = (params[f"{name}.{what}"][:, None, None, None] for what in ("scale", "shift"))
        return grouped.reshape(maps.shape) * scale + shift


def _convolved(weight: Float[Array, "p o"], maps: Maps, stride: int) -> Float[Array, "o i j b"]:
    """Convolve with 3×3 weights, whose rows are (row, column, channel), and zeros around the maps."""
    padded = jnp.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return _product(weight, neighbours(neighbours(padded, 2, 3, stride), 1, 3, stride))


def _product(weight: Float[Array, "p o"], maps: Float[Array, "p h w b"]) -> Float[Array, "o h w b"]:
    return (weight.T @ maps.reshape(maps.shape[0], -1)).reshape(-1, *maps.shape[1:])


def resnet18_gn(inputs: int, classes: int, dtype: np.dtype, groups: int = 2, width: int = 64) -> ResNet:
    """Return ResNet-18 for square images of one or three colours."""
    if min(width, groups) < 1 or width % groups:
        raise DoesNotFit(f"its width must be a multiple of its groups, got {width} and {groups}")
    side, channels, mean, deviation = of_images(inputs)
    scale = 255 if dtype == np.uint8 else 1
    return ResNet(side, channels, classes, groups, width, input_scale=scale, mean=mean, deviation=deviation)
