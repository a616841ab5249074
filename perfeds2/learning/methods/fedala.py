"""FedALA: a UE learns how much of each weight of the shared last layer it takes over."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.methods.fedrep import head_of
from perfeds2.learning.objectives import Context, Objective, descend, plain
from perfeds2.learning.settings import StepSize, setting, traced
from perfeds2.learning.trees import pick

Kept = tuple[Params, Params]  # the UE's own last layer, and the shares W


@traced
class FedALA(Objective):
    """A job starts from v_i + (w − v_i)·W_i in the last layer and from w below it; then FedAvg's steps.

    v_i is the UE's last layer after its last job. W_i is 1 at first. Before each job it takes as many gradient steps of
    length η as the job has local steps, on other batches, and is kept between 0 and 1. The UE's own model is where a job
    would start from the newest model.

    The server applies local steps, as for all methods here; the paper's averages local models, which diverged with
    stale updates. The authors' code (``TsingZ0/FedALA``) has the same rule, first W_i and η for the last layer only.
    There, W_i learns for an epoch on 80 % of the data, and in the first job until the loss settles.
    """

    paper = "Zhang et al., AAAI 2023, algorithm 1"
    search: ClassVar = {"beta": None, "share_step": 1.0}

    share_step: StepSize = setting("η: step size of the shares W_i.", default=1.0)

    batches = 2

    def init(self, params: Params) -> Kept:
        head = head_of(params)
        return head, jax.tree.map(jnp.ones_like, head)

    @staticmethod
    def personal(params: Params, client_state: Kept) -> Params:
        own, shares = client_state
        return params | {name: own[name] + (params[name] - own[name]) * shares[name] for name in own}

    def job(
        self, start: Params, broadcast: None, client_state: Kept, batches: Batches, context: Context
    ) -> tuple[Params, Kept]:
        own, shares = client_state

        def learn(shares: Params, now: Batches) -> tuple[Params, None]:
            slope = jax.grad(lambda shares: context.loss(self.personal(start, (own, shares)), pick(now, 1)))(shares)
            return jax.tree.map(lambda w, g: jnp.clip(w - self.share_step * g, 0.0, 1.0), shares, slope), None

        shares, _ = jax.lax.scan(learn, shares, batches)
        mixed = self.personal(start, (own, shares))
        end, total = descend(plain(context.loss), mixed, batches, context.beta)
        return total, ({name: end[name] for name in own}, shares)
