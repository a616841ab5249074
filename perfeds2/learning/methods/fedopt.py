"""FedAdam, FedYogi and FedAdagrad: adaptive optimisers at the server."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Merge, MergeState, Params
from perfeds2.learning.settings import Decay, Length, setting, traced
from perfeds2.learning.trees import zeros


@traced
class FedOpt(Merge):
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

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        first, second = state
        move = jax.tree.map(lambda g: arrived.beta * g, arrived.mean)
        first = jax.tree.map(lambda m, d: self.first_decay * m + (1 - self.first_decay) * d, first, move)
        second = jax.tree.map(self.second, second, move)
        step = jax.tree.map(lambda m, v: self.server_step * m / (jnp.sqrt(v) + self.tau), first, second)
        return jax.tree.map(jnp.subtract, params, step), (first, second)


@traced
class FedAdam(FedOpt):
    """Adam at the server: w −= η_g·m/(√v + τ), with v ← β₂·v + (1 − β₂)·Δ².

    β₁, β₂, τ and the first value of v, τ², were checked against the authors' script, as were those of FedYogi and
    FedAdagrad.
    """

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
