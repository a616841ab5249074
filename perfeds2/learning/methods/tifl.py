"""TiFL: UEs are grouped into tiers of similar speed, one tier per round."""

from perfeds2.allocation.tiers import OneTier
from perfeds2.learning.method import Method, Rounds, World
from perfeds2.learning.settings import traced
from perfeds2.timeline.protocol import Protocol


@traced
class TiFL(Method):
    """Each round is FedAvg with UEs of one tier, so no UE waits for a slower tier (``--tiers``).

    UEs are sorted by latency into M tiers. Each round draws a tier with equal probability, and A of its UEs; the
    others rest. This is the paper's static policy; the adaptive one is ``--schedule tifl_adaptive``.
    """

    paper = "Chai et al., HPDC 2020"
    mode = "SYN"
    has_own_rounds = True
    has_tiers = True

    def rounds(self, world: World) -> Rounds:
        tiers = world.tiers_of()
        quorum = min(world.quorum, tiers.smallest)
        return Rounds(Protocol(quorum, rests=True), OneTier(tiers, quorum, world.seed))
