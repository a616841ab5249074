"""Local epochs: each UE takes as many steps as its samples fill batches."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from perfeds2.learning.models.model import Params
from perfeds2.learning.objectives import Annealed, Batches, Loss, Number, Objective, descend, passes, rows_of
from perfeds2.learning.settings import traced

Steps = Float[Array, "..."] | Float[np.ndarray, "..."]


@traced
class LocalEpochs:
    """An objective whose jobs take each UE's own number of local steps. With several, the largest number is compiled."""

    inner: Objective
    steps: Steps  # of every UE, or of one

    @property
    def batches(self) -> int:
        return self.inner.batches

    @property
    def passes(self) -> int:
        return passes(self.inner)

    def at(self, version: Int[Array, ""]) -> "LocalEpochs":
        """Return the objective at a model version."""
        return replace(self, inner=self.inner.at(version)) if isinstance(self.inner, Annealed) else self

    def of_ue(self, ue: Int[Array, ""]) -> "LocalEpochs":
        """Return the objective of one UE."""
        return replace(self, steps=jnp.asarray(self.steps)[ue])

    def first(self, params: Params) -> None:  # noqa: ARG002 (required by Stateful)
        return None

    def job(
        self,
        loss: Loss,
        start: Params,
        told: None,  # noqa: ARG002 (required by Stateful)
        kept: None,
        batches: Batches,
        beta: Number,
    ) -> tuple[Params, None]:
        def until_taken(w: Params, now: tuple[Batches, Array]) -> Params:
            own, number = now
            return jax.tree.map(lambda g: jnp.where(number < self.steps, g, 0.0), self.inner(loss, w, start, own))

        _, total = descend(until_taken, start, (batches, jnp.arange(rows_of(batches))), beta)
        return total, kept


def steps_of(train_count: Int[np.ndarray, " n"], epochs: float, batch: int) -> Float[np.ndarray, " n"]:
    """Return each UE's local steps: as many as draw its samples ``epochs`` times, and at least one."""
    return np.maximum(np.round(epochs * np.asarray(train_count) / batch), 1).astype(np.float32)
