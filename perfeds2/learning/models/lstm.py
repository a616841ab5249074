"""An LSTM that predicts the next letter."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, PyTree

from perfeds2.learning.models.model import Params, RandomKey

# Steps of the recurrence compiled into one. A GPU then writes what is kept in one go; a CPU gets slower.
UNROLL_ON_GPU = 8


@dataclass(frozen=True)
class LSTM:
    """An embedding of letters, recurrent layers, and a dense layer on the last state.

    LEAF's classifier has the same embedding of 8 and two layers of 256 (``LSTM_LEAF``, 817,872 parameters). One layer
    of 128 (81,104) is our choice, so that an upload is as large as in the other tasks and a CPU is enough to try it.
    """

    letters: int = 80
    embedding: int = 8
    hidden: int = 128
    layers: int = 1  # each reads the full sequence of the one before

    def init(self, key: RandomKey) -> Params:
        """Draw the embedding from N(0, 1), the rest uniformly in ±1/√hidden. The forget gate starts open (bias + 1)."""
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
        """Return the logits of the letter after ``x``. Gates are ordered: input, forget, candidate, output."""
        text = x.reshape(-1, x.shape[-1]).T.astype(jnp.int32)  # steps first, so that all windows advance together
        sequence = params["letters"]
        for layer in range(self.layers):
            weight, recurrent, bias = (
                params[named(what, layer)] for what in ("input.weight", "hidden.weight", "gates.bias")
            )
            entering = sequence @ weight + bias  # for each letter of the alphabet, or for the whole sequence at once
            sequence = recur(layer < self.layers - 1, entering if layer else (text, entering), recurrent)
        logits = sequence @ params["dense.weight"] + params["dense.bias"]
        return logits.reshape(*x.shape[:-1], self.letters)


# Input of a layer: the numbers of every step, or letters and a table of each letter's numbers, which is never expanded.
Entering = Float[Array, "t b g"] | tuple[Integer[Array, "t b"], Float[Array, "l g"]]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def recur(keep: bool, entering: Entering, recurrent: Float[Array, "h g"]) -> Array:
    """Return a layer's states at all steps (``keep``), or the last one.

    Its derivative is written out, because that of a loop would add up the gradient of ``recurrent`` step by step. Here
    it is one product of all states with all gates' gradients, after the loop. It can be differentiated again.
    """
    return _forward(entering, recurrent, keep)[0]


def _forward(entering: Entering, recurrent: Array, keep: bool) -> tuple[Array, tuple[Array, ...]]:
    """Return the result, and for every step the hidden state and cell after it and the four gates."""
    sequence, table = entering if isinstance(entering, tuple) else (entering, None)

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        hidden, before = state
        enters = now if table is None else table[now]
        into, forget, candidate, out = jnp.split(enters + hidden @ recurrent, 4, axis=-1)
        into, forget, out = (jax.nn.sigmoid(gate) for gate in (into, forget, out))
        candidate = jnp.tanh(candidate)
        cell = forget * before + into * candidate
        hidden = out * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, into, forget, candidate, out)

    nothing = jnp.zeros((sequence.shape[1], recurrent.shape[0]), recurrent.dtype)
    (last, _), steps = jax.lax.scan(step, (nothing, nothing), sequence, unroll=_unroll())
    return steps[0] if keep else last, steps


@recur.defjvp
def _tangent(keep: bool, primals: tuple[Entering, Array], tangents: tuple[PyTree, Array]) -> tuple[Array, Array]:
    """Return how the states change with the input and the weights: a linear recurrence."""
    (entering, recurrent), (entering_dot, recurrent_dot) = primals, tangents
    result, (hidden, cell, into, forget, candidate, out) = _forward(entering, recurrent, keep)
    came, before = (
        jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]]) for a in (hidden, cell)
    )  # at the start of each step
    driving = _driving(came, recurrent_dot, entering, entering_dot)
    squashed = jnp.tanh(cell)
    by_into, by_forget = candidate * into * (1 - into), before * forget * (1 - forget)
    by_candidate, by_out = into * (1 - candidate**2), squashed * out * (1 - out)
    by_cell = out * (1 - squashed**2)

    def step(state: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array | None]:
        (hidden_dot, cell_dot), (driving, by_into, by_forget, by_candidate, by_out, by_cell, forget) = state, now
        into_dot, forget_dot, candidate_dot, out_dot = jnp.split(driving + hidden_dot @ recurrent, 4, axis=-1)
        cell_dot = forget * cell_dot + by_into * into_dot + by_forget * forget_dot + by_candidate * candidate_dot
        hidden_dot = by_out * out_dot + by_cell * cell_dot
        return (hidden_dot, cell_dot), hidden_dot if keep else None

    nothing, every_step = jnp.zeros_like(cell[0]), (driving, by_into, by_forget, by_candidate, by_out, by_cell, forget)
    (last, _), states = jax.lax.scan(step, (nothing, nothing), every_step, unroll=_unroll())
    return result, last if states is None else states


def _driving(came: Array, recurrent_dot: Array, entering: Entering, entering_dot: PyTree) -> Float[Array, "t b g"]:
    """Return how the gates of all steps change directly, not through the states.

    Rows are selected by a one-hot matrix: its gradient is a product, and that of an index a scattered sum.
    """
    if not isinstance(entering, tuple):
        return entering_dot + came @ recurrent_dot
    (text, table), (_, table_dot) = entering, entering_dot
    picked = jax.nn.one_hot(text, table.shape[0], dtype=table.dtype)
    return jnp.concatenate([came, picked], axis=-1) @ jnp.concatenate([recurrent_dot, table_dot])


def _unroll() -> int:
    return 1 if jax.default_backend() == "cpu" else UNROLL_ON_GPU


def named(what: str, layer: int) -> str:
    """Return the name of a layer's array: ``gates.bias`` in the first layer, ``gates2.bias`` in the second."""
    part, _, kind = what.partition(".")
    return f"{part}{layer + 1 if layer else ''}.{kind}"


LSTM_LEAF = LSTM(hidden=256, layers=2)
