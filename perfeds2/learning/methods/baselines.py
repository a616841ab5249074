"""What a UE reaches without the others: training alone, one step on w_0, or its most frequent label.

A method that does not beat these has learned nothing from the federation. They send nothing, and a federation on real
devices does not run them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from perfeds2.learning.merges import Params
from perfeds2.learning.models.model import Judged, Model, RandomKey
from perfeds2.learning.objectives import Batches, KeepsModel, Loss, Number, descend, plain, zeros
from perfeds2.learning.settings import traced


@traced
class Local(KeepsModel):
    """Every UE trains its own model alone, job after job, and uploads nothing."""

    paper = "baseline"
    mode = "ASY"
    rounds = "alone"

    batches = 1

    @staticmethod
    def withheld(params: Params) -> Params:
        return params

    def job(
        self, loss: Loss, start: Params, told: None, kept: Params, batches: Batches, beta: Number
    ) -> tuple[Params, Params]:
        end, _ = descend(plain(loss), kept, batches, beta)
        return zeros(start), end


@traced
class NoTraining:
    """w_0 is never trained; a UE takes its personal step on it."""

    paper = "baseline"
    mode = "none"
    rounds = "none"
    search: ClassVar = {"alpha": None}

    batches = 1

    def __call__(self, loss: Loss, params: Params, start: Params, batches: Batches) -> Params:
        return zeros(params)


@traced
class MostFrequentLabel(NoTraining):
    """A UE predicts its most frequent training label: a personal step of a model that ignores its inputs.

    For numbers, it predicts the same number for every sample.
    """

    search: ClassVar = {}

    def replacing(self, model: Model, outputs: int, rank: int) -> Model:
        """Return the model in place of the task's, for that many outputs and samples of that many axes."""
        votes = Votes(outputs, rank)
        return replace(model, model=votes) if isinstance(model, Judged) else votes


@dataclass(frozen=True)
class Votes:
    """A model whose outputs are its parameters, 0 at first.

    The gradient of cross-entropy there is a constant minus the share of each label, so the most frequent one wins.
    """

    outputs: int
    rank: int = 1  # axes of a sample

    def init(self, key: RandomKey) -> Params:
        return {"votes": jnp.zeros(self.outputs)}

    def __call__(self, params: Params, x: Shaped[Array, "..."]) -> Float[Array, "*s c"]:
        return jnp.broadcast_to(params["votes"], (*x.shape[: x.ndim - self.rank], self.outputs))
