"""APFL: a UE's own model mixes a local model and the global one, with an adaptive share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from perfeds2.learning.gradients import Batches
from perfeds2.learning.merges import Params
from perfeds2.learning.objectives import Context, Objective
from perfeds2.learning.settings import Share, setting, traced
from perfeds2.learning.trees import Number, dot, pick, rows_of, stepped, zeros


@traced
class APFL(Objective):
    """A UE's own model is v̄ = α_i·v_i + (1 − α_i)·w, and v_i −= β·∇_v f_i(v̄), beside FedAvg.

    w takes its steps on the same batches, and ∇_v f_i(v̄) = α_i·∇f_i(v̄). Once a job, with its first batch, α_i follows its
    own slope: α_i −= β·⟨v_i − w, ∇f_i(v̄)⟩, within 0 and 1. The UE keeps v_i and α_i.

    This is algorithm 1, which mixes weights. The authors' code mixes the outputs of the two models and adds 0.02·α_i
    to the slope of α_i. The first α_i = 0.5 is its default.
    """

    paper = "Deng et al., 2020, algorithm 1"

    own_share: Share = setting("α_i at first: share of a UE's own model.", default=0.5)
    adapts: bool = setting("Whether α_i is adapted.", default=True, static=True)

    @property
    def passes(self) -> int:
        """Return 2: each batch needs gradients at w and at v̄."""
        return 2

    def init(self, params: Params) -> tuple[Params, Number]:
        return params, jnp.asarray(self.own_share, jnp.float32)

    def job(
        self, start: Params, broadcast: None, client_state: tuple[Params, Number], batches: Batches, context: Context
    ) -> tuple[Params, tuple[Params, Number]]:
        def step(carry: tuple[Params, Params, Array, Params], now: tuple[Batches, Array]) -> tuple[PyTree, None]:
            (w, v, share, total), (own, begins) = carry, now
            g, mine = (jax.grad(context.loss)(at, pick(own, 0)) for at in (w, self.personal(w, (v, share))))
            slope = dot(jax.tree.map(jnp.subtract, v, w), mine)
            moved = jnp.clip(share - context.beta * slope, 0.0, 1.0) if self.adapts else share
            v = jax.tree.map(lambda a, b: a - context.beta * share * b, v, mine)
            w, total = stepped(w, context.beta, g), jax.tree.map(jnp.add, total, g)
            return (w, v, jnp.where(begins, moved, share), total), None

        begins = jnp.arange(rows_of(batches)) == 0
        (_, v, share, total), _ = jax.lax.scan(step, (start, *client_state, zeros(start)), (batches, begins))
        return total, (v, share)

    @staticmethod
    def personal(params: Params, client_state: tuple[Params, Number]) -> Params:
        """Return v̄ = α_i·v_i + (1 − α_i)·w."""
        own, share = client_state
        return jax.tree.map(lambda w, v: share * v + (1 - share) * w, params, own)
