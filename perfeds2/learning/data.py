"""Give UEs access to their samples inside a compiled loop.

``Shards`` keeps samples on the device, ``Generated`` makes them on the fly, and ``datasets/shakespeare.py`` cuts them
out of a text. All have the same interface, ``Data``.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from perfeds2.learning.models.model import RandomKey
from perfeds2.learning.partition import Partition

Ue = Int[Array, ""]  # index of a UE
Counts = Int[Array, "*lanes n"]  # data of several trainings can be stacked
Batch = tuple[Shaped[Array, "*s x"], Shaped[Array, "..."]]  # inputs, and a label or a row of numbers per sample
Part = tuple[Shaped[Array, "..."], Shaped[Array, "..."], Bool[Array, " m"]]


@runtime_checkable
class Data(Protocol):
    """Samples divided among UEs. A registered JAX dataclass, so that it can enter a compiled loop.

    Its arrays may be padded at their end, to train with several data sets at once.
    """

    @property
    def ues(self) -> int: ...

    @property
    def train_count(self) -> Int[Array, " n"] | Int[np.ndarray, " n"]:
        """Return the number of training samples of each UE; 0 if there is no limit."""
        ...

    def lengths(self) -> tuple[int, int]:
        """Return the lengths of ``train_part`` and ``test_part`` in an evaluation."""
        ...

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Draw training samples of one UE, independently and with replacement."""
        ...

    def train_part(self, ue: Ue, length: int) -> Part:
        """Return a UE's training samples, padded, with a mask."""
        ...

    def test_part(self, ue: Ue, length: int) -> Part:
        """Return a UE's test samples, padded, with a mask."""
        ...


@runtime_checkable
class Divisible(Data, Protocol):
    """Data from whose training part a validation part can be held out, for tuning."""

    def held_out(self) -> Data:
        """Return the data with the validation part in place of the test part, which can no longer be read."""
        ...


VALIDATION = 0.25  # share of a UE's training part that is held out
MOST_SAMPLES = 256  # of a part, in an evaluation


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shards:
    """Samples in device memory, one UE after the other, with an index range for each: unequal sizes without padding."""

    x: Shaped[Array, "..."]  # one row per sample
    y: Shaped[Array, "..."]  # its label, or a row of numbers
    start: Counts
    train_count: Counts
    test_count: Counts

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, parts: Partition) -> "Shards":
        """Order samples by a partition."""
        counts = (each.astype(np.int32) for each in (parts.start, parts.train_count, parts.test_count))
        labels = y[parts.order].astype(np.float32 if y.dtype.kind == "f" else np.int32)
        return cls(*jax.device_put((x[parts.order], labels, *counts)))  # jnp.asarray would compile for each shape

    def held_out(self) -> "Shards":
        """Hold out the last quarter of each training part, which is shuffled. The test part becomes unreachable."""
        held = held_out_of(self.train_count)
        return replace(self, train_count=self.train_count - held, test_count=held)

    @property
    def ues(self) -> int:
        return self.start.size

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        """Draw training samples of one UE, independently and with replacement."""
        at = self.start[ue] + draw_numbers(key, self.train_count[ue], shape)
        return self.x[at], self.y[at]

    def lengths(self) -> tuple[int, int]:
        """Return lengths of ``train_part`` and ``test_part`` that hold every UE's part, up to 256.

        They differ little between data sets, so that another seed's partition needs no new compilation. Parts are
        shuffled, so the first samples represent a very long one.
        """
        longest_test = int(np.asarray(self.test_count).max())
        return MOST_SAMPLES, min(max(64, 1 << (longest_test - 1).bit_length()), MOST_SAMPLES)

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

    As in LEAF's synthetic data, UE i has its own centre v_i and its own linear rule W_i, and the rules scatter around
    a common one. A UE has ``labels_per_ue`` of the labels.
    """

    key: Key[Array, "*lanes"]
    ues: int
    features: int
    classes: int
    labels_per_ue: int
    test_noise: int = 2  # which of a UE's random streams its test part is made of
    differ: bool = True  # False: all UEs have the same centre, rule and labels

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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chosen:
    """Some UEs of other data, in a given order."""

    data: Data
    numbers: Counts  # of the UEs in that data

    def held_out(self) -> "Chosen":
        assert isinstance(self.data, Divisible)
        return replace(self, data=self.data.held_out())

    @property
    def ues(self) -> int:
        return self.numbers.size

    @property
    def train_count(self) -> Int[Array, " n"]:
        return jnp.asarray(self.data.train_count)[self.numbers]

    def lengths(self) -> tuple[int, int]:
        return self.data.lengths()

    def batches(self, key: RandomKey, ue: Ue, shape: tuple[int, ...]) -> Batch:
        return self.data.batches(key, self.numbers[ue], shape)

    def train_part(self, ue: Ue, length: int) -> Part:
        return self.data.train_part(self.numbers[ue], length)

    def test_part(self, ue: Ue, length: int) -> Part:
        return self.data.test_part(self.numbers[ue], length)


def split_off(data: Data, count: int, seed: int) -> tuple[Chosen, Chosen]:
    """Choose ``count`` UEs at random, and return the data of the others and of those."""
    if not 0 < count < data.ues:
        raise ValueError(f"of {data.ues} UEs, 1 to {data.ues - 1} can be split off, got {count}.")
    chosen = np.zeros(data.ues, bool)
    chosen[np.random.default_rng([seed, 5]).choice(data.ues, count, replace=False)] = True
    others, those = (jax.device_put(np.flatnonzero(each).astype(np.int32)) for each in (~chosen, chosen))
    return Chosen(data, others), Chosen(data, those)


def held_out_of(count: Counts) -> Counts:
    """Return how many of ``count`` training samples are held out: a quarter, at least one, and never all."""
    return jnp.clip(jnp.round(VALIDATION * count).astype(count.dtype), jnp.minimum(1, count - 1), None)


def draw_numbers(key: RandomKey, size: Ue, shape: tuple[int, ...]) -> Int[Array, "*s"]:
    """Draw independent uniform integers below ``size``."""
    uniform = jax.random.uniform(key, shape)
    return jnp.minimum((uniform * size).astype(jnp.int32), size - 1)
