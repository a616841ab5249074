"""How long would the simulator's clock have taken for what a federation did?"""

import itertools
from collections import defaultdict
from typing import Any

import numpy as np

from perfeds2.deployment.record import Record
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.shape import play

DIGITS = 6  # of a time


def both_clocks(setup: Setup, record: Record) -> dict[str, Any]:
    """When each round closed, really and on the simulator's clock; there a device's jobs take, one after the other, what they took.

    Should the simulator hand a device more jobs than it answered, they begin anew. Also how long a job was computed and
    how long it took besides, in the median.
    """
    laps: dict[int, list[float]] = defaultdict(list)
    for lap in record.laps:
        laps[lap.ue].append(max(lap.took_s, 1e-9))
    own_s = {ue: itertools.cycle(took_s) for ue, took_s in laps.items()}
    simulated = play(setup, lambda request: next(own_s[request.ue]), laps, len(record.closed_s))
    return {
        "real_s": _rounded(record.closed_s),
        "simulated_s": _rounded(simulated.time_s),
        "compute_s": float(np.median([lap.compute_s for lap in record.laps])),
        "beyond_s": float(np.median([lap.took_s - lap.compute_s for lap in record.laps])),
    }


def _rounded(times_s: Any) -> list[float]:
    return [float(f"{time_s:.{DIGITS}g}") for time_s in times_s]
