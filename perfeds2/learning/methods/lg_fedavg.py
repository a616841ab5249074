"""LG-FedAvg: every UE keeps its own layers below a shared last layer."""

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedbabu import body_of
from perfeds2.learning.methods.fedrep import FedPer
from perfeds2.learning.settings import traced


@traced
class LGFedAvg(FedPer):
    """Steps on all layers together; only the last one is uploaded. The opposite of FedPer.

    The authors' code (``pliang279/LG-FedAvg``) also shares the last layer. It starts from a model of FedAvg, and
    counts each UE's best model by test accuracy.
    """

    paper = "Liang et al., 2020, algorithm 1"

    def withheld(self, params: Params) -> Params:
        return body_of(params)
