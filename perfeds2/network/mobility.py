"""Move UEs: a position depends only on (seed, UE, time), not on when or how often it is requested."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from perfeds2.network.link import PerUe
from perfeds2.network.radios import SPEED_OF_LIGHT

InPlane = Float[np.ndarray, "2 n"]  # x and y of all UEs

WAY, TURN = 21, 22  # random streams: (seed, stream, number, axis); the i-th number is UE i's
STEP_S = 1.0  # how often a Gauss–Markov UE changes its velocity
MEMORY = 0.85  # fraction of the velocity it keeps


@dataclass(frozen=True)
class Moves:
    """How UEs move: the model, the speed and the radius they stay in."""

    walk: "Callable[[Moves, PerUe, PerUe, int], Walk]"  # gets the start positions and the seed
    speed_mps: float
    radius_m: float

    def __post_init__(self) -> None:
        if not (0 < self.speed_mps < np.inf and 0 < self.radius_m < np.inf):
            raise ValueError(
                f"speed and radius must be finite and above 0, got {self.speed_mps} m/s and {self.radius_m} m."
            )


@runtime_checkable
class Walk(Protocol):
    """The paths of all UEs."""

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        """Return the positions at a time, x and y in metres from the base station."""
        ...


def coherence_seconds(speed_mps: float, carrier_hz: float) -> float:
    """Return how long a channel stays roughly constant: T_c = 0.423·c/(v·f_c)."""
    return 0.423 * SPEED_OF_LIGHT / (speed_mps * carrier_hz)


class Waypoints:
    """Random waypoint: move straight at constant speed to a point drawn uniformly from the disc, then to the next."""

    def __init__(self, moves: Moves, x_m: PerUe, y_m: PerUe, seed: int) -> None:
        self._moves, self._seed = moves, seed
        self._places = np.stack([x_m, y_m])[:, None]  # waypoints: (2, number, n)
        self._turns_s = np.zeros((1, x_m.size))  # when each UE reaches them

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        while not (self._turns_s[-1] > time_s).all():
            self._add_waypoint()
        turn, ue = np.argmax(self._turns_s > time_s, axis=0), np.arange(self._turns_s.shape[1])
        last, coming = (turn - 1, ue), (turn, ue)
        part = (time_s - self._turns_s[last]) / (self._turns_s[coming] - self._turns_s[last])
        x, y = (of[last] + part * (of[coming] - of[last]) for of in self._places)
        return x, y

    def _add_waypoint(self) -> None:
        """Add one more waypoint for every UE."""
        turn, n = self._turns_s.shape
        away, angle = (np.random.default_rng([self._seed, WAY, turn, axis]).random(n) for axis in (0, 1))
        away = self._moves.radius_m * np.sqrt(away)
        place = away * np.stack([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)])
        way_m = np.maximum(np.hypot(*(place - self._places[:, -1])), 1e-6)
        self._turns_s = np.vstack([self._turns_s, self._turns_s[-1] + way_m / self._moves.speed_mps])
        self._places = np.concatenate([self._places, place[:, None]], axis=1)


class GaussMarkov:
    """Gauss–Markov: every second the velocity keeps most of its value and gets a random part; the rim reflects.

    The root mean square speed is the requested speed.
    """

    def __init__(self, moves: Moves, x_m: PerUe, y_m: PerUe, seed: int) -> None:
        self._moves, self._seed, self._size = moves, seed, x_m.size
        self._spread = moves.speed_mps / np.sqrt(2)  # standard deviation of each component
        start = (0, np.stack([x_m, y_m]), self._spread * self._new(0))
        self._start = (start, self._next(*start))
        self._now = self._start  # the last step requested and the next one; time mostly moves forward

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        step = int(time_s / STEP_S)
        now, then = self._now if self._now[0][0] <= step else self._start
        while now[0] < step:
            now, then = then, self._next(*then)
        self._now = now, then
        place, next_place = now[1], then[1]
        x, y = place + (time_s / STEP_S - step) * (next_place - place)
        return x, y

    def _next(self, number: int, place: InPlane, velocity: InPlane) -> tuple[int, InPlane, InPlane]:
        place = place + STEP_S * velocity
        away = np.hypot(*place)
        outside = away > self._moves.radius_m
        if outside.any():
            inwards = np.where(outside, np.maximum(2 * self._moves.radius_m / np.maximum(away, 1e-9) - 1, 0.0), 1.0)
            along = np.where(outside, 2 * (velocity * place).sum(axis=0) / np.maximum(away, 1e-9) ** 2, 0.0)
            velocity, place = velocity - along * place, inwards * place
        fresh = self._spread * np.sqrt(1 - MEMORY**2)
        return number + 1, place, MEMORY * velocity + fresh * self._new(number + 1)

    def _new(self, number: int) -> InPlane:
        draws = (np.random.default_rng([self._seed, TURN, number, axis]) for axis in (0, 1))
        return np.stack([draw.standard_normal(self._size) for draw in draws])


MOBILITY: dict[str, Callable[..., Walk] | None] = {
    "none": None,  # UEs stay where they were placed
    "waypoint": Waypoints,
    "gauss-markov": GaussMarkov,
}


@dataclass(frozen=True)
class Shifted:
    """The paths of UEs, seen from another place."""

    walk: Walk
    x_m: float
    y_m: float

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        x_m, y_m = self.walk.at(time_s)
        return x_m - self.x_m, y_m - self.y_m
