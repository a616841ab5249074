"""SCAFFOLD: control variates correct the drift of local steps."""

import jax
import jax.numpy as jnp

from perfeds2.learning.merges import Arrived, MergeState, Params, mean_of
from perfeds2.learning.objectives import Batches, Loss, Number, descend, plain, rows_of, stepped, zeros
from perfeds2.learning.settings import Length, setting, traced


@traced
class Scaffold:
    """Steps along g − c_i + c, then c_i ← c_i − c + Δ_i/(steps·β) (option II); the server merges c too."""

    paper = "Karimireddy et al., ICML 2020, algorithm 1"

    server_step: Length = setting("η_g: the server's step size.", default=1.0)

    batches = 1

    @property
    def merge(self) -> "ControlVariates":
        return ControlVariates(self.server_step)

    def first(self, params: Params) -> Params:
        return zeros(params)

    def job(
        self, loss: Loss, start: Params, told: Params, kept: Params, batches: Batches, beta: Number
    ) -> tuple[Params, Params]:
        def corrected(w: Params, own: Batches) -> Params:
            return jax.tree.map(lambda g, mine, c: g - mine + c, plain(loss)(w, own), kept, told)

        _, total = descend(corrected, start, batches, beta)
        steps = rows_of(batches)
        return total, jax.tree.map(lambda mine, c, d: mine - c + d / steps, kept, told, total)


@traced
class ControlVariates:
    """SCAFFOLD's server: w −= η_g·mean(Δ), and c += (A/n)·mean(c_i⁺ − c_i).

    c goes out with every model. By option II a UE's c_i⁺ − c_i is Δ_i/(steps·β) − c, with the c it was told, so the server knows it
    from Δ_i and nothing more is uploaded.
    """

    server_step: Length = 1.0

    def init(self, params: Params, ues: int) -> tuple[Params, Number]:
        return zeros(params), jnp.asarray(ues, jnp.float32)

    def tell(self, state: MergeState) -> Params:
        return state[0]

    def __call__(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        control, ues = state
        upload, told, share = mean_of(arrived.uploads), mean_of(arrived.told), arrived.ues.shape[0] / ues
        params = stepped(params, self.server_step * arrived.beta, upload)
        change = jax.tree.map(lambda g, c: g / arrived.steps - c, upload, told)
        return params, (jax.tree.map(lambda c, new: c + share * new, control, change), ues)
