"""SEAFL: uploads weigh by their staleness and by their similarity to the model."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Merge, Params, weighted
from perfeds2.learning.settings import Length, Share, StepSize, setting, traced
from perfeds2.learning.trees import dot, norm


@traced
class SEAFL(Merge):
    """w ← (1 − θ)·w + θ·Σ p_i·w_i, with p_i in proportion to α·b/(τ_i + b) + μ·(cos(w_i − w_start, w) + 1)/2.

    This is its aggregation. Its second variant, which ends slow UEs' jobs early, changes the rounds and is left out.

    We found no code of SEAFL. Port, the nearest method with public code (``TL-System/plato``), has the same weights
    with b = 10, but takes the cosine with the model's last move, has α = 1, also weights by samples, and has no θ.
    """

    paper = "Islam et al., 2025, algorithm 1"
    search: ClassVar = {"beta": None, "alpha": None, "importance": 1.0}
    needs = frozenset({"uploads", "start_models"})

    freshness: StepSize = setting("α: weight of a fresh upload.", default=3.0)
    lateness: Length = setting("b: staleness that halves this weight.", default=10.0)
    importance: StepSize = setting("μ: weight of the similarity.", default=1.0)
    mixing: Share = setting("θ: share of the model taken from a round.", default=0.8)

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        def similarity(move: Params) -> Array:
            cosine = dot(params, move) / jnp.maximum(norm(params) * norm(move), 1e-30)
            return (1 - cosine) / 2  # a move is w_start − w_i

        fresh = self.freshness * self.lateness / (jnp.asarray(arrived.staleness) + self.lateness)
        weights = fresh + self.importance * jax.vmap(similarity)(arrived.deltas)
        new = weighted(weights / weights.sum(), arrived.models)
        return jax.tree.map(lambda w, n: (1 - self.mixing) * w + self.mixing * n, params, new), state
