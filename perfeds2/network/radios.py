"""Compute the loss of a signal in a street, a city or the country.

Path loss, line of sight and shadowing follow 3GPP TR 38.901 (tables 7.4.1-1, 7.4.2-1 and 7.5-6): ``umi`` (street
canyon), ``uma`` (above the roofs) and ``rma`` (rural). Everything depends only on the position and on (seed, UE), not
on the time of the request or on other UEs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.blocks import each_block
from perfeds2.network.link import PerUe

SPEED_OF_LIGHT = 3e8  # m/s, as TR 38.901 rounds it
STREAMS = {"angle": 11, "sight": 12, "shadow": 13, "blocked shadow": 14}  # random streams: (seed, stream)
WAVES = 32  # plane waves per shadowing map


@dataclass(frozen=True)
class Where:
    """Positions of the UEs relative to the base station, and the seed of their draws."""

    x_m: PerUe
    y_m: PerUe
    seed: int
    ues: Int[np.ndarray, " n"] | None = None  # their numbers in the draws; None: 0, 1, 2 and so on

    @property
    def distance_m(self) -> PerUe:
        """Distance on the ground (d_2D)."""
        return np.hypot(self.x_m, self.y_m)


@dataclass(frozen=True)
class Radio:
    """How a signal is attenuated, transmitted and received."""

    name: str
    loss_db: "Callable[[Radio, Where], PerUe]"  # path loss and shadowing at each UE
    carrier_hz: float = 3.5e9
    bs_height_m: float = 10.0
    ue_height_m: float = 1.5
    noise_figure_db: float = 5.0  # of the base station's receiver
    bs_power_dbm: float = 44.0  # on the whole band
    most_bits_per_s_hz: float | None = 7.4  # limit of the modulation: 256-QAM
    shadowing_db: float | None = None  # σ; None: the scenario's own
    power_control: tuple[float, float] | None = None  # P0 in dBm per resource block, and α; None: full power
    azimuth_deg: float | None = None  # where a sector antenna points, from east to north; None: omnidirectional, 0 dBi
    defaults: ClassVar = {  # default settings: 23 dBm, the 256-QAM table, people who walk at 3 km/h, phones as measured
        "cell": {"power_w": 0.2},
        "radio": {"link": "cqi", "speed_mps": 0.83},
        "energy": {"model": "5g-low"},
    }

    def __post_init__(self) -> None:
        for what, value, low, high in (
            ("carrier_hz", self.carrier_hz, 5e8, 1e11),
            ("bs_height_m", self.bs_height_m, 1.0, 150.0),
            ("ue_height_m", self.ue_height_m, 1.0, 13.0),
        ):
            if not low <= value <= high or (what != "carrier_hz" and value == low):
                raise ValueError(f"{what} must be between {low:g} and {high:g}, got {value:g}.")

    def gain(self, where: Where) -> PerUe:
        """Return the received over the transmitted power, before fading."""
        loss_db = self.loss_db(self, where)
        if self.azimuth_deg is not None:
            down_m = self.bs_height_m - self.ue_height_m
            loss_db = loss_db - sector_db(where, self.azimuth_deg, down_m)
        return 10 ** (-loss_db / 10)

    def power_w(self, gain: PerUe, most_w: PerUe | float, part_hz: float) -> PerUe | float:
        """Return the transmit power in W: ``most_w``, or less with power control: P0 + α·PL + 10·lg(resource blocks).

        The resource blocks are those of an equal part of the band, ``part_hz``.
        """
        if self.power_control is None:
            return most_w
        target_dbm, compensation = self.power_control
        wanted_dbm = target_dbm - compensation * 10 * np.log10(gain) + 10 * np.log10(part_hz / RESOURCE_BLOCK_HZ)
        return np.minimum(most_w, 10 ** (wanted_dbm / 10) / 1000)


RESOURCE_BLOCK_HZ = 180_000.0
SECTOR_DBI, BEAM_DEG, MAX_DOWN_DB = 8.0, 65.0, 30.0  # one antenna element of TR 38.901, table 7.3-1


def sector_db(where: Where, azimuth_deg: float, down_m: float) -> PerUe:
    """Return the gain of a sector antenna towards UEs that are ``down_m`` lower, in dBi (TR 38.901, table 7.3-1)."""
    aside_deg = (np.degrees(np.arctan2(where.y_m, where.x_m)) - azimuth_deg + 180) % 360 - 180
    below_deg = np.degrees(np.arctan2(down_m, where.distance_m))
    across_db = np.minimum(12 * (aside_deg / BEAM_DEG) ** 2, MAX_DOWN_DB)
    along_db = np.minimum(12 * (below_deg / BEAM_DEG) ** 2, MAX_DOWN_DB)
    return SECTOR_DBI - np.minimum(across_db + along_db, MAX_DOWN_DB)


# ---- The three scenarios of TR 38.901


@dataclass(frozen=True)
class Path:
    """The link from the base station to the UEs, as the formulas need it."""

    ground_m: PerUe  # d_2D
    direct_m: PerUe  # d_3D
    carrier_ghz: float
    bs_height_m: float
    ue_height_m: float

    @property
    def breakpoint_m(self) -> float:
        """d'_BP of UMi and UMa, with an effective environment height of 1 m."""
        heights = (self.bs_height_m - 1) * (self.ue_height_m - 1)
        return 4 * heights * self.carrier_ghz * 1e9 / SPEED_OF_LIGHT


@dataclass(frozen=True)
class Scenario:
    """A scenario of TR 38.901: losses with and without line of sight, its probability, and the shadowing."""

    seen_db: Callable[[Path], PerUe]
    blocked_db: Callable[[Path], PerUe]  # before taking the maximum with the line-of-sight loss
    chance_to_see: Callable[[PerUe], PerUe]  # line-of-sight probability by distance on the ground
    shadow_db: Callable[[Path], PerUe | float]  # σ with line of sight
    blocked_shadow_db: float
    shadow_m: float  # correlation distance of the shadowing
    blocked_shadow_m: float

    def __call__(self, radio: Radio, where: Where) -> PerUe:
        """Return path loss and shadowing in dB."""
        loss = np.empty(where.x_m.size)
        ues = np.arange(loss.size) if where.ues is None else where.ues
        luck = np.random.default_rng([where.seed, STREAMS["sight"]]).random(ues.max(initial=-1) + 1)[ues]
        shadows = shadow_map(where.seed, "shadow", self.shadow_m)
        blocked_shadows = shadow_map(where.seed, "blocked shadow", self.blocked_shadow_m)

        def work(at: slice) -> None:
            x, y = where.x_m[at], where.y_m[at]
            path = path_of(radio, np.hypot(x, y))
            seen = luck[at] < self.chance_to_see(path.ground_m)
            loss[at] = self.mean_db(path, seen)
            if radio.shadowing_db == 0:
                return
            own = np.where(seen, self.shadow_db(path), self.blocked_shadow_db)
            deviation = own if radio.shadowing_db is None else np.full(x.size, radio.shadowing_db)
            for of, waves in ((seen, shadows), (~seen, blocked_shadows)):
                loss[at][of] += deviation[of] * waves(x[of], y[of])

        each_block(loss.size, work)
        return loss

    def mean_db(self, path: Path, seen: Bool[np.ndarray, " n"]) -> PerUe:
        """Return the path loss in dB without shadowing."""
        in_sight = self.seen_db(path)
        return np.where(seen, in_sight, np.maximum(in_sight, self.blocked_db(path)))


def path_of(radio: Radio, ground_m: PerUe) -> Path:
    direct_m = np.hypot(ground_m, radio.bs_height_m - radio.ue_height_m)
    return Path(ground_m, direct_m, radio.carrier_hz / 1e9, radio.bs_height_m, radio.ue_height_m)


def _city_seen(at_1_m: float, slope: float, bend: float, path: Path) -> PerUe:
    """Return the loss of UMi and UMa with line of sight: two slopes that meet at the breakpoint."""
    near = at_1_m + slope * np.log10(path.direct_m)
    lg_breakpoint = float(np.log10(path.breakpoint_m**2 + (path.bs_height_m - path.ue_height_m) ** 2))
    far = at_1_m + 40 * np.log10(path.direct_m) - bend * lg_breakpoint
    return np.where(path.ground_m <= path.breakpoint_m, near, far) + 20 * np.log10(path.carrier_ghz)


def _city_blocked(at_1_m: float, slope: float, by_carrier: float, by_height: float, path: Path) -> PerUe:
    """Return the loss of UMi and UMa without line of sight."""
    fixed = at_1_m + by_carrier * np.log10(path.carrier_ghz) - by_height * (path.ue_height_m - 1.5)
    return slope * np.log10(path.direct_m) + fixed


BUILDING_M, STREET_M = 5.0, 20.0  # h and W in the rural scenario


def _rma_breakpoint(path: Path) -> float:
    return 2 * np.pi * path.bs_height_m * path.ue_height_m * path.carrier_ghz * 1e9 / SPEED_OF_LIGHT


def _rma_seen(path: Path) -> PerUe:
    turn_m = _rma_breakpoint(path)
    is_near = path.ground_m <= turn_m
    near_m = np.where(is_near, path.direct_m, turn_m)
    free = 20 * np.log10(40 * np.pi * path.carrier_ghz / 3 * near_m)
    walls = min(0.03 * BUILDING_M**1.72, 10) * np.log10(near_m) - min(0.044 * BUILDING_M**1.72, 14.77)
    near = free + walls + 0.002 * np.log10(BUILDING_M) * near_m
    return near + np.where(is_near, 0.0, 40 * np.log10(path.direct_m / turn_m))


def _rma_blocked(path: Path) -> PerUe:
    bs_m, lg_bs = path.bs_height_m, np.log10(path.bs_height_m)
    fixed = 161.04 - 7.1 * np.log10(STREET_M) + 7.5 * np.log10(BUILDING_M)
    fixed -= (24.37 - 3.7 * (BUILDING_M / bs_m) ** 2) * lg_bs
    fixed += 20 * np.log10(path.carrier_ghz) - (3.2 * np.log10(11.75 * path.ue_height_m) ** 2 - 4.97)
    return fixed + (43.42 - 3.1 * lg_bs) * (np.log10(path.direct_m) - 3)


def _in_the_city(reach_m: float, ground_m: PerUe) -> PerUe:
    near = 18 / np.maximum(ground_m, 18.0)
    return near + np.exp(-ground_m / reach_m) * (1 - near)


def _in_the_country(ground_m: PerUe) -> PerUe:
    return np.exp(-np.maximum(ground_m - 10, 0.0) / 1000)


STREET = Scenario(
    partial(_city_seen, 32.4, 21, 9.5),
    partial(_city_blocked, 22.4, 35.3, 21.3, 0.3),
    partial(_in_the_city, 36.0),
    lambda _: 4.0,
    7.82,
    10.0,
    13.0,
)
CITY = Scenario(
    partial(_city_seen, 28.0, 22, 9),
    partial(_city_blocked, 13.54, 39.08, 20, 0.6),
    partial(_in_the_city, 63.0),
    lambda _: 4.0,
    6.0,
    37.0,
    50.0,
)
COUNTRY = Scenario(
    _rma_seen,
    _rma_blocked,
    _in_the_country,
    lambda path: np.where(path.ground_m <= _rma_breakpoint(path), 4.0, 6.0),
    8.0,
    37.0,
    120.0,
)

RADIOS: dict[str, Radio | None] = {
    "paper": None,  # Table I's power law, built into the cell
    "umi": Radio("umi", STREET),
    "uma": Radio("uma", CITY, bs_height_m=25.0, bs_power_dbm=49.0),
    "rma": Radio("rma", COUNTRY, carrier_hz=7e8, bs_height_m=35.0, bs_power_dbm=49.0),
}


# ---- Shadowing


@dataclass(frozen=True)
class Waves:
    """A shadowing map: standard normal at every point, with correlation e^(−Δd/d_c) at distance Δd.

    It is a sum of plane waves. Their wave numbers come from the spectrum of that correlation in the plane, ∝ (1 +
    (k·d_c)²)^(−3/2), one from each of equally likely strata. The map is therefore a formula: it has a value at any
    point, needs no grid, and costs the same for every UE.
    """

    along_x: Float[np.ndarray, " w"]  # turns per metre
    along_y: Float[np.ndarray, " w"]
    phase: Float[np.ndarray, " w"]  # turns

    def __call__(self, x_m: PerUe, y_m: PerUe) -> PerUe:
        total = np.zeros(x_m.size)
        for start in range(0, x_m.size, IN_CACHE):
            at = slice(start, start + IN_CACHE)
            turns = self.along_x[:, None] * x_m[at]
            turns += self.along_y[:, None] * y_m[at]
            turns += self.phase[:, None]
            part = total[at]
            for wave in _cosine(turns):  # summed in a fixed order, for any number of UEs
                part += wave
        total *= np.sqrt(2 / self.phase.size)
        return total


IN_CACHE = 1024  # UEs
SINE = (-0.99969677 * 2 * np.pi, 0.16567306 * (2 * np.pi) ** 3, -0.00751438 * (2 * np.pi) ** 5)


def _cosine(turns: Float[np.ndarray, "w c"]) -> Float[np.ndarray, "w c"]:
    """Return cos(2π·turns) to 1e-4, in place: −sin of |t| − 1/4 with t within half a turn, by a minimax polynomial.

    It takes a fifth of the time of the library's cosine and gives the same result on every processor.
    """
    other = np.rint(turns)
    turns -= other
    np.abs(turns, out=turns)
    turns -= 0.25
    np.multiply(turns, turns, out=other)
    factor = SINE[2] * other
    factor += SINE[1]
    factor *= other
    factor += SINE[0]
    turns *= factor
    return turns


@lru_cache(maxsize=64)
def shadow_map(seed: int, stream: str, alike_m: float) -> Waves:
    """Return the shadowing map of a seed."""
    random = np.random.default_rng([seed, STREAMS[stream]])
    part = (np.arange(WAVES) + random.random(WAVES)) / WAVES
    number = np.sqrt((1 / (1 - part)) ** 2 - 1) / alike_m
    direction, phase = random.random((2, WAVES))
    turns, direction = number / (2 * np.pi), 2 * np.pi * direction
    return Waves(turns * np.cos(direction), turns * np.sin(direction), phase)
