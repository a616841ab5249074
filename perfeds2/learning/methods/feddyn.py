"""FedDyn: a linear term corrects every UE's loss, so that UEs and server agree on the minimum."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perfeds2.learning.merges import Arrived, MergeState, Params, mean_of
from perfeds2.learning.objectives import Batches, Loss, Number, descend, plain, zeros
from perfeds2.learning.settings import StepSize, setting, traced


@traced
class FedDyn:
    """Steps along ∇f_i − g_i + μ(w − w_start), then g_i += μ(w_start − w_end), which the UE keeps."""

    paper = "Acar et al., ICLR 2021, algorithm 1"
    search: ClassVar = {"beta": None, "alpha": None, "pull": 0.1}

    pull: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    batches = 1

    @property
    def merge(self) -> "DynamicMean":
        return DynamicMean()

    def first(self, params: Params) -> Params:
        return zeros(params)

    def job(
        self, loss: Loss, start: Params, told: None, kept: Params, batches: Batches, beta: Number
    ) -> tuple[Params, Params]:
        def corrected(w: Params, own: Batches) -> Params:
            gradient = plain(loss)(w, own)
            return jax.tree.map(lambda g, mine, a, b: g - mine + self.pull * (a - b), gradient, kept, w, start)

        end, total = descend(corrected, start, batches, beta)
        return total, jax.tree.map(lambda mine, a, b: mine + self.pull * (a - b), kept, start, end)


@traced
class DynamicMean:
    """FedDyn's server: s += (1/n)·Σ Δ_i, then w = mean of the UEs' models − s.

    s is h/μ of the paper, so the server needs no μ.
    """

    looks_back = True

    def init(self, params: Params, ues: int) -> tuple[Params, Number]:
        return zeros(params), jnp.asarray(ues, jnp.float32)

    def __call__(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        drift, ues = state
        share = arrived.ues.shape[0] / ues
        drift = jax.tree.map(lambda s, move: s + share * move, drift, mean_of(arrived.moves))
        return jax.tree.map(jnp.subtract, mean_of(arrived.models), drift), (drift, ues)
