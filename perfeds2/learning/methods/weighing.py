"""Weigh uploads by their staleness and by their likeness to others, as SEAFL and REFL do."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Params, Stateless, weighted
from perfeds2.learning.objectives import dot, norm, stepped
from perfeds2.learning.settings import Length, Share, StepSize, setting, traced


@traced
class SEAFL(Stateless):
    """w ← (1 − θ)·w + θ·Σ p_i·w_i, with p_i in proportion to α·b/(τ_i + b) + μ·(cos(w_i − w_handed, w) + 1)/2.

    This is its aggregation. Its second variant, which ends slow UEs' jobs early, changes the rounds and is left out.
    """

    paper = "Islam et al., 2025, algorithm 1"
    search: ClassVar = {"beta": None, "alpha": None, "importance": 1.0}
    looks_back = True

    freshness: StepSize = setting("α: weight of a fresh upload.", default=3.0)
    lateness: Length = setting("b: staleness that halves this weight.", default=10.0)
    importance: StepSize = setting("μ: weight of the similarity.", default=1.0)
    mixing: Share = setting("θ: share of the model taken from a round.", default=0.8)

    def __call__(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        def similarity(move: Params) -> Array:
            cosine = dot(params, move) / jnp.maximum(norm(params) * norm(move), 1e-30)
            return (1 - cosine) / 2  # a move is w_handed − w_i

        fresh = self.freshness * self.lateness / (jnp.asarray(arrived.staleness) + self.lateness)
        weights = fresh + self.importance * jax.vmap(similarity)(arrived.moves)
        new = weighted(weights / weights.sum(), arrived.models)
        return jax.tree.map(lambda w, n: (1 - self.mixing) * w + self.mixing * n, params, new), state


@traced
class REFL(Stateless):
    """w −= η_g·Σ p_i·Δ_i, with p_i in proportion to 1 if τ_i = 0, else (1 − β)/(τ_i + 1) + β·(1 − e^(−Λ_i/Λ_max)).

    Λ_i is the squared distance of Δ_i from the mean of the round's fresh moves, or from 0 if it has none. This is its
    merge; its choice of UEs is ``--schedule refl``.
    """

    paper = "Abdelmoniem et al., EuroSys 2023, staleness-aware aggregation"
    search: ClassVar = {"beta": None, "alpha": None}  # the paper has one boost for all tasks

    boost: Share = setting("β: weight of the distance from fresh moves.", default=0.35)
    server_step: Length = setting("η_g: the server's step size.", default=1.0)

    def __call__(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        late = jnp.asarray(arrived.staleness)
        fresh = (late == 0).astype(jnp.float32)
        usual = weighted(fresh / jnp.maximum(fresh.sum(), 1), arrived.moves)

        def distance(move: Params) -> Array:
            return norm(jax.tree.map(jnp.subtract, move, usual)) ** 2

        far = jax.vmap(distance)(arrived.moves) * (1 - fresh)
        boosted = 1 - jnp.exp(-far / jnp.maximum(far.max(), 1e-30))
        weights = jnp.where(late == 0, 1.0, (1 - self.boost) / (late + 1) + self.boost * boosted)
        return stepped(params, self.server_step, weighted(weights / weights.sum(), arrived.moves)), state
