"""Do base stations, UEs, bands and interference of many cells follow from their definitions?"""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.network.radios import RADIOS, Radio
from perfeds2.network.sites import Sites

UMI = cast("Radio", RADIOS["umi"])
GRID = Sites.grid(7, 200.0)


def places(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """The position of every UE in the plane, from its distance and direction to its base station."""
    x_m, y_m = np.empty((2, cells.population))
    for site, own in enumerate(cells.ues):
        x_m[own] = cells.x_m[site] + cells.cells[site].where.x_m
        y_m[own] = cells.y_m[site] + cells.cells[site].where.y_m
    return x_m, y_m


def test_a_grid_is_a_spiral_of_hexagons():
    apart = np.hypot(GRID.x_m[:, None] - GRID.x_m, GRID.y_m[:, None] - GRID.y_m) / (200.0 * 3**0.5)
    assert GRID.x_m[0] == GRID.y_m[0] == 0
    np.testing.assert_allclose(apart[0, 1:], 1.0)  # six neighbours around the centre
    np.testing.assert_allclose(apart[np.arange(1, 7), [2, 3, 4, 5, 6, 1]], 1.0)  # and around each other
    many = Sites.grid(1000, 1.0)
    away = np.hypot(many.x_m, many.y_m)
    assert away.max() < 1.06 * np.sqrt(1000 * 3**1.5 / 2 / np.pi) + 3**0.5  # no holes: the area is that of the hexagons
    assert len(set(zip(many.x_m.round(6), many.y_m.round(6), strict=True))) == 1000


def test_neighbours_use_different_thirds_of_the_band():
    many = Sites.grid(61, 200.0)
    apart = np.hypot(many.x_m[:, None] - many.x_m, many.y_m[:, None] - many.y_m)
    assert many.colour is not None
    alike = many.colour[:, None] == many.colour
    neighbours = (apart > 1) & (apart < 200 * 1.8)
    assert neighbours.any()
    assert not (alike & neighbours).any()
    assert np.bincount(many.colour).min() >= 19
    cells = make_cells(Cell.draw(7, bandwidth_hz=3e6), GRID, 200.0, reuse=3)
    assert {cell.bandwidth_hz for cell in cells.cells} == {1e6}


def test_ues_are_uniform_in_their_hexagon_and_attach_to_the_strongest_base_station():
    cells = make_cells(Cell.draw(7_000, seed=3), GRID, 200.0)
    x_m, y_m = places(cells)
    apart = np.hypot(x_m[:, None] - GRID.x_m, y_m[:, None] - GRID.y_m)
    np.testing.assert_array_equal(apart.argmin(axis=1), np.arange(7_000) % 7)
    assert [own.tolist() for own in cells.ues] == [list(range(e, 7_000, 7)) for e in range(7)]
    distance_m = apart.min(axis=1)
    assert 150 < distance_m.max() <= 200
    inner = 3**0.5 / 2 * 200 / 2  # a disc of half the inner radius has a known part of the area
    assert np.mean(distance_m < inner) == pytest.approx(np.pi * inner**2 / (200**2 * 1.5 * 3**0.5), abs=0.02)


def test_with_shadowing_a_ue_may_attach_to_a_base_station_that_is_not_the_nearest():
    cells = make_cells(Cell.draw(350, seed=1, radio=UMI), GRID, 200.0)
    assert [own.size for own in cells.ues] == [50] * 7
    assert sorted(np.concatenate(cells.ues)) == list(range(350))
    elsewhere = np.concatenate([own[own % 7 != site] for site, own in enumerate(cells.ues)])
    assert 20 < elsewhere.size < 250
    home = np.concatenate([cell.mean_signal_hz for cell in cells.cells])
    nearest = replace(cells.cells[0], radio=replace(UMI, shadowing_db=0.0), fleet=None)
    assert np.median(home) > np.median(nearest.mean_signal_hz)  # choice among 7 makes up for more than shadowing


def test_every_cell_fades_on_its_own_and_the_first_as_a_single_one():
    drawn = Cell.draw(14, seed=5)
    cells = make_cells(drawn, GRID, 200.0)
    assert cells.cells[0].seed == 5
    assert len({cell.seed for cell in cells.cells}) == 7
    fading = [cell.signal_hz(0) / cell.mean_signal_hz for cell in cells.cells]
    np.testing.assert_allclose(fading[0], (drawn.signal_hz(0) / drawn.mean_signal_hz)[:2])
    assert len({float(each[0]) for each in fading}) == 7


def test_a_fixed_interference_adds_to_the_noise():
    drawn = Cell.draw(14, seed=5)
    quiet, loud = make_cells(drawn, GRID, 200.0), make_cells(drawn, GRID, 200.0, interference=3.0)
    for one, other in zip(quiet.cells, loud.cells, strict=True):
        np.testing.assert_allclose(one.mean_signal_hz, other.mean_signal_hz * 10**0.3)


@pytest.mark.parametrize(("reuse", "radio"), [(1, None), (3, None), (1, "umi")])
def test_full_interference_is_the_power_of_all_co_channel_ues(reuse, radio):
    simple = replace(UMI, loss_db=lambda _, where: 120 + 20 * np.log10(where.distance_m))
    drawn = Cell.draw(57, seed=2, radio=simple if radio else None)
    grid = Sites.grid(19, 200.0)
    quiet = make_cells(drawn, grid, 200.0, reuse=reuse)
    loud = make_cells(drawn, grid, 200.0, reuse=reuse, interference="full")
    x_m, y_m = places(quiet)
    noise = 10 ** ((-174 + (5 if radio else 0)) / 10) / 1000
    assert grid.colour is not None
    for site in range(19):
        total = 0.0
        for other, own in enumerate(quiet.ues):
            if other == site or (reuse == 3 and grid.colour[other] != grid.colour[site]):
                continue
            apart = np.hypot(x_m[own] - grid.x_m[site], y_m[own] - grid.y_m[site])
            gain = 10**-12 / apart**2 if radio else 40 * 2**0.5 * apart**-3.8
            total += 0.01 * gain.sum() / (1e6 / reuse)
        ratio = quiet.cells[site].mean_signal_hz / loud.cells[site].mean_signal_hz
        np.testing.assert_allclose(ratio, 1 + total / noise, rtol=1e-9)


@pytest.mark.parametrize("radio", [None, UMI, replace(UMI, power_control=(-85.0, 0.8))])
def test_the_whole_network_has_the_signals_of_its_cells(radio):
    cells = make_cells(Cell.draw(21, seed=4, radio=radio), GRID, 200.0, reuse=3, interference=2.0)
    whole = cells.whole
    assert whole.ues == cells.population == 21
    assert whole.bandwidth_hz == pytest.approx(7 * 1e6 / 3)
    for cell, own in zip(cells.cells, cells.ues, strict=True):
        np.testing.assert_allclose(whole.mean_signal_hz[own], cell.mean_signal_hz, rtol=1e-12)
        np.testing.assert_allclose(np.broadcast_to(whole.sent_power_w, 21)[own], cell.sent_power_w)
        np.testing.assert_array_equal(whole.cpu_hz[own], cell.cpu_hz)


def test_a_file_gives_base_stations_bands_backhauls_and_power(tmp_path):
    path = tmp_path / "sites.csv"
    path.write_text("x_m,y_m,bandwidth_hz,backhaul_bps,backhaul_s,bs_power_dbm\n0,0,2e6,1e8,0.01,30\n900,0,,,,\n")
    drawn = Cell.draw(6, downlink=Downlink("unicast", 25.0, 1e6))
    cells = make_cells(drawn, Sites.open(path), 200.0, backhaul_bps=1e6, backhaul_s=0.5)
    assert [cell.bandwidth_hz for cell in cells.cells] == [2e6, 1e6]
    assert [cell.downlink.power_w for cell in cells.cells if cell.downlink] == [1.0, 25.0]
    np.testing.assert_allclose(cells.transfer_s(1e6), [0.02, 1.5])
    assert make_cells(drawn, Sites.open(path), 200.0).transfer_s(1e6)[1] == 0  # free by default


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("x_m,y_m\n", "has no base stations"),
        ("x_m,y_m,power\n0,0,1\n", "has a column 'power'"),
        ("x_m,y_m\n0,\n", "has no y_m in line 2"),
        ("x_m,y_m\n0,nan\n", "has y_m 'nan' in line 2"),
        ("x_m,y_m,backhaul_bps\n0,0,0\n", "has backhaul_bps '0' in line 2"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, told):
    (tmp_path / "sites.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        Sites.open(tmp_path / "sites.csv")


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="must be a multiple of the number of cells, 7"):
        make_cells(Cell.draw(20), GRID, 200.0)
    controlled = replace(UMI, power_control=(-80.0, 0.8))
    moves = Moves(Waypoints, 3.0, 1.0)
    with pytest.raises(ValueError, match="power control needs a constant number"):
        make_cells(Cell.draw(7, radio=controlled, coherence_s=0.1, moves=moves), GRID, 200.0)
    with pytest.raises(ValueError, match="reuse 3 needs the hexagonal grid"):
        make_cells(Cell.draw(7), replace(GRID, colour=None), 200.0, reuse=3)
