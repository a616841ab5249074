"""FedBABU: the last layer stays as it was drawn, and only personal steps change it."""

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import head_of, without_head
from perfeds2.learning.objectives import Context, Objective, plain
from perfeds2.learning.settings import traced


@traced
class FedBABU(Objective):
    """Steps on all layers but the last, which stays as it was drawn and is not uploaded.

    Personal steps change all layers. With privacy noise, the noise also moves the last layer. The authors' code
    (``jhoon-oh/FedBABU``) also gives the last layer a step of 0 and does not average it; it adds momentum and weight
    decay.
    """

    paper = "Oh et al., ICLR 2022, algorithm 1"

    def withheld(self, params: Params) -> Params:
        return head_of(params)

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        return without_head(plain(context.loss)(params, batches), head_of(params))


def body_of(params: Params) -> Params:
    """Return the arrays below the last layer."""
    head = head_of(params)
    return {name: w for name, w in params.items() if name not in head}
