"""Check the fields of a cell."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

LIMITS = {  # infinity and NaN are always rejected
    "noise_dbm_per_hz": "",
    **dict.fromkeys(
        ("distance_m", "downlink_s", "seed", "cycles_per_sample", "csi_error_db", "csi_delay"), "at least 0"
    ),
    **dict.fromkeys(("cpu_hz", "power_w", "bandwidth_hz", "path_loss_exponent", "fading_scale"), "above 0"),
    **dict.fromkeys(("most_bits_per_s_hz", "coherence_s"), "above 0"),
}


def check_fields(cell: Mapping[str, Any]) -> None:
    """Raise ValueError unless the fields of a cell are possible and fit together."""
    distance_m, cpu_hz, seed, fleet = cell["distance_m"], cell["cpu_hz"], cell["seed"], cell["fleet"]
    if distance_m.ndim != 1 or distance_m.size == 0 or distance_m.shape != cpu_hz.shape:
        raise ValueError(
            f"a cell needs one distance and one CPU frequency per UE, at least one UE; "
            f"got {distance_m.shape} distances and {cpu_hz.shape} frequencies."
        )
    for name, limit in LIMITS.items():
        value = cell[name]
        if value is None or (isinstance(value, int | float) and 0 < value < math.inf):
            continue  # NumPy takes ten times as long, and moving UEs need many cells
        values = np.atleast_1d(np.asarray(value, float))
        low = values < 0 if limit == "at least 0" else values <= 0
        wrong = (low & (limit != "")) | ~np.isfinite(values)
        if wrong.any():
            raise ValueError(f"{name} must be finite{limit and ' and '}{limit}, got {values[wrong][0]}.")
    if seed != int(seed) or seed >= 2**64:
        raise ValueError(f"seed must be a whole number below 2^64, got {seed}.")
    if not cell["rician_k"] >= 0:
        raise ValueError(f"rician_k must be at least 0, got {cell['rician_k']}.")
    if fleet is not None and fleet.ues != distance_m.size:
        raise ValueError(f"{distance_m.size} UEs need a fleet of as many, got {fleet.ues}.")
    if cell["moves"] is not None and cell["coherence_s"] is None:
        raise ValueError("moving UEs need a coherence_s: how often their signals and positions are updated.")
