"""Simulate hostile UEs: the compiled loop changes what they upload."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from perfeds2.learning.gradients import Batches
from perfeds2.learning.models.model import Params
from perfeds2.learning.settings import traced
from perfeds2.learning.transforms import Sending, Transform
from perfeds2.learning.trees import norm

FACTOR = 10.0  # of an honest upload's norm: the length of a hostile one, if there is no ``clip``
NOISE = 11  # folded into a job's key


@traced
class Attack:
    """A hostile upload: a mix of the honest one, Gaussian noise and the weights, stretched to the norm bound."""

    share: float | Array  # of the UEs that are hostile
    upload: float | Array = 0.0
    noise: float | Array = 0.0
    weights: float | Array = 0.0
    stretched: bool | Array = True  # to the largest norm: ``clip``, or FACTOR times the honest upload's
    flips: bool | Array = False  # mirror the labels of every batch

    def __post_init__(self) -> None:
        if isinstance(self.share, float) and not 0 <= self.share <= 1:
            raise ValueError("expected a share from 0 to 1")


ATTACKS = {
    "sign-flip:SHARE": partial(Attack, upload=-1.0),
    "scale:SHARE": partial(Attack, upload=1.0),
    "shrink:SHARE": partial(Attack, upload=1 / FACTOR, stretched=False),
    "label-flip:SHARE": partial(Attack, upload=1.0, stretched=False, flips=True),
    "noise:SHARE": partial(Attack, noise=1.0),
    "proportional:SHARE": partial(Attack, weights=1.0),
}


def hostile_ues(share: float, ues: int, seed: int) -> Bool[np.ndarray, " n"]:
    """Return which UEs are hostile: the rounded share of them, drawn from the seed."""
    order = np.random.default_rng([seed, NOISE]).permutation(ues)
    return order < round(share * ues)


@traced
class Hostile(Transform):
    """What hostile UEs upload instead of an honest upload."""

    attack: Attack
    ues: Bool[Array, "*lanes n"]  # that take part
    most: Float[Array, "*lanes"] | None = None  # largest norm of an upload, if any

    @classmethod
    def of(cls, attack: Attack, ues: int, seed: int, most: Float[Array, ""] | None) -> "Hostile":
        numbers = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), attack)
        return cls(numbers, jnp.asarray(hostile_ues(float(attack.share), ues, seed)), most)

    def batches(self, ue: Int[Array, ""], batches: Batches) -> Batches:
        """Return the batches of a job, with mirrored labels (the smallest for the largest) if its UE flips labels."""
        x, y = batches
        flips = self.ues[ue] & (self.attack.flips > 0)
        return x, jnp.where(flips, y.max() + y.min() - y, y)

    def __call__(self, upload: Params, job: Sending) -> Params:
        how, leaves, tree = self.attack, *jax.tree.flatten(upload)
        keys = jax.random.split(jax.random.fold_in(job.key, NOISE), len(leaves))
        noise = tree.unflatten([jax.random.normal(own, g.shape) for own, g in zip(keys, leaves, strict=True)])
        mix = jax.tree.map(lambda g, z, w: how.upload * g + how.noise * z + how.weights * w, upload, noise, job.start)
        longest = FACTOR * norm(upload) if self.most is None else self.most
        scale = jnp.where(how.stretched > 0, longest / jnp.maximum(norm(mix), 1e-30), 1.0)
        return jax.tree.map(lambda g, bad: jnp.where(self.ues[job.ue], scale * bad, g), upload, mix)
