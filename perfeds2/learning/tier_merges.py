"""How are uploads merged by methods that decide themselves who is merged when?

Each belongs to its rounds (``spec/methods.py``), so none of these has a name for ``--merge``.
"""

import typing
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Params


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
    def of(cls, tiers: typing.Sequence[int]) -> "ByTier":
        return cls(np.asarray(tiers, np.float32), max(tiers) + 1)

    def init(self, params: Params, ues: int) -> tuple[Params, Array]:  # noqa: ARG002 (the interface)
        models = jax.tree.map(lambda w: jnp.broadcast_to(w, (self.count, *jnp.shape(w))), params)
        return models, jnp.zeros(self.count)

    def __call__(self, params: Params, arrived: Arrived, state: Any) -> tuple[Params, Any]:  # noqa: ARG002 (the interface)
        models, rounds = state
        tier = jnp.asarray(self.tiers)[arrived.ues[0]].astype(jnp.int32)
        theirs = jax.tree.map(lambda w, d: (w - d).mean(axis=0), arrived.handed, arrived.moves)
        models = jax.tree.map(lambda all_, own: all_.at[tier].set(own), models, theirs)
        rounds = rounds.at[tier].add(1.0)
        weights = rounds[::-1] / rounds.sum()
        return jax.tree.map(lambda w: jnp.tensordot(weights, w, 1), models), (models, rounds)
