"""How long until a UE has the model it is handed?

The base station sends on a band of its own as wide as the uplink's, one hand-out after the other: what is handed out while it still
sends waits. A model is long and well coded, so fading averages out: rates are those of the mean signals, where UEs are when it begins.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from perfeds2.network.link import rate_bps

UE_NOISE_FIGURE_DB = 7.0  # ITU-R M.2412


@dataclass(frozen=True)
class Downlink:
    """How models are sent, with which power, and how long they are."""

    way: Literal["multicast", "unicast"]
    power_w: float
    model_bits: float

    def __post_init__(self) -> None:
        for name, value in (("power_w", self.power_w), ("model_bits", self.model_bits)):
            if not 0 < value < np.inf:
                raise ValueError(f"a downlink's {name} must be finite and above 0, got {value}.")

    def seconds(
        self, signal_hz: Float[np.ndarray, " n"], bandwidth_hz: float, at_once: int, cap: float | None
    ) -> Float[np.ndarray, " n"]:
        """Multicast: once for all, at the rate of the weakest of these UEs. Unicast: each on its part of band and power, of so many.

        ``signal_hz`` is what UEs would hear of the base station's power, over the noise density.
        """
        if self.way == "multicast":
            signal_hz = np.full(signal_hz.size, signal_hz.min())
            return self.model_bits / rate_bps(bandwidth_hz, signal_hz, cap)
        return self.model_bits / rate_bps(bandwidth_hz / at_once, signal_hz / at_once, cap)
