"""MOON: a contrastive term holds a UE's features near the global model's and away from its own last ones."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import head_of
from perfeds2.learning.objectives import Context, Objective, descend
from perfeds2.learning.settings import Length, StepSize, setting, traced
from perfeds2.learning.trees import Number, pick


@traced
class MOON(Objective):
    """Steps along ∇(f_i + μ·ℓ) with ℓ = −log(e^(near/T)/(e^(near/T) + e^(last/T))), the mean over a batch.

    The features of a sample are the inputs of the last layer. near is the cosine between its features in w and in the
    model the UE received, and last between those in w and in the model of the UE's last job. The UE keeps the latter,
    w_0 at first.

    The authors' code (``QinbinLi/MOON``) has the same loss with μ = 1, T = 0.5 and one earlier model, and adds a
    projection head of 256 numbers to the model.
    """

    paper = "Li et al., CVPR 2021, algorithm 1"
    search: ClassVar = {"beta": None, "alpha": None, "contrast": 1.0}

    contrast: StepSize = setting("μ: weight of the contrastive term.", default=1.0)
    temperature: Length = setting("T: temperature of the contrastive term.", default=0.5)

    @property
    def passes(self) -> int:
        """Return 2: the features in two more models cost about as much as a gradient."""
        return 2

    def init(self, params: Params) -> Params:
        return params

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def features(w: Params, batch: Batches) -> Float[Array, "b h"]:
            z = context.loss.outputs(w | identity(head_of(w)), batch)
            return z / jnp.sqrt(jnp.square(z).sum(axis=-1, keepdims=True) + 1e-12)

        def held(w: Params, own: Batches) -> Params:
            batch = pick(own, 0)
            away = features(client_state, batch) - features(start, batch)

            def whole(w: Params) -> Number:
                cosines = (features(w, batch) * away).sum(axis=-1)  # last − near
                return context.loss(w, batch) + self.contrast * jax.nn.softplus(cosines / self.temperature).mean()

            return jax.grad(whole)(w)

        end, total = descend(held, start, batches, context.beta)
        return total, end


def identity(head: Params) -> Params:
    """Return a last layer that hands on its inputs."""
    size = next(w.shape[0] for w in head.values() if w.ndim == 2)
    return {name: jnp.eye(size) if w.ndim == 2 else jnp.zeros(size) for name, w in head.items()}
