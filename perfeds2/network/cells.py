"""Place base stations in the plane, attach UEs to them, and describe each as a cell of its own with a backhaul."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from perfeds2.network.attach import Links, attach, nearest
from perfeds2.network.cell import Cell, Ues
from perfeds2.network.fleet import Fleet, Presence
from perfeds2.network.handover import Attached, Handover, Settled
from perfeds2.network.link import PerUe
from perfeds2.network.mobility import Moves, Shifted, Walk
from perfeds2.network.sites import PerCell, Sites

Interference = float | Literal["full", "coupled"] | None  # rise over thermal in dB
INTERFERING = 18  # nearest base stations that interfere


@dataclass(frozen=True)
class Cells:
    """Several cells, the numbers of their UEs, and the backhaul from each base station to the cloud."""

    cells: Sequence[Cell]
    ues: Sequence[Int[np.ndarray, "_"]]  # number in the whole network of each cell's UEs
    x_m: PerCell  # positions of the base stations
    y_m: PerCell
    backhaul_bps: PerCell  # may be infinite
    backhaul_s: PerCell  # delay
    co_channel: Bool[np.ndarray, "E E"] | None = None  # in which cells uploads are noise for each; None: constant noise
    one_server: bool = False  # whether a server at the cloud has all cells
    fleet: Fleet | None = None  # properties of all UEs, apart from their links

    @property
    def population(self) -> int:
        """n, the number of UEs of all cells."""
        return 1 + max(int(own.max()) for own in self.ues)

    @property
    def sizes(self) -> Int[np.ndarray, " E"]:
        """UEs per cell; all UEs if they move."""
        return np.array([own.size for own in (self.ues if self._attached else self.members)])

    @property
    def joint(self) -> bool:
        """Whether cells affect each other. Each then describes all UEs."""
        coupled, downlink = self.co_channel is not None, self.cells[0].downlink
        return _are_joint(coupled, self.moving, self.one_server, downlink is not None)

    @property
    def members(self) -> list[Ues]:
        """Numbers of the UEs in each cell at first."""
        inside = [self._inside(cell, 0.0) for cell in self.cells]
        return [own if at is None else own[at] for own, at in zip(self.ues, inside, strict=True)]

    def alone(self, number: int) -> Cell:
        """Return a cell with its own UEs only; if UEs move, with all of them."""
        cell = self.cells[number]
        if not self.joint or self.moving:
            return cell
        own = self.members[number]
        fleet = None if cell.fleet is None else cell.fleet.take(own)
        fleet = fleet and replace(fleet, presence=None if self.fleet is None else self.fleet.take(own).presence)
        assert cell.angle_rad is not None
        power_w = cell.power_w if np.isscalar(cell.power_w) else np.asarray(cell.power_w)[own]
        return replace(
            cell,
            distance_m=cell.distance_m[own],
            angle_rad=cell.angle_rad[own],
            cpu_hz=cell.cpu_hz[own],
            power_w=power_w,
            fleet=fleet,
            offset_db=None if cell.offset_db is None else cell.offset_db[own],
        )

    @property
    def hours(self) -> Presence | None:
        """When UEs are present in any cell; None if they always are."""
        return None if self.fleet is None else self.fleet.presence

    @property
    def moving(self) -> bool:
        """Whether UEs go from cell to cell."""
        return self._attached is not None

    @staticmethod
    def _inside(cell: Cell, time_s: float) -> Bool[np.ndarray, " n"] | None:
        """Return which UEs a cell serves whenever they are present; None: all that it describes."""
        presence = None if cell.fleet is None else cell.fleet.presence
        return presence.present(time_s) if isinstance(presence, Attached | Settled) else None

    def places(self, time_s: float = 0.0) -> tuple[PerUe, PerUe, Int[np.ndarray, " n"]]:
        """Return where every UE is at a time, in metres, and its cell."""
        x_m, y_m, cell_of = np.empty(self.population), np.empty(self.population), np.empty(self.population, np.int64)
        for number, (cell, own) in enumerate(zip(self.cells, self.ues, strict=True)):
            where, inside = cell.at(time_s).where, self._inside(cell, time_s)
            at = slice(None) if inside is None else inside
            x_m[own[at]], y_m[own[at]] = self.x_m[number] + where.x_m[at], self.y_m[number] + where.y_m[at]
            cell_of[own[at]] = number
        return x_m, y_m, cell_of

    def handovers(self, until_s: float) -> int | None:
        """Return how often UEs change their cell until a time; None if they stand still."""
        return None if self._attached is None else self._attached.handover.count(until_s)

    @property
    def keeps(self) -> bool:
        """Whether a UE that is handed over keeps its job."""
        return self._attached is not None and self._attached.keeps

    @property
    def _attached(self) -> Attached | None:
        fleet = self.cells[0].fleet
        presence = None if fleet is None else fleet.presence
        return presence if isinstance(presence, Attached) else None

    def transfer_s(self, bits: float) -> PerCell:
        """Return the seconds that this many bits take between each base station and the cloud."""
        return self.backhaul_s + bits / self.backhaul_bps

    @cached_property
    def whole(self) -> Cell:
        """All UEs as one cell with the signals they have in their own; its band is the sum of all bands."""
        first = self.cells[0]
        noise_db = first.noise_dbm_per_hz + (0.0 if first.radio is None else first.radio.noise_figure_db)
        to_gain = 10 ** (noise_db / 10) / 1000 * first.fading.signal_of_amplitude(1.0)
        distance_m, angle, cpu_hz, power_w, gain = np.empty((5, self.population))
        for cell, own in zip(self.cells, self.ues, strict=True):
            inside = self._inside(cell, 0.0)
            at = np.arange(own.size) if inside is None else np.flatnonzero(inside)
            own, sent_w = own[at], np.broadcast_to(cell.sent_power_w, cell.ues)
            distance_m[own], cpu_hz[own], power_w[own] = cell.distance_m[at], cell.cpu_hz[at], sent_w[at]
            angle[own] = np.arctan2(cell.where.y_m, cell.where.x_m)[at]
            gain[own] = cell.mean_signal_hz[at] * to_gain / power_w[own]
        return replace(
            first,
            distance_m=distance_m,
            angle_rad=angle,
            cpu_hz=cpu_hz,
            power_w=power_w,
            bandwidth_hz=float(sum(cell.bandwidth_hz for cell in self.cells)),
            radio=None if first.radio is None else replace(first.radio, power_control=None, azimuth_deg=None),
            moves=None,
            fleet=_measured(gain, self.fleet),
            offset_db=None,
        )


def make_cells(
    drawn: Cell,
    sites: Sites,
    radius_m: float,
    *,
    reuse: int = 1,
    interference: Interference = None,
    backhaul_bps: float = math.inf,
    backhaul_s: float = 0.0,
    keeps: bool = False,
    one_server: bool = False,
    places: Float[np.ndarray, "2 n"] | None = None,
) -> Cells:
    """Drop the UEs of a drawn cell around base stations and attach each to the strongest with a free place.

    UE i is dropped uniformly into the hexagon around base station i mod E. Every cell takes n / E UEs, rounded up. If UEs move, they
    do so over all cells, attach to the strongest at first and are handed over later.

    Args:
        drawn: All UEs with their processors, and the settings of every cell. The positions are not used.
        sites: The base stations.
        radius_m: Distance from a base station to the corners of its hexagon, in metres.
        reuse: 1 if all cells use the whole band, 3 if neighbours on a grid use different thirds of it.
        interference: Rise over thermal in dB, or "full": the mean of all co-channel UEs that send all the time,
            or "coupled": co-channel UEs while they send.
        backhaul_bps: Rate of the backhaul in bit/s, where the base station has none of its own.
        backhaul_s: Delay of the backhaul in seconds, where the base station has none of its own.
        keeps: Whether a UE that is handed over keeps its job.
        one_server: Whether one server at the cloud has all cells.
        places: Where UEs are at first, x and y in metres; those with NaN, or all without it, are dropped.

    Returns:
        The cells.

    Raises:
        ValueError: If the UEs cannot be divided equally, or the settings do not fit together.
    """
    n, count, coupled = drawn.ues, sites.count, interference == "coupled"
    if n % count and not one_server:
        raise ValueError(
            f"the number of UEs, {n}, must be a multiple of the number of cells, {count}, unless they have one server."
        )
    if drawn.moves is not None and interference == "full":
        raise ValueError(
            "the interference of UEs that move is not constant; give a rise in dB or coupled instead of full."
        )
    if drawn.fleet is not None and drawn.fleet.measured.size:
        raise ValueError("a measured gain is of the link to one base station; leave out the column gain_db.")
    if drawn.moves is not None and drawn.radio is not None and drawn.radio.power_control is not None:
        raise ValueError("power control needs a constant number of UEs in a cell; leave it out if UEs move.")
    if reuse == 3 and sites.again_m is not None and sites.at_a_place == 1:
        raise ValueError("reuse 3 gives the same third to neighbours where the grid repeats; leave out one of the two.")
    if reuse == 3 and sites.colour is None:
        raise ValueError("reuse 3 needs the hexagonal grid; give each base station its own bandwidth_hz instead.")
    if drawn.radio is None and not np.isnan(sites.azimuth_deg).all():
        raise ValueError("sector antennas need a realistic radio, such as --radio umi.")
    links = Links.drop(drawn, sites, radius_m, places)
    everyone, moving = np.arange(n), drawn.moves is not None
    joint = _are_joint(coupled, moving, one_server, drawn.downlink is not None)
    band_hz = np.where(np.isnan(sites.bandwidth_hz), drawn.bandwidth_hz / reuse, sites.bandwidth_hz)
    columns = None if drawn.fleet is None else replace(drawn.fleet, presence=None if joint else drawn.fleet.presence)
    if drawn.moves is None:
        members, gains = attach(links)
        fleets = [None if columns is None else columns.take(own) for own in members]
        if gains is not None:
            fleets = [_measured(gain, fleet) for gain, fleet in zip(gains, fleets, strict=True)]
        if joint:
            drawn = _controlled(links, members, band_hz)
            links = replace(links, drawn=drawn)
            fleets = [
                replace(_measured(links.gain(site, everyone), columns), presence=Settled(np.isin(everyone, own)))
                for site, own in enumerate(members)
            ]
        moves = [None] * count
    else:
        fleets, moves = _roam(links, drawn.moves, radius_m, keeps, columns)
    if joint:
        members = [everyone] * count
    cells = []
    for site, own in enumerate(members):
        x, y = sites.relative(site, links.x_m[own], links.y_m[own])
        downlink, dbm = drawn.downlink, sites.bs_power_dbm[site]
        if downlink is not None and not np.isnan(dbm):
            downlink = replace(downlink, power_w=10 ** (dbm / 10) / 1000)
        cell = replace(
            drawn,
            distance_m=np.hypot(x, y),
            angle_rad=np.arctan2(y, x),
            cpu_hz=drawn.cpu_hz[own],
            power_w=drawn.power_w if np.isscalar(drawn.power_w) else np.asarray(drawn.power_w)[own],
            bandwidth_hz=float(band_hz[site]),
            radio=links.radio(site),
            seed=links.seeds[site if own is not everyone else sites.place[site]],
            downlink=downlink,
            moves=moves[site],
            fleet=fleets[site],
            offset_db=None if drawn.offset_db is None else drawn.offset_db[own],
        )
        cells.append(cell)
    co_channel = None
    if interference == "coupled":
        co_channel = np.array([np.isin(np.arange(count), near) for near in _co_channel(sites, reuse)])
    elif interference is not None:
        rises_db = _full_db(links, cells, members, reuse) if interference == "full" else [interference] * count
        for site, rise_db in enumerate(rises_db):
            cells[site] = replace(cells[site], noise_dbm_per_hz=drawn.noise_dbm_per_hz + rise_db)
    backhaul = (
        np.where(np.isnan(own), each, own)
        for own, each in ((sites.backhaul_bps, backhaul_bps), (sites.backhaul_s, backhaul_s))
    )
    return Cells(
        cells, members, sites.x_m, sites.y_m, *backhaul, co_channel=co_channel, one_server=one_server, fleet=drawn.fleet
    )


def _are_joint(coupled: bool, moving: bool, one_server: bool, downlink: bool) -> bool:
    """Return whether cells affect each other: by interference, by UEs that move, or by a server that also sends models."""
    return coupled or moving or (one_server and downlink)


def _controlled(links: Links, members: Sequence[Ues], band_hz: PerCell) -> Cell:
    """Return the drawn cell with the power that each UE's own base station lets it send with."""
    drawn, radio = links.drawn, links.drawn.radio
    if radio is None or radio.power_control is None:
        return drawn
    power_w = np.array(np.broadcast_to(drawn.power_w, drawn.ues))
    for site, own in enumerate(members):
        power_w[own] = radio.power_w(links.gain(site, own), power_w[own], band_hz[site] / own.size)
    return replace(drawn, power_w=power_w, radio=replace(radio, power_control=None))


def _roam(
    links: Links, moves: Moves, radius_m: float, keeps: bool, columns: Fleet | None
) -> tuple[list[Fleet], list[Moves]]:
    """Return which UEs are in each cell over time, and how its base station sees them move over all cells."""
    sites, everyone, unknown = links.sites, np.arange(links.x_m.size), np.full(links.x_m.size, np.nan)
    x_m, y_m = float(sites.x_m.mean()), float(sites.y_m.mean())
    reach_m = radius_m + float(np.hypot(sites.x_m - x_m, sites.y_m - y_m).max())
    walk = moves.walk(replace(moves, radius_m=reach_m), links.x_m - x_m, links.y_m - y_m, links.drawn.seed)
    plane, numbers = Shifted(walk, -x_m, -y_m), range(sites.count)

    def level_db(time_s: float) -> Float[np.ndarray, "n E"]:
        places = plane.at(time_s)
        return 10 * np.log10([links.gain(site, everyone, places) for site in numbers]).T

    handover = Handover(level_db)
    columns = Fleet(unknown, unknown) if columns is None else columns
    fleets = [replace(columns, presence=Attached(handover, site, keeps)) for site in numbers]
    views = [Seen(plane, sites, site) for site in numbers]
    return fleets, [replace(moves, walk=lambda *_, view=view: view) for view in views]


def _co_channel(sites: Sites, reuse: int) -> list[list[int]]:
    """Return the nearest cells that use the same band as each cell."""
    colour = np.zeros(sites.count) if sites.colour is None or reuse == 1 else sites.colour
    most = INTERFERING * sites.at_a_place
    near = nearest(sites, sites.x_m, sites.y_m, min(2 * reuse * most, sites.count)).tolist()
    return [
        [each for each in others if each != site and colour[each] == colour[site]][:most]
        for site, others in enumerate(near)
    ]


def _full_db(links: Links, cells: Sequence[Cell], members: Sequence[Ues], reuse: int) -> list[float]:
    """Return by how much co-channel UEs raise the noise of each cell if all of them always send, in dB."""
    drawn, rises_db = links.drawn, []
    noise_db = drawn.noise_dbm_per_hz + (0.0 if drawn.radio is None else drawn.radio.noise_figure_db)
    for site, same in enumerate(_co_channel(links.sites, reuse)):
        # A UE sends its whole power in its part of the band, and some UE of the cell does in every part.
        sent_w = (cells[each].sent_power_w * links.gain(site, members[each]) for each in same)
        density = sum(float(watts.sum()) / cells[each].bandwidth_hz for each, watts in zip(same, sent_w, strict=True))
        rises_db.append(10 * math.log10(1 + density / (10 ** (noise_db / 10) / 1000)))
    return rises_db


@dataclass(frozen=True)
class Seen:
    """The paths of UEs, as a base station sees them."""

    walk: Walk
    sites: Sites
    site: int

    def at(self, time_s: float) -> tuple[PerUe, PerUe]:
        x_m, y_m = self.sites.relative(self.site, *self.walk.at(time_s))
        return x_m, y_m


def _measured(gain: PerUe, columns: Fleet | None = None) -> Fleet:
    """Return UEs with these gains and the other properties of ``columns``."""
    gain_db, unknown = 10 * np.log10(gain), np.full(gain.size, np.nan)
    return Fleet(gain_db, unknown) if columns is None else replace(columns, gain_db=gain_db)
