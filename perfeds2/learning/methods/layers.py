"""Keep part of the layers on the UE, as FedPer, FedRep, FedBABU, LG-FedAvg, FedBN and FedALA do."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Batches, Loss, Number, descend, pick, plain
from perfeds2.learning.settings import Steps, StepSize, setting, traced

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


class KeepsHead:
    """A memory that holds the UE's own head. Its own model is the shared layers with this head."""

    @staticmethod
    def personal(params: Params, kept: Params) -> Params:
        return params | kept

    first = withheld = staticmethod(head_of)


@traced
class FedPer(KeepsHead):
    """Steps on all layers together; the last one is not uploaded."""

    paper = "Arivazhagan et al., 2019, algorithms 1 and 2"

    batches = 1

    def job(
        self, loss: Loss, start: Params, told: None, kept: Params, batches: Batches, beta: Number
    ) -> tuple[Params, Params]:
        end, total = descend(plain(loss), start | kept, batches, beta)
        return without_head(total, kept), {name: end[name] for name in kept}


@traced
class FedRep(KeepsHead):
    """τ steps of the UE's own head for every local step of the layers below; the head is not uploaded.

    As in the paper's experiments, ten epochs of the head to one of the others.
    """

    paper = "Collins et al., ICML 2021, algorithm 1"

    head_steps: Steps = setting("τ: steps of the head for each of the layers below.", default=10, static=True)

    @property
    def batches(self) -> int:
        """Return one batch for a step of the layers below, plus those of the head."""
        return 1 + self.head_steps

    def job(
        self, loss: Loss, start: Params, told: None, kept: Params, batches: Batches, beta: Number
    ) -> tuple[Params, Params]:
        def of_head(head: Params, batch: Batches) -> Params:
            return jax.grad(lambda own: loss(start | own, batch))(head)

        def of_body(w: Params, own: Batches) -> Params:
            return without_head(plain(loss)(w, own), kept)

        for_head = jax.tree.map(lambda b: b[:, 1:].reshape(-1, *b.shape[2:]), batches)
        head, _ = descend(of_head, kept, for_head, beta)
        _, total = descend(of_body, start | head, batches, beta)
        return total, head


def without_head(gradient: Params, head: Params) -> Params:
    """Return the gradient with zeros for the head, which is not uploaded."""
    return {name: jnp.zeros_like(g) if name in head else g for name, g in gradient.items()}


@traced
class FedBABU:
    """Steps on all layers but the last, which all UEs have as it was drawn and do not upload."""

    paper = "Oh et al., ICLR 2022, algorithm 1"

    batches = 1
    withheld = staticmethod(head_of)

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        return without_head(plain(loss)(params, batches), head_of(params))


def body_of(params: Params) -> Params:
    """Return the arrays below the last layer."""
    head = head_of(params)
    return {name: w for name, w in params.items() if name not in head}


@traced
class LGFedAvg(FedPer):
    """Steps on all layers together; only the last one is uploaded. The opposite of FedPer."""

    paper = "Liang et al., 2020, algorithm 1"

    first = withheld = staticmethod(body_of)


@traced
class FedBN(FedPer):
    """Steps on all layers together; normalisation layers are not uploaded. Without such layers it is FedAvg.

    Of our models, mlp-norm has one. Those of a PyTorch model are found by their names.
    """

    paper = "Li et al., ICLR 2021, algorithm 1"

    layers: str = setting("Text in the names of normalisation layers.", default="norm", static=True)

    def withheld(self, params: Params) -> Params:
        return {name: w for name, w in params.items() if self.layers in name.rpartition(".")[0]}

    first = withheld


Kept = tuple[Params, Params]  # the UE's own last layer, and the shares W


@traced
class FedALA:
    """A job starts from v_i + (w − v_i)·W_i in the last layer and from w below it; then FedAvg's steps.

    v_i is the UE's last layer after its last job. Before each job, W_i takes a step of length η along the loss's slope
    for every local step, on batches of its own, within 0 and 1. It is 1 at first. The UE's own model is where a job
    would start from the newest model.
    """

    paper = "Zhang et al., AAAI 2023, algorithm 1"
    search: ClassVar = {"beta": None, "share_step": 1.0}

    share_step: StepSize = setting("η: step size of the shares W_i.", default=1.0)

    batches = 2

    def first(self, params: Params) -> Kept:
        head = head_of(params)
        return head, jax.tree.map(jnp.ones_like, head)

    @staticmethod
    def personal(params: Params, kept: Kept) -> Params:
        own, shares = kept
        return params | {name: own[name] + (params[name] - own[name]) * shares[name] for name in own}

    def job(
        self, loss: Loss, start: Params, told: None, kept: Kept, batches: Batches, beta: Number
    ) -> tuple[Params, Kept]:
        own, shares = kept

        def learn(shares: Params, now: Batches) -> tuple[Params, None]:
            slope = jax.grad(lambda shares: loss(self.personal(start, (own, shares)), pick(now, 1)))(shares)
            return jax.tree.map(lambda w, g: jnp.clip(w - self.share_step * g, 0.0, 1.0), shares, slope), None

        shares, _ = jax.lax.scan(learn, shares, batches)
        mixed = self.personal(start, (own, shares))
        end, total = descend(plain(loss), mixed, batches, beta)
        return total, ({name: end[name] for name in own}, shares)
