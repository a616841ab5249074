"""FedBABU: the last layer stays as it was drawn, and only personal steps change it."""

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import head_of, without_head
from perfeds2.learning.objectives import Batches, Loss, plain
from perfeds2.learning.settings import traced


@traced
class FedBABU:
    """Steps on all layers but the last, which all UEs have as it was drawn and do not upload."""

    paper = "Oh et al., ICLR 2022, algorithm 1"

    batches = 1
    withheld = staticmethod(head_of)

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        return without_head(plain(loss)(params, batches), head_of(params))


def body_of(params: Params) -> Params:
    """Return the arrays below the last layer."""
    head = head_of(params)
    return {name: w for name, w in params.items() if name not in head}
