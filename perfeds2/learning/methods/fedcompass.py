"""FedCompass: UEs of similar speed take as many local steps as let them arrive together."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfeds2.allocation.tiers import AllTiers, arrive_together
from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, Rows, discounted, weighted
from perfeds2.learning.method import Method, Rounds, World
from perfeds2.learning.methods.fednova import SomeSteps
from perfeds2.learning.objectives import Context
from perfeds2.learning.settings import Share, setting, traced
from perfeds2.learning.trees import stepped
from perfeds2.timeline.protocol import Protocol


@traced
class FedCompass(Method):
    """Groups of A UEs of similar speed close rounds; the fastest takes all K local steps. w −= α/n·Σ Δ_i/√(1 + τ_i).

    The others take as many steps as end at the same time, at least a share of K. The paper's groups change their size
    and speeds are measured; here groups have A UEs and speeds are the expected ones.

    The authors' code multiplies by √(1 + τ) where we divide, as FedAsync's discount does. No UE comes too late for
    its group: the round waits. The variant with normalised updates is left out. Groups, steps, α and a were checked
    against the authors' script.
    """

    paper = "Li et al., ICLR 2024, algorithm 1"
    mode = "ASY"
    has_own_rounds = True

    fewest: Share = setting("Q_min/Q_max: smallest share of the local steps.", default=0.2)
    mixing: Share = setting("α: share of a round's move that is taken.", default=0.9)

    @property
    def objective(self) -> "OwnSteps":
        return OwnSteps()  # the numbers of steps come from the rounds

    @property
    def merge(self) -> "PartOfAll":
        return PartOfAll(self.mixing)  # n comes from the rounds

    def rounds(self, world: World) -> Rounds:
        tiers = world.tiers_of(max(1, world.cell.ues // world.quorum))
        quorum, steps = min(world.quorum, tiers.smallest), world.local_steps
        load = (world.cell, world.payload_bits, world.samples)
        shares = arrive_together(*load, quorum, tiers, float(self.fewest))
        whole = np.maximum(np.floor(shares * steps + 1e-9), 1) / steps
        return Rounds(
            Protocol(quorum, rests=True),
            AllTiers(tiers, quorum, world.seed),
            objective=OwnSteps(whole.astype(np.float32)),
            merge=PartOfAll(self.mixing, float(world.cell.ues)),
        )


@traced
class OwnSteps(SomeSteps):
    """Each UE takes its own number of local steps."""

    shares: Rows | tuple[()] = ()  # of the local steps, for every UE

    @property
    def work(self) -> Float[np.ndarray, " n"]:
        return np.asarray(self.shares, float)

    def share(self, context: Context) -> Float[Array, ""]:
        return jnp.asarray(self.shares)[context.ue]


@traced
class PartOfAll(Merge):
    """w −= α/n·Σ s(τ_i)·Δ_i: a group moves the model by its part of all n UEs."""

    needs = frozenset({"uploads"})

    mixing: Share = 0.9
    ues: float | Array = 1.0  # n

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        weights = discounted("poly", arrived.staleness) / self.ues
        return stepped(params, self.mixing, weighted(weights, arrived.deltas)), state
