"""FedNova: uploads are normalised, so that UEs that take more local steps do not count more."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, Objective, descend, plain
from perfeds2.learning.settings import Share, setting, traced
from perfeds2.learning.trees import rows_of


class SomeSteps(Objective):
    """A job takes a share of the local steps, its first ones."""

    chooses_steps = True
    normalised = False  # whether the sum of its gradients is scaled up to that of all local steps

    def share(self, context: Context) -> Float[Array, ""]:
        """Return the share of the local steps that a job takes."""
        raise NotImplementedError

    def job(
        self, start: Params, broadcast: None, client_state: None, batches: Batches, context: Context
    ) -> tuple[Params, None]:
        steps = rows_of(batches)
        taken = jnp.maximum(jnp.round(self.share(context) * steps), 1)
        _, total = descend(plain(context.loss), start, batches, context.beta, taken)
        return jax.tree.map(lambda g: steps / taken * g, total) if self.normalised else total, client_state


@traced
class FedNova(SomeSteps):
    """A job takes K_i of the K local steps and uploads K/K_i times the sum of their gradients; w −= mean.

    K_i is drawn for each job. So the effective number of steps τ_eff is K in every round. With K_i = K it is FedAvg.

    The default 0.4 is the paper's 2 to 5 epochs; the clock counts K steps for every job. The authors' code
    (``JYWa/FedNova``) has the same normalised sums, but takes the mean of the K_i as τ_eff, and a job takes 2 epochs
    or more.
    """

    paper = "Wang et al., NeurIPS 2020, eq. (6)"

    fewest: Share = setting("Smallest share of the local steps that a job takes.", default=0.4)

    normalised = True

    def share(self, context: Context) -> Float[Array, ""]:
        return jax.random.uniform(context.key, minval=self.fewest, maxval=1.0)
