"""What the page says of many cells, on a small run whose numbers can be counted."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import told

from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.sites import Sites
from perfeds2.report.cells import load_table, map_chart, served_table, staleness_chart, traffic
from perfeds2.report.on_page import plot
from perfeds2.report.read import load_run
from perfeds2.report.run import write_report
from perfeds2.report.timelines import Group
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline, save_timelines

PLACES = {
    "x_m": [0.0, 400.0],
    "y_m": [0.0, 0.0],
    "ue": [0, 1, 2],
    "ue_x_m": [10.0, 390.0, -20.0],
    "ue_y_m": [5.0, 0.0, 0.0],
    "ue_cell": [0, 1, 0],
    "handovers": 7,
}


def two_levels(count: int = 2, **rest) -> Timeline:
    cells = make_cells(Cell.draw(6 * count, 0), Sites.grid(count, 200.0), 200.0, backhaul_s=0.5)
    load = {"payload_bits": 1.2e6, "samples": 4000.0, "model_bits": 1e6, "horizon_s": 60.0}
    return simulate_cells(cells, Protocol(2, 3), Protocol(1), **load, edge_rounds=2, **rest)


def test_the_page_of_many_cells_has_a_map_the_load_and_the_staleness(make_run):
    folder = make_run([("PerFedS2", "PerFed", "S2")], seeds=[0], command="simulate")
    timeline = two_levels()
    save_timelines(folder / "timeline.npz", {"": timeline})
    summary = json.loads((folder / "summary.json").read_text())
    summary["algorithms"][0]["joules"] = {"mean": 2.5, "values": [2.5]}
    (folder / "summary.json").write_text(json.dumps(summary | {"cells": PLACES}))
    page = write_report(folder).read_text()
    assert timeline.cloud is not None
    for said in (
        "2 cells of seed 0. 3 of 12 UEs are drawn. UEs changed their cell 7 times.",
        f"The cloud closed {timeline.cloud.time_s.size} rounds",
        f"carried {timeline.cloud.total_bits:,.4g} bit",
        "The UEs spent 2.5 J.",
        "End-to-end staleness",
    ):
        assert said in page
    assert re.search(r'id="cells"', page)
    assert re.search(r'id="end-to-end"', page)


def test_the_page_says_what_uploads_took_over_the_backhaul():
    timeline = two_levels()
    assert timeline.cloud is not None
    followed = np.zeros(timeline.rounds)
    followed[2] = 5e5
    cloud = replace(timeline.cloud, followed_bits=followed)
    assert cloud.total_bits == timeline.cloud.total_bits + 5e5
    assert traffic(timeline, cloud).endswith("bit, 5e+05 of them for uploads of UEs that had changed their cell.")


def test_the_page_of_one_cell_has_none_of_it(make_run):
    page = write_report(make_run([("PerFedS2", "PerFed", "S2")], seeds=[0], command="simulate")).read_text()
    assert "Load of each cell" not in page
    assert 'id="cells"' not in page


def test_the_load_counts_each_cells_rounds_and_those_of_the_cloud():
    timeline = two_levels()
    cloud = timeline.cloud
    assert cloud is not None
    for cell, row in enumerate(load_table(timeline, cloud).rows):
        mine = [k for k in range(timeline.rounds) if cloud.cell[k] == cell]
        in_cloud = sum(cell in merged for merged in cloud.cells.tolist())
        assert row[:3] == [str(cell), "6", f"{len(mine):,}"]
        assert row[4] == f"{2 * len(mine):,}"
        assert row[6] == str(in_cloud)


def test_of_many_cells_the_busiest_are_listed():
    timeline = two_levels(25)
    assert timeline.cloud is not None
    table = load_table(timeline, timeline.cloud)
    rounds = np.bincount(timeline.cloud.cell, minlength=25)
    assert len(table.rows) == 20
    assert table.caption == "The 20 busiest of 25 cells."
    assert [str(row[2]) for row in table.rows] == [f"{each:,}" for each in sorted(rounds, reverse=True)[:20]]


def test_updates_that_no_cloud_round_has_merged_have_no_staleness():
    (line,) = staleness_chart([Group((), (two_levels(),))]).series
    assert min(line.x) >= 0
    assert line.y[-1] == pytest.approx(100)


def test_the_map_has_one_scale_and_names_each_ues_cell():
    chart = map_chart(PLACES)
    assert plot(chart)["layout"]["yaxis"]["scaleanchor"] == "x"
    assert chart.series[0].hover == ["UE 0, cell 0", "UE 1, cell 1", "UE 2, cell 0"]


def test_the_map_shows_borders_signals_and_the_thirds_of_the_band():
    more = {"radius_m": 200.0, "ue_sinr_db": [25.0, None, -3.0], "band": [0, 2], "upload_bits": 1e6}
    chart = map_chart(PLACES | more)
    by_name = {each.name: each for each in chart.series}
    shown = ["border", "UE", "UE below 0 dB", "UE from 20 dB", "base station, band 1", "base station, band 3"]
    assert list(by_name) == shown
    assert by_name["UE below 0 dB"].hover == ["UE 2, cell 0, SINR -3.0 dB"]
    assert by_name["UE"].hover == ["UE 1, cell 1"]
    border = by_name["border"]
    assert np.nanmax(np.hypot(border.x[:7], border.y[:7])) == pytest.approx(200)
    assert (np.isnan(border.x).sum(), np.nanmax(border.x)) == (2, pytest.approx(600))
    three = map_chart(PLACES | more | {"x_m": [0.0] * 3, "y_m": [0.0] * 3, "band": [0, 1, 2]})
    assert np.isnan(three.series[0].x).sum() == 4  # a hexagon and three lines from its centre


def test_the_load_has_the_sinr_and_what_was_carried(tmp_path):
    flags = (
        "--task synthetic --cells 3 --sectors 3 --ues 7 --radio umi --merge-at cloud --algorithms PerFedS2 --quorum 2"
    )
    status, said, _ = told(
        "simulate", *flags.split(), "--horizon-s", "3", "--frequency-reuse", "3", "--out", tmp_path / "run"
    )
    assert status == 0, said
    run = load_run(tmp_path / "run")
    timeline = run.timelines["PerFedS2", 0]
    assert run.cells is not None
    table = served_table(timeline, run.cells)
    assert sum(int(str(row[2]).replace(",", "")) for row in table.rows) == timeline.merges.sum()
    phones = pd.read_csv(tmp_path / "run/phones.csv")
    for cell, row in enumerate(table.rows):
        mine = phones[phones["cell"] == cell]
        assert [row[0], row[1], row[3]] == [str(cell), str(len(mine)), f"{np.median(mine['snr_db'].round(1)):.1f}"]
        carried = mine["merged"].sum() * run.cells["upload_bits"] / timeline.end_s / 1e6
        assert float(str(row[4])) == pytest.approx(carried, rel=0.01)
    assert "Merged Mbit/s" in (tmp_path / "run/report.html").read_text()


def test_waiting_for_the_cloud_is_waiting(tmp_path):
    """A synchronous edge works 0.03 s of every 2.06 s, and the model that it waits for at the end comes after 20 s."""
    flags = "--cycles per-parameter --cells 3 --ues 30 --radio umi --link shannon --bandwidth-hz 14e6 --fading none --backhaul-s 1 --horizon-s 20"
    names = "--algorithms FedAvgS2,FedAvg-SYN --out"
    status, said, _ = told("simulate", *flags.split(), *names.split(), tmp_path / "run")
    assert status == 0
    assert "UEs waited least with FedAvg-SYN: 98.5 % of the time, against 99.6 % with FedAvgS2." in said
    rows = json.loads((tmp_path / "run/summary.json").read_text())["algorithms"]
    assert rows[1]["seconds_per_round"]["mean"] == 20 / 30
