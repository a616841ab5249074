"""Which letter comes next?"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key

from perfeds2.learning.models.model import Params

UNROLL_ON_GPU = (
    4  # steps of the recurrence compiled into one: there the loop's own cost counts; a processor loses by it
)


@dataclass(frozen=True)
class LSTM:
    """Letters into a small space, recurrent layers over them, a dense layer on the last one's last state.

    LEAF's classifier has the same embedding of 8 and two layers of 256 (``LSTM_LEAF``, 817,872 numbers); one layer of 128
    (81,104) is our choice, so that an upload is of the size of the other tasks' and a processor is enough to try it.
    """

    letters: int = 80
    embedding: int = 8
    hidden: int = 128
    layers: int = 1  # each reads all that the one before it said, letter by letter

    def init(self, key: Key[Array, ""]) -> Params:
        """Letters standard normal; the rest uniform in ±1/√hidden. The forget gate starts open (bias 1)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.layers):
            inputs = self.hidden if layer else self.embedding
            shapes[named("input.weight", layer)] = (inputs, 4 * self.hidden)
            shapes[named("hidden.weight", layer)] = (self.hidden, 4 * self.hidden)
            shapes[named("gates.bias", layer)] = (4 * self.hidden,)
        shapes |= {"dense.weight": (self.hidden, self.letters), "dense.bias": (self.letters,)}
        ends = list(accumulate(math.prod(shape) for shape in shapes.values()))
        limit = 1 / math.sqrt(self.hidden)
        uniform = jax.random.uniform(jax.random.fold_in(key, 1), (ends[-1],), minval=-limit, maxval=limit)
        params = {
            name: uniform[end - math.prod(shape) : end].reshape(shape)
            for end, (name, shape) in zip(ends, shapes.items(), strict=True)
        }
        for layer in range(self.layers):
            bias = named("gates.bias", layer)
            params[bias] = params[bias].at[self.hidden : 2 * self.hidden].add(1.0)
        params["letters"] = jax.random.normal(jax.random.fold_in(key, 2), (self.letters, self.embedding))
        return params

    def __call__(self, params: Params, x: Integer[Array, "*s x"]) -> Float[Array, "*s c"]:
        """Logits of the letter after ``x``. Gates stand side by side: input, forget, candidate, output."""
        text = x.reshape(-1, x.shape[-1]).T.astype(jnp.int32)  # step by step, all windows beside each other
        # Rows picked by a matrix of ones: its gradient is a product again, where that of an index is a scattered sum.
        sequence = jax.nn.one_hot(text, self.letters, dtype=params["letters"].dtype) @ params["letters"]
        for layer in range(self.layers - 1):
            _, sequence = self._read(params, layer, sequence, keep=True)
        hidden, _ = self._read(params, self.layers - 1, sequence, keep=False)
        logits = hidden @ params["dense.weight"] + params["dense.bias"]
        return logits.reshape(*x.shape[:-1], self.letters)

    def _read(
        self, params: Params, layer: int, sequence: Float[Array, "t b i"], *, keep: bool
    ) -> tuple[Float[Array, "b h"], Any]:
        """A layer's last state, and where they are to be kept all of them."""
        weight, recurrent, bias = (
            params[named(what, layer)] for what in ("input.weight", "hidden.weight", "gates.bias")
        )
        entering = sequence @ weight + bias  # of the whole sequence at once

        def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array | None]:
            hidden, cell = state
            into, forget, candidate, out = jnp.split(now + hidden @ recurrent, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden if keep else None

        nothing = jnp.zeros((sequence.shape[1], self.hidden), entering.dtype)
        unroll = 1 if jax.default_backend() == "cpu" else UNROLL_ON_GPU
        (hidden, _), states = jax.lax.scan(step, (nothing, nothing), entering, unroll=unroll)
        return hidden, states


def named(what: str, layer: int) -> str:
    """What a layer's array is called: ``gates.bias`` in the first, ``gates2.bias`` in the second."""
    part, _, kind = what.partition(".")
    return f"{part}{layer + 1 if layer else ''}.{kind}"


LSTM_LEAF = LSTM(hidden=256, layers=2)
