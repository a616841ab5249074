"""TiFL: UEs in tiers of equal speed, one tier a round."""

from perfeds2.learning.settings import traced


@traced
class TiFL:
    """Each round is FedAvg with UEs of one tier, so nobody waits for a slower tier (``--tiers``)."""

    paper = "Chai et al., HPDC 2020"
    mode = "SYN"
    rounds = "one tier"
