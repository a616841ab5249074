"""How much does a device differ from itself, from job to job?

Computing times and the rates of uplinks of one's own are log-normal around their medians: a job's is the median times exp(s·z), where the
spread s is the deviation of the logarithm and z is standard normal, cut at ±4. z belongs to (seed, UE, model version), so it is the same
in whatever order jobs are played.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

PerUe = Float[np.ndarray, " n"]
STREAM = 15  # of draws: (seed, stream, version)
MOST = 3.0  # larger than that is no spread: a device that is 20 times as slow as usual now and then
CUT = 4.0  # deviations


@dataclass(frozen=True)
class Spread:
    """The deviations of the logarithms; 0 for who is always the same."""

    compute: PerUe
    rate: PerUe

    def __post_init__(self) -> None:
        for name, values in (("compute", self.compute), ("rate", self.rate)):
            if not ((values >= 0) & (values <= MOST)).all():
                raise ValueError(f"the spread of {name} must be from 0 to {MOST:g}, got {values.tolist()!r:.60}.")

    def factors(self, seed: int, version: int) -> tuple[PerUe, PerUe]:
        """What the computing times and the rates of everybody's job on a model are multiplied by."""
        normal = np.random.default_rng([seed, STREAM, version]).standard_normal((self.compute.size, 2))
        normal = np.clip(normal, -CUT, CUT)
        return np.exp(self.compute * normal[:, 0]), np.exp(self.rate * normal[:, 1])
