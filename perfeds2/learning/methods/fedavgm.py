"""FedAvgM: momentum at the server."""

import jax

from perfeds2.learning.merges import Arrived, Merge, Params
from perfeds2.learning.settings import Decay, Length, setting, traced
from perfeds2.learning.trees import stepped, zeros


@traced
class FedAvgM(Merge):
    """v ← momentum·v + Δ with Δ = mean of the UEs' moves, and w −= η_g·v.

    Its steps become ten times as long as FedAvg's, so it may diverge at a β that suits FedAvg: use ``--set
    FedAvgM.beta=0.01``. We found no code to compare η_g with.
    """

    paper = "Hsu et al., 2019"

    server_step: Length = setting("η_g: the server's step size.", default=1.0)
    momentum: Decay = setting("Share of its last step the server keeps.", default=0.9)

    def init(self, params: Params, ues: int) -> Params:
        return zeros(params)

    def step(self, params: Params, arrived: Arrived, state: Params) -> tuple[Params, Params]:
        state = jax.tree.map(lambda v, g: self.momentum * v + arrived.beta * g, state, arrived.mean)
        return stepped(params, self.server_step, state), state
