"""Local epochs: each UE takes as many steps as its samples fill batches."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from perfeds2.learning.gradients import Batches
from perfeds2.learning.models.model import Params
from perfeds2.learning.objectives import Context, Objective, descend
from perfeds2.learning.settings import traced

Steps = Float[Array, "..."] | Float[np.ndarray, "..."]


@traced
class LocalEpochs(Objective):
    """An objective whose jobs take each UE's own number of local steps. With several, the largest number is compiled."""

    inner: Objective
    steps: Steps  # of every UE

    @property
    def batches(self) -> int:
        return self.inner.batches

    @property
    def passes(self) -> int:
        return self.inner.passes

    def passes_with(self, product: float) -> float:
        return self.inner.passes_with(product)

    @property
    def work(self) -> Float[np.ndarray, " n"]:
        steps = np.asarray(self.steps, float)
        return steps / steps.max()

    def withheld(self, params: Params) -> Params:
        return self.inner.withheld(params)

    def job(
        self,
        start: Params,
        broadcast: None,  # noqa: ARG002 (the interface)
        client_state: None,
        batches: Batches,
        context: Context,
    ) -> tuple[Params, None]:
        def gradient(w: Params, own: Batches) -> Params:
            return self.inner.gradient(w, start, own, context)

        _, total = descend(gradient, start, batches, context.beta, jnp.asarray(self.steps)[context.ue])
        return total, client_state


def steps_of(train_count: Int[np.ndarray, " n"], epochs: float, batch: int) -> Float[np.ndarray, " n"]:
    """Return each UE's local steps: as many as draw its samples ``epochs`` times, and at least one."""
    return np.maximum(np.round(epochs * np.asarray(train_count) / batch), 1).astype(np.float32)
