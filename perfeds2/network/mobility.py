"""Where is a UE at a given second? A function of (seed, UE, time): whoever asks when, and how often, the way is the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from perfeds2.network.radios import SPEED_OF_LIGHT

PerUe = Float[np.ndarray, " n"]
WAY, TURN = 21, 22  # streams of draws: (seed, stream, number, axis), whose i-th number is UE i's
STEP_S = 1.0  # how often a Gauss–Markov walker thinks again
MEMORY = 0.85  # how much of its velocity it keeps then


@dataclass(frozen=True)
class Moves:
    """How UEs move: the law, how fast, and within which radius."""

    walk: "Callable[[Moves, PerUe, PerUe, int], Walk]"  # from where, with which seed
    speed_mps: float
    radius_m: float

    def __post_init__(self) -> None:
        if not (0 < self.speed_mps < np.inf and 0 < self.radius_m < np.inf):
            raise ValueError(
                f"speed and radius must be finite and above 0, got {self.speed_mps} m/s and {self.radius_m} m."
            )


@runtime_checkable
class Walk(Protocol):
    """Ways of all UEs."""

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        """Where they are, x and y in metres from the base station."""
        ...


def coherence_seconds(speed_mps: float, carrier_hz: float) -> float:
    """How long a channel stays what it is: T_c = 0.423·c/(v·f_c)."""
    return 0.423 * SPEED_OF_LIGHT / (speed_mps * carrier_hz)


class Waypoints:
    """Random waypoint: to a place drawn uniformly from the disc, straight and at one speed, then to the next."""

    def __init__(self, moves: Moves, x_m: PerUe, y_m: PerUe, seed: int) -> None:
        self._moves, self._seed = moves, seed
        self._places = (x_m[None], y_m[None])  # of every turn; rows are turns
        self._turns_s = np.zeros((1, x_m.size))  # when each UE is there

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        while not (self._turns_s[-1] > time_s).all():
            self._go_on()
        ahead = np.argmax(self._turns_s > time_s, axis=0)[None]  # the first turn that is still to come
        before_s, after_s = (np.take_along_axis(self._turns_s, ahead - back, 0)[0] for back in (1, 0))
        part = (time_s - before_s) / (after_s - before_s)
        (x0, x1), (y0, y1) = ([np.take_along_axis(of, ahead - back, 0)[0] for back in (1, 0)] for of in self._places)
        return x0 + part * (x1 - x0), y0 + part * (y1 - y0)

    def _go_on(self) -> None:
        """One more turn for everybody."""
        turn, n = self._turns_s.shape
        away, angle = (np.random.default_rng([self._seed, WAY, turn, axis]).random(n) for axis in (0, 1))
        away = self._moves.radius_m * np.sqrt(away)
        x, y = away * np.cos(2 * np.pi * angle), away * np.sin(2 * np.pi * angle)
        way_m = np.maximum(np.hypot(x - self._places[0][-1], y - self._places[1][-1]), 1e-6)
        self._turns_s = np.vstack([self._turns_s, self._turns_s[-1] + way_m / self._moves.speed_mps])
        self._places = (np.vstack([self._places[0], x]), np.vstack([self._places[1], y]))


class GaussMarkov:
    """Gauss–Markov: every second the velocity keeps most of itself and gets something new; the rim of the disc reflects.

    The mean square of the speed is the speed that is asked for.
    """

    def __init__(self, moves: Moves, x_m: PerUe, y_m: PerUe, seed: int) -> None:
        self._moves, self._seed, self._size = moves, seed, x_m.size
        self._spread = moves.speed_mps / np.sqrt(2)  # of each component
        self._start = (0, x_m, y_m, *(self._spread * drawn for drawn in self._new(0)))
        self._now = self._start  # the last step asked for: time mostly goes on

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        step = int(time_s / STEP_S)
        number, x, y, vx, vy = self._now if self._now[0] <= step else self._start
        while number < step:
            number, x, y, vx, vy = self._next(number, x, y, vx, vy)
        self._now = (number, x, y, vx, vy)
        _, x1, y1, _, _ = self._next(number, x, y, vx, vy)
        part = time_s / STEP_S - step
        return x + part * (x1 - x), y + part * (y1 - y)

    def _next(self, number: int, x: PerUe, y: PerUe, vx: PerUe, vy: PerUe) -> tuple[int, PerUe, PerUe, PerUe, PerUe]:
        x, y = x + STEP_S * vx, y + STEP_S * vy
        away = np.hypot(x, y)
        outside = away > self._moves.radius_m
        if outside.any():
            inwards = np.where(outside, np.maximum(2 * self._moves.radius_m / np.maximum(away, 1e-9) - 1, 0.0), 1.0)
            along = np.where(outside, 2 * (vx * x + vy * y) / np.maximum(away, 1e-9) ** 2, 0.0)
            vx, vy = vx - along * x, vy - along * y
            x, y = inwards * x, inwards * y
        fresh = self._spread * np.sqrt(1 - MEMORY**2)
        new_x, new_y = self._new(number + 1)
        return number + 1, x, y, MEMORY * vx + fresh * new_x, MEMORY * vy + fresh * new_y

    def _new(self, number: int) -> tuple[PerUe, PerUe]:
        n = self._size
        drawn = [np.random.default_rng([self._seed, TURN, number, axis]).standard_normal(n) for axis in (0, 1)]
        return drawn[0], drawn[1]


MOBILITY: dict[str, Callable[..., Walk] | None] = {"none": None, "waypoint": Waypoints, "gauss-markov": GaussMarkov}
