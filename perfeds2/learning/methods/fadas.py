"""FADAS: AMSGrad at the server, with a shorter step in rounds with late uploads."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, Rows, mean_of
from perfeds2.learning.settings import Decay, Length, StepSize, setting, traced
from perfeds2.learning.trees import zeros


@traced
class FADAS(Merge):
    """AMSGrad on the mean move with step η, or η/τ_max where the round's largest staleness τ_max exceeds τ_c.

    The paper prints min(η, 1/τ_max), which at η = 0.001 acts only beyond τ_max = 1,000; its authors' code divides η by τ_max.

    β₁, β₂, ε, η and τ_c were checked against the authors' script.
    """

    paper = "Wang et al., ICML 2024, algorithm 1"
    needs = frozenset({"uploads"})
    search: ClassVar = {"server_step": 0.001, "alpha": None}  # β cancels out with one local step

    server_step: Length = setting("η: the server's step size.", default=0.001)
    first_decay: Decay = setting("β₁: decay of the first moment.", default=0.9)
    second_decay: Decay = setting("β₂: decay of the second moment.", default=0.99)
    epsilon: StepSize = setting("ε: added to the root of the second moment.", default=1e-8)
    late: StepSize = setting("τ_c: staleness from which an upload is late.", default=1.0)

    def init(self, params: Params, ues: int) -> tuple[Params, Params, Params]:
        return zeros(params), zeros(params), zeros(params)

    def weights(self, staleness: Rows) -> Float[Array, "..."]:
        """Return 1 for every upload."""
        return jnp.ones(staleness.shape)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        first, second, largest = state
        move = mean_of(arrived.deltas)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(lambda v, d: self.second_decay * v + (1 - self.second_decay) * d**2, second, move)
        largest = jax.tree.map(jnp.maximum, largest, second)
        latest = arrived.staleness.max()
        size = self.server_step / jnp.where(latest > self.late, latest, 1.0)
        step = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + self.epsilon), first, largest)
        return jax.tree.map(jnp.subtract, params, step), (first, second, largest)
