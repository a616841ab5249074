"""Let UEs take different numbers of local steps, as FedNova and FedCompass do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from perfeds2.learning.merges import Arrived, Params, Rows, discounted, weighted
from perfeds2.learning.objectives import Batches, Loss, Number, descend, plain, stepped
from perfeds2.learning.settings import Share, setting, traced


class SomeSteps:
    """A job takes a share of the local steps, its first ones."""

    fewest: Share
    batches = 1
    normalised = False  # whether the sum of its gradients is scaled up to that of all local steps

    def first(self, params: Params) -> None:
        return None

    def job(
        self, loss: Loss, start: Params, told: None, kept: None, batches: Batches, beta: Number
    ) -> tuple[Params, None]:
        steps = jax.tree.leaves(batches)[0].shape[0]
        taken = jnp.maximum(jnp.round(self.fewest * steps), 1)

        def until_taken(w: Params, now: tuple[Batches, Array]) -> Params:
            own, number = now
            return jax.tree.map(lambda g: jnp.where(number < taken, g, 0.0), plain(loss)(w, own))

        _, total = descend(until_taken, start, (batches, jnp.arange(steps)), beta)
        return jax.tree.map(lambda g: steps / taken * g, total) if self.normalised else total, kept


@traced
class FedNova(SomeSteps):
    """A job takes K_i of the K local steps and uploads K/K_i times the sum of their gradients; w −= mean.

    K_i is drawn for each job. So the effective number of steps τ_eff is K in every round. With K_i = K it is FedAvg.
    """

    paper = "Wang et al., NeurIPS 2020, eq. (6)"

    fewest: Share = setting("Smallest share of the local steps that a job takes.", default=0.4)

    normalised = True

    def drawn(self, key: Key[Array, ""]) -> "FedNova":
        """Return the objective of one job, with the share of the steps that it takes in place of the smallest."""
        return replace(self, fewest=jax.random.uniform(key, minval=self.fewest, maxval=1.0))


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
