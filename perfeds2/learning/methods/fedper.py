"""FedPer: the last layer stays at the UE."""

from typing import Any

import jax
from jaxtyping import Array, Float

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.head import head_of, with_head, without_head
from perfeds2.learning.objectives import Loss, descend, pick
from perfeds2.learning.settings import traced


@traced
class FedPer:
    """Steps on all layers together; the last one is not uploaded."""

    paper = "Arivazhagan et al., 2019, algorithms 1 and 2"

    batches = 1

    def first(self, params: Params) -> Params:
        return head_of(params)

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (the interface)
        kept: Params,
        batches: Any,
        beta: Float[Array, ""],
    ) -> tuple[Params, Params]:
        end, total = descend(lambda w, own: jax.grad(loss)(w, pick(own, 0)), with_head(start, kept), batches, beta)
        return without_head(total, kept), {name: end[name] for name in kept}

    personal = staticmethod(with_head)
    withheld = staticmethod(head_of)
