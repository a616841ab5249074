"""Do UEs follow recorded paths, in one cell and in many, and are files that cannot be followed refused?"""

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.trajectories import Trajectories
from perfeds2.spec.cells import make_cell, make_network
from perfeds2.spec.kept_files import keep_files, with_kept_files
from perfeds2.spec.names import Named
from perfeds2.spec.resolve import resolve, spec_from

HEAD = "time_s,ue,x_m,y_m\n"
PATHS = f"{HEAD}0,a,-100,20\n0,b,50,50\n10,a,0,20\n30,a,100,40\n4,c,10,0\n"


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "paths.csv").write_text(PATHS)
    return str(tmp_path / "paths.csv")


def test_ues_go_straight_from_sample_to_sample_and_stand_before_and_after(paths):
    found = Trajectories.open(paths)
    for time_s, expected in [(0, (-100, 20)), (5, (-50, 20)), (10, (0, 20)), (20, (50, 30)), (99, (100, 40))]:
        x_m, y_m = found.at(time_s)
        np.testing.assert_allclose((x_m[0], y_m[0]), expected, atol=1e-9)
        np.testing.assert_allclose((x_m[1:], y_m[1:]), ((50, 10), (50, 0)))
    assert found.speed_mps == pytest.approx(10)


def test_random_paths_agree_with_an_interpolation_of_each_ue(tmp_path):
    random, rows, samples = np.random.default_rng(1), [], {}
    for ue in range(30):
        time_s = np.sort(random.uniform(0, 1e4, random.integers(1, 40)).round(3))
        place = random.normal(0, 500, (2, time_s.size)).round(3)
        samples[ue] = time_s, place
        rows += [(at, ue, x, y) for at, x, y in zip(time_s, *place, strict=True)]
    rows.sort(key=lambda row: row[1])  # UEs are numbered as they appear
    (tmp_path / "paths.csv").write_text(HEAD + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    found = Trajectories.open(tmp_path / "paths.csv")
    for at in [0.0, 1e4, 2e4, *random.uniform(0, 1e4, 200), *samples[3][0]]:
        expected = [
            [np.interp(at, time_s, of) for time_s, place in samples.values() for of in [place[axis]]] for axis in (0, 1)
        ]
        np.testing.assert_allclose(found.at(at), expected, atol=1e-6)


def test_floating_car_data_of_sumo_are_the_same_paths(tmp_path, paths):
    steps = {0: [("a", -100, 20), ("b", 50, 50)], 4: [("c", 10, 0)], 10: [("a", 0, 20)], 30: [("a", 100, 40)]}
    lines = ["<fcd-export>"]
    for time_s, cars in steps.items():
        lines += [f'<timestep time="{time_s}.00">']
        lines += [f'<vehicle id="{car}" x="{x}" y="{y}" angle="90" speed="5" lane="in_0"/>' for car, x, y in cars]
        lines += ["</timestep>"]
    (tmp_path / "fcd.xml").write_text("\n".join([*lines, "</fcd-export>"]))
    cars, rows = Trajectories.open(tmp_path / "fcd.xml"), Trajectories.open(paths)
    for time_s in (0.0, 7.0, 12.5, 40.0):
        np.testing.assert_array_equal(cars.at(time_s), rows.at(time_s))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        (f"{HEAD}0,a,1\n", "3 values in line 2"),
        (f"{HEAD}0,,1,2\n", "no ue in line 2"),
        (f"{HEAD}0,a,1,nan\n", "y_m 'nan' in line 2"),
        (f"{HEAD}-1,a,1,2\n", "time_s '-1' in line 2"),
        (f"{HEAD}0,a,1,2\n0,b,1,2\n0,a,3,4\n", "second position of the same UE at 0 s in line 4"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(tmp_path, text, why):
    (tmp_path / "paths.csv").write_text(text)
    with pytest.raises(ValueError, match=why):
        Trajectories.open(tmp_path / "paths.csv")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<fcd-export>", "is not XML"),
        ("<fcd-export/>", "no sample"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        ('<a><timestep time="1"><vehicle id="a" x="1"/></timestep></a>', "no y_m in line 1"),
    ],
)
def test_xml_that_is_no_floating_car_data_is_refused(tmp_path, text, why):
    (tmp_path / "fcd.xml").write_text(text)
    with pytest.raises(ValueError, match=why):
        Trajectories.open(tmp_path / "fcd.xml")


def test_the_signal_follows_the_path(paths):
    """Without fading a signal is proportional to d^-3.8; UE 0 is 20 m away after 10 s, and 101.98 m at first."""
    cell = make_cell(spec_from(ues=3, quorum=1, mobility=paths, fading="none", coherence_s=1), 0)
    np.testing.assert_allclose(cell.distance_m, [np.hypot(100, 20), np.hypot(50, 50), 10])
    ratio = cell.channel.signal_at(0, 10.5) / cell.channel.signal_at(0, 0.0)
    np.testing.assert_allclose(ratio, [(np.hypot(100, 20) / 20) ** 3.8, 1, 1])


def test_in_many_cells_ues_start_where_files_say(tmp_path, paths):
    stations = tmp_path / "stations.csv"
    stations.write_text("x_m,y_m\n-100,0\n50,50\n90,40\n")
    many = {"radio": "umi", "cells": str(stations)}
    cells = make_network(spec_from(ues=3, quorum=1, mobility=paths, on_leave="keep", **many), 0)
    assert cells is not None
    np.testing.assert_allclose(cells.cells[0].where.x_m, [0, 150, 110], atol=1e-9)
    np.testing.assert_allclose(cells.cells[2].at(30.0).where.x_m, [10, -40, -80], atol=1e-9)
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("x_m,y_m,cpu_hz\n-90,5,1e9\n,,1e9\n100,30,1e9\n")
    still = make_network(spec_from(cell=str(fleet), ues=3, quorum=1, **many), 0)
    drawn = make_network(spec_from(ues=3, quorum=1, **many), 0)
    assert still is not None
    assert drawn is not None
    dropped, placed = in_plane(drawn), in_plane(still)
    np.testing.assert_allclose(placed[0], [-90, dropped[0, 1], 100], atol=1e-9)  # UE 1 as without a file
    np.testing.assert_allclose(placed[1], [5, dropped[1, 1], 30], atol=1e-9)


def in_plane(cells):
    """Return the positions of all UEs in the plane, not seen from their base stations."""
    found = np.empty((2, 3))
    for site, (cell, members) in enumerate(zip(cells.cells, cells.members, strict=True)):
        found[:, members] = [cell.where.x_m + cells.x_m[site], cell.where.y_m + cells.y_m[site]]
    return found


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ues": 4}, "has 3 UEs, not 4; give --ues 3"),
        ({"ues": 3, "distance_m": (1, 2, 3)}, "gives positions"),
    ],
)
def test_settings_that_contradict_the_paths_are_refused(paths, settings, why):
    with pytest.raises(InputError, match=why):
        make_cell(spec_from(quorum=1, mobility=paths, **settings), 0)


def test_paths_without_movement_are_refused(tmp_path):
    (tmp_path / "paths.csv").write_text(f"{HEAD}0,a,1,2\n9,a,1,2\n")
    with pytest.raises(InputError, match="no UE that moves"):
        make_cell(spec_from(ues=1, quorum=1, mobility=str(tmp_path / "paths.csv")), 0)


def test_a_folder_keeps_copies_of_all_files_of_its_run(tmp_path, paths):
    stations, fleet = tmp_path / "stations.csv", tmp_path / "fleet.csv"
    stations.write_text("x_m,y_m\n0,0\n")
    fleet.write_text("cpu_hz\n1e9\n1e9\n1e9\n")
    values = {"radio": {"mobility": paths, "name": "umi"}, "cell": {"kind": str(fleet), "ues": 3}}
    values |= {"cells": {"sites": str(stations)}, "protocol": {"quorum": 1}}
    keep_files(tmp_path, resolve(values))
    for file in (paths, stations, fleet):
        (tmp_path / file).unlink()
    kept = resolve(with_kept_files(values, tmp_path))
    paths, fleet, stations = kept.radio.mobility, kept.cell.kind, kept.cells.sites
    assert isinstance(paths, Named)
    assert isinstance(fleet, Named)
    assert isinstance(stations, Named)
    assert (paths.value.ues, fleet.value.ues, stations.value.count) == (3, 3, 1)


def test_paths_of_some_devices_are_found_by_name_and_the_others_stand(tmp_path, paths):
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("name,x_m,y_m\nmast,30,40\nb,1,2\nc,,\nlost,,\na,,\n")
    settings = {"cell": str(fleet), "ues": 5, "quorum": 1, "radio": "umi", "mobility": paths}
    (cells, one), drawn = (
        (make_network(spec_from(**settings, cells=2, merge_at="cloud"), 0), make_cell(spec_from(**settings), 0)),
        make_cell(spec_from(**{key: settings[key] for key in ("cell", "ues", "quorum", "radio")}), 0),
    )
    assert cells is not None
    for time_s, a_x_m in [(0.0, -100.0), (20.0, 50.0), (99.0, 100.0)]:
        where, plane = one.at(time_s).where, cells.places(time_s)
        np.testing.assert_allclose(where.x_m, [30, 50, 10, drawn.where.x_m[3], a_x_m], atol=1e-9)
        np.testing.assert_allclose(where.y_m[[0, 1, 3]], [40, 50, drawn.where.y_m[3]], atol=1e-9)
        np.testing.assert_allclose(plane[0][[0, 1, 4]], [30, 50, a_x_m], atol=1e-9)
    fleet.write_text("name\nb\nmast\nanother\n")
    with pytest.raises(InputError, match="has a path of 'a', but no device"):
        make_cell(spec_from(**settings | {"ues": 3}), 0)
