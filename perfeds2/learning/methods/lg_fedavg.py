"""LG-FedAvg: every UE keeps its own layers below a shared last layer."""

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import FedPer, head_of
from perfeds2.learning.settings import traced


def body_of(params: Params) -> Params:
    """Return the arrays below the last layer."""
    head = head_of(params)
    return {name: w for name, w in params.items() if name not in head}


@traced
class LGFedAvg(FedPer):
    """Steps on all layers together; only the last one is uploaded. The opposite of FedPer."""

    paper = "Liang et al., 2020, algorithm 1"

    first = withheld = staticmethod(body_of)
