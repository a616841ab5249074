"""FedPer and FedRep: the last layer, the head, stays on the UE."""

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, Objective, descend, plain
from perfeds2.learning.settings import Steps, setting, traced

HEAD = "dense"  # the last layer of our models is the last with this name


def head_of(params: Params) -> Params:
    """Return the arrays of the last layer: of dense1 … dense11 the eleventh, not the ninth."""
    layers = {name.partition(".")[0] for name in params if name.startswith(HEAD)}
    if not layers:
        raise ValueError(
            f"the model has no layer whose name begins with {HEAD}, so its last layer is unknown; name that layer {HEAD}."
        )
    last = max(layers, key=lambda layer: (len(layer), layer))
    return {name: w for name, w in params.items() if name.partition(".")[0] == last}


class KeepsHead(Objective):
    """A memory that holds the UE's own head. Its own model is the shared layers with this head."""

    @staticmethod
    def personal(params: Params, client_state: Params) -> Params:
        return params | client_state

    def withheld(self, params: Params) -> Params:
        return head_of(params)

    def init(self, params: Params) -> Params:
        return self.withheld(params)


@traced
class FedPer(KeepsHead):
    """Steps on all layers together; the last one is not uploaded.

    We found no code to compare with its single local layer.
    """

    paper = "Arivazhagan et al., 2019, algorithms 1 and 2"

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        end, total = descend(plain(context.loss), start | client_state, batches, context.beta)
        return without_head(total, client_state), {name: end[name] for name in client_state}


@traced
class FedRep(KeepsHead):
    """τ steps of the UE's own head for every local step of the layers below; the head is not uploaded.

    As in the paper's experiments, ten epochs of the head to one of the others.

    In the authors' code (``lgcollins/FedRep``) the layers below train for one epoch on CIFAR-10 with two labels, and
    otherwise for five.
    """

    paper = "Collins et al., ICML 2021, algorithm 1"

    head_steps: Steps = setting("τ: steps of the head for each of the layers below.", default=10, static=True)

    @property
    def batches(self) -> int:
        """Return one batch for a step of the layers below, plus those of the head."""
        return 1 + self.head_steps

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def of_head(head: Params, batch: Batches) -> Params:
            return jax.grad(lambda own: context.loss(start | own, batch))(head)

        def of_body(w: Params, own: Batches) -> Params:
            return without_head(plain(context.loss)(w, own), client_state)

        for_head = jax.tree.map(lambda b: b[:, 1:].reshape(-1, *b.shape[2:]), batches)
        head, _ = descend(of_head, client_state, for_head, context.beta)
        _, total = descend(of_body, start | head, batches, context.beta)
        return total, head


def without_head(gradient: Params, head: Params) -> Params:
    """Return the gradient with zeros for the head, which is not uploaded."""
    return {name: jnp.zeros_like(g) if name in head else g for name, g in gradient.items()}
