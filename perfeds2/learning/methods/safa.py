"""SAFA: the server keeps every UE's last model; UEs merged in the last round are not drafted again at once."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, Merge, MergeState, Params, mean_of
from perfeds2.learning.method import Method, Rounds, World
from perfeds2.learning.settings import traced
from perfeds2.timeline.protocol import Protocol


@traced
class SAFA(Method):
    """w = mean of every UE's last model; the staleness bound (``--max-staleness``) is the tolerated lag.

    A round closes on the first A arrivals of UEs that were not merged in the round before. If fewer than A of these
    are at work, it waits for all updates and fills its places with UEs merged last time, in order of arrival. Merged
    UEs replace their entries before the mean is taken. Those that arrived in vain replace theirs afterwards (the
    bypass), and count as wasted in the report. A UE that is further behind than the lag restarts from
    the newest model.

    The paper's time limit is infinite here, since no UE drops out, and all UEs have equal weight.
    """

    paper = "Wu et al., IEEE Trans. Computers 2021"
    has_own_rounds = True

    @property
    def merge(self) -> "ModelCache":
        return ModelCache()  # the tolerated lag comes from the rounds

    def rounds(self, world: World) -> Rounds:
        bound = world.max_staleness
        lag = np.inf if bound is None else float(bound)
        return Rounds(Protocol(world.quorum, bound, drafts=True), merge=ModelCache(lag))


@traced
class ModelCache(Merge):
    """SAFA's server: w is the mean of every UE's last model, all UEs weighing alike.

    Before a round, entries of UEs that are more than the tolerated lag behind become the newest model. The models of drafted UEs
    are entered, w is computed, and then the models of UEs that arrived without being drafted are entered: they bypass the round.
    The script of a replay puts these into the second half of every row; an entry that did not arrive again stays what it was.
    """

    needs = frozenset({"uploads", "start_models", "undrafted"})
    drops_model = True

    lag: float | Array = np.inf  # τ, the lag tolerance

    def init(self, params: Params, ues: int) -> tuple[Params, Array, Array]:
        """Return the entry of every UE, the version it received last, and the round."""
        entries = jax.tree.map(lambda w: jnp.broadcast_to(w, (ues, *jnp.shape(w))), params)
        return entries, jnp.zeros(ues, jnp.int32), jnp.zeros((), jnp.int32)

    def step(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
        entries, handed, round_ = state
        half = arrived.ues.size // 2
        drafted, others, came = arrived.ues[:half], arrived.ues[half:], arrived.staleness[half:] == 0
        models = arrived.models
        left = handed < round_ - self.lag
        handed = jnp.where(left, round_, handed)

        def enter(old: Array, new: Array, newest: Array) -> Array:
            old = jnp.where(left.reshape(-1, *(1,) * newest.ndim), newest, old)
            return old.at[drafted].set(new[:half])

        merged = jax.tree.map(enter, entries, models, params)
        params = mean_of(merged)
        entries = jax.tree.map(lambda old, new: old.at[others].set(new[half:]), merged, models)  # the bypass
        handed = handed.at[drafted].set(round_ + 1)
        handed = handed.at[others].set(jnp.where(came, round_ + 1, handed[others]))
        return params, (entries, handed, round_ + 1)
