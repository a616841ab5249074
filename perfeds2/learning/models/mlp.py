"""A multilayer perceptron."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from perfeds2.learning.models.model import Params, RandomKey

EPSILON = 1e-5  # added to variances


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with an activation, by default ReLU, between them."""

    sizes: tuple[int, ...]  # inputs, hidden layers, classes
    input_scale: float = 1  # inputs are divided by it: 255 for pixels of 8 bits
    activation: Callable[[Array], Array] = jax.nn.relu
    normalised: bool = False  # hidden layers are normalised, sample by sample, then scaled and shifted

    def init(self, key: RandomKey) -> Params:
        """Draw weights and biases uniformly in ±1/√inputs, all in one draw, which compiles fastest."""
        layers = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        uniform = jax.random.uniform(key, (sum((n + 1) * m for n, m in layers),), minval=-1.0)
        params, first = {}, 0
        for number, (inputs, outputs) in enumerate(layers, start=1):
            last = first + (inputs + 1) * outputs
            layer = uniform[first:last].reshape(inputs + 1, outputs) / math.sqrt(inputs)
            params[f"dense{number}.weight"], params[f"dense{number}.bias"] = layer[:-1], layer[-1]
            first = last
        for number, size in enumerate(self.sizes[1:-1] if self.normalised else (), start=1):
            params[f"norm{number}.scale"], params[f"norm{number}.shift"] = jnp.ones(size), jnp.zeros(size)
        return params

    def __call__(self, params: Params, x: Shaped[Array, "*s x"]) -> Float[Array, "*s c"]:
        x = self.scaled(x, params["dense1.weight"].dtype)
        return self.after_first(params, x @ params["dense1.weight"] + params["dense1.bias"])

    def scaled(self, x: Shaped[Array, "*s x"], dtype: np.dtype) -> Array:
        """Return the inputs of the first layer."""
        return x if self.input_scale == 1 else x.astype(dtype) / self.input_scale

    def after_first(self, params: Params, x: Float[Array, "*s h"]) -> Float[Array, "*s c"]:
        """Apply the other layers to the first one's outputs."""
        for number in range(2, len(self.sizes)):
            if self.normalised:
                scale, shift = params[f"norm{number - 1}.scale"], params[f"norm{number - 1}.shift"]
                x = scale * jax.nn.standardize(x, epsilon=EPSILON) + shift
            x = self.activation(x) @ params[f"dense{number}.weight"] + params[f"dense{number}.bias"]
        return x


def mlp(inputs: int, classes: int, dtype: np.dtype, hidden: int = 100, normalised: bool = False) -> MLP:
    """Return an MLP with one hidden layer, of 100 as in the paper for MNIST."""
    return MLP((inputs, hidden, classes), input_scale=255 if dtype == np.uint8 else 1, normalised=normalised)
