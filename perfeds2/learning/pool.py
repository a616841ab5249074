"""How do several trainings share the data they have in common?

Samples that lie flat are laid behind one another, each data set once; a training then knows where its UEs begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from perfeds2.learning.data import Batch, Counts, Data, Joinable, Part, RandomKey, Ue


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
