"""Model what modulation and coding carry at a signal-to-noise ratio: attenuated Shannon, or the CQI steps of TS 38.214.

A UE uses as much of its band as carries most: a UE whose power does not reach the whole of it sends in a narrower band.
A rate therefore never falls when a UE gets more bandwidth, and a UE with any bandwidth has a rate above 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from perfeds2.network.link import LN2, Array, Limit, PerUe


@dataclass(frozen=True)
class Attenuated:
    """A share of Shannon's rate up to a limit, as in annex A of TR 36.942."""

    share: float = 1.0
    most: float = np.inf  # bit/s/Hz

    def bits_per_s_hz(self, snr: Array) -> Array:
        """Return the efficiency at a signal-to-noise ratio (a ratio, not dB)."""
        return np.asarray(np.minimum(np.log1p(snr) * (self.share / LN2), self.most))

    def times(self, factor: float) -> "Attenuated":
        """Return the link with all rates multiplied."""
        return Attenuated(self.share * factor, self.most * factor)


@dataclass(frozen=True)
class Steps:
    """Modulation and coding schemes: each carries an efficiency from a signal-to-noise ratio on."""

    snr_db: tuple[float, ...]  # least SNR of each step
    bits: tuple[float, ...]  # bit/s/Hz of each step

    def __post_init__(self) -> None:
        if not (len(self.snr_db) == len(self.bits) > 0 and np.all(np.diff(self.bits) > 0) and self.bits[0] > 0):
            raise ValueError(
                f"steps need one SNR for each of their rising efficiencies, got {self.snr_db}, {self.bits}."
            )
        if not np.all(np.diff(self.snr_db) > 0):
            raise ValueError(f"the SNRs of steps must rise, got {self.snr_db}.")

    @cached_property
    def _useful(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """The steps that some UE would use, as SNRs and efficiencies.

        In a narrow band, a step carries efficiency / SNR times the signal. A step that carries no more than a faster one
        does is never useful.
        """
        snr, bits = 10 ** (np.array(self.snr_db) / 10), np.array(self.bits)
        best_later = np.append(np.maximum.accumulate((bits / snr)[::-1])[::-1][1:], 0.0)
        useful = bits / snr > best_later
        return snr[useful], bits[useful]

    @cached_property
    def _knots(self) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Where the efficiency bends: from a step's SNR it is constant until the next step in a narrower band carries more."""
        snr, bits = self._useful
        meet = snr[1:] * bits[:-1] / bits[1:]
        at = np.append(0.0, np.stack([snr, np.append(meet, np.inf)], 1).ravel()[:-1])
        return at, np.append(0.0, np.repeat(bits, 2)[:-1])

    def bits_per_s_hz(self, snr: Array) -> Array:
        """Return the efficiency at a signal-to-noise ratio (a ratio, not dB), averaged over a UE's whole band."""
        return np.asarray(np.interp(snr, *self._knots))

    def least_snr(self, bits_per_s_hz: Array) -> Array:
        """Return the lowest signal-to-noise ratio (a ratio, not dB) at which a link has an efficiency."""
        return np.asarray(np.interp(bits_per_s_hz, self._knots[1], self._knots[0]))

    @cached_property
    def below_steps(self) -> Attenuated:
        """The largest share of Shannon's rate that the steps never fall below."""
        snr, bits = (knots[1:] for knots in self._knots)
        in_narrow_bands = bits[0] / snr[0] * LN2  # its limit at an SNR of 0
        return Attenuated(min(float((bits / np.log2(1 + snr)).min()), float(in_narrow_bands)), self.bits[-1])

    def least_hz(self, rate_bps: PerUe, signal_hz: PerUe) -> PerUe:
        """Return the least bandwidth at which each UE reaches a rate above 0; infinite if no bandwidth is enough."""
        snr, bits = self._useful
        step = np.searchsorted(snr / bits, signal_hz / rate_bps, side="right") - 1
        return np.where(step < 0, np.inf, rate_bps / bits[step])

    def least_s(self, bits: PerUe, signal_hz: PerUe) -> Float[np.ndarray, "n k"]:
        """Return how long each UE needs at least to send its bits with each step."""
        snr, per_s_hz = self._useful
        return (bits / signal_hz)[:, None] * (snr / per_s_hz)

    def times(self, factor: float) -> "Steps":
        """Return the link with all rates multiplied."""
        return Steps(self.snr_db, tuple(factor * each for each in self.bits))

    def below(self, most: float) -> "Steps":
        """Return the link without the steps above an efficiency, in bit/s/Hz.

        Raises:
            ValueError: If no step is left.
        """
        count = sum(each <= most for each in self.bits)
        if not count:
            raise ValueError(f"no step carries {most:g} bit/s/Hz or less; the slowest carries {self.bits[0]:g}.")
        return Steps(self.snr_db[:count], self.bits[:count])


Link = Attenuated | Steps


def up_to(link: Link, most: float | None) -> Link:
    """Return a link that carries no more than an efficiency in bit/s/Hz; None for no limit."""
    if most is None:
        return link
    return link.below(most) if isinstance(link, Steps) else Attenuated(link.share, min(link.most, most))


def most_carried(limit: Limit) -> float:
    """Return the efficiency that no link exceeds, in bit/s/Hz; infinite without a limit."""
    match limit:
        case None:
            return np.inf
        case Attenuated():
            return limit.most
        case Steps():
            return limit.bits[-1]
        case _:
            return float(limit)  # type: ignore[arg-type]


# ---- The steps of TS 38.214: bits per symbol, code rate times 1024, and the SNR in dB at which 10 % of blocks are lost

QPSK = [(2, 78, -8.3), (2, 120, -6.4), (2, 193, -4.4), (2, 308, -2.0), (2, 449, 0.3), (2, 602, 2.1)]
QAM_16 = [(4, 378, 4.0), (4, 490, 6.1), (4, 616, 8.0)]
QAM_64 = [(6, 466, 9.7), (6, 567, 11.4), (6, 666, 13.3), (6, 772, 15.3), (6, 873, 17.2), (6, 948, 19.0)]
QAM_256 = [(8, 711, 19.0), (8, 797, 20.8), (8, 885, 22.9), (8, 948, 24.6)]


def _steps(schemes: Sequence[tuple[int, int, float]]) -> Steps:
    return Steps(tuple(snr_db for *_, snr_db in schemes), tuple(order * rate / 1024 for order, rate, _ in schemes))


LINKS: dict[str | None, Link] = {
    "attenuated": Attenuated(0.4, 2.0),  # TR 36.942, table A.2, uplink
    "cqi": _steps([*QPSK[::2], *QAM_16, *QAM_64[:5], *QAM_256]),  # table 5.2.2.1-3
    "cqi-64qam": _steps([*QPSK, *QAM_16, *QAM_64]),  # table 5.2.2.1-2
}
