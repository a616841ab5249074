"""AsyncFedED: the step of an upload shrinks with the distance the model has moved since."""

import jax
import jax.numpy as jnp

from perfeds2.learning.merges import Arrived, Merge, Params
from perfeds2.learning.settings import Length, StepSize, setting, traced
from perfeds2.learning.trees import norm, stepped


@traced
class AsyncFedED(Merge):
    """w −= η·Δ_i with η = λ/(γ + ε) and γ = ‖w − w_handed‖/‖Δ_i‖.

    The paper adapts the number of local steps, K ← K + ⌊κ(γ̄ − γ)⌋. A timeline knows no weights, so this is κ = 0. Several uploads
    are merged one after the other.

    λ = ε = 1 applies a fresh upload in full; the paper tunes both for each task. The rule was checked against the
    authors' script.
    """

    paper = "Wang et al., 2022, algorithm 1"
    mode = "ASY"
    needs = frozenset({"uploads", "start_models"})

    server_step: Length = setting("λ: the server's step size.", default=1.0)
    epsilon: StepSize = setting("ε: added to the distance γ.", default=1.0)

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        def add(w: Params, one: tuple[Params, Params]) -> tuple[Params, None]:
            start, move = one
            far, long = norm(jax.tree.map(jnp.subtract, w, start)), norm(move)
            size = self.server_step * long / jnp.maximum(far + self.epsilon * long, 1e-30)  # also for a zero move
            return stepped(w, size, move), None

        return jax.lax.scan(add, params, (arrived.start_models, arrived.deltas))[0], state
