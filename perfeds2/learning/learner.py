"""Describe how a UE computes an update and how the server merges a round."""

from dataclasses import dataclass, field
from typing import get_args

import jax
import numpy as np

from perfeds2.errors import InputError
from perfeds2.learning.attacks import Attack
from perfeds2.learning.merges import MEAN, Merge, Need
from perfeds2.learning.models.model import Model
from perfeds2.learning.noise import NoiseSeed
from perfeds2.learning.objectives import Objective, keeps_state
from perfeds2.learning.task import weight_shapes
from perfeds2.learning.transforms import Chain, Transform, compressed
from perfeds2.theory.constants import ALPHA


@dataclass(frozen=True)
class Learner:
    """How a UE computes an update and how the server merges a round."""

    objective: Objective
    beta: float = 0.07  # β: the server's step size, and the UE's if it takes several local steps
    batch: int = 40
    local_steps: int = 1
    merge: Merge = MEAN
    alpha: float | None = None  # α of the personal step in evaluations; None: the objective's own, or the paper's
    clip: float | None = None  # largest norm of an upload; None: no clipping
    bits: int | None = None  # bits per number of an upload; None: no quantisation
    top_k: float | None = None  # share of the numbers that is uploaded; the rest waits for later uploads; None: all
    compress: Transform | None = None  # another compression with error feedback; None: none
    noise: float | None = None  # σ: noise on the sum of a round, divided by ``clip``; None: no noise
    bands: int = 1  # rounds that share noise; 1: independent noise
    noise_seed: NoiseSeed | None = field(default=None, repr=False)  # secret bits of the noise; None: the run's seed
    personal_steps: int = 1  # personal steps in an evaluation, unless UEs keep models of their own
    attack: Attack | None = None  # what hostile UEs upload; None: there are none
    feedback: str | None = None  # what UEs report to the schedule, a name in ``REPORTS``; None: nothing

    def __post_init__(self) -> None:
        if self.bits is not None and self.bits < 2:
            raise ValueError(f"bits must be at least 2, a sign and a step, got {self.bits}.")
        expect_part(self.objective, Objective, "an objective")
        expect_part(self.merge, Merge, "a merge")
        if unknown := self.merge.needs - set(get_args(Need)):
            raise InputError(f"{type(self.merge).__name__} needs {min(unknown)}; use {', '.join(get_args(Need))}.")

    @property
    def personal_step(self) -> float:
        """Return the α that evaluations use."""
        if self.alpha is not None:
            return self.alpha
        return ALPHA if self.objective.alpha is None else float(self.objective.alpha)

    @property
    def samples(self) -> int:
        """Return the number of samples one job computes on, d_i in the paper. It determines the computing time."""
        return self.local_steps * self.objective.passes * self.batch

    @property
    def chain(self) -> Chain:
        """Return the compression that an upload passes."""
        return compressed(self.bits, self.top_k, self.compress)

    def keeps(self, model: Model) -> bool:
        """Return whether UEs keep anything between their jobs."""
        return self.chain.has_feedback or keeps_state(self.objective, weight_shapes(model))

    def broadcast_size(self, model: Model) -> float:
        """Return the size of what is sent to a UE, in models: 1, or more if the merge sends arrays along."""
        shapes = weight_shapes(model)
        sent = jax.eval_shape(lambda params: self.merge.broadcast(self.merge.init(params, 1)), shapes)
        numbers = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (sent, shapes)]
        return 1 + numbers[0] / numbers[1]

    @property
    def merge_weighs(self) -> bool:
        """Return whether the merge uses uploads only through their mean, weighted by staleness."""
        return self.merge.weights(np.zeros(1, int)) is not None

    def merge_keeps(self, model: Model) -> bool:
        """Return whether the merge keeps state between rounds."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda params: self.merge.init(params, 1), weight_shapes(model))))


def expect_part(part: object, kind: type, what: str) -> None:
    """Refuse an object that is not derived from a base class, and name the line that would derive it."""
    if not isinstance(part, kind):
        name = part.__name__ if isinstance(part, type) else type(part).__name__
        raise InputError(
            f"{name} is not {what}. Write class {name}({kind.__name__}): after from perfeds2 import {kind.__name__} "
            f"(docs/how-to/own-methods.md)."
        )
