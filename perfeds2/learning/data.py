"""How does a UE get at its samples, inside a compiled loop?

``Shards`` are samples that lie on the device, ``Generated`` ones are made on the fly; ``datasets/shakespeare.py`` cuts
them out of a text. They answer the same questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from perfeds2.learning.partition import Partition

Ue = Int[Array, ""]  # the number of a UE
Counts = Int[Array, " n"]
RandomKey = Key[Array, ""]
Batch = tuple[Shaped[Array, "*s x"], Shaped[Array, "..."]]  # a label a sample, or a row of numbers
Part = tuple[Any, Any, Bool[Array, " m"]]


@runtime_checkable
class Data(Protocol):
    """Samples in the hands of UEs. A registered JAX dataclass, so that it can go into a compiled loop."""

    @property
    def ues(self) -> int: ...

    @property
    def train_count(self) -> Any:
        """How many training samples each UE has; 0 where they have no end."""
        ...

    def lengths(self) -> tuple[int, int]:
        """How long ``train_part`` and ``test_part`` are in an evaluation."""
        ...

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Training samples of one UE, drawn independently and with replacement."""
        ...

    def train_part(self, ue: Ue, length: int) -> Part:
        """A UE's training samples, padded, with a mask."""
        ...

    def test_part(self, ue: Ue, length: int) -> Part:
        """A UE's test samples, padded, with a mask."""
        ...


@runtime_checkable
class Joinable(Data, Protocol):
    """Data that several trainings can share: laid behind one another, so that the same ones lie on the device once."""

    @classmethod
    def join(cls, each: Sequence[Any]) -> Any:
        """One object with all UEs of ``each``, in that order."""
        ...


@runtime_checkable
class Divisible(Data, Protocol):
    """Data from whose training part a validation part can be cut: what settings are tuned on."""

    def held_out(self) -> Any:
        """The same with the validation part in the place of the test part, which nothing refers to any more."""
        ...


VALIDATION = 0.25  # of a UE's training part, where it is held out
MOST_SAMPLES = 256  # of a part, in an evaluation


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shards:
    """Samples flat on the device, UE after UE, with an index range for each: unequal sizes, no padding."""

    x: Shaped[Array, "m ..."]
    y: Shaped[Array, "m ..."]
    start: Counts
    train_count: Counts
    test_count: Counts

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, parts: Partition) -> "Shards":
        """Lay samples out by a partition."""
        return cls(
            jnp.asarray(x[parts.order]),
            jnp.asarray(y[parts.order], jnp.float32 if y.dtype.kind == "f" else jnp.int32),
            *(jnp.asarray(each, jnp.int32) for each in (parts.start, parts.train_count, parts.test_count)),
        )

    @classmethod
    def join(cls, each: Sequence["Shards"]) -> "Shards":
        """Several, one behind the other."""
        return joined(each, [len(one.y) for one in each], lambda one, at: replace(one, start=one.start + at))

    def held_out(self) -> "Shards":
        """The last quarter of each training part, which is shuffled; the samples behind it are no one's."""
        held = held_out_of(self.train_count)
        return replace(self, train_count=self.train_count - held, test_count=held)

    @property
    def ues(self) -> int:
        return self.start.size

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Training samples of one UE, drawn independently and with replacement."""
        at = self.start[ue] + draw_numbers(key, self.train_count[ue], shape)
        return self.x[at], self.y[at]

    def lengths(self) -> tuple[int, int]:
        """How long ``train_part`` and ``test_part`` must be to hold everybody's, rounded up and within reason.

        Rounded up, so that another seed's partition needs no new compilation. Parts are shuffled, so the beginning of a
        very long one stands for all of it.
        """
        longest = (int(np.asarray(size).max()) for size in (self.train_count, self.test_count))
        train, test = (1 << (size - 1).bit_length() for size in longest)
        return min(max(128, train), MOST_SAMPLES), min(max(32, test), MOST_SAMPLES)

    def train_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.start[ue], self.train_count[ue], length)

    def test_part(self, ue: Ue, length: int) -> Part:
        return self._part(self.start[ue] + self.train_count[ue], self.test_count[ue], length)

    def _part(self, start: Int[Array, ""], size: Int[Array, ""], length: int) -> Part:
        offset = jnp.arange(length)
        at = start + jnp.minimum(offset, size - 1)
        return self.x[at], self.y[at], offset < size


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["key"],
    meta_fields=["ues", "features", "classes", "labels_per_ue", "test_noise", "differ"],
)
@dataclass(frozen=True)
class Generated:
    """Samples made on the fly from (seed, UE): any number of UEs, no memory.

    After LEAF's synthetic data: UE i has its own centre v_i and its own linear rule W_i; the rules scatter around a
    common one. Its labels are the ``labels_per_ue`` it knows.
    """

    key: RandomKey
    ues: int
    features: int
    classes: int
    labels_per_ue: int
    test_noise: int = 2  # which of its own noises a UE's test part is made of
    differ: bool = True  # else centre and rule are everybody's

    def held_out(self) -> "Generated":
        return replace(self, test_noise=4)

    @property
    def train_count(self) -> Int[np.ndarray, " n"]:
        return np.zeros(self.ues, int)

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        centre, rule, known = self._world(ue)
        spread = jnp.arange(1, self.features + 1) ** -0.6
        x = centre + spread * jax.random.normal(key, (*shape, self.features))
        return x, jnp.argmax(jnp.where(known, x @ rule, -jnp.inf), axis=-1)

    def lengths(self) -> tuple[int, int]:
        return 64, 64

    def train_part(self, ue: Ue, length: int) -> Part:
        return *self.batches(self._mine(ue, 1), ue, (length,)), jnp.ones(length, bool)

    def test_part(self, ue: Ue, length: int) -> Part:
        return *self.batches(self._mine(ue, self.test_noise), ue, (length,)), jnp.ones(length, bool)

    def _mine(self, ue: Ue, what: int) -> RandomKey:
        return jax.random.fold_in(jax.random.fold_in(self.key, what), ue)

    def _world(self, ue: Ue) -> tuple[Float[Array, " f"], Float[Array, "f c"], Bool[Array, " c"]]:
        common = jax.random.normal(self.key, (self.features, self.classes))
        if not self.differ:
            return jnp.zeros(self.features), common, jnp.ones(self.classes, bool)
        centre, own, labels = jax.random.split(self._mine(ue, 3), 3)
        rule = common + 0.5 * jax.random.normal(own, (self.features, self.classes))
        known = jax.random.permutation(labels, self.classes) < self.labels_per_ue
        return 0.5 * jax.random.normal(centre, (self.features,)), rule, known


def joined(each: Sequence[Any], sizes: Sequence[int], moved: Callable[[Any, int], Any]) -> Any:
    """Return one object with the arrays of several behind one another; places among the samples are moved along."""
    begin = np.cumsum([0, *sizes[:-1]]).tolist()
    parts = [moved(one, at) for one, at in zip(each, begin, strict=True)]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def held_out_of(count: Counts) -> Counts:
    """How many of so many training samples are held out: a quarter, at least one, and never all."""
    return jnp.clip(jnp.round(VALIDATION * count).astype(count.dtype), jnp.minimum(1, count - 1), None)


def draw_numbers(key: RandomKey, size: Ue, shape: tuple[int, ...]) -> Int[Array, "*s"]:
    """Numbers below ``size``, independent and uniform."""
    uniform = jax.random.uniform(key, shape)
    return jnp.minimum((uniform * size).astype(jnp.int32), size - 1)


# ---- several trainings that share data: samples lie behind one another, each data set once


@partial(jax.tree_util.register_dataclass, data_fields=["everybody", "first"], meta_fields=["ues"])
@dataclass(frozen=True)
class SomeOfPool:
    """The data of one lane's UEs, which stand in a row among those of all lanes."""

    everybody: Data
    first: Int[Array, ""]  # where the lane's UE 0 stands
    ues: int

    @property
    def train_count(self) -> Counts:
        return jax.lax.dynamic_slice_in_dim(self.everybody.train_count, self.first, self.ues)

    def lengths(self) -> tuple[int, int]:
        return self.everybody.lengths()

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        return self.everybody.batches(key, self.first + ue, shape)

    def train_part(self, ue: Ue, length: int) -> Part:
        return self.everybody.train_part(self.first + ue, length)

    def test_part(self, ue: Ue, length: int) -> Part:
        return self.everybody.test_part(self.first + ue, length)


@dataclass(frozen=True)
class Layout:
    """How one lane's data are put together again: all of a pool that is no array."""

    own: Any  # the structure of what a lane has of its own
    ues: int  # of one lane
    lengths: tuple[int, int]  # of the parts an evaluation looks at

    def data_of(self, shared: Data | None, own: list[Array]) -> Data:
        """One lane's data, in a compiled loop."""
        mine = jax.tree.unflatten(self.own, own)
        return mine if shared is None else SomeOfPool(shared, mine, self.ues)


@dataclass(frozen=True)
class Pool:
    """The data of several lanes: what they share, and what each has of its own, stacked."""

    shared: Data | None
    own: list[Array]
    layout: Layout

    @classmethod
    def of(cls, data: Sequence[Data]) -> "Pool":
        """Where the data allow it, one copy for all lanes that have them; else each its own."""
        each = list({id(one): one for one in data}.values())
        place = {id(one): number for number, one in enumerate(each)}
        first, ues = each[0], each[0].ues
        train, test = (max(lengths) for lengths in zip(*(one.lengths() for one in each), strict=True))
        alike = all(type(one) is type(first) for one in each)
        shared = first.join(each) if isinstance(first, Joinable) and alike else None
        own = data if shared is None else [jnp.asarray(ues * place[id(one)], jnp.int32) for one in data]
        layout = Layout(jax.tree.structure(own[0]), ues, (train, test))
        return cls(shared, stack([jax.tree.leaves(one) for one in own]), layout)


def stack(trees: Sequence[Any]) -> Any:
    """Several lanes' arrays as one, with an axis of lanes in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
