"""FedDyn: a linear term corrects every UE's loss, so that UEs and server agree on the minimum."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, mean_of
from perfeds2.learning.objectives import Context, Objective, descend, plain
from perfeds2.learning.settings import StepSize, setting, traced
from perfeds2.learning.trees import Number, zeros


@traced
class FedDyn(Objective):
    """Steps along ∇f_i − g_i + μ(w − w_start), then g_i += μ(w_start − w_end), which the UE keeps.

    The authors' code (``alpemreacar/FedDyn``) has the same two rules. Its μ is 0.01 for CIFAR-10, and smaller for UEs
    with more data, and it clips gradients at norm 10. ``--clip`` is refused, as with SCAFFOLD.
    """

    paper = "Acar et al., ICLR 2021, algorithm 1"
    keeps_uploads = True
    search: ClassVar = {"beta": None, "alpha": None, "pull": 0.1}

    pull: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    @property
    def merge(self) -> "DynamicMean":
        return DynamicMean()

    def init(self, params: Params) -> Params:
        return zeros(params)

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def corrected(w: Params, own: Batches) -> Params:
            gradient = plain(context.loss)(w, own)
            return jax.tree.map(lambda g, mine, a, b: g - mine + self.pull * (a - b), gradient, client_state, w, start)

        end, total = descend(corrected, start, batches, context.beta)
        return total, jax.tree.map(lambda mine, a, b: mine + self.pull * (a - b), client_state, start, end)


@traced
class DynamicMean(Merge):
    """FedDyn's server: s += (1/n)·Σ Δ_i, then w = mean of the UEs' models − s.

    s is h/μ of the paper, so the server needs no μ.
    """

    needs = frozenset({"uploads", "start_models"})

    def init(self, params: Params, ues: int) -> tuple[Params, Number]:
        return zeros(params), jnp.asarray(ues, jnp.float32)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        drift, ues = state
        share = arrived.ues.shape[0] / ues
        drift = jax.tree.map(lambda s, move: s + share * move, drift, mean_of(arrived.deltas))
        return jax.tree.map(jnp.subtract, mean_of(arrived.models), drift), (drift, ues)
