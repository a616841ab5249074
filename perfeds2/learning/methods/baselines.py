"""What a UE reaches without the others: training alone, one step on w_0, or its most frequent label.

A method that does not beat these has learned nothing from the federation. They send nothing, and a federation on real
devices does not run them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.method import Rounds, World
from perfeds2.learning.models.model import Model, ModelWithLoss, RandomKey
from perfeds2.learning.objectives import Context, KeepsModel, Objective, descend, plain
from perfeds2.learning.settings import traced
from perfeds2.learning.trees import zeros
from perfeds2.timeline.protocol import Protocol


@traced
class Local(KeepsModel):
    """Every UE trains its own model alone, job after job, and uploads nothing."""

    paper = "baseline"
    mode = "ASY"
    has_own_rounds = True
    is_alone = True

    def rounds(self, world: World) -> Rounds:
        return Rounds(Protocol(1))

    def withheld(self, params: Params) -> Params:
        return params

    def job(
        self, start: Params, broadcast: None, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        end, _ = descend(plain(context.loss), client_state, batches, context.beta)
        return zeros(start), end


@traced
class NoTraining(Objective):
    """w_0 is never trained; a UE takes its personal step on it."""

    paper = "baseline"
    mode = "none"
    has_own_rounds = True
    is_alone = True
    trains = False
    search: ClassVar = {"alpha": None}

    def rounds(self, world: World) -> Rounds:
        return Rounds(Protocol(1))

    def gradient(self, params: Params, start: Params, batches: Batches, context: Context) -> Params:
        return zeros(params)


@traced
class MostFrequentLabel(NoTraining):
    """A UE predicts its most frequent training label: a personal step of a model that ignores its inputs.

    For numbers, it predicts the same number for every sample.
    """

    search: ClassVar = {}

    def replacing(self, model: Model, outputs_and_rank: Callable[[], tuple[int, int]]) -> Model:
        votes = Votes(*outputs_and_rank())
        return replace(model, model=votes) if isinstance(model, ModelWithLoss) else votes


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
