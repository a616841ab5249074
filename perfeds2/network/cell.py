"""Who is in the cell, how well does the base station hear them, and how fast do they compute?"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float

from perfeds2.network.device import compute_seconds

Layout = Literal["disc", "uniform", "equal"]


@dataclass(frozen=True)
class Cell:
    """One base station and n unequal UEs around it. The defaults are the paper's Table I; what it leaves open is ours."""

    distance_m: Float[np.ndarray, " n"]  # to the base station (the paper's first c_i, erratum 4)
    cpu_hz: Float[np.ndarray, " n"]  # ϑ_i
    cycles_per_sample: float = 250_000.0  # the paper's second c_i; it gives no value
    power_w: float = 0.01  # p_i
    bandwidth_hz: float = 1e6  # B, shared by OFDMA
    path_loss_exponent: float = 3.8  # κ
    noise_dbm_per_hz: float = -174.0  # N0
    fading_scale: float = 40.0  # Rayleigh scale of the coefficient h
    downlink_s: float = 0.0  # seconds until a UE has the model; free by default, as in the paper
    seed: int = 0  # whose fading this cell meets

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance_m", np.asarray(self.distance_m, float))
        object.__setattr__(self, "cpu_hz", np.asarray(self.cpu_hz, float))
        if self.distance_m.ndim != 1 or self.distance_m.size == 0 or self.distance_m.shape != self.cpu_hz.shape:
            raise ValueError(
                f"a cell needs one distance and one CPU frequency per UE, at least one UE; "
                f"got {self.distance_m.shape} distances and {self.cpu_hz.shape} frequencies."
            )
        for name in (f.name for f in fields(Cell)):
            values = np.atleast_1d(np.asarray(getattr(self, name), float))
            if name == "noise_dbm_per_hz":
                low, range_ = values == -np.inf, ""
            elif name in {"distance_m", "downlink_s", "seed", "cycles_per_sample"}:
                low, range_ = values < 0, " and at least 0"
            else:
                low, range_ = values <= 0, " and above 0"
            wrong = low | ~np.isfinite(values)
            if wrong.any():
                raise ValueError(f"{name} must be finite{range_}, got {values[wrong][0]}.")
        if self.seed != int(self.seed) or self.seed >= 2**64:
            raise ValueError(f"seed must be a whole number below 2^64, got {self.seed}.")
        object.__setattr__(self, "distance_m", np.maximum(self.distance_m, MIN_DISTANCE_M))

    @classmethod
    def draw(
        cls,
        ues: int,
        seed: int = 0,
        *,
        layout: Layout = "disc",
        radius_m: float = 200.0,
        cpu_hz: tuple[float, float] = (2e8, 2e9),
        **rest: float,
    ) -> "Cell":
        """A random cell: UEs over the disc, with distances uniform in [0, radius], or all at the same distance.

        CPU frequencies are log-uniform between the two given. The first m UEs are the same for every n ≥ m.
        """
        if ues < 1:
            raise ValueError(f"a cell needs at least 1 UE, got {ues}.")
        slow, fast = cpu_hz
        if not (0 < slow < np.inf and 0 < fast < np.inf):
            raise ValueError(f"cpu_hz must be two finite frequencies above 0, got {cpu_hz}.")
        uniform = np.random.default_rng([seed, 1]).random(ues)
        match layout:
            case "disc":
                distance = radius_m * np.sqrt(uniform)
            case "uniform":
                distance = radius_m * uniform
            case "equal":
                distance = np.full(ues, radius_m / 2)
            case _:
                raise ValueError(f"layout must be disc, uniform or equal, got {layout!r}.")
        speed = slow * (fast / slow) ** np.random.default_rng([seed, 2]).random(ues)
        return cls(distance, speed, seed=seed, **rest)

    @property
    def ues(self) -> int:
        return self.distance_m.size

    def signal_hz(self, round_: int) -> Float[np.ndarray, " n"]:
        """Received power over noise density in a round, p·h·d^−κ / N0, with h redrawn each round.

        A draw belongs to (seed, round, UE): whoever else is in the cell and whatever policy runs, it is the same.
        """
        signal = self._fading(round_)
        signal *= self.mean_signal_hz
        return signal

    @cached_property
    def mean_signal_hz(self) -> Float[np.ndarray, " n"]:
        """The signal at h = 1, before fading."""
        noise_w_per_hz = 10 ** (self.noise_dbm_per_hz / 10) / 1000
        return self.power_w / noise_w_per_hz * self.distance_m**-self.path_loss_exponent

    def _fading(self, round_: int) -> Float[np.ndarray, " n"]:
        """h = scale·√(−2 ln(1 − U)), U uniform: the stream of the key (seed, round), whose i-th number is UE i's."""
        dice, start = self._dice
        with dice.bit_generator.lock:
            start["state"]["key"][1] = round_
            dice.bit_generator.state = start
            fading = dice.random(self.ues)
        np.subtract(1.0, fading, out=fading)
        np.minimum(fading, 1 - 2.0**-53, out=fading)  # U = 0 counts as the next number: no UE is ever silent
        np.log(fading, out=fading)
        fading *= -2 * self.fading_scale**2
        return np.sqrt(fading, out=fading)

    @cached_property
    def _dice(self) -> tuple[np.random.Generator, dict]:
        """A generator and its state at the start of a stream: a new key is ten times cheaper than a new generator."""
        philox = np.random.Philox(key=np.array([self.seed, 0], np.uint64))
        return np.random.Generator(philox), dict(philox.state)

    def compute_s(self, samples: float) -> Float[np.ndarray, " n"]:
        """Seconds from getting the model to having the gradient."""
        return self.downlink_s + compute_seconds(samples, self.cycles_per_sample, self.cpu_hz)

    def with_distances(self, distance_m: Sequence[float] | Float[np.ndarray, " n"]) -> "Cell":
        """The same cell with its UEs elsewhere."""
        return replace(self, distance_m=np.asarray(distance_m, float))


MIN_DISTANCE_M = 1.0  # the path loss d^−κ is not meant for the antenna itself
