"""Merge uploads of which some may be hostile.

Each merge replaces the mean in w −= β·mean by a statistic that few outliers cannot move far. With A ≤ 2 uploads a
round, no statistic can tell which of them is the outlier.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfeds2.learning.merges import Arrived, Merge, Params, weighted
from perfeds2.learning.settings import Length, Share, Steps, setting, traced
from perfeds2.learning.trees import rows_of, stepped

TINY = 1e-12  # added to distances, so that none is divided by 0
LEAST = 3  # uploads per round needed to recognise an outlier


class Robust(Merge):
    """A merge of ``statistic(uploads)`` instead of their mean."""

    needs = frozenset({"uploads"})

    def statistic(self, uploads: Params) -> Params:
        raise NotImplementedError

    def step(self, params: Params, arrived: Arrived, state: None) -> tuple[Params, None]:
        return stepped(params, arrived.beta, self.statistic(without_infinite(arrived.uploads))), state


def without_infinite(uploads: Params) -> Params:
    """Replace uploads whose norm is not finite by zeros, which move no statistic beyond the others."""
    fine = jnp.isfinite(norms(uploads))
    return jax.tree.map(lambda g: jnp.where(fine.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0), uploads)


def hostile_of(share: float | Array, count: int, most: int) -> Array:
    """Return how many of ``count`` uploads a share is, rounded up, at most ``most``."""
    return jnp.minimum(jnp.ceil(jnp.asarray(share) * count - 1e-4), most)


def distances(uploads: Params) -> Float[Array, "a a"]:
    """Return the squared distance of every pair of uploads."""
    pairs = [jnp.square(g[:, None] - g).reshape(*2 * g.shape[:1], -1).sum(-1) for g in jax.tree.leaves(uploads)]
    return sum(pairs[1:], pairs[0])


def norms(uploads: Params) -> Float[Array, " a"]:
    """Return the norm of every upload."""
    squares = [jnp.square(g).reshape(len(g), -1).sum(-1) for g in jax.tree.leaves(uploads)]
    return jnp.sqrt(sum(squares[1:], squares[0]))


@traced
class Median(Robust):
    """w −= β·median, number by number."""

    paper = "Yin et al., ICML 2018"

    def statistic(self, uploads: Params) -> Params:
        return jax.tree.map(lambda g: jnp.median(g, axis=0), uploads)


@traced
class TrimmedMean(Robust):
    """w −= β·mean, number by number, without the largest and the smallest values."""

    paper = "Yin et al., ICML 2018"

    trim: Share = setting("Share of the uploads to leave out at each end.", default=0.2)

    def statistic(self, uploads: Params) -> Params:
        count = rows_of(uploads)
        cut = hostile_of(self.trim, count, (count - 1) // 2)
        rank = jnp.arange(count)
        kept = ((rank >= cut) & (rank < count - cut)) / (count - 2 * cut)
        return weighted(kept, jax.tree.map(lambda g: jnp.sort(g, axis=0), uploads))


@traced
class GeometricMedian(Robust):
    """w −= β·the point with the least sum of distances to the uploads, by Weiszfeld's steps."""

    paper = "Pillutla et al., IEEE TSP 2022"

    weiszfeld_steps: Steps = setting("Number of Weiszfeld's steps.", default=16, static=True)

    def statistic(self, uploads: Params) -> Params:
        apart = distances(uploads)
        count = len(apart)

        def step(_: Array, weights: Array) -> Array:
            # ‖g_i − Σw_j·g_j‖² from distances of pairs, if the weights add up to 1
            to_all = (apart * weights).sum(axis=1)
            away = to_all - (to_all * weights).sum() / 2
            closeness = 1 / (jnp.sqrt(jnp.maximum(away, 0.0)) + TINY)
            return closeness / closeness.sum()

        return weighted(
            jax.lax.fori_loop(0, self.weiszfeld_steps, step, jnp.full(count, 1 / count, jnp.float32)), uploads
        )


@traced
class Krum(Robust):
    """w −= β·the upload that is nearest to its A − f − 2 neighbours, f of A being hostile."""

    paper = "Blanchard et al., NeurIPS 2017"

    hostile: Share = setting("f/A: share of hostile uploads to withstand.", default=0.2)

    def statistic(self, uploads: Params) -> Params:
        apart = distances(uploads)
        count = len(apart)
        bad = hostile_of(self.hostile, count, max(count - 3, 0))
        near = jnp.arange(count) < count - bad - 1  # the first is the upload itself
        score = jnp.where(near, jnp.sort(apart, axis=1), 0.0).sum(axis=1)
        chosen = jnp.argsort(jnp.argsort(score)) < self.chosen(count, bad)
        return weighted(chosen / chosen.sum(), uploads)

    @staticmethod
    def chosen(count: int, bad: Array) -> Array | int:
        return 1


@traced
class MultiKrum(Krum):
    """w −= β·mean of the A − f uploads that Krum's rule finds best."""

    @staticmethod
    def chosen(count: int, bad: Array) -> Array:
        return count - bad


@traced
class ClippedMean(Robust):
    """w −= β·mean of the uploads, each shortened to the median norm of its round."""

    paper = "Karimireddy et al., ICML 2021, without momentum"

    factor: Length = setting("Largest norm as a multiple of the median.", default=1.0)

    def statistic(self, uploads: Params) -> Params:
        own = norms(uploads)
        return weighted(jnp.minimum(1.0, self.factor * jnp.median(own) / (own + TINY)) / len(own), uploads)
