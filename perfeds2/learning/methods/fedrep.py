"""FedRep: first the UE's own head is trained, then the shared layers below it."""

from typing import Any

import jax
from jaxtyping import Array, Float

from perfeds2.learning.merges import Params
from perfeds2.learning.methods.head import head_of, with_head, without_head
from perfeds2.learning.objectives import Loss, descend, pick
from perfeds2.learning.settings import Steps, setting, traced


@traced
class FedRep:
    """τ steps of the UE's own head for every local step of the layers below; the head is not uploaded.

    As in the paper's experiments, ten epochs of the head to one of the others.
    """

    paper = "Collins et al., ICML 2021, algorithm 1"

    head_steps: Steps = setting("τ: steps of the head for each of the layers below.", default=10, static=True)

    @property
    def batches(self) -> int:
        """One for a step of the layers below, and the head's."""
        return 1 + self.head_steps

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
        def of_head(head: Params, batch: Any) -> Params:
            return jax.grad(lambda own: loss(with_head(start, own), batch))(head)

        def of_body(w: Params, own: Any) -> Params:
            return without_head(jax.grad(loss)(w, pick(own, 0)), kept)

        for_head = jax.tree.map(lambda b: b[:, 1:].reshape(-1, *b.shape[2:]), batches)
        head, _ = descend(of_head, kept, for_head, beta)
        _, total = descend(of_body, with_head(start, head), batches, beta)
        return total, head

    personal = staticmethod(with_head)
    withheld = staticmethod(head_of)
