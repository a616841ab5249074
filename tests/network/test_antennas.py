"""Sector antennas, walls, and what phones add: gains beyond the path loss."""

import csv
from pathlib import Path

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.indoor import indoors, outer_wall_db, wall_db
from perfeds2.network.radios import Where, sector_db
from perfeds2.network.sites import Sites
from perfeds2.spec.cells import make_cell, make_network
from perfeds2.spec.fleet_warnings import fleet_warnings
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec

with (Path(__file__).parent / "reference_antennas.csv").open() as file:
    REFERENCE = [
        (row["kind"], *(float(row[name]) for name in ("first", "second", "value"))) for row in csv.DictReader(file)
    ]


def test_200_antenna_gains_and_walls_are_those_of_the_outside_implementation():
    assert len(REFERENCE) == 200
    for kind, first, second, value in REFERENCE:
        if kind == "antenna":
            turn = np.radians([first + 70.0])
            where = Where(np.cos(turn), np.sin(turn), 0)
            found = sector_db(where, 70.0, float(np.tan(np.radians(second))))[0]
        else:
            found = outer_wall_db(first, "low" if kind == "low" else "high")
        assert found == pytest.approx(value, abs=1e-4), (kind, first, second)


def test_walls_are_drawn_once_for_each_ue():
    few, many = wall_db(5, 3, 3.5e9, "low"), wall_db(50_000, 3, 3.5e9, "low")
    assert few.tolist() == many[:5].tolist()
    # The shorter of two uniform ways of up to 25 m is a third of it on average, and costs 0.5 dB a metre.
    assert many.mean() == pytest.approx(outer_wall_db(3.5e9, "low") + 25 / 3 / 2, abs=0.1)
    assert np.mean(indoors(50_000, 3, 0.25)) == pytest.approx(0.25, abs=0.01)
    assert (indoors(50, 3, 0.2) <= indoors(50, 3, 0.4)).all()


def test_a_quarter_of_the_phones_is_behind_walls_and_the_rest_as_before():
    outside, mixed = (make_cell(spec_from(radio="umi", ues=40, **more), 0) for more in ({}, {"indoor": 0.25}))
    loss_db = 10 * np.log10(outside.mean_signal_hz / mixed.mean_signal_hz)
    inside = indoors(40, 0, 0.25)
    assert np.allclose(loss_db[~inside], 0, atol=1e-9)
    assert loss_db[inside].tolist() == pytest.approx(wall_db(40, 0, 3.5e9, "low")[inside].tolist())


def test_walls_count_in_every_cell_of_a_network():
    plain, walled = (make_network(spec_from(radio="umi", ues=21, cells=7, **more), 0) for more in ({}, {"indoor": 1}))
    assert plain is not None
    assert walled is not None
    loss_db = wall_db(21, 0, 3.5e9, "low")
    for before, after, own, same in zip(plain.cells, walled.cells, plain.ues, walled.ues, strict=True):
        if own.tolist() == same.tolist():  # attached to the same base station
            ratio_db = 10 * np.log10(before.mean_signal_hz / after.mean_signal_hz)
            assert ratio_db.tolist() == pytest.approx(loss_db[own].tolist())


def test_three_sectors_of_a_place_share_its_shadowing_and_divide_the_circle():
    sites = Sites.grid(6, 200.0, 3)
    assert sites.place.tolist() == [0, 0, 0, 3, 3, 3]
    assert sites.azimuth_deg.tolist() == [30, 150, 270] * 2
    sectors = make_network(spec_from(radio="umi", ues=30, cells=3, sectors=3), 0)
    assert sectors is not None
    x_m, y_m, cell_of = sectors.places()
    for azimuth_deg, cell, own in zip((30, 150, 270), sectors.cells, sectors.ues, strict=True):
        assert cell.radio is not None
        where = cell.where
        gain_db = sector_db(where, azimuth_deg, 8.5)
        # Without the antenna, the three sectors are one omnidirectional base station with the seed of the first.
        bare = cell.radio.loss_db(cell.radio, Where(where.x_m, where.y_m, 0, own))
        measured_db = 10 * np.log10(cell.mean_signal_hz * 10 ** (-19.9) / 0.2)
        assert measured_db.tolist() == pytest.approx((gain_db - bare).tolist())
    aside_deg = (np.degrees(np.arctan2(y_m, x_m)) - np.array([30, 150, 270])[cell_of] + 180) % 360 - 180
    assert np.mean(np.abs(aside_deg) < 60) > 0.7  # places are limited, so some attach to a neighbour


def test_sectors_need_a_realistic_radio_and_a_multiple_of_cells():
    with pytest.raises(InputError, match="realistic radio"):
        make_network(spec_from(ues=30, cells=3, sectors=3), 0)
    with pytest.raises(InputError, match="multiple of 3 sectors"):
        make_network(spec_from(radio="umi", ues=28, cells=7, sectors=3), 0)
    with pytest.raises(InputError, match="no walls"):
        make_cell(spec_from(indoor=0.5), 0)
    with pytest.raises(InputError, match="--walls high has no effect"):
        make_cell(spec_from(radio="umi", walls="high"), 0)


def test_sectors_play_with_moving_phones_and_coupled_interference():
    settings = {"radio": "umi", "ues": 12, "cells": 3, "sectors": 3, "merge_at": "edge", "algorithms": ["FedBuff"]}
    moving = {"mobility": "waypoint", "speed_mps": 20, "on_leave": "keep", "interference": "coupled"}
    comparison = simulate_spec(spec_from(**settings, **moving, seeds=[0], horizon_s=2, quorum=1), "simulate", None)
    assert comparison.timelines["FedBuff", 0].rounds > 0


def fleet(tmp_path, text: str) -> str:
    path = tmp_path / "phones.csv"
    path.write_text(text)
    return str(path)


def test_phones_on_a_map(tmp_path):
    text = "name,group,x_m,y_m,indoor,antenna_gain_db,battery_wh\na,cars,30,40,0,3,15\nb,,-60,80,1,,15\nc,homes,,,,,\n"
    cell = make_cell(spec_from(cell=fleet(tmp_path, text), radio="umi"), 0)
    bare = make_cell(spec_from(ues=3, radio="umi"), 0)
    assert cell.distance_m[:2].tolist() == [50, 100]
    assert cell.where.x_m[:2].tolist() == pytest.approx([30, -60])
    assert cell.where.y_m[2] == pytest.approx(bare.where.y_m[2])
    assert cell.offset_db is not None
    assert cell.offset_db.tolist() == pytest.approx([3, -wall_db(2, 0, 3.5e9, "low")[1], 0])


@pytest.mark.parametrize("text", ["x_m\n3\n", "x_m,y_m,distance_m\n3,4,5\n"])
def test_half_a_position_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="x_m and y_m together"):
        spec_from(cell=fleet(tmp_path, text))


@pytest.mark.parametrize(
    ("column", "value", "hint"),
    [
        ("power_w", "23", "23 dBm are 0.2 W"),
        ("power_w", "200", "looks like dBm"),
        ("cpu_hz", "1.5", "1.5 GHz are 1.5e9"),
        ("gain_db", "95", "is a gain of -95"),
        ("battery_wh", "4000", "looks like mAh"),
    ],
)
def test_impossible_units_lead_to_a_hint(tmp_path, column, value, hint):
    spec = spec_from(cell=fleet(tmp_path, f"{column}\n{value}\n{value}\n"), quorum=1, ues=2)
    assert any(hint in line for line in fleet_warnings(spec))


def test_flags_in_impossible_units_lead_to_a_hint_and_defaults_do_not():
    assert fleet_warnings(spec_from()) == fleet_warnings(spec_from(radio="rma")) == []
    assert "--bandwidth-hz 20 looks like MHz" in fleet_warnings(spec_from(bandwidth_hz=20))[0]
    assert "--power-w 23 looks like dBm" in fleet_warnings(spec_from(power_w=23))[0]
