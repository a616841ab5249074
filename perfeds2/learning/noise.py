"""Draw the noise of a round. It depends only on the seed and the round.

The generator is Threefry-2x32 with 20 rounds, as in ``jax.random``, written out, which takes half as long on a CPU. Its
two words become two normal numbers by the transform of Box and Muller, which is cheaper than the inverse error function.
They are kept as one complex number, because XLA would draw once for each of two arrays on a CPU.
"""

import hashlib
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Complex, Float, Int, Key, UInt32

from perfeds2.learning import on_gpu
from perfeds2.learning.models.model import Params, RandomKey
from perfeds2.learning.objectives import Objective
from perfeds2.privacy.accounting import noise_filter

NOISE = 2**31  # added to the round: batches have counters below
SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(5, -1, -1)]  # of sin √x / √x; to 6e-8 up to π/2
TURNS = (13, 15, 26, 6), (17, 29, 16, 24)  # bits by which Threefry rotates


class FromRound(NamedTuple):
    """A key of the noise, and the first round it is used for; each start of a server draws another key."""

    first: Int[Array, " m"]
    keys: Key[Array, " m"]

    def at(self, round_: Int[Array, ""]) -> RandomKey:
        return self.keys[jnp.searchsorted(self.first, round_, side="right") - 1]


NoiseKey = Key[Array, "*lanes"] | FromRound
NoiseSeed = int | tuple[tuple[int, int], ...]  # 64 bits, or (first round, 128 bits) of each start of a server


def noise_of(key: NoiseKey, round_: Int[Array, ""], like: Params, deviation: Float[Array, ""], bands: int) -> Params:
    """Return the noise on the sum of a round: Σ_j d_j·z, with the draw z of the round j rounds ago."""
    flat, like_it = ravel_pytree(like)
    weights = jnp.asarray(noise_filter(bands), jnp.float32)

    def add(back: Array, total: Array) -> Array:
        weight = jnp.where(back <= round_, weights[back], 0.0)  # nothing was drawn before round 0
        now = key.at(round_ - back) if isinstance(key, FromRound) else key
        return total + drawn(now, round_ - back, total.size, deviation * weight)

    # XLA would unroll a loop of one step and draw wherever a number is used: each pair twice on a CPU.
    stop = bands if on_gpu.is_there() else jnp.minimum(bands, round_ + 1)
    pairs = jax.lax.fori_loop(0, stop, add, jnp.zeros((flat.size + 1) // 2, jnp.complex64))
    return like_it(jnp.concatenate([pairs.real, pairs.imag])[: flat.size])


def noise_on(
    objective: Objective, key: NoiseKey, round_: Int[Array, ""], like: Params, deviation: Float[Array, ""], bands: int
) -> Params:
    """Return the noise on the sum of a round's uploads: zeros for arrays that the objective withholds."""
    stays = {name: jnp.zeros_like(w) for name, w in objective.withheld(like).items()}
    return noise_of(key, round_, like, deviation, bands) | stays


noise_now = jax.jit(noise_of, static_argnums=4)  # outside a replay; federations use this


def secret_key(seed: int) -> RandomKey:
    """Return the key of a 64-bit seed, with all of its bits."""
    return jax.random.wrap_key_data(jnp.asarray([seed >> 32, seed % 2**32], jnp.uint32))


def noise_keys(seed: NoiseSeed) -> NoiseKey:
    """Return the keys of a secret seed, or of one for each start of a server."""
    if isinstance(seed, int):
        return secret_key(seed)
    digests = [hashlib.sha256(each.to_bytes(16)).digest() for _, each in seed]
    words = np.array([np.frombuffer(digest[:8], ">u4") for digest in digests], np.uint32)
    return FromRound(jnp.asarray([first for first, _ in seed], jnp.int32), jax.random.wrap_key_data(jnp.asarray(words)))


def drawn(
    key: RandomKey, round_: Int[Array, ""], pairs: int, deviation: float | Float[Array, ""] = 1.0
) -> Complex[Array, " pairs"]:
    """Return normal numbers of a round, two in each complex number."""
    low = jnp.arange(pairs, dtype=jnp.uint32)
    high = jnp.full(low.shape, jnp.uint32(NOISE) + round_.astype(jnp.uint32))
    first_word, second_word = threefry(jax.random.key_data(key), high, low)
    share = first_word.astype(jnp.float32) * 2.0**-32 + 2.0**-33  # above 0, at most 1
    radius = deviation * jnp.sqrt(-2.0 * jnp.log(share))
    return jax.lax.complex(radius * cosine(second_word), radius * cosine(second_word - jnp.uint32(2**30)))


def cosine(turn: UInt32[Array, " d"]) -> Float[Array, " d"]:
    """Return the cosine of an angle in units of 2⁻³² turns."""
    half = jax.lax.bitcast_convert_type(turn, jnp.int32).astype(jnp.float32) * (2.0**-32 * math.pi)
    sine = half * jnp.polyval(jnp.asarray(SINE), half**2, unroll=len(SINE))
    return 1.0 - 2.0 * sine**2  # cos 2x = 1 − 2·sin² x


def threefry(key: UInt32[Array, " words"], high: UInt32[Array, " d"], low: UInt32[Array, " d"]) -> tuple[Array, Array]:
    """Encrypt counters of two words each (Salmon et al., 2011).

    On a CPU a loop cuts the work into pieces so short that the processor works on several counters at once.
    """
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA)
    added = jnp.stack(
        [jnp.stack([keys[(turn + 1) % 3], keys[(turn + 2) % 3] + jnp.uint32(turn + 1)]) for turn in range(5)]
    )

    def one_turn(turn: Array | int, turns: tuple[int, ...], high: Array, low: Array) -> tuple[Array, Array]:
        for bits in turns:
            high = high + low
            low = high ^ ((low << bits) | (low >> (32 - bits)))
        return high + added[turn, 0], low + added[turn, 1]

    def two_turns(number: Array, both: Array) -> Array:
        words = one_turn(2 * number + 1, TURNS[1], *_words(both))
        return _as_one(*one_turn(2 * number + 2, TURNS[0], *words))

    both = _as_one(*one_turn(0, TURNS[0], high + keys[0], low + keys[1]))
    return _words(jax.lax.fori_loop(0, 2, two_turns, both, unroll=on_gpu.is_there()))


def _as_one(high: UInt32[Array, " d"], low: UInt32[Array, " d"]) -> Complex[Array, " d"]:
    return jax.lax.complex(*(jax.lax.bitcast_convert_type(word, jnp.float32) for word in (high, low)))


def _words(both: Complex[Array, " d"]) -> tuple[Array, Array]:
    return jax.lax.bitcast_convert_type(both.real, jnp.uint32), jax.lax.bitcast_convert_type(both.imag, jnp.uint32)
