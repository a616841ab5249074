"""Has a grid that wraps around no border, as a plane full of its copies would have none?"""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.handover import Attached
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.network.radios import RADIOS, Radio
from perfeds2.network.sites import Sites
from perfeds2.spec.cells import make_network
from perfeds2.spec.resolve import spec_from

UMI = cast("Radio", RADIOS["umi"])
RADIUS_M = 200.0
STEP_M = RADIUS_M * 3**0.5  # between neighbours


def copies(count):
    """Where 121 copies of a grid are, from the angle and the distance of the next one, √count steps away."""
    rings = {7: 1, 19: 2}[count]
    away = (rings + 1) + rings * np.exp(1j * np.pi / 3)  # steps along one axis of the grid, and along the next
    assert abs(away) == pytest.approx(count**0.5)
    away *= STEP_M * np.exp(1j * np.pi / 6)  # the first axis points to a neighbour, 30° above the x axis
    numbers = range(-5, 6)
    return np.array([a * away + b * away * np.exp(1j * np.pi / 3) for a in numbers for b in numbers])


@pytest.mark.parametrize("count", [7, 19])
def test_a_position_is_seen_where_its_nearest_copy_is(count):
    sites, random = Sites.grid(count, RADIUS_M, wraps=True), np.random.default_rng(count)
    at = random.uniform(-1500, 1500, (2, 400))
    for site in range(count):
        every = at[0] + 1j * at[1] + copies(count)[:, None] - (sites.x_m[site] + 1j * sites.y_m[site])
        x_m, y_m = sites.relative(site, *at)
        nearest = every[np.abs(every).argmin(axis=0), np.arange(at.shape[1])]
        np.testing.assert_allclose(x_m + 1j * y_m, nearest, atol=1e-6)


@pytest.mark.parametrize(("count", "rings"), [(7, [6]), (19, [6, 6, 6])])
def test_every_base_station_has_the_neighbours_of_the_one_in_the_centre(count, rings):
    sites = Sites.grid(count, RADIUS_M, wraps=True)
    expected = np.repeat([0.0, 1.0, 3**0.5, 2.0][: len(rings) + 1], [1, *rings]) * STEP_M
    for site in range(count):
        away_m = np.sort(np.hypot(*sites.relative(site, sites.x_m, sites.y_m)))
        np.testing.assert_allclose(away_m, expected, atol=1e-6)


def rises(count, *, wraps, places=None, seed=0, each=6, **of_cell):
    """By how much full interference raises the noise of each cell."""
    sites, drawn = Sites.grid(count, RADIUS_M, wraps=wraps), Cell.draw(each * count, seed, **of_cell)
    quiet, loud = (make_cells(drawn, sites, RADIUS_M, interference=how, places=places) for how in (None, "full"))
    return np.array(
        [10 ** ((loud.cells[e].noise_dbm_per_hz - quiet.cells[e].noise_dbm_per_hz) / 10) for e in range(count)]
    )


@pytest.mark.parametrize("count", [7, 19])
@pytest.mark.parametrize(
    "radio", [None, replace(UMI, loss_db=lambda _, where: 30 + 40 * np.log10(where.distance_m + 1))]
)
def test_equal_cells_suffer_equal_interference_only_without_a_border(count, radio):
    sites = Sites.grid(count, RADIUS_M)
    turns = np.exp(2j * np.pi * np.arange(6) / 6)
    own = np.repeat(np.array([60.0, 90.0, 120.0, 40.0, 150.0, 100.0]) * turns, count)  # UE i is in hexagon i mod E
    home = np.tile(sites.x_m + 1j * sites.y_m, 6)
    places = np.stack([(home + own).real, (home + own).imag])
    without = rises(count, wraps=True, places=places, radio=radio)
    np.testing.assert_allclose(without, without[0], rtol=1e-9)
    bordered = rises(count, wraps=False, places=places, radio=radio)
    assert bordered[-1] < 0.8 * bordered[0]  # at the border fewer cells are heard
    assert (without >= bordered * (1 - 1e-9)).all()


def test_mean_interference_of_random_drops_agrees_between_centre_and_border():
    def mean_db(wraps):
        return np.mean([10 * np.log10(rises(7, wraps=wraps, seed=seed, each=30)) for seed in range(40)], axis=0)

    without, bordered = mean_db(True), mean_db(False)
    assert np.ptp(without) < 0.6
    assert bordered[0] - bordered[1:].max() > 1.5


@pytest.mark.parametrize("count", [7, 19])
def test_a_ue_at_the_border_may_be_served_from_the_opposite_side(count):
    sites = Sites.grid(count, RADIUS_M, wraps=True)
    east = (
        2.6 * STEP_M * np.exp(1j * np.pi / 6)
    )  # beyond the outer hexagon in this direction, in the next copy of another
    places = np.full((2, count), np.nan)
    places[:, 0] = east.real, east.imag
    cells = make_cells(Cell.draw(count, seed=1), sites, RADIUS_M, places=places, one_server=True)
    (server,) = (site for site, own in enumerate(cells.ues) if 0 in own)
    every = np.abs(east + copies(count)[:, None] - (sites.x_m + 1j * sites.y_m)).min(axis=0)
    assert server == every.argmin()
    own = cells.ues[server].tolist().index(0)
    assert cells.cells[server].distance_m[own] == pytest.approx(every.min())
    assert every.min() < RADIUS_M < np.abs(east - (sites.x_m + 1j * sites.y_m)).min()


def test_moving_ues_are_always_in_reach_of_their_base_station():
    moves = Moves(Waypoints, 30.0, RADIUS_M)
    cells = make_cells(
        Cell.draw(14, seed=2, moves=moves, coherence_s=0.1), Sites.grid(7, RADIUS_M, wraps=True), RADIUS_M
    )
    for time_s in (0.0, 20.0, 60.0):
        for cell in cells.cells:
            assert cell.fleet is not None
            assert isinstance(cell.fleet.presence, Attached)
            inside = cell.fleet.presence.present(time_s)
            assert (cell.at(time_s).distance_m[inside] < 1.2 * RADIUS_M).all()  # 3 dB is a fifth of the way at most


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cells": 5, "ues": 20}, "7, 19, 37"),
        ({"ues": 20}, "no effect in one cell"),
        ({"cells": 7, "ues": 21, "frequency_reuse": 3}, "same third"),
    ],
)
def test_a_grid_that_cannot_repeat_is_refused(settings, says, tmp_path):
    with pytest.raises(InputError, match=says):
        make_network(spec_from(wrap_around=True, **settings), 0)
    (tmp_path / "sites.csv").write_text("x_m,y_m\n0,0\n500,0\n")
    with pytest.raises(InputError, match="repeats a grid"):
        make_network(spec_from(wrap_around=True, cells=str(tmp_path / "sites.csv"), ues=4), 0)


def test_three_sectors_with_reuse_wrap_around():
    spec = spec_from(radio="umi", cells=21, sectors=3, frequency_reuse=3, wrap_around=True, ues=21, interference="full")
    network = make_network(spec, 0)
    assert network is not None
    assert len(network.cells) == 21
