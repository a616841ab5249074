"""FedBuff: merge the mean of a buffer of uploads, each discounted by its staleness."""

import jax
from jaxtyping import Array, Float

from perfeds2.learning.merges import Arrived, Discount, DiscountNumber, Merge, MergeState, Params, Rows, discounted
from perfeds2.learning.settings import Decay, Length, setting, traced
from perfeds2.learning.trees import stepped, zeros


@traced
class FedBuff(Merge):
    """w −= η_g·mean of s(τ_i)·Δ_i, with s = 1/√(1 + τ).

    With s = 1 it is the mean. With a momentum, what is subtracted is the running sum d ← momentum·d + mean.

    The paper has no staleness bound: ``--max-staleness unbounded``.

    Args:
        discount: s(τ): "poly" is (1 + τ)^−a, "hinge" is 1 up to b and then 1/(a(τ − b) + 1), "constant" is 1.
        server_step: η_g, the server's step size.
        discount_a: a of s(τ); None is 0.5, and 10 for "hinge".
        discount_b: b of s(τ), in rounds, for "hinge".
        momentum: The share of its last step that the server keeps; None keeps nothing.

    Example:
        >>> from perfeds2 import FedBuff, Learner, PerFed
        >>> Learner(PerFed(0.03), merge=FedBuff("hinge", discount_b=8.0)).merge.discount
        'hinge'
    """

    paper = "Nguyen et al., AISTATS 2022, algorithm 1"

    discount: Discount = setting("s(τ): how a stale upload is discounted.", default="poly", static=True)
    server_step: Length = setting("η_g: the server's step size.", default=1.0)
    discount_a: DiscountNumber | None = setting("a of s(τ); unset: 0.5, and 10 for hinge.", default=None)
    discount_b: DiscountNumber = setting("b of s(τ) = hinge.", default=4.0)
    momentum: Decay | None = setting("Share of its last step the server keeps.", default=None)

    def init(self, params: Params, ues: int) -> MergeState:
        return None if self.momentum is None else zeros(params)

    def weights(self, staleness: Rows) -> Float[Array, "..."]:
        """Return s(τ) of every upload."""
        return discounted(self.discount, staleness, self.discount_a, self.discount_b)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        step = jax.tree.map(lambda g: arrived.beta * g, arrived.mean)
        if self.momentum is not None:
            step = state = jax.tree.map(lambda d, new: self.momentum * d + new, state, step)
        return stepped(params, self.server_step, step), state
