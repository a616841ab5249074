"""How long would the simulator's clock have taken for what a federation did?"""

from collections import defaultdict
from typing import Any

import numpy as np

from perfeds2.deployment.record import Lap, Record
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.shape import predict

DIGITS = 6  # of a time


def both_clocks(setup: Setup, record: Record) -> dict[str, Any]:
    """When each round closed, really and on the simulator's clock. There a device's jobs all take the median of its own.

    Also how long a job was computed and how long it took besides, in the median over devices.
    """
    laps: dict[int, list[Lap]] = defaultdict(list)
    for lap in record.laps:
        laps[lap.ue].append(lap)
    took_s, compute_s = (np.full(setup.ues, np.nan) for _ in range(2))  # of a device that never answered: unknown
    for ue, own in laps.items():
        took_s[ue] = max(float(np.median([lap.took_s for lap in own])), 1e-9)
        compute_s[ue] = np.median([lap.compute_s for lap in own])
    simulated = predict(setup, took_s, len(record.closed_s))
    return {
        "real_s": _rounded(record.closed_s),
        "simulated_s": _rounded(simulated.time_s),
        "compute_s": float(np.nanmedian(compute_s)),
        "beyond_s": float(np.nanmedian(took_s - compute_s)),
    }


def _rounded(times_s: Any) -> list[float]:
    return [float(f"{time_s:.{DIGITS}g}") for time_s in times_s]
