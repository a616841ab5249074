"""FedASMU: the share of an upload in the model depends on its staleness and is learned for every UE."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, Rows
from perfeds2.learning.settings import Length, StepSize, setting, traced
from perfeds2.learning.trees import dot

Controls = Float[Array, " 3"]  # λ_i, σ_i and ι_i of a UE


@traced
class FedASMU(Merge):
    """w ← (1 − a)·w + a·w_i with a = μξ/(1 + μξ) and ξ = λ_i/(√t·(τ + 1)^(σ_i/2)) + ι_i in round t = 1, 2, ….

    After a merge the UE's λ_i, σ_i and ι_i take a step down the loss's slope in a, ⟨g_i, w_i − w⟩; g_i is the mean
    gradient of its job. They stay at least 0. Several uploads are merged one after the other. The paper's UEs also fetch
    the newest model in the middle of a job; here they do not.

    Compared with two implementations by others. Both (``shy117/DirBridge``, ``wangpengyu2004/AFVLM_CM``) have the
    same a and ξ and start at λ = 1, ι = 0, μ = 1 with a step of 0.01. There, λ, σ and ι follow the measured loss, not
    its slope. σ is 1 in the first; the second has the exponent σ = 0.5 in place of σ/2.
    """

    paper = "Liu et al., AAAI 2024, algorithm 1"
    mode = "ASY"
    search: ClassVar = {"beta": None, "alpha": None, "scale": 1.0}
    needs = frozenset({"uploads", "start_models"})

    scale: Length = setting("μ: scale of an upload's share.", default=1.0)
    fading: StepSize = setting("λ_i at first: part of the share that falls with the rounds.", default=1.0)
    lateness: StepSize = setting("σ_i at first: how fast the share falls with staleness.", default=1.0)
    constant: StepSize = setting("ι_i at first: part of the share that stays.", default=0.0)
    control_step: StepSize = setting("Step size of λ_i, σ_i and ι_i.", default=0.01)

    def init(self, params: Params, ues: int) -> tuple[Float[Array, "n 3"], Array]:
        """Return every UE's λ_i, σ_i and ι_i, and the round."""
        first = jnp.stack([jnp.asarray(each, jnp.float32) for each in (self.fading, self.lateness, self.constant)])
        return jnp.broadcast_to(first, (ues, 3)), jnp.ones(())

    def share(self, controls: Controls, staleness: Rows, round_: Array) -> Array:
        """Return a, the share of an upload in the next model."""
        fading, lateness, constant = controls
        size = self.scale * (fading / (jnp.sqrt(round_) * (staleness + 1.0) ** (lateness / 2)) + constant)
        return size / (1 + size)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        controls, round_ = state

        def mix(carry: tuple[Params, Array], one: tuple[Params, Params, Rows, Rows]) -> tuple[tuple, None]:
            (w, controls), (model, upload, staleness, ue) = carry, one
            share, slopes = jax.value_and_grad(self.share)(controls[ue], staleness, round_)
            ways = jax.tree.map(jnp.subtract, model, w)
            learned = controls[ue] - self.control_step * dot(upload, ways) / arrived.steps * slopes
            w = jax.tree.map(lambda a, way: a + share * way, w, ways)
            return (w, controls.at[ue].set(jnp.maximum(learned, 0.0))), None

        uploads = (arrived.models, arrived.uploads, arrived.staleness, arrived.ues)
        (params, controls), _ = jax.lax.scan(mix, (params, controls), uploads)
        return params, (controls, round_ + 1)
