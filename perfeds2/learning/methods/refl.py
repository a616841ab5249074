"""REFL: stale uploads weigh less than fresh ones; those far from the fresh ones weigh more than those near."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Merge, Params, weighted
from perfeds2.learning.settings import Length, Share, setting, traced
from perfeds2.learning.trees import norm, stepped


@traced
class REFL(Merge):
    """w −= η_g·Σ p_i·Δ_i, with p_i in proportion to 1 if τ_i = 0, else (1 − β)/(τ_i + 1) + β·(1 − e^(−Λ_i/Λ_max)).

    Λ_i is the squared distance of Δ_i from the mean of the round's fresh moves, or from 0 if it has none. This is its
    merge; its choice of UEs is ``--schedule refl``.

    The weights and β were checked against the authors' script.
    """

    paper = "Abdelmoniem et al., EuroSys 2023, staleness-aware aggregation"
    needs = frozenset({"uploads"})
    search: ClassVar = {"beta": None, "alpha": None}  # the paper has one boost for all tasks

    boost: Share = setting("β: weight of the distance from fresh moves.", default=0.35)
    server_step: Length = setting("η_g: the server's step size.", default=1.0)

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        late = jnp.asarray(arrived.staleness)
        fresh = (late == 0).astype(jnp.float32)
        usual = weighted(fresh / jnp.maximum(fresh.sum(), 1), arrived.deltas)

        def distance(move: Params) -> Array:
            return norm(jax.tree.map(jnp.subtract, move, usual)) ** 2

        far = jax.vmap(distance)(arrived.deltas) * (1 - fresh)
        boosted = 1 - jnp.exp(-far / jnp.maximum(far.max(), 1e-30))
        weights = jnp.where(late == 0, 1.0, (1 - self.boost) / (late + 1) + self.boost * boosted)
        return stepped(params, self.server_step, weighted(weights / weights.sum(), arrived.deltas)), state
