"""FedAT: tiers of UEs with similar speed work side by side, and slow tiers weigh more."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.allocation.tiers import AllTiers
from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, Rows, mean_of, weighted
from perfeds2.learning.method import Method, Rounds, World
from perfeds2.learning.objectives import FedProx
from perfeds2.learning.settings import StepSize, setting, traced
from perfeds2.timeline.protocol import Protocol


@traced
class FedAT(Method):
    """A round closes when one tier's UEs are complete; w = Σ_m T_{M+1−m}/T · w_m over all tiers (``--tiers``).

    All M tiers work at the same time, each with A of its UEs; w_m is the mean of tier m's last round, T_m its number
    of rounds, and T their sum. Local steps are FedProx's, with 0.1 in place of the paper's 0.4. The paper's
    compression is left out. Tiers are sorted once, by the expected time of a job on an equal share of the band.
    """

    paper = "Chai et al., SC 2021, algorithm 2"
    mode = "ASY"
    has_own_rounds = True
    has_tiers = True

    proximal: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    @property
    def objective(self) -> FedProx:
        return FedProx(self.proximal)

    @property
    def merge(self) -> "TierAverage":
        return TierAverage()  # the tiers come from the rounds

    def rounds(self, world: World) -> Rounds:
        tiers = world.tiers_of()
        quorum = min(world.quorum, tiers.smallest)
        schedule = AllTiers(tiers, quorum, world.seed)
        return Rounds(Protocol(quorum, rests=True), schedule, merge=TierAverage.of(tiers.of))


@traced
class TierAverage(Merge):
    """FedAT's server: w = Σ_m T_{M+1−m}/T · w_m.

    w_m is the mean model of tier m's last round, w_0 before its first; T_m counts its rounds, and T is their sum. So the slowest
    tier gets the weight of the fastest one's rounds. As in the paper, the first rounds of the fastest tier alone change nothing.
    """

    needs = frozenset({"uploads", "start_models"})
    drops_model = True

    tiers: Rows | tuple[()] = ()  # tier of every UE
    count: int = setting(default=1, static=True)  # M

    @classmethod
    def of(cls, tiers: Sequence[int]) -> "TierAverage":
        return cls(np.asarray(tiers, np.float32), max(tiers) + 1)

    def init(self, params: Params, ues: int) -> tuple[Params, Array]:
        models = jax.tree.map(lambda w: jnp.broadcast_to(w, (self.count, *jnp.shape(w))), params)
        return models, jnp.zeros(self.count)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        models, rounds = state
        tier = jnp.asarray(self.tiers)[arrived.ues[0]].astype(jnp.int32)
        theirs = mean_of(arrived.models)
        models = jax.tree.map(lambda all_, own: all_.at[tier].set(own), models, theirs)
        rounds = rounds.at[tier].add(1.0)
        weights = rounds[::-1] / rounds.sum()
        return weighted(weights, models), (models, rounds)
