"""FedBN: every UE keeps its own normalisation layers."""

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import FedPer
from perfeds2.learning.settings import setting, traced


@traced
class FedBN(FedPer):
    """Steps on all layers together; normalisation layers are not uploaded. Without such layers it is FedAvg.

    Of our models, mlp-norm has one. Those of a PyTorch model are found by their names.

    mlp-norm normalises the hidden layer of each sample, so it needs no statistics of batches.
    """

    paper = "Li et al., ICLR 2021, algorithm 1"

    layers: str = setting("Text in the names of normalisation layers.", default="norm", static=True)

    def withheld(self, params: Params) -> Params:
        return {name: w for name, w in params.items() if self.layers in name.rpartition(".")[0]}
