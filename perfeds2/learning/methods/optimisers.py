"""Step along the mean with an optimiser at the server, as FedAdam, FedYogi, FedAdagrad, FedAvgM and FADAS do."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.merges import Arrived, MergeState, Params, Rows, mean_of
from perfeds2.learning.objectives import Scalar, stepped, zeros
from perfeds2.learning.settings import Decay, Length, StepSize, setting, traced


@traced
class FedOpt:
    """m and v follow Δ = mean of the UEs' moves, and w −= η_g·m/(√v + τ). The three differ in how v follows Δ.

    There is no bias correction; instead v begins with τ². The paper tunes η_g, between 0.01 and 0.3 for most tasks.
    """

    paper = "Reddi et al., ICLR 2021, algorithm 2"
    search: ClassVar = {"server_step": 0.01, "alpha": None}  # β cancels out with one local step

    server_step: Length = setting("η_g: the server's step size.", default=0.01)
    first_decay: Decay = setting("β₁: decay of the first moment.", default=0.9)
    second_decay: Decay = setting("β₂: decay of the second moment.", default=0.99)
    tau: Length = setting("τ: how adaptive the server is.", default=1e-3)

    def second(self, v: Array, d: Array) -> Array:
        """Return the next second moment."""
        raise NotImplementedError

    def init(self, params: Params, ues: int) -> tuple[Params, Params]:
        return zeros(params), jax.tree.map(lambda w: jnp.full_like(w, self.tau**2), params)

    def step(self, params: Params, mean: Params, beta: Scalar, state: MergeState) -> tuple[Params, MergeState]:
        first, second = state
        move = jax.tree.map(lambda g: beta * g, mean)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(self.second, second, move)
        step = jax.tree.map(lambda m, v: self.server_step * m / (jnp.sqrt(v) + self.tau), first, second)
        return jax.tree.map(jnp.subtract, params, step), (first, second)


@traced
class FedAdam(FedOpt):
    """Adam at the server: w −= η_g·m/(√v + τ), with v ← β₂·v + (1 − β₂)·Δ²."""

    def second(self, v: Array, d: Array) -> Array:
        return self.second_decay * v + (1 - self.second_decay) * d**2


@traced
class FedYogi(FedOpt):
    """Yogi at the server: w −= η_g·m/(√v + τ), with v ← v − (1 − β₂)·Δ²·sign(v − Δ²)."""

    def second(self, v: Array, d: Array) -> Array:
        return v - (1 - self.second_decay) * d**2 * jnp.sign(v - d**2)


@traced
class FedAdagrad(FedOpt):
    """Adagrad at the server: w −= η_g·m/(√v + τ), with v ← v + Δ²."""

    first_decay: Decay = setting("β₁: decay of the first moment.", default=0.0)

    def second(self, v: Array, d: Array) -> Array:
        return v + d**2


@traced
class FedAvgM:
    """v ← momentum·v + Δ with Δ = mean of the UEs' moves, and w −= η_g·v."""

    paper = "Hsu et al., 2019"

    server_step: Length = setting("η_g: the server's step size.", default=1.0)
    momentum: Decay = setting("Share of its last step the server keeps.", default=0.9)

    def init(self, params: Params, ues: int) -> Params:
        return zeros(params)

    def step(self, params: Params, mean: Params, beta: Scalar, state: Params) -> tuple[Params, Params]:
        state = jax.tree.map(lambda v, g: self.momentum * v + beta * g, state, mean)
        return stepped(params, self.server_step, state), state


@traced
class FADAS:
    """AMSGrad on the mean move with step η, or η/τ_max where the round's largest staleness τ_max exceeds τ_c.

    The paper prints min(η, 1/τ_max), which at η = 0.001 acts only beyond τ_max = 1,000; its authors' code divides η by τ_max.
    """

    paper = "Wang et al., ICML 2024, algorithm 1"
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

    def __call__(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        first, second, largest = state
        move = mean_of(arrived.moves)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(lambda v, d: self.second_decay * v + (1 - self.second_decay) * d**2, second, move)
        largest = jax.tree.map(jnp.maximum, largest, second)
        latest = arrived.staleness.max()
        size = self.server_step / jnp.where(latest > self.late, latest, 1.0)
        step = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + self.epsilon), first, largest)
        return jax.tree.map(jnp.subtract, params, step), (first, second, largest)
