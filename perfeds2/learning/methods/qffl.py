"""q-FFL: UEs with a large loss count more, which makes the UEs' accuracies more equal."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, Objective
from perfeds2.learning.settings import StepSize, setting, traced
from perfeds2.learning.trees import pick


@traced
class QFFL(Objective):
    """Steps along f_i^q·∇f_i, the gradient of f_i^(q+1)/(q+1); the loss and its gradient are those of one batch.

    β must fit q. The paper's solver q-FedAvg also divides by an estimate of the curvature, for which UEs upload a
    second number. In the authors' code (``litian96/fair_flearn``) one step is their q-FedSGD with a static step size;
    its README uses q = 5.
    """

    paper = "Li et al., ICLR 2020, eq. (2)"
    search: ClassVar = {"beta": None, "alpha": None, "fairness": 1.0}

    fairness: StepSize = setting("q: how much more a large loss counts.", default=1.0)

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        value, gradient = jax.value_and_grad(context.loss)(params, pick(batches, 0))
        weight = jnp.maximum(value, 0.0) ** self.fairness
        return jax.tree.map(lambda g: weight * g, gradient)
