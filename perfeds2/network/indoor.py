"""Compute the loss of walls: outdoor-to-indoor penetration of TR 38.901, section 7.4.3.1."""

from typing import Literal

import numpy as np
from jaxtyping import Bool

from perfeds2.network.link import PerUe

Walls = Literal["low", "high"]  # plain windows and concrete, or coated glass and concrete
STREAM = 18  # random stream: (seed, stream)
DEVIATION_DB = {"low": 4.4, "high": 6.5}
DEPTH_M = 25.0  # most metres behind the wall


def indoors(ues: int, seed: int, share: float) -> Bool[np.ndarray, " n"]:
    """Return which UEs are indoors, drawn from (seed, UE)."""
    return _draws(ues, seed)[:, 0] < share


def wall_db(ues: int, seed: int, carrier_hz: float, walls: Walls) -> PerUe:
    """Return the loss of the wall, of the way behind it and of the building, in dB.

    It depends only on (seed, UE). The way behind the wall is the shorter of two lengths, drawn uniformly up to 25 m.

    Args:
        ues: n, the number of UEs.
        seed: Seed of the draws.
        carrier_hz: Carrier frequency.
        walls: How much the outer wall attenuates.

    Returns:
        The loss of each UE if it is indoors, shape (n,).
    """
    from scipy.special import ndtri  # slow to import

    _, depth, other, luck = _draws(ues, seed).T
    inside_m = DEPTH_M * np.minimum(depth, other)
    return outer_wall_db(carrier_hz, walls) + 0.5 * inside_m + DEVIATION_DB[walls] * ndtri(np.maximum(luck, 2.0**-53))


def outer_wall_db(carrier_hz: float, walls: Walls) -> float:
    """Return the loss of the outer wall, table 7.4.3-2: 30 % windows and concrete, or 70 % coated windows."""
    carrier_ghz = carrier_hz / 1e9
    glass_db, coated_db, concrete_db = 2 + 0.2 * carrier_ghz, 23 + 0.3 * carrier_ghz, 5 + 4 * carrier_ghz
    share, window_db = (0.3, glass_db) if walls == "low" else (0.7, coated_db)
    return float(5 - 10 * np.log10(share * 10 ** (-window_db / 10) + (1 - share) * 10 ** (-concrete_db / 10)))


def _draws(ues: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, STREAM]).random((ues, 4))
