"""SAFA: the server keeps every UE's last model; UEs merged in the last round are not drafted again at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from perfeds2.learning.merges import Arrived, MergeState, Params, mean_of
from perfeds2.learning.settings import traced
from perfeds2.timeline.record import Timeline


@traced
class SAFA:
    """w = mean of every UE's last model; the staleness bound (``--max-staleness``) is the tolerated lag."""

    paper = "Wu et al., IEEE Trans. Computers 2021"
    rounds = "draft"

    @property
    def merge(self) -> "ModelCache":
        return ModelCache()  # the tolerated lag comes from the rounds


@traced
class ModelCache:
    """SAFA's server: w is the mean of every UE's last model, all UEs weighing alike.

    Before a round, entries of UEs that are more than the tolerated lag behind become the newest model. The models of drafted UEs
    are entered, w is computed, and then the models of UEs that arrived without being drafted are entered: they bypass the round.
    ``with_undrafted`` puts these into the second half of every row; an entry that did not arrive again stays what it was.
    """

    looks_back = True
    takes_undrafted = True

    lag: float | Array = np.inf  # τ, the lag tolerance

    def init(self, params: Params, ues: int) -> tuple[Params, Array, Array]:
        """Return the entry of every UE, the version it received last, and the round."""
        entries = jax.tree.map(lambda w: jnp.broadcast_to(w, (ues, *jnp.shape(w))), params)
        return entries, jnp.zeros(ues, jnp.int32), jnp.zeros((), jnp.int32)

    def __call__(self, params: Params, arrived: Arrived, state: MergeState) -> tuple[Params, MergeState]:
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


def with_undrafted(timeline: Timeline) -> Timeline:
    """Return the timeline of a draft with two halves per row: UEs merged now, and UEs merged the round before.

    Some of the latter have arrived again, with the model they received then. The others are listed with the job that
    was merged last. Computed again, it gives the same model, so all rows have the same length and no entry changes.
    """
    ues, versions = timeline.ues, timeline.versions
    came = set(zip(*(column.tolist() for column in timeline.in_vain), strict=True))
    second_ues, second_versions = ues.copy(), versions.copy()
    for k in range(1, timeline.rounds):
        second_ues[k] = ues[k - 1]
        for slot, ue in enumerate(ues[k - 1]):
            again = np.flatnonzero(ues[k] == ue)
            if (ue, k) in came:
                second_versions[k, slot] = k
            else:
                second_versions[k, slot] = versions[k, again[0]] if again.size else versions[k - 1, slot]
    staleness = np.arange(timeline.rounds)[:, None] - second_versions
    return replace(
        timeline,
        ues=np.concatenate([ues, second_ues], axis=1),
        staleness=np.concatenate([timeline.staleness, staleness], axis=1),
        arrival_s=np.concatenate([timeline.arrival_s, timeline.arrival_s], axis=1),
    )
