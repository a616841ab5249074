"""What do the UEs of a cell have of their own: a measured gain, an uplink beside the shared band, hours?"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.network.availability import Availability
from perfeds2.network.link import PerUe
from perfeds2.network.traces import Traces

MOST_DOUBLINGS = 900.0  # 2^900 is still a number
STREAM = 15  # of draws: (seed, stream, version)
MOST_SPREAD = 3.0  # larger than that is no spread: a device that is 20 times as slow as usual now and then
CUT = 4.0  # deviations


@dataclass(frozen=True)
class Spread:
    """How much a UE differs from job to job: the deviations of the logarithms; 0 for who is always the same.

    Computing times and the rates of uplinks of one's own are log-normal around their medians: a job's is the median times exp(s·z), with
    the spread s and a standard normal z, cut at ±4. z belongs to (seed, UE, model version), in whatever order jobs are played.
    """

    compute: PerUe
    rate: PerUe

    def factors(self, seed: int, version: int) -> tuple[PerUe, PerUe]:
        """What the computing times and the rates of everybody's job on a model are multiplied by."""
        normal = np.random.default_rng([seed, STREAM, version]).standard_normal((self.compute.size, 2))
        normal = np.clip(normal, -CUT, CUT)
        return np.exp(self.compute * normal[:, 0]), np.exp(self.rate * normal[:, 1])


@dataclass(frozen=True)
class Fleet:
    """What is not a number (NaN) is not a UE's own, but the cell's."""

    gain_db: PerUe  # of its link, in the mean over fast fading
    rate_bps: PerUe  # of an uplink of its own, which needs nothing of the shared band
    traces: Traces | None = None  # … or its rate changes
    presence: Availability | None = None  # None: everybody is always there
    spread: Spread | None = None  # None: jobs of a UE take alike
    energy_budget_j: PerUe | None = None  # what each UE may spend in a run

    @property
    def ues(self) -> int:
        return self.gain_db.size

    @cached_property
    def own_bps(self) -> PerUe:
        """The rates of uplinks of their own, those of traces in the mean; NaN for whoever shares the band."""
        own = self.rate_bps.copy()
        if self.traces is not None:
            own[self.traces.ues] = self.traces.mean_bps
        return own

    @cached_property
    def shares_band(self) -> Bool[np.ndarray, " n"]:
        return np.isnan(self.own_bps)

    @cached_property
    def measured(self) -> Int[np.ndarray, " m"]:
        """Whose gain is known."""
        return np.flatnonzero(np.isfinite(self.gain_db))

    @property
    def gain(self) -> PerUe:
        """Of those whose gain is known."""
        return 10 ** (self.gain_db[self.measured] / 10)

    @property
    def is_plain(self) -> bool:
        """Whether the band carries everything, everybody is always there, and all jobs of a UE are alike."""
        return self.presence is None and self.spread is None and bool(self.shares_band.all())

    def signal_on(self, bandwidth_hz: float) -> PerUe:
        """With which signal the whole band would carry what UEs' own uplinks do: how policies and schedules see them."""
        own = self.own_bps[~self.shares_band]
        return bandwidth_hz * np.expm1(np.minimum(own / bandwidth_hz, MOST_DOUBLINGS) * np.log(2))
