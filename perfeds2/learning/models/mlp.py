"""What do fully connected layers make of an image?"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from perfeds2.learning.models.model import Params


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU, or what else is given, between them."""

    sizes: tuple[int, ...]  # inputs, hidden layers, classes
    input_scale: float = 1  # inputs are divided by it: 255 for pixels of 8 bit, as they stand in the data
    activation: Callable[[Array], Array] = jax.nn.relu

    def init(self, key: Key[Array, ""]) -> Params:
        """Uniform in ±1/√inputs, weights and biases; one draw for all of them compiles fastest."""
        layers = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        uniform = jax.random.uniform(key, (sum((n + 1) * m for n, m in layers),), minval=-1.0)
        params, first = {}, 0
        for number, (inputs, outputs) in enumerate(layers, start=1):
            last = first + (inputs + 1) * outputs
            layer = uniform[first:last].reshape(inputs + 1, outputs) / math.sqrt(inputs)
            params[f"dense{number}.weight"], params[f"dense{number}.bias"] = layer[:-1], layer[-1]
            first = last
        return params

    def __call__(self, params: Params, x: Shaped[Array, "*s x"]) -> Float[Array, "*s c"]:
        if self.input_scale != 1:
            x = x.astype(params["dense1.weight"].dtype) / self.input_scale
        last = len(self.sizes) - 1
        for number in range(1, last + 1):
            x = x @ params[f"dense{number}.weight"] + params[f"dense{number}.bias"]
            x = self.activation(x) if number < last else x
        return x


def sized(inputs: int, outputs: int, dtype: np.dtype) -> MLP:
    """For samples of one's own: one hidden layer, as large as digits' for few inputs, as MNIST's for many."""
    return MLP((inputs, 32 if inputs <= 64 else 100, outputs), input_scale=255 if dtype == np.uint8 else 1)


def mlp(inputs: int, classes: int, dtype: np.dtype) -> MLP:
    """One hidden layer of 100, as the paper has it for MNIST."""
    return MLP((inputs, 100, classes), input_scale=255 if dtype == np.uint8 else 1)
