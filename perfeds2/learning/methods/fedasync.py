"""FedAsync: each upload is mixed into the model, with less weight the staler it is."""

from typing import Annotated

import jax
from jaxtyping import Array
from pydantic import Field

from perfeds2.learning.merges import Arrived, Discount, DiscountNumber, Merge, Params, discounted
from perfeds2.learning.objectives import FedProx
from perfeds2.learning.settings import StepSize, setting, traced


@traced
class FedAsync(Merge):
    """w ← (1 − α_τ)·w + α_τ·w_i with α_τ = α·s(τ); local steps are FedProx's. Several uploads are merged one after the other.

    As in the paper, τ counts the merge itself: it is 1 for a fresh upload.

    So a fresh upload has weight α·s(1), here 0.42. ``proximal`` is 0.1, not the 0.005 of the paper's experiments. α,
    a and b are those of the authors' script.
    """

    paper = "Xie et al., 2019, algorithm 1"
    mode = "ASY"
    needs = frozenset({"uploads", "start_models"})

    discount: Discount = setting("s(τ): how a stale upload is discounted.", default="poly", static=True)
    mixing: Annotated[float, Field(gt=0, le=1)] | Array = setting(
        "α: share of the model taken from an upload, before s(τ).", default=0.6
    )
    discount_a: DiscountNumber | None = setting("a of s(τ); unset: 0.5, and 10 for hinge.", default=None)
    discount_b: DiscountNumber = setting("b of s(τ) = hinge.", default=4.0)
    proximal: StepSize = setting("μ: how strongly local steps are held near the model they started from.", default=0.1)

    @property
    def objective(self) -> FedProx:
        return FedProx(self.proximal)

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        alphas = self.mixing * discounted(self.discount, arrived.staleness + 1, self.discount_a, self.discount_b)

        def mix(w: Params, one: tuple[Params, Array]) -> tuple[Params, None]:
            model, alpha = one
            return jax.tree.map(lambda mine, new: (1 - alpha) * mine + alpha * new, w, model), None

        return jax.lax.scan(mix, params, (arrived.models, alphas))[0], state
