"""Place base stations in the plane, on a grid of hexagons or from a file, and measure where UEs are from them."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.fleet_file import ITSELF, POSITIVE, read_bytes, read_number, read_rows
from perfeds2.network.link import PerUe

PerCell = Float[np.ndarray, " E"]
COLUMNS = {  # of a file of base stations: the range of each number
    "x_m": (-1e9, 1e9),
    "y_m": (-1e9, 1e9),
    "bandwidth_hz": POSITIVE,
    "backhaul_bps": POSITIVE,
    "backhaul_s": (0.0, 1e9),
    "bs_power_dbm": (-300.0, 300.0),
    "azimuth_deg": (-360.0, 360.0),
}


@dataclass(frozen=True)
class Sites:
    """Base stations. NaN means that one uses the setting for all."""

    x_m: PerCell
    y_m: PerCell
    bandwidth_hz: PerCell
    backhaul_bps: PerCell
    backhaul_s: PerCell
    bs_power_dbm: PerCell
    azimuth_deg: PerCell  # where its sector antenna points, from east to north; NaN: omnidirectional
    colour: Int[np.ndarray, " E"] | None = None  # which third of the band it uses with reuse 3; None: not on a grid
    again_m: Float[np.ndarray, "2 2"] | None = None  # the grid repeats after these two ways (x, y); None: it ends
    digest: str = field(default="", compare=False)
    texts: Mapping[str, bytes] = field(default_factory=dict, compare=False)  # the file, as in ``FleetFile``

    @classmethod
    def open(cls, path: Path | str, kept: Mapping[str, bytes] | None = None) -> "Sites":
        """Read a CSV file with one row per base station, or its copy in a run's folder. Fails as ``FleetFile.open`` does."""
        data = read_bytes(Path(path), "was not found") if kept is None else kept.get(ITSELF, b"")
        rows = []
        for line, given in read_rows(data, COLUMNS, "base station"):
            lacking = next((name for name in ("x_m", "y_m") if name not in given), None)
            if lacking is not None:
                raise ValueError(f"has no {lacking} in line {line}; give the position of every base station in metres")
            rows.append({name: read_number(text, name, line, COLUMNS[name]) for name, text in given.items()})
        columns = (np.array([row.get(name, math.nan) for row in rows]) for name in COLUMNS)
        return cls(*columns, digest=hashlib.sha256(data).hexdigest(), texts={ITSELF: data})

    @classmethod
    def grid(cls, count: int, radius_m: float, sectors: int = 1, *, wraps: bool = False) -> "Sites":
        """Place base stations in hexagons around a central one, in a spiral; a corner is ``radius_m`` away.

        With three sectors, three of them share each place and point to 30°, 150° and 270°. With frequency reuse 3, the
        sectors of a place then use different thirds of the band. A grid that ``wraps`` has no border: whole rings around
        the centre repeat in all directions, so what leaves on one side enters on the opposite one.

        Raises:
            ValueError: If the base stations cannot be divided among places, or a grid that wraps has no whole rings.
        """
        if count % sectors:
            raise ValueError(f"the number of cells, {count}, must be a multiple of {sectors} sectors.")
        count //= sectors
        rings = math.ceil((math.sqrt(12 * count - 3) - 3) / 6)
        if wraps and (count == 1 or count != 3 * rings * (rings + 1) + 1):
            raise ValueError(f"a grid that wraps around has 7, 19, 37 or more places, in whole rings; got {count}.")
        along, across = (axis.ravel() for axis in np.mgrid[-rings : rings + 1, -rings : rings + 1])
        ring = np.maximum(np.maximum(abs(along), abs(across)), abs(along + across))
        x_m, y_m = 1.5 * radius_m * along, math.sqrt(3) * radius_m * (across + along / 2)
        steps = np.array([[rings + 1, -rings], [rings, 2 * rings + 1]])  # along and across, to the next two grids
        again_m = radius_m * np.array([[1.5, 0.0], [math.sqrt(3) / 2, math.sqrt(3)]]) @ steps if wraps else None
        first = np.lexsort((np.arctan2(y_m, x_m) % (2 * np.pi), ring))[:count]
        x_m, y_m = np.repeat(x_m[first], sectors), np.repeat(y_m[first], sectors)
        turn = np.tile(np.arange(sectors), count)
        azimuth_deg = np.full(turn.size, np.nan) if sectors == 1 else 30.0 + 360.0 / sectors * turn
        colour = np.repeat((along - across)[first] % 3, sectors) if sectors == 1 else turn % 3
        unknown = np.full(turn.size, np.nan)
        return cls(x_m, y_m, unknown, unknown, unknown, unknown, azimuth_deg, colour=colour, again_m=again_m)

    @property
    def count(self) -> int:
        """E, the number of base stations."""
        return self.x_m.size

    @cached_property
    def place(self) -> Int[np.ndarray, " E"]:
        """The first base station at each one's place: sectors of a place have the same shadowing."""
        _, first, back = np.unique(np.stack([self.x_m, self.y_m], 1), axis=0, return_index=True, return_inverse=True)
        return first[back.ravel()]

    def relative(
        self, site: int | Int[np.ndarray, " n"], x_m: PerUe | float, y_m: PerUe | float
    ) -> Float[np.ndarray, "2 n"]:
        """Return positions as base stations see them, all as one or each as its own: the nearest ones, if the grid repeats."""
        away_m = np.stack([x_m - self.x_m[site], y_m - self.y_m[site]])
        if self.again_m is None:
            return away_m
        away_m = away_m - self.again_m @ np.round(np.linalg.solve(self.again_m, away_m))
        steps = np.array([(along, across) for along in (0, -1, 1) for across in (0, -1, 1)])
        images = away_m + (steps @ self.again_m.T)[:, :, None]
        nearest = (images**2).sum(axis=1).argmin(axis=0)
        return images[nearest, :, np.arange(nearest.size)].T

    @property
    def at_a_place(self) -> int:
        """The most base stations that share a place."""
        return int(np.bincount(self.place).max())
