"""Ditto: beside FedAvg, every UE trains its own model, held near the global one."""

from typing import ClassVar

import jax

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, KeepsModel, descend, plain
from perfeds2.learning.settings import StepSize, setting, traced


@traced
class Ditto(KeepsModel):
    """Beside FedAvg's steps, as many of v_i −= β(∇f_i(v_i) + λ(v_i − w)) on batches of their own.

    w is the model the UE was handed. The UE keeps v_i as its own model.

    λ = 1 is that of the authors' script.
    """

    paper = "Li et al., ICML 2021, algorithm 1"
    search: ClassVar = {"beta": None, "pull": 0.1}  # the paper tries λ from 0.1 to 2

    pull: StepSize = setting("λ: how strongly a UE's model is held near the global one.", default=1.0)

    batches = 2

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def held(v: Params, own: Batches) -> Params:
            return jax.tree.map(lambda g, a, w: g + self.pull * (a - w), plain(context.loss, 1)(v, own), v, start)

        _, total = descend(plain(context.loss), start, batches, context.beta)
        own_model, _ = descend(held, client_state, batches, context.beta)
        return total, own_model
