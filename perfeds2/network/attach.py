"""Drop UEs around base stations, and attach each to the strongest with a free place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.network.cell import MIN_DISTANCE_M, Cell, Ues
from perfeds2.network.link import PerUe
from perfeds2.network.radios import Radio, Where
from perfeds2.network.sites import Sites

PLACE, CELL_SEED = 16, 17  # random streams: (seed, stream)
HEARING = 7  # nearest base stations that a UE may attach to


@dataclass(frozen=True)
class Links:
    """The links from every UE to every base station."""

    drawn: Cell
    sites: Sites
    seeds: Sequence[int]  # of the base stations
    x_m: PerUe  # positions of the UEs at first
    y_m: PerUe

    @classmethod
    def drop(
        cls, drawn: Cell, sites: Sites, radius_m: float, places: Float[np.ndarray, "2 n"] | None = None
    ) -> "Links":
        """Drop UEs uniformly into hexagons: each into one of the three rhombi that tile its hexagon."""
        part, along, across = np.random.default_rng([drawn.seed, PLACE]).random((drawn.ues, 3)).T
        turn = 2 * np.pi / 3 * np.floor(3 * part)
        x = along * np.cos(turn) + across * np.cos(turn + 2 * np.pi / 3)
        y = along * np.sin(turn) + across * np.sin(turn + 2 * np.pi / 3)
        home = np.arange(drawn.ues) % sites.count
        streams = (np.random.default_rng([drawn.seed, CELL_SEED, site]) for site in range(1, sites.count))
        seeds = [drawn.seed, *(int(each.integers(2**63)) for each in streams)]  # the first fades as a single cell
        x, y = sites.x_m[home] + radius_m * x, sites.y_m[home] + radius_m * y
        if places is not None:
            x, y = np.where(np.isnan(places), [x, y], places)
        return cls(drawn, sites, seeds, x, y)

    def gain(self, site: int, ues: Ues, places: tuple[PerUe, PerUe] | None = None) -> PerUe:
        """Return the gains of UEs to a base station, averaged over fading, where they are at first or elsewhere."""
        x_m, y_m = (self.x_m, self.y_m) if places is None else places
        (x, y), drawn = self.sites.relative(site, x_m[ues], y_m[ues]), self.drawn
        beyond = drawn.beyond_path[ues] if isinstance(drawn.beyond_path, np.ndarray) else 1.0
        if drawn.radio is not None:
            radio = self.radio(site)
            assert radio is not None
            return radio.gain(Where(x, y, self.seeds[self.sites.place[site]], ues)) * beyond
        near_m = np.maximum(np.hypot(x, y), MIN_DISTANCE_M)
        return drawn.fading.signal_of_amplitude(1.0) * near_m**-drawn.path_loss_exponent * beyond

    def radio(self, site: int) -> Radio | None:
        """Return the radio of a base station, with its antenna."""
        radio, azimuth_deg = self.drawn.radio, float(self.sites.azimuth_deg[site])
        return radio if radio is None or math.isnan(azimuth_deg) else replace(radio, azimuth_deg=azimuth_deg)


def attach(links: Links) -> tuple[list[Ues], list[PerUe] | None]:
    """Return the UEs of each base station, each at the strongest with a free place, in order of UEs; and their gains."""
    sites, x_m, y_m = links.sites, links.x_m, links.y_m
    heard = nearest(sites, x_m, y_m, min(HEARING * sites.at_a_place, sites.count))
    strength = np.empty(heard.size)
    for site, pairs in enumerate(_by_site(heard.ravel(), sites.count)):
        strength[pairs] = links.gain(site, pairs // heard.shape[1])
    order = np.argsort(-strength.reshape(heard.shape), axis=1, kind="stable")
    free = [math.ceil(x_m.size / sites.count)] * sites.count
    attached, full = np.empty(x_m.size, np.int64), []
    for ue, choices in enumerate(np.take_along_axis(heard, order, axis=1).tolist()):
        site = next((site for site in choices if free[site]), None)
        if site is None:
            full.append(ue)
        else:
            attached[ue] = site
            free[site] -= 1
    for ue in full:  # all that it hears are full
        open_ = np.flatnonzero(free)
        site = int(open_[np.hypot(*sites.relative(open_, x_m[ue], y_m[ue])).argmin()])
        attached[ue] = site
        free[site] -= 1
    members = _by_site(attached, sites.count)
    if links.drawn.radio is None:
        return members, None
    return members, [links.gain(site, own) for site, own in enumerate(members)]


def nearest(sites: Sites, x_m: PerUe, y_m: PerUe, count: int) -> Int[np.ndarray, "n h"]:
    """Return the nearest base stations of each position, nearest first."""
    if sites.again_m is not None:
        away_m = [np.hypot(*sites.relative(site, x_m, y_m)) for site in range(sites.count)]
        return np.argsort(away_m, axis=0, kind="stable")[:count].T
    from scipy.spatial import KDTree  # slow to import

    _, found = KDTree(np.stack([sites.x_m, sites.y_m], 1)).query(np.stack([x_m, y_m], 1), count)
    return np.asarray(found).reshape(x_m.size, count)


def _by_site(sites: Int[np.ndarray, " m"], count: int) -> list[Int[np.ndarray, " _"]]:
    """Return the places of each base station in an array of their numbers, in ascending order."""
    return np.split(np.argsort(sites, kind="stable"), np.bincount(sites, minlength=count).cumsum()[:-1])
