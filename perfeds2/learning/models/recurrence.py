"""How does a GPU read a text letter by letter, with other weights for every UE?

What ``lstm.recur`` computes, with both its derivatives written out, so that a loop does nothing but what must wait for the
step before: one product with the recurrent weights a step, and what it makes of the gates. Everything else (the
gradient of the weights, and all that a direction of theirs adds) is one large product before or after a loop.

Gates stand side by side: input, forget, candidate, output. It can be differentiated backward, then forward: what a
Hessian's product needs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNROLL = 4  # steps compiled into one: the loop's own cost counts on a GPU


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(keep: bool, entering: Float[Array, "t b g"], recurrent: Float[Array, "h g"]) -> Array:
    """A layer's states from step to step, or the last of them."""
    hidden, _, _ = forward(entering, recurrent)
    return hidden if keep else hidden[-1]


def _remember(keep: bool, entering: Array, recurrent: Array) -> tuple[Array, Any]:
    hidden, cell, gates = forward(entering, recurrent)
    return (hidden if keep else hidden[-1]), (hidden, cell, gates, recurrent)


def _gradient(keep: bool, known: Any, slope: Array) -> tuple[Array, Array]:
    hidden, cell, gates, recurrent = known
    every, last = (slope, jnp.zeros_like(slope[0])) if keep else (None, slope)
    on_gates = backward(gates, cell, recurrent, last, every)
    return on_gates, jnp.einsum("tbh,tbg->hg", earlier(hidden), on_gates)


recur.defvjp(_remember, _gradient)


@jax.custom_jvp
def forward(entering: Float[Array, "t b g"], recurrent: Float[Array, "h g"]) -> tuple[Array, Array, Array]:
    """Of every step: the state and the cell after it, and the four gates."""

    def step(state: tuple[Array, Array], now: Array) -> Any:
        hidden, cell = state
        into, forget, candidate, out = four(now + hidden @ recurrent)
        into, forget, out = (jax.nn.sigmoid(gate) for gate in (into, forget, out))
        candidate = jnp.tanh(candidate)
        cell = forget * cell + into * candidate
        state = once((out * jnp.tanh(cell), cell))
        return state, (*state, side_by_side(into, forget, candidate, out))

    nothing = jnp.zeros((entering.shape[1], recurrent.shape[0]), entering.dtype)
    return step_by_step(step, (nothing, nothing), entering)


@forward.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Any, Any]:
    (entering, recurrent), (entering_dot, recurrent_dot) = primals, tangents
    hidden, cell, gates = forward(entering, recurrent)
    driving = entering_dot + earlier(hidden) @ recurrent_dot  # of the whole sequence at once

    def step(state: tuple[Array, Array], now: Any) -> Any:
        (hidden_dot, cell_dot), (driving, gates, before, cell) = state, now
        into, forget, candidate, out = four(gates)
        gates_dot = gate_slopes(gates) * (driving + hidden_dot @ recurrent)
        into_dot, forget_dot, candidate_dot, out_dot = four(gates_dot)
        cell_dot = forget * cell_dot + before * forget_dot + candidate * into_dot + into * candidate_dot
        squashed = jnp.tanh(cell)
        state = once((squashed * out_dot + out * (1 - squashed**2) * cell_dot, cell_dot))
        return state, (*state, gates_dot)

    nothing = jnp.zeros_like(cell[0])
    return (hidden, cell, gates), step_by_step(step, (nothing, nothing), (driving, gates, earlier(cell), cell))


@jax.custom_jvp
def backward(
    gates: Float[Array, "t b g"],
    cell: Float[Array, "t b h"],
    recurrent: Float[Array, "h g"],
    last: Float[Array, "b h"],
    every: Float[Array, "t b h"] | None,
) -> Float[Array, "t b g"]:
    """What the loss's slopes on the states (the last one's, and if given every one's) are on what entered the gates."""
    return _backward(gates, cell, recurrent, last, every)[0]


def _backward(
    gates: Array,
    cell: Array,
    recurrent: Array,
    last: Array,
    every: Array | None,
    on_cell: Array | None = None,
    *,
    states: bool = False,
) -> tuple[Array, ...]:
    """The same, and with ``states`` the slopes on every state and cell. ``on_cell`` are more of the latter."""

    def step(state: tuple[Array, Array], now: Any) -> Any:
        (hidden_slope, cell_slope), (gates, before, cell, every, on_cell) = state, now
        hidden_slope = hidden_slope if every is None else hidden_slope + every
        by_cell, by_hidden = factors(gates, before, cell)
        cell_slope = cell_slope + by_hidden * hidden_slope
        cell_slope = cell_slope if on_cell is None else cell_slope + on_cell
        on_gates, from_cell = once((by_cell * spread(cell_slope, hidden_slope), four(gates)[1] * cell_slope))
        return (on_gates @ recurrent.T, from_cell), [on_gates, *[hidden_slope, cell_slope] * states]

    read = (gates, earlier(cell), cell, every, on_cell)
    return step_by_step(step, (last, jnp.zeros_like(last)), read, backwards=True)


@backward.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (gates, cell, recurrent, last, every), (gates_dot, cell_dot, recurrent_dot, last_dot, every_dot) = primals, tangents
    on_gates, hidden_slope, cell_slope = _backward(gates, cell, recurrent, last, every, states=True)
    where, along = (gates, earlier(cell), cell), (gates_dot, earlier(cell_dot), cell_dot)
    by_cell, by_hidden = jax.jvp(factors, where, along)[1]
    direct = by_cell * spread(cell_slope, hidden_slope)
    from_later = later(on_gates @ recurrent_dot.T + direct @ recurrent.T)  # of the whole sequence at once
    every_dot = from_later if every is None else from_later + every_dot
    on_cell = by_hidden * hidden_slope + later(four(gates_dot)[1] * cell_slope)
    return on_gates, direct + _backward(gates, cell, recurrent, last_dot, every_dot, on_cell)[0]


# ---- gates side by side


def four(gates: Float[Array, "*s g"]) -> list[Float[Array, "*s h"]]:
    return jnp.split(gates, 4, axis=-1)


def side_by_side(*gates: Float[Array, "*s h"]) -> Float[Array, "*s g"]:
    return jnp.concatenate(gates, axis=-1)


def spread(cell_slope: Float[Array, "*s h"], hidden_slope: Float[Array, "*s h"]) -> Float[Array, "*s g"]:
    """What reaches the four gates: three of them by the cell, the output gate by the state."""
    return side_by_side(cell_slope, cell_slope, cell_slope, hidden_slope)


def gate_slopes(gates: Float[Array, "*s g"]) -> Float[Array, "*s g"]:
    """By how much each gate opens with what enters it."""
    into, forget, candidate, out = four(gates)
    return side_by_side(into * (1 - into), forget * (1 - forget), 1 - candidate**2, out * (1 - out))


def factors(gates: Array, before: Array, cell: Array) -> tuple[Array, Array]:
    """By what a slope on the cell or the state is one on the gates, and by what one on the state is one on the cell."""
    into, _, candidate, out = four(gates)
    squashed = jnp.tanh(cell)
    return gate_slopes(gates) * side_by_side(candidate, before, into, squashed), out * (1 - squashed**2)


# ---- step by step


def earlier(steps: Float[Array, "t *s"]) -> Float[Array, "t *s"]:
    """What was there when each step began: nothing, at first."""
    return jnp.concatenate([jnp.zeros_like(steps[:1]), steps[:-1]])


def later(steps: Float[Array, "t *s"]) -> Float[Array, "t *s"]:
    return jnp.concatenate([steps[1:], jnp.zeros_like(steps[:1])])


once = jax.lax.optimization_barrier  # else everything that uses it would compute it again from much more


def step_by_step(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, read: Any, *, backwards: bool = False) -> Any:
    """What ``step`` makes of the state and of each step's numbers, of all steps. Returns what it said, not the state.

    A scan, but that steps stay behind the UEs: with UEs side by side, one's steps then lie together, as the large products
    before and after want them.
    """
    first = jax.tree.map(lambda steps: steps[0], read)
    length, said = jax.tree.leaves(read)[0].shape[0], jax.tree.leaves(jax.eval_shape(step, state, first)[1])
    fill = jax.tree.leaves(first)[0]
    # Any numbers will do, each is written over. They are not the same: equal ones would be made once, and then copied.
    empty = [jnp.full((length, *one.shape), fill[0, place], one.dtype) for place, one in enumerate(said)]

    def one(number: Array, carried: Any) -> Any:
        state, written = carried
        at = length - 1 - number if backwards else number
        now = jax.tree.map(lambda steps: jax.lax.dynamic_index_in_dim(steps, at, keepdims=False), read)
        state, said = step(state, now)
        said = jax.tree.leaves(said)
        update = partial(jax.lax.dynamic_update_index_in_dim, index=at, axis=0)
        return state, [update(steps, new) for steps, new in zip(written, said, strict=True)]

    return tuple(jax.lax.fori_loop(0, length, one, (state, empty), unroll=min(UNROLL, length))[1])
