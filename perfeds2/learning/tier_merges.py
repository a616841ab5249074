"""How are uploads merged by methods that decide themselves who is merged when: FedAT and SAFA?

Each belongs to its rounds (``spec/methods.py``), so none of these has a name for ``--merge``.
"""

import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Params, mean_of, weighted
from perfeds2.timeline.timeline import Timeline


@partial(jax.tree_util.register_dataclass, data_fields=["tiers"], meta_fields=["count"])
@dataclass(frozen=True)
class ByTier:
    """FedAT's server (Chai et al. 2021, algorithm 2): w = Σ_m T_{M+1−m}/T · w_m.

    w_m is the mean model of tier m's last round, w_0 before its first; T_m counts its rounds, and T is their sum. So a slow tier
    weighs as much as a fast one has worked. The first rounds of the fastest tier alone change nothing, as the paper has it.
    """

    tiers: Any = ()  # of every UE
    count: int = 1  # M
    looks_back: typing.ClassVar = True

    @classmethod
    def of(cls, tiers: Sequence[int]) -> "ByTier":
        return cls(np.asarray(tiers, np.float32), max(tiers) + 1)

    def init(self, params: Params, ues: int) -> tuple[Params, Array]:  # noqa: ARG002 (the interface)
        models = jax.tree.map(lambda w: jnp.broadcast_to(w, (self.count, *jnp.shape(w))), params)
        return models, jnp.zeros(self.count)

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:  # noqa: ARG002 (the interface)
        models, rounds = state
        tier = jnp.asarray(self.tiers)[arrived.ues[0]].astype(jnp.int32)
        theirs = mean_of(jax.tree.map(jnp.subtract, arrived.handed, arrived.moves))
        models = jax.tree.map(lambda all_, own: all_.at[tier].set(own), models, theirs)
        rounds = rounds.at[tier].add(1.0)
        weights = rounds[::-1] / rounds.sum()
        return weighted(weights, models), (models, rounds)


@partial(jax.tree_util.register_dataclass, data_fields=["lag"], meta_fields=[])
@dataclass(frozen=True)
class Cached:
    """SAFA's server (Wu et al. 2021): every UE's last model is kept, and w is the mean of all n of them, all UEs alike.

    Before a round, entries of UEs left behind more than the tolerated lag become the newest model. The models of those who were
    drafted are entered, w is made, and then the models of those who came but were not drafted are entered: they bypass the round.
    ``with_undrafted`` puts these into the second half of every row; who stands there without having come is entered as before.
    """

    lag: float | Array = np.inf  # τ, the lag tolerance
    looks_back: typing.ClassVar = True
    takes_undrafted: typing.ClassVar = True

    def init(self, params: Params, ues: int) -> tuple[Params, Array, Array]:
        """Everybody's entry, which model everybody was handed last, and the round."""
        entries = jax.tree.map(lambda w: jnp.broadcast_to(w, (ues, *jnp.shape(w))), params)
        return entries, jnp.zeros(ues, jnp.int32), jnp.zeros((), jnp.int32)

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:
        entries, handed, round_ = state
        half = arrived.ues.size // 2
        drafted, others, came = arrived.ues[:half], arrived.ues[half:], arrived.staleness[half:] == 0
        models = jax.tree.map(jnp.subtract, arrived.handed, arrived.moves)
        left = handed < round_ - self.lag
        handed = jnp.where(left, round_, handed)

        def enter(old: Array, new: Array, newest: Array) -> Array:
            old = jnp.where(left.reshape(-1, *(1,) * newest.ndim), newest, old)
            return old.at[drafted].set(new[:half])

        merged = jax.tree.map(enter, entries, models, params)
        params = mean_of(merged)
        entries = jax.tree.map(lambda old, new: old.at[others].set(new[half:]), merged, models)  # the bypass
        handed = handed.at[drafted].set(round_ + 1)
        handed = handed.at[others].set(jnp.where(came, round_ + 1, handed[others]))
        return params, (entries, handed, round_ + 1)


def with_undrafted(timeline: Timeline) -> Timeline:
    """The timeline of a draft with two halves in every row: who was merged, and who had been the round before.

    Of these, some have arrived again, with the model they were handed then. The others stand there with the job that was merged
    last: done once more it gives the same model, so that every row is of equal length and nothing is entered that was not there.
    """
    ues, versions = timeline.ues, timeline.versions
    came = set(zip(*(column.tolist() for column in timeline.in_vain), strict=True))
    second_ues, second_versions = ues.copy(), versions.copy()
    for k in range(1, timeline.rounds):
        second_ues[k] = ues[k - 1]
        for slot, ue in enumerate(ues[k - 1]):
            again = np.flatnonzero(ues[k] == ue)
            if (ue, k) in came:
                second_versions[k, slot] = k
            else:
                second_versions[k, slot] = versions[k, again[0]] if again.size else versions[k - 1, slot]
    staleness = np.arange(timeline.rounds)[:, None] - second_versions
    return replace(
        timeline,
        ues=np.concatenate([ues, second_ues], axis=1),
        staleness=np.concatenate([timeline.staleness, staleness], axis=1),
        arrival_s=np.concatenate([timeline.arrival_s, timeline.arrival_s], axis=1),
    )
