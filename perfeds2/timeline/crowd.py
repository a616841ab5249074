"""In a crowd, whose work need not be followed, because it cannot be done in time?

Of a million UEs a round takes the first A. With ``restart`` a job has S + 1 rounds, then it starts over; a UE at the edge
of the cell cannot send all its bits in that time even in the best of fadings. It never arrives, so how far it got is
nobody's business. Who is *hopeful* is a guess, and every round a bound says whether it was a safe one: a guess that
fails costs time, never a digit.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps

LEAST_CROWD = 50_000  # UEs; with fewer, following everybody is quick
HOPE = 8  # times as many are followed as can be merged in S + 1 rounds: A·(S + 1)
MARGIN = 1e-12  # far above what rounding does to the bits of a job


@dataclass(frozen=True)
class Crowd:
    """Those who are followed, and the best that the others can hope for."""

    hopeful: Int[np.ndarray, " h"]  # UEs, in rising order
    place: Int[np.ndarray, " n"]  # of each UE among the hopeful; -1 for the hopeless
    strongest_hz: float  # no hopeless UE's signal is ever above this
    least_s: float = 0.0  # no hopeless UE computes for less
    cap: float | None = None  # bit/s/Hz that no link exceeds


def split_crowd(cell: Cell, hopeful: int, compute_s: Float[np.ndarray, " n"], payload_bits: float) -> Crowd:
    """Hope for those with the best mean signals; where modulation sets the rate, for those with the shortest jobs."""
    worth, cap = cell.mean_signal_hz, cell.cap_bits_per_s_hz
    if cap is not None:
        worth = -(compute_s + payload_bits / rate_bps(cell.bandwidth_hz / cell.ues, worth, cap))
    order = np.argpartition(worth, cell.ues - hopeful)
    hopeless, chosen = order[: cell.ues - hopeful], np.sort(order[cell.ues - hopeful :])
    place = np.full(cell.ues, -1)
    place[chosen] = np.arange(hopeful)
    strongest_hz = float(cell.mean_signal_hz[hopeless].max()) * cell.most_fading
    return Crowd(chosen, place, strongest_hz, float(compute_s[hopeless].min()), cap)


def most_bits(crowd: Crowd, bandwidth_hz: float, lasting_s: float) -> float:
    """What the hopeless can send at most in so many seconds on this band."""
    return float(rate_bps(bandwidth_hz, crowd.strongest_hz, crowd.cap)) * lasting_s
