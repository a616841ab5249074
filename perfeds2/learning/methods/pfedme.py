"""pFedMe: personalisation by Moreau envelopes."""

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, KeepsModel, Moreau
from perfeds2.learning.settings import traced
from perfeds2.learning.trees import pick, stepped, zeros


@traced
class PFedMe(KeepsModel, Moreau):
    """In each local step θ ≈ argmin f_i(θ) + λ/2‖θ − w‖², then w −= β·λ(w − θ).

    θ is found by gradient steps from w on the step's batch, as in Moreau. The UE keeps its last θ as its own model.

    θ starts at w with steps of α/(1 + αλ); the authors' code starts at the last θ.
    """

    paper = "Dinh et al., NeurIPS 2020, algorithm 1"

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def step(carry: tuple[Params, Params, Params], own: Batches) -> tuple[tuple[Params, Params, Params], None]:
            w, total, _ = carry
            theta = self.personal_model(context.loss, w, pick(own, 0))
            g = jax.tree.map(lambda v, t: self.moreau * (v - t), w, theta)
            return (stepped(w, context.beta, g), jax.tree.map(jnp.add, total, g), theta), None

        (_, total, theta), _ = jax.lax.scan(step, (start, zeros(start), client_state), batches)
        return total, theta
