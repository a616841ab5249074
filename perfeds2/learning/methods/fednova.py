"""FedNova: uploads are normalised, so that UEs that take more local steps do not count more."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Batches, Loss, Number, descend, plain, rows_of
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
        steps = rows_of(batches)
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
