"""Summarise the quality of a cell's links, and warn if no modem could reach it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.network.modulation import most_carried

MAX_CARRIED = 8 * 948 / 1024  # bit/s/Hz: 256-QAM at the highest code rate of TS 38.214
LOOKS = 100_000  # signals (UEs × rounds) examined per seed; at least one round


@dataclass(frozen=True)
class Deciles:
    """The first decile, the median and the ninth decile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Deciles":
        return cls(*np.quantile(values, [0.1, 0.5, 0.9]).tolist())


@dataclass(frozen=True)
class Quality:
    """Signal-to-noise ratio and spectral efficiency over UEs and rounds, with the band shared equally."""

    snr_db: Deciles
    bits_per_s_hz: Deciles
    capped: float = 0.0  # fraction of the links at the limit of the modulation


def link_quality(cells: Iterable[Cell]) -> Quality | None:
    """Return the quality of the links on the shared band in the first rounds; None if no UE uses the band."""
    snr, efficiency, capped = [], [], []
    for cell in cells:
        on_band = np.ones(cell.ues, bool) if cell.fleet is None else cell.fleet.shares_band
        if not on_band.any():
            continue
        part_hz = cell.bandwidth_hz / np.count_nonzero(on_band)
        for round_ in range(max(1, min(16, LOOKS // cell.ues))):
            signal_hz = cell.signal_hz(round_)[on_band]
            snr.append(signal_hz / part_hz)
            efficiency.append(rate_bps(part_hz, signal_hz, cell.limit) / part_hz)
            capped.append(np.mean(efficiency[-1] >= most_carried(cell.limit) * (1 - 1e-9)))
    if not snr:
        return None
    spreads = (Deciles.of(10 * np.log10(np.concatenate(snr))), Deciles.of(np.concatenate(efficiency)))
    return Quality(*spreads, float(np.mean(capped)))


def beyond_modulation(name: str, quality: Quality) -> str | None:
    """Return a warning if the links promise more than modulation can carry."""
    promised = quality.bits_per_s_hz
    if promised.median <= MAX_CARRIED:
        return None
    what = "the paper's Table I" if name == "paper" else "this cell"
    return (
        f"radio {name}: {what} promises {promised.median:.3g} bit/s/Hz in the median, but 256-QAM carries about "
        f"{MAX_CARRIED:.1f}: no real link is as fast. See docs/explanation/radio.md; --radio umi, uma or rma is more realistic."
    )
