"""FedCompass: UEs of similar speed take as many local steps as let them arrive together."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from perfeds2.learning.merges import Arrived, Params, Rows, discounted, weighted
from perfeds2.learning.methods.fednova import SomeSteps
from perfeds2.learning.objectives import stepped
from perfeds2.learning.settings import Share, setting, traced


@traced
class FedCompass:
    """Groups of A UEs of similar speed close rounds; the fastest takes all K local steps. w −= α/n·Σ Δ_i/√(1 + τ_i).

    The others take as many steps as end at the same time, at least a share of K. The paper's groups change their size
    and speeds are measured; here groups have A UEs and speeds are the expected ones.
    """

    paper = "Li et al., ICLR 2024, algorithm 1"
    mode = "ASY"
    rounds = "groups"

    fewest: Share = setting("Q_min/Q_max: smallest share of the local steps.", default=0.2)
    mixing: Share = setting("α: share of a round's move that is taken.", default=0.9)

    @property
    def objective(self) -> "OwnSteps":
        return OwnSteps(self.fewest)

    @property
    def merge(self) -> "PartOfAll":
        return PartOfAll(self.mixing)


@traced
class OwnSteps(SomeSteps):
    """Each UE takes its own number of local steps."""

    fewest: Share = 0.2
    shares: Rows | tuple[()] = ()  # of the local steps, for every UE; they come from the rounds

    def of_ue(self, ue: Int[Array, ""]) -> "OwnSteps":
        """Return the objective of one UE, with its share in place of the smallest."""
        return replace(self, fewest=jnp.asarray(self.shares)[ue])


@traced
class PartOfAll:
    """w −= α/n·Σ s(τ_i)·Δ_i: a group moves the model by its part of all n UEs."""

    mixing: Share = 0.9

    def init(self, params: Params, ues: int) -> Float[Array, ""]:
        """Return n."""
        return jnp.asarray(ues, jnp.float32)

    def __call__(self, params: Params, arrived: Arrived, state: Array) -> tuple[Params, Array]:
        weights = discounted("poly", arrived.staleness) / state
        return stepped(params, self.mixing, weighted(weights, arrived.moves)), state
