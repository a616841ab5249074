"""Transform an upload on its way to the server. Each transform changes the upload and its size on the wire.

Top-k with error feedback (Stich et al. 2018) sends only the largest numbers and adds the rest to the next upload.
Quantisation as in QSGD (Alistarh et al. 2017) sends each number in n bits, with the largest magnitude of an array as
its scale: one bit is the sign, and the others count steps of scale/(2^(n−1) − 1). Rounding is random between two
steps, so the result is unbiased.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from perfeds2.learning.models.model import Params
from perfeds2.learning.returns import expect_like, expect_pair
from perfeds2.learning.settings import setting, traced
from perfeds2.learning.trees import clip

SCALE_BITS = 32  # the scale of an array is sent in full precision
QUANTISING = 7  # folded into a job's key for stochastic rounding
CHOOSING = 17  # and for the choice of random-k


class Sending(NamedTuple):
    """What a transform knows besides the upload."""

    ue: Int[Array, ""]
    start: Params  # the model that the job started from, as far as it is uploaded
    key: Key[Array, ""]


@dataclass(frozen=True)
class WireSize:
    """The size of an upload on the wire."""

    shapes: Mapping[str, jax.ShapeDtypeStruct]  # of its arrays
    numbers: int
    bits: int = 32  # of a number
    more: float = 0.0  # other bits

    @property
    def total(self) -> float:
        return self.bits * self.numbers + self.more


class Transform:
    """A step of the chain that an upload passes. It sees only what is uploaded."""

    def __call__(self, upload: Params, job: Sending) -> Params:
        """Return the upload as the server reads it."""
        raise NotImplementedError

    def size(self, size: WireSize) -> WireSize:
        """Return the size of an upload that had this size before."""
        return size


@traced
class Clip(Transform):
    """Shorten the upload to a norm."""

    most: float | Float[Array, "*lanes"]
    must_be_finite: bool = setting(default=False, static=True)  # noise hides an upload of this norm, but no NaN

    def __call__(self, upload: Params, job: Sending) -> Params:
        return clip(upload, self.most, must_be_finite=self.must_be_finite)


@traced
class TopK(Transform):
    """Send the share of the numbers that are farthest from 0, and where they are."""

    share: float = setting(default=1.0, static=True)

    def __call__(self, upload: Params, job: Sending) -> Params:
        return largest(upload, numbers_sent(self.share, sum(w.size for w in jax.tree.leaves(upload))))

    def size(self, size: WireSize) -> WireSize:
        sent = numbers_sent(self.share, size.numbers)
        return replace(size, numbers=sent, more=size.more + place_bits(sent, size.numbers))


@traced
class RandomK(Transform):
    """Send a share of the numbers, drawn from a seed that the server knows, so that positions are not sent."""

    share: float = setting(default=1.0, static=True)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError("expected a share above 0, at most 1")

    def __call__(self, upload: Params, job: Sending) -> Params:
        flat, restore = ravel_pytree(upload)
        return restore(jnp.where(self.chosen(flat.size, job.key), flat, 0.0))

    def chosen(self, numbers: int, key: Key[Array, ""]) -> Bool[Array, " d"]:
        """Return which of an upload's numbers are sent in the job of a key."""
        order = jax.random.permutation(jax.random.fold_in(key, CHOOSING), numbers)
        return order < numbers_sent(self.share, numbers)

    def size(self, size: WireSize) -> WireSize:
        return replace(size, numbers=numbers_sent(self.share, size.numbers))


@traced
class OwnCompression(Transform):
    """A user's function of the upload and a key. It returns the upload as the server reads it, and its bits on the wire."""

    function: Callable[..., tuple[Params, float]] = setting(default=None, static=True)

    def __call__(self, upload: Params, job: Sending) -> Params:
        sent, _ = expect_pair(self._who, self.function(upload, job.key), "the upload as it is read, and its bits")
        expect_like(self._who, "the upload", sent, upload)
        return sent

    def size(self, size: WireSize) -> WireSize:
        bits = []

        def send(upload: Params) -> Params:
            sent, own = self.function(upload, jax.random.key(0))
            bits.append(float(own))
            return sent

        jax.eval_shape(send, size.shapes)
        return replace(size, numbers=0, more=size.more + bits[0])

    @property
    def _who(self) -> str:
        return f"the compression {getattr(self.function, '__name__', type(self.function).__name__)}"


COMPRESSIONS: dict[str, Callable[[float], Transform]] = {"random-k:SHARE": RandomK}


@traced
class Quantise(Transform):
    """Send each number in a few bits."""

    bits: int = setting(default=8, static=True)

    def __call__(self, upload: Params, job: Sending) -> Params:
        return quantised(jax.random.fold_in(job.key, QUANTISING), upload, self.bits)

    def size(self, size: WireSize) -> WireSize:
        return replace(size, bits=self.bits, more=size.more + SCALE_BITS * len(size.shapes))


@traced
class Chain:
    """The transforms that an upload passes.

    With error feedback, what the transforms of ``compression`` leave out is added to the UE's next upload.
    """

    first: tuple[Transform, ...] = ()
    compression: tuple[Transform, ...] = ()
    has_feedback: bool = setting(default=False, static=True)

    def init(self, upload: Params) -> PyTree:
        """Return what a UE has not sent before its first job; None if it never keeps anything."""
        return jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), upload) if self.has_feedback else None

    def __call__(self, upload: Params, unsent: PyTree, job: Sending) -> tuple[Params, PyTree]:
        """Return the upload as the server reads it, and what waits for the next one."""
        for step in self.first:
            upload = step(upload, job)
        sent = owed = jax.tree.map(jnp.add, upload, unsent) if self.has_feedback else upload
        for step in self.compression:
            sent = step(sent, job)
        return sent, jax.tree.map(jnp.subtract, owed, sent) if self.has_feedback else None

    def size(self, shapes: Mapping[str, jax.ShapeDtypeStruct], numbers: int | None = None) -> float:
        """Return the bits of an upload of these arrays on the wire; ``numbers`` stands for theirs."""
        size = WireSize(shapes, numbers or sum(math.prod(each.shape) for each in shapes.values()))
        for step in (*self.first, *self.compression):
            size = step.size(size)
        return size.total


def compressed(
    bits: int | None = None,
    top_k: float | None = None,
    compress: Transform | None = None,
    first: tuple[Transform, ...] = (),
) -> Chain:
    """Return the chain that the settings describe, after the transforms of ``first``."""
    fewer = (None if top_k is None else TopK(top_k), compress, None if bits is None else Quantise(bits))
    return Chain(first, tuple(step for step in fewer if step is not None), top_k is not None or compress is not None)


def numbers_sent(share: float, numbers: int) -> int:
    """Return k, the number of an upload's numbers that are sent: its share, at least 1."""
    return max(1, round(share * numbers))


def place_bits(sent: int, numbers: int) -> float:
    """Return the bits that say which numbers are sent.

    Each takes ⌈lg numbers⌉ bits, or all together one bit for every number there is, if that is less.
    """
    return float(min(sent * math.ceil(math.log2(numbers)), numbers)) if sent < numbers else 0.0


def largest(upload: PyTree, count: int) -> PyTree:
    """Keep the ``count`` numbers of an upload farthest from 0, the first of equal ones, and set the others to 0."""
    flat, restore = ravel_pytree(upload)
    _, chosen = jax.lax.top_k(jnp.abs(flat), count)
    return restore(jnp.zeros_like(flat).at[chosen].set(flat[chosen]))


def quantised(key: Key[Array, ""], upload: PyTree, bits: int) -> PyTree:
    """Return the upload as the server reads it after quantisation."""
    steps = 2.0 ** (bits - 1) - 1
    arrays, structure = jax.tree.flatten(upload)
    rounded = []
    for number, array in enumerate(arrays):
        scale = jnp.max(jnp.abs(array))
        unit = jnp.where(scale > 0, scale / steps, 1.0)
        coin = jax.random.uniform(jax.random.fold_in(key, number), array.shape, array.dtype)
        rounded.append(jnp.clip(jnp.floor(array / unit + coin), -steps, steps) * unit)
    return jax.tree.unflatten(structure, rounded)
