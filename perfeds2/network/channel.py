"""Compute how strongly a base station receives each UE over time: fading, drawn by (seed, round, UE), and movement."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.blocks import Draws, each_block, steps_by
from perfeds2.network.link import PerUe

Ues = Int[np.ndarray, " h"]  # numbers of some UEs
POSITION_STEP_M = 1.0  # shadowing is correlated over 10 m and more
MAX_CACHED = 4_000_000  # numbers


@dataclass(frozen=True)
class Fading:
    """The distribution of the fading, Rayleigh or Rician. A real radio's signal is proportional to h², with mean 1."""

    rician_k: float = 0.0  # power ratio of the steady to the scattered part; 0: Rayleigh, infinite: no fading
    scale: float | None = None  # of Table I's coefficient h, to which its signal is proportional; None: a real radio

    def signal_of_amplitude(self, amplitude: float) -> float:
        """Return the ratio of the signal to its mean for a fading amplitude with mean square 1."""
        return amplitude**2 if self.scale is None else self.scale * math.sqrt(2) * amplitude

    @property
    def max_ratio(self) -> float:
        """The largest possible ratio of a signal to its mean; 1 − U is at least 2^−53."""
        k = self.rician_k
        steady = 1.0 if k == np.inf else math.sqrt(k / (1 + k))
        return self.signal_of_amplitude(steady + math.sqrt(53 * math.log(2) / (1 + k))) * (1 + 1e-9)

    def apply(
        self,
        signal: Float[np.ndarray, "*rounds h"],
        angle: Float[np.ndarray, "*rounds h"] | None,
        mean_hz: Float[np.ndarray, " h"],
        at: slice,
    ) -> None:
        """Replace U by the signal, in place: h = scale·√(−2 ln(1 − U)), Rayleigh, times the signal at h = 1.

        Rician fading adds a steady part to a scattered part that U and an angle give.

        Args:
            signal: U on entry, the signal in Hz on return.
            angle: Uniform numbers for the angle of the scattered part; None for Rayleigh fading.
            mean_hz: The signals before fading, in Hz.
            at: The UEs to work on.
        """
        fading = signal[at]
        np.subtract(1.0, fading, out=fading)
        np.minimum(fading, 1 - 2.0**-53, out=fading)  # replace U = 0, so that no UE has a signal of 0
        np.log(fading, out=fading)
        if angle is not None:
            steady, rest = math.sqrt(self.rician_k / (1 + self.rician_k)), np.sqrt(fading / -(1 + self.rician_k))
            turn = 2 * np.pi * angle[at]
            fading[:] = -np.maximum((steady + rest * np.cos(turn)) ** 2 + (rest * np.sin(turn)) ** 2, 2.0**-53)
        if self.scale is None:
            np.negative(fading, out=fading)
        else:
            fading *= -2 * self.scale**2
            np.sqrt(fading, out=fading)
        fading *= mean_hz[at]


class ByPosition:
    """Values that depend on where moving UEs are, updated after every metre of a path. Each algorithm asks for them again."""

    def __init__(self, compute: Callable[[float], PerUe], speed_mps: float, coherence_s: float) -> None:
        """Cache the results of ``compute``, a function of the simulated second."""
        self._compute, self._coherence_s = compute, coherence_s
        self._step = max(1, int(POSITION_STEP_M / (speed_mps * coherence_s)))  # in time blocks
        self._cache: dict[int, PerUe] = {}

    def at(self, block: int) -> PerUe:
        """Return the values in a time block."""
        first = block - block % self._step
        if first not in self._cache:
            values = self._compute(first * self._coherence_s)
            if len(self._cache) * values.size >= MAX_CACHED:
                self._cache.clear()
            self._cache[first] = values
        return self._cache[first]


class Channel:
    """The signals of UEs at a base station: received power over the noise density, in Hz."""

    def __init__(
        self,
        mean_hz: PerUe,
        fading: Fading,
        seed: int,
        coherence_s: float | None = None,
        *,
        steady: Bool[np.ndarray, " n"] | None = None,
        moved: ByPosition | None = None,
    ) -> None:
        """Describe the signals.

        Args:
            mean_hz: Signals before fading, with the UEs where they are at time 0.
            fading: Distribution of the fading.
            seed: Seed of the draws.
            coherence_s: Time after which the fading is redrawn; None: every round.
            steady: UEs whose signals do not fade; None if all fade.
            moved: Signals before fading relative to ``mean_hz``, where the UEs are; None if they stand still.
        """
        self.mean_hz, self.fading, self.coherence_s = mean_hz, fading, coherence_s
        self._steady, self._moved, self._draws = steady, moved, Draws(seed, mean_hz.size)

    def signal_hz(self, round_: int, ues: Ues | None = None) -> PerUe:
        """Return the signals in a round with the UEs where they are at time 0; h is redrawn in every round.

        A draw depends only on (seed, round, UE), not on the other UEs or the policy.

        Args:
            round_: The round, or the time block if there is a coherence time.
            ues: Numbers of the UEs; None for all.

        Returns:
            The signal of each UE in Hz, shape (n,) or (h,).
        """

        def of(values: np.ndarray) -> np.ndarray:
            return values if ues is None else values[ues]

        mean_hz, fading = of(self.mean_hz), self.fading
        if fading.rician_k == math.inf:
            signal = mean_hz * fading.signal_of_amplitude(1.0)
        else:
            signal = of(self._draws.uniform(round_))
            angle = of(self._draws.uniform(round_, 1)) if fading.rician_k > 0 else None
            each_block(signal.size, partial(fading.apply, signal, angle, mean_hz))
        if self._steady is not None:
            steady = of(self._steady)
            signal[steady] = mean_hz[steady]
        return signal

    def signal_in(self, block: int) -> PerUe:
        """Return the signals in a round or time block, from its fading and the UEs' positions.

        Args:
            block: The round, or the time block if there is a coherence time.

        Returns:
            The signal of each UE in Hz, shape (n,).
        """
        signal_hz = self.signal_hz(block)
        return signal_hz if self._moved is None else signal_hz * self._moved.at(block)

    def signal_at(self, round_: int, time_s: float) -> PerUe:
        """Return the signals at a time. With a coherence time, draws depend on (seed, time block, UE).

        Args:
            round_: The open round.
            time_s: Simulated time in seconds.

        Returns:
            The signal of each UE in Hz, shape (n,).
        """
        return self.signal_in(self.block_at(round_, time_s))

    def normal_at(self, round_: int, time_s: float) -> PerUe:
        """Return a standard normal number for each UE, drawn with its fading: the error of its known signal."""
        from scipy.special import ndtri  # slow to import

        uniform = self._draws.uniform(self.block_at(round_, time_s), 2)
        return np.asarray(ndtri(np.maximum(uniform, 2.0**-53)))

    def block_at(self, round_: int, time_s: float) -> int:
        """Return which fading draw applies: the round's, or with a coherence time the time block's.

        It is the last block that begins by then. The end of a block belongs to the next one, despite rounding.

        Args:
            round_: The open round.
            time_s: Simulated time in seconds.

        Returns:
            The number of the round or time block.
        """
        return round_ if self.coherence_s is None else steps_by(time_s, self.coherence_s)

    def changes_s(self, time_s: float) -> float:
        """Return when the signals next change within a round: at the end of the time block, or never.

        Args:
            time_s: Simulated time in seconds.

        Returns:
            A time in seconds; infinite without a coherence time.
        """
        return math.inf if self.coherence_s is None else (self.block_at(0, time_s) + 1) * self.coherence_s
