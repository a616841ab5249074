"""CA2FL: the server caches every UE's last move and uses these to calibrate the mean."""

import jax
import jax.numpy as jnp

from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, mean_of
from perfeds2.learning.settings import Length, setting, traced
from perfeds2.learning.trees import rows_of, stepped, zeros


@traced
class CA2FL(Merge):
    """w −= η_g·(mean of all h + mean of the round's Δ_i − h_i), where h_i is the last merged move of UE i.

    h is zero at first. The server keeps n models' worth of them.
    """

    paper = "Wang et al., ICLR 2024, algorithm 2"
    needs = frozenset({"uploads"})

    server_step: Length = setting("η_g: the server's step size.", default=1.0)

    def init(self, params: Params, ues: int) -> tuple[Params, Params]:
        """Return every UE's h, and their mean."""
        return jax.tree.map(lambda w: jnp.zeros((ues, *w.shape), w.dtype), params), zeros(params)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        cached, mean = state
        moves, ues = arrived.deltas, rows_of(cached)
        news = jax.tree.map(lambda h, d: d - h[arrived.ues], cached, moves)
        new, share = mean_of(news), arrived.ues.shape[0] / ues
        step = jax.tree.map(jnp.add, mean, new)
        mean = jax.tree.map(lambda m, d: m + share * d, mean, new)
        cached = jax.tree.map(lambda h, d: h.at[arrived.ues].set(d), cached, moves)
        return stepped(params, self.server_step, step), (cached, mean)
