"""pFedMe: personalisation by Moreau envelopes."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Loss, Moreau, pick, stepped, zeros
from perfeds2.learning.settings import Length, Steps, StepSize, setting, traced
from perfeds2.theory.constants import ALPHA


@traced
class PFedMe:
    """In each local step θ ≈ argmin f_i(θ) + λ/2‖θ − w‖², then w −= β·λ(w − θ).

    θ comes from w as Moreau's does, on the step's batch. The UE keeps its last θ as its own model.
    """

    paper = "Dinh et al., NeurIPS 2020, algorithm 1"

    alpha: StepSize = ALPHA
    moreau: Length = setting("λ: how strongly the personal model is held near the global one.", default=15.0)
    moreau_steps: Steps = setting("K: gradient steps to the personal model.", default=5, static=True)

    batches = 1

    @property
    def passes(self) -> int:
        return self.moreau_steps

    def first(self, params: Params) -> Params:
        return params

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        envelope = Moreau(self.alpha, self.moreau, self.moreau_steps)

        def step(carry: tuple[Params, Params, Params], own: Any) -> tuple[tuple[Params, Params, Params], None]:
            w, total, _ = carry
            theta = envelope.personal_model(loss, w, pick(own, 0))
            g = jax.tree.map(lambda v, t: self.moreau * (v - t), w, theta)
            return (stepped(w, beta, g), jax.tree.map(jnp.add, total, g), theta), None

        nothing = zeros(start)
        (_, total, theta), _ = jax.lax.scan(step, (start, nothing, kept), batches)
        return total, theta

    @staticmethod
    def personal(params: Params, kept: Params) -> Params:  # noqa: ARG004 (the interface)
        return kept
