"""Describe properties of single UEs: a measured gain, a dedicated uplink, hours."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.network.availability import Availability
from perfeds2.network.handover import Attached, Settled
from perfeds2.network.link import PerUe
from perfeds2.network.traces import Traces

MAX_DOUBLINGS = 900.0  # 2^900 still fits in float64
STREAM = 15  # random stream: (seed, stream, version)
MAX_SPREAD = 3.0  # at this spread a device is now and then 20 times slower than usual
CUT = 4.0  # standard deviations

Presence = Availability | Attached | Settled  # when UEs are in a cell


@dataclass(frozen=True)
class Spread:
    """How much a UE varies from job to job: standard deviations of the logarithms, 0 for no variation.

    Computing times and the rates of UEs' own uplinks are log-normal around their medians: a job's value is the median
    times exp(s·z), with the spread s and a standard normal z, clipped at ±4. z depends only on (seed, UE, model
    version), not on the order in which jobs are played.
    """

    compute: PerUe
    rate: PerUe

    def factors(self, seed: int, version: int) -> tuple[PerUe, PerUe]:
        """Return the factors on the computing times and on the rates of all UEs' jobs for a model version."""
        normal = np.random.default_rng([seed, STREAM, version]).standard_normal((self.compute.size, 2))
        normal = np.clip(normal, -CUT, CUT)
        return np.exp(self.compute * normal[:, 0]), np.exp(self.rate * normal[:, 1])


@dataclass(frozen=True)
class Fleet:
    """Per-UE properties. NaN means that the UE uses the cell's value."""

    gain_db: PerUe  # of its link, averaged over fast fading
    rate_bps: PerUe  # of the UE's own uplink, which does not use the shared band
    traces: Traces | None = None  # own uplinks whose rate changes
    presence: Presence | None = None  # None: all UEs are always present
    spread: Spread | None = None  # None: all jobs of a UE take equally long
    energy_budget_j: PerUe | None = None  # energy that each UE may spend in a run

    @property
    def ues(self) -> int:
        return self.gain_db.size

    @cached_property
    def own_bps(self) -> PerUe:
        """Rates of UEs' own uplinks, the mean rate for traces; NaN for UEs on the shared band."""
        own = self.rate_bps.copy()
        if self.traces is not None:
            own[self.traces.ues] = self.traces.mean_bps
        return own

    @cached_property
    def shares_band(self) -> Bool[np.ndarray, " n"]:
        return np.isnan(self.own_bps)

    @cached_property
    def all_share_band(self) -> bool:
        return bool(self.shares_band.all())

    @cached_property
    def measured(self) -> Int[np.ndarray, " m"]:
        """UEs with a known gain."""
        return np.flatnonzero(np.isfinite(self.gain_db))

    @property
    def gain(self) -> PerUe:
        """Gains of the UEs in ``measured``, as a power ratio."""
        return 10 ** (self.gain_db[self.measured] / 10)

    @property
    def is_plain(self) -> bool:
        """Whether all uploads use the shared band, all UEs are always present and all jobs of a UE are alike."""
        return self.presence is None and self.spread is None and self.all_share_band

    def take(self, ues: Int[np.ndarray, " h"]) -> "Fleet":
        """Return the properties of some UEs, in this order."""
        traces, presence, spread, budget_j = self.traces, self.presence, self.spread, self.energy_budget_j
        if traces is not None:
            traced = np.flatnonzero(np.isin(ues, traces.ues))
            by_ue = dict(zip(traces.ues.tolist(), traces.traces, strict=True))
            own = [by_ue[ue] for ue in ues[traced].tolist()]
            traces = Traces(traced.tolist(), own, traces.end) if own else None
        if isinstance(presence, Availability):
            presence = Availability([presence.hours[ue] for ue in ues], presence.keeps)
        if spread is not None:
            spread = Spread(spread.compute[ues], spread.rate[ues])
        budget_j = None if budget_j is None else budget_j[ues]
        return Fleet(self.gain_db[ues], self.rate_bps[ues], traces, presence, spread, budget_j)

    def signal_on(self, bandwidth_hz: float) -> PerUe:
        """Return the signals with which the whole band would match the rates of UEs' own uplinks.

        Policies and schedules see such UEs through these signals.
        """
        own = self.own_bps[~self.shares_band]
        return bandwidth_hz * np.expm1(np.minimum(own / bandwidth_hz, MAX_DOUBLINGS) * np.log(2))
