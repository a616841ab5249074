"""A decoder-only transformer that predicts the next letter."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from perfeds2.learning.models.mlp import EPSILON
from perfeds2.learning.models.model import DoesNotFit, Params, RandomKey

States = Float[Array, "b t d"]


@dataclass(frozen=True)
class Transformer:
    """Embeddings of letters and places, layers of causal attention and of a perceptron, and a dense layer.

    As in GPT-2 (Radford et al. 2019), each part reads normalised states and adds to them. Only the state of the last
    letter is read out, because a sample has one letter to predict.
    """

    letters: int = 80
    window: int = 80  # letters of a sample
    width: int = 128
    heads: int = 4
    layers: int = 2

    def init(self, key: RandomKey) -> Params:
        """Draw weights from N(0, 0.02²), those that add to the states from N(0, 0.02²/(2·layers)). Biases are 0."""
        shapes = {"letters": (self.letters, self.width), "places": (self.window, self.width)}
        for layer in range(1, self.layers + 1):
            shapes |= {
                f"layer{layer}.queries_keys_values.weight": (self.width, 3 * self.width),
                f"layer{layer}.attended.weight": (self.width, self.width),
                f"layer{layer}.inner.weight": (self.width, 4 * self.width),
                f"layer{layer}.outer.weight": (4 * self.width, self.width),
            }
        shapes["dense.weight"] = (self.width, self.letters)
        sizes = [math.prod(shape) for shape in shapes.values()]
        normal = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1].tolist())
        params: Params = {}
        for draw, (name, shape) in zip(normal, shapes.items(), strict=True):
            adds = name.endswith(("attended.weight", "outer.weight"))
            params[name] = draw.reshape(shape) * (0.02 / math.sqrt(2 * self.layers) if adds else 0.02)
            if name.endswith(".weight"):
                params[name.replace(".weight", ".bias")] = jnp.zeros(shape[-1])
        norms = [f"layer{layer}.norm{number}" for layer in range(1, self.layers + 1) for number in (1, 2)]
        for name in (*norms, "norm"):
            params[f"{name}.scale"], params[f"{name}.shift"] = jnp.ones(self.width), jnp.zeros(self.width)
        return params

    def __call__(self, params: Params, x: Integer[Array, "*s x"]) -> Float[Array, "*s c"]:
        """Return the logits of the letter after ``x``."""
        text = x.reshape(-1, x.shape[-1]).astype(jnp.int32)
        letters = jax.nn.one_hot(text, self.letters, dtype=params["letters"].dtype)  # a gradient without a scatter
        states = letters @ params["letters"] + params["places"][: text.shape[1]]
        for layer in range(1, self.layers + 1):
            states = states + self._attended(params, f"layer{layer}", states)
            inner = _dense(params, f"layer{layer}.inner", _normalised(params, f"layer{layer}.norm2", states))
            states = states + _dense(params, f"layer{layer}.outer", jax.nn.gelu(inner))
        logits = _dense(params, "dense", _normalised(params, "norm", states[:, -1]))
        return logits.reshape(*x.shape[:-1], self.letters)

    def _attended(self, params: Params, name: str, states: States) -> States:
        """Return what each letter reads from itself and the letters before it."""
        mixed = _dense(params, f"{name}.queries_keys_values", _normalised(params, f"{name}.norm1", states))
        queries, keys, values = (part.reshape(*part.shape[:2], self.heads, -1) for part in jnp.split(mixed, 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(self.width // self.heads)
        place = jnp.arange(states.shape[1])
        weights = jax.nn.softmax(jnp.where(place[:, None] >= place, scores, -jnp.inf), axis=-1)
        read = jnp.einsum("bhqk,bkhd->bqhd", weights, values)
        return _dense(params, f"{name}.attended", read.reshape(states.shape))


def _dense(params: Params, name: str, x: Array) -> Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def _normalised(params: Params, name: str, x: Array) -> Array:
    return params[f"{name}.scale"] * jax.nn.standardize(x, epsilon=EPSILON) + params[f"{name}.shift"]


def transformer(
    inputs: int, classes: int, dtype: np.dtype, width: int = 128, heads: int = 4, layers: int = 2
) -> Transformer:
    """Return a transformer for windows of letters, which are bytes."""
    if dtype.kind not in "iu":
        raise DoesNotFit("it needs letters, as whole numbers")
    if min(width, heads, layers) < 1 or width % heads:
        raise DoesNotFit(f"its width must be a multiple of its heads, got {width} and {heads}")
    return Transformer(classes, inputs, width, heads, layers)
