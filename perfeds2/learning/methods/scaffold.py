"""SCAFFOLD: control variates correct the drift of local steps."""

import jax
import jax.numpy as jnp

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, mean_of
from perfeds2.learning.objectives import Context, Objective, descend, plain
from perfeds2.learning.settings import Length, setting, traced
from perfeds2.learning.trees import Number, rows_of, stepped, zeros


@traced
class Scaffold(Objective):
    """Steps along g − c_i + c, then c_i ← c_i − c + Δ_i/(steps·β) (option II); the server merges c too.

    Option II and η_g = 1 are those of the authors' script. A UE works with the c that came with its model, which may
    be stale. Uploads need no extra bits, because c_i⁺ − c_i follows from Δ_i and c; on the downlink c doubles the
    model. ``--clip`` is refused, because it would change Δ_i without the UE's knowledge.
    """

    paper = "Karimireddy et al., ICML 2020, algorithm 1"
    keeps_uploads = True

    server_step: Length = setting("η_g: the server's step size.", default=1.0)

    @property
    def merge(self) -> "ControlVariates":
        return ControlVariates(self.server_step)

    def init(self, params: Params) -> Params:
        return zeros(params)

    def job(
        self, start: Params, broadcast: Params, client_state: Params, batches: Batches, context: Context
    ) -> tuple[Params, Params]:
        def corrected(w: Params, own: Batches) -> Params:
            return jax.tree.map(lambda g, mine, c: g - mine + c, plain(context.loss)(w, own), client_state, broadcast)

        _, total = descend(corrected, start, batches, context.beta)
        steps = rows_of(batches)
        return total, jax.tree.map(lambda mine, c, d: mine - c + d / steps, client_state, broadcast, total)


@traced
class ControlVariates(Merge):
    """SCAFFOLD's server: w −= η_g·mean(Δ), and c += (A/n)·mean(c_i⁺ − c_i).

    c goes out with every model. By option II a UE's c_i⁺ − c_i is Δ_i/(steps·β) − c, with the c that was sent to it, so the server knows it
    from Δ_i and nothing more is uploaded.
    """

    needs = frozenset({"uploads", "broadcast"})

    server_step: Length = 1.0

    def init(self, params: Params, ues: int) -> tuple[Params, Number]:
        return zeros(params), jnp.asarray(ues, jnp.float32)

    def broadcast(self, state: MergeState) -> Params:
        return state[0]

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        control, ues = state
        upload, sent, share = mean_of(arrived.uploads), mean_of(arrived.broadcast), arrived.ues.shape[0] / ues
        params = stepped(params, self.server_step * arrived.beta, upload)
        change = jax.tree.map(lambda g, c: g / arrived.steps - c, upload, sent)
        return params, (jax.tree.map(lambda c, new: c + share * new, control, change), ues)
