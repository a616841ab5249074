"""What do the UEs of a cell have of their own: a measured gain, an uplink beside the shared band, hours?"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.availability import Availability
from perfeds2.network.spread import Spread
from perfeds2.network.traces import Traces

PerUe = Float[np.ndarray, " n"]
MOST_DOUBLINGS = 900.0  # 2^900 is still a number


@dataclass(frozen=True)
class Fleet:
    """What is not a number (NaN) is not a UE's own, but the cell's."""

    gain_db: PerUe  # of its link, in the mean over fast fading
    rate_bps: PerUe  # of an uplink of its own, which needs nothing of the shared band
    traces: Traces | None = None  # … or its rate changes
    presence: Availability | None = None  # None: everybody is always there
    spread: Spread | None = None  # None: jobs of a UE take alike
    energy_budget_j: PerUe | None = None  # what each UE may spend in a run

    def __post_init__(self) -> None:
        for name, values in (("gain_db", self.gain_db), ("rate_bps", self.rate_bps)):
            if np.isinf(values).any() or (name == "rate_bps" and (values <= 0).any()):
                raise ValueError(f"{name} must be finite{' and above 0' if name == 'rate_bps' else ''}, or no number.")
        budget_j = self.energy_budget_j
        if budget_j is not None and (budget_j.shape != self.gain_db.shape or (budget_j <= 0).any()):
            raise ValueError("energy_budget_j must be above 0 or NaN, one number per UE.")
        if self.gain_db.shape != self.rate_bps.shape:
            raise ValueError(f"a fleet needs as many gains as rates, got {self.gain_db.size} and {self.rate_bps.size}.")
        if self.presence is not None and self.presence.ues != self.ues:
            raise ValueError(f"a fleet of {self.ues} UEs needs as many hours, got {self.presence.ues}.")
        if self.spread is not None and self.spread.compute.shape != self.gain_db.shape:
            raise ValueError(f"a fleet of {self.ues} UEs needs as many spreads, got {self.spread.compute.size}.")

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
