"""How long does a device compute?"""

import numpy as np
from jaxtyping import Float


def compute_seconds(
    samples: float, cycles_per_sample: Float[np.ndarray, " n"] | float, cpu_hz: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Seconds a UE computes on one job: cycles a sample × samples / CPU frequency (Tcmp, the paper's eq. (11))."""
    return np.asarray(cycles_per_sample, float) * samples / np.asarray(cpu_hz, float)
