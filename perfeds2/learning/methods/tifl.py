"""TiFL: UEs are grouped into tiers of similar speed, one tier per round."""

from perfeds2.learning.settings import traced


@traced
class TiFL:
    """Each round is FedAvg with UEs of one tier, so no UE waits for a slower tier (``--tiers``)."""

    paper = "Chai et al., HPDC 2020"
    mode = "SYN"
    rounds = "one tier"
