"""Do the settings of many cells give the timelines they describe, and are combinations that cannot work refused?"""

import numpy as np
import pytest
from command_line import perfeds2

from perfeds2.allocation.shares import distance_shares
from perfeds2.errors import InputError
from perfeds2.runs.trainer import facts_of
from perfeds2.spec.build import Stage, check, make_algorithms, make_timelines
from perfeds2.spec.cells import make_cell, make_network, upload_bits
from perfeds2.spec.fields import Spec
from perfeds2.spec.fleet_warnings import fleet_warnings
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.plan_space import make_space
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline

SMALL = {"task": "synthetic", "ues": 12, "seeds": [3], "rounds": 24, "algorithms": ["FedAvgS2"]}


ROAMS = {"mobility": "waypoint", "speed_mps": 30.0, "coherence_s": 0.05, "radius_m": 20.0}


def spec_of(**settings) -> Spec:
    return spec_from(**SMALL | settings)


def played(spec: Spec) -> Timeline:
    stage = Stage.of(spec, 3)
    (timeline,) = make_timelines(spec, stage, make_algorithms(spec, stage))
    return timeline


def test_one_cell_is_what_there_is_without_the_setting():
    one, none = played(spec_of(cells=1)), played(spec_of())
    assert one.columns.keys() == none.columns.keys()
    for name, column in none.columns.items():
        np.testing.assert_array_equal(one.columns[name], column)
    assert "cells" not in spec_of().values()


def test_settings_of_both_levels_reach_the_clock():
    spec = spec_of(cells=3, quorum=2, max_staleness=4, edge_rounds=2, cloud_quorum=2, cloud_staleness=1, backhaul_s=0.5)
    timeline = played(spec)
    cloud = timeline.cloud
    assert cloud is not None
    assert (timeline.rounds, timeline.quorum, cloud.edges, cloud.cells.shape[1]) == (24, 2, 3, 2)
    assert cloud.staleness.max() <= 1
    own = np.sort(timeline.time_s[cloud.cell == cloud.cells[0, 0]])
    assert cloud.arrival_s[0, 0] == own[1] + 0.5  # after two rounds, over the backhaul
    assert own[2] >= cloud.time_s[0] + 0.5
    assert float(cloud.backhaul_bits) > 0
    slow = played(spec_of(cells=3, quorum=2, backhaul_bps=float(cloud.backhaul_bits)))
    assert slow.cloud is not None
    np.testing.assert_allclose(slow.cloud.arrival_s[0], 1 + np.sort(slow.time_s[:3]))


@pytest.mark.parametrize(("mode", "quorum"), [("SYN", 4), ("S2", 1), ("ASY", 1)])
def test_a_mode_is_that_of_every_cell(mode, quorum):
    name = "FedAvgS2" if mode == "S2" else f"FedAvg-{mode}"
    assert played(spec_of(cells=3, algorithms=[name])).quorum == quorum


def test_a_flat_federation_shares_the_band_inside_each_cell_and_pays_the_backhaul():
    flat_cells = {
        "cells": 3,
        "merge_at": "cloud",
        "algorithms": ["FedAvg-SYN"],
        "rounds": 1,
        "bandwidth": "equal_share",
    }
    spec = spec_of(**flat_cells, quorum=12)
    flat = played(spec)
    assert flat.cloud is None
    stage = Stage.of(spec, 3)
    assert stage.cells is not None
    slowest_s = []
    for cell, own in zip(stage.cells.cells, stage.cells.ues, strict=True):
        signal_hz = stage.cell.signal_hz(0)[own]  # its fading is that of one large cell
        rate = cell.bandwidth_hz / 4 * np.log2(1 + signal_hz / (cell.bandwidth_hz / 4))
        slowest_s.append((cell.compute_s(40) + upload_bits(spec) / rate).max())
    assert flat.time_s[0] == pytest.approx(max(slowest_s), rel=1e-9)
    later = played(spec_of(**flat_cells, backhaul_s=0.25))
    assert later.time_s[0] == pytest.approx(flat.time_s[0] + 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["lose", "keep"])
def test_ues_that_move_between_cells_lose_their_jobs_or_keep_them(rule):
    spec = spec_of(cells=3, on_leave=rule, rounds=None, horizon_s=2.0, **ROAMS)
    timeline = played(spec)
    assert timeline.cloud is not None
    assert timeline.lost > 0
    assert timeline.cloud.followed_bits.any() == (rule == "keep")
    homes = [set(timeline.cloud.cell[(timeline.ues == ue).any(axis=1)]) for ue in range(12)]
    assert max(map(len, homes)) > 1  # a UE is merged in several cells
    assert timeline.prefix(10).rounds == 10


def test_facts_count_staleness_in_rounds_of_the_edge():
    spec = spec_of(cells=3, max_staleness=2)
    stage = Stage.of(spec, 3)
    (algorithm,) = make_algorithms(spec, stage)
    (timeline,) = make_timelines(spec, stage, [algorithm])
    facts = facts_of(spec, algorithm, timeline, 3, stage.cell)
    assert timeline.staleness.max() > 2  # in rows of all cells
    assert facts["staleness_max"] <= 2
    assert facts["cloud_rounds"] == 8
    assert facts["end_to_end_staleness_max"] <= 2 + 1
    assert facts["joules"] > 0


def test_a_file_of_base_stations_is_part_of_the_spec(tmp_path):
    path = tmp_path / "sites.csv"
    path.write_text("x_m,y_m,backhaul_s\n0,0,0.1\n500,0,0.2\n")
    spec = spec_of(cells=str(path))
    timeline = played(spec)
    assert timeline.cloud is not None
    assert timeline.cloud.edges == 2
    path.write_text("x_m,y_m,backhaul_s\n0,0,0.1\n900,0,0.2\n")
    with pytest.raises(InputError, match="has changed since"):
        spec_from(**spec.values())


def test_a_folder_keeps_its_base_stations(tmp_path, monkeypatch):
    """A run whose file is gone is resumed in another folder, to the same bytes, and shown again."""
    monkeypatch.chdir(tmp_path)
    path, out, moved = tmp_path / "sites.csv", tmp_path / "run", tmp_path / "elsewhere"
    path.write_text("x_m,y_m,backhaul_s\n0,0,0.1\n500,0,0.2\n")
    command = ["simulate", "--cells", "sites.csv", "--ues", 4, "--algorithms", "PerFedS2", "--rounds", 6, "--seed", 3]
    assert perfeds2(*command, "--quiet", "--out", out) == (0, "")
    before = (out / "timeline.npz").read_bytes()
    for name in ("timeline.npz", "summary.json"):
        (out / name).unlink()
    path.unlink()
    out.rename(moved)
    assert perfeds2("simulate", "--resume", moved, "--quiet") == (0, "")
    assert (moved / "timeline.npz").read_bytes() == before
    assert perfeds2("report", moved)[0] == 0
    path.write_text("x_m,y_m,backhaul_s\n0,0,0.1\n400,0,0.2\n")
    status, error = perfeds2("simulate", "--resume", moved)
    assert status == 2
    assert "sites.csv has changed since this spec was written" in error


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"cells": 5}, "--ues 12 must be a multiple of the number of cells, 5"),
        ({"cells": 3, "quorum": 5}, "--quorum must be from 1 to the number of UEs of a cell, 4"),
        ({"edge_rounds": 2}, "--edge-rounds 2 has no effect in one cell"),
        ({"cells": 3, "cloud_quorum": 4}, "--cloud-quorum must be from 1 to the number of cells, 3"),
        ({"cells": 3, "cloud_quorum": 1, "cloud_staleness": 1}, "must be at least the number of cells, 3"),
        ({"cells": 3, "layout": "equal"}, "--layout describes a single cell"),
        ({"cells": 3, "distance_m": [5.0] * 12}, "--distance-m describes a single cell"),
        ({"cells": 3, "schedule": "best_channel", **ROAMS}, "lost its job in another cell"),
        ({"cells": 3, "algorithms": ["SAFA"]}, "ModelCache makes a model of its UEs' last ones"),
        ({"cells": 3, "algorithms": ["FedAT"]}, "TierAverage makes a model of its UEs' last ones"),
        (
            {"cells": 3, "algorithms": ["FedCompass"], "on_leave": "keep", **ROAMS},
            "groups the UEs of a cell, and UEs move",
        ),
        ({"cells": 3, "algorithms": ["Local"]}, "send nothing to a server"),
        ({"cells": 3, "schedule": "oort", **ROAMS}, "lost its job in another cell"),
        ({"cells": 3, "dp_noise": 1.0, "clip": 1.0}, "accounted for one server"),
        ({"cells": 3, "shares": "distance", **ROAMS}, "UEs move to others"),
        ({"cells": 3, "interference": "full", **ROAMS}, "is not constant"),
        ({"cells": 3, "algorithms": ["FedAvg-SYN"], **ROAMS}, "waits for all UEs of a cell"),
        ({"cells": "nowhere.csv"}, "--cells 'nowhere.csv' was not found"),
        ({"cells": "many"}, "--cells 'many' is neither a number of cells nor"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(settings, told):
    with pytest.raises(InputError, match=told):
        check(spec_of(**settings), trains=False)


@pytest.mark.parametrize("interference", [None, "coupled"])
@pytest.mark.parametrize("name", ["TiFL", "FedCompass"])
def test_each_edge_sorts_its_ues_into_tiers(name, interference):
    spec = spec_of(cells=3, algorithms=[name], tiers=2, quorum=2, interference=interference, local_steps=8, batch=4)
    stage = Stage.of(spec, 3)
    (algorithm,) = make_algorithms(spec, stage)
    (line,) = make_timelines(spec, stage, [algorithm])
    assert line.cloud is not None
    assert stage.cells is not None
    work = np.broadcast_to(algorithm.learner.objective.work, 12)
    for edge, members in enumerate(stage.cells.members):
        speed = distance_shares(stage.cells.alone(edge), upload_bits(spec), 8 * 4, 2)
        tiers = [set(members[own].tolist()) for own in np.array_split(np.argsort(-speed, kind="stable"), 2)]
        merged = [set(row) for row in line.ues[line.cloud.cell == edge].tolist()]
        assert all(row in tiers for row in merged)
        assert all(tier in merged for tier in tiers)
        assert [max(work[list(tier)]) for tier in tiers] == [1, 1]  # the fastest of a tier takes all steps


def test_base_stations_without_a_grid_have_no_thirds_and_flat_needs_equal_backhauls(tmp_path):
    (tmp_path / "sites.csv").write_text("x_m,y_m,backhaul_s\n0,0,0.1\n500,0,0.2\n")
    with pytest.raises(InputError, match="reuse 3 needs the hexagonal grid"):
        check(spec_of(cells=str(tmp_path / "sites.csv"), frequency_reuse=3), trains=False)
    with pytest.raises(InputError, match="the same backhaul in every cell"):
        played(spec_of(cells=str(tmp_path / "sites.csv"), merge_at="cloud"))


@pytest.mark.parametrize("schedule", ["first", "deficit"])
def test_a_flat_federation_of_many_cells_has_what_a_single_one_has(schedule):
    timeline = played(spec_of(cells=3, merge_at="cloud", schedule=schedule, energy="lte", bandwidth="equal_finish"))
    assert timeline.rounds == 24
    assert Protocol(3, 5).quorum == timeline.quorum


def test_a_profile_of_the_band_comes_from_a_file_or_a_text(tmp_path):
    file = tmp_path / "traffic.csv"
    file.write_text("time_s,share\n0,1\n28800, 0.7\n36000,1\n")
    specs = [spec_from(band_profile=given) for given in (str(file), "0:1,28800:0.7,36000:1")]
    assert specs[0] == specs[1]
    cell = make_cell(specs[0], 0)
    assert [cell.band_hz(hour * 3600.0) for hour in (7, 9, 11, 33)] == [1e6, 7e5, 1e6, 7e5]
    file.write_text("time,share\n0,1\n")
    for wrong in (str(file), str(tmp_path / "none.csv"), "0:2", "eight"):
        with pytest.raises(ValueError, match=r"columns|cannot be read|is no profile"):
            spec_from(band_profile=wrong)


def test_a_run_may_begin_at_any_second_of_the_day(tmp_path):
    (tmp_path / "fleet.csv").write_text('name,available\na,0-600/3600\nb,"100-200;500-90000"\nc,\n')
    settings = {"cell": str(tmp_path / "fleet.csv"), "band_profile": "0:1,28800:0.7,36000:1", "quorum": 1}
    early, late = (make_cell(spec_from(**settings, **more), 0) for more in ({}, {"begin_s": 550}))
    for time_s in (0.0, 49.0, 51.0, 349.0, 351.0, 3050.0, 28249.0, 28251.0, 35449.0, 35451.0, 86000.0, 120000.0):
        assert late.band_hz(time_s) == early.band_hz(time_s + 550)
        assert late.fleet is not None
        assert early.fleet is not None
        assert late.fleet.presence is not None
        assert early.fleet.presence is not None
        present, expected = late.fleet.presence.present(time_s), early.fleet.presence.present(time_s + 550)
        np.testing.assert_array_equal(present, expected)
    assert make_cell(spec_from(**settings, begin_s=28800), 0).band_hz(0.0) == pytest.approx(7e5)
    with pytest.raises(InputError, match="a device is not available after 90000 s"):
        make_cell(spec_from(**settings, begin_s=90000), 0)
    with pytest.raises(InputError, match=r"--begin-s 60\.0 has no effect without --band-profile"):
        make_cell(spec_from(begin_s=60), 0)


def test_one_server_takes_any_number_of_ues_of_its_cells():
    spec = spec_of(ues=11, cells=3, sectors=3, merge_at="cloud", radio="umi", quorum=2, rounds=8)
    cells = make_network(spec, 0)
    assert cells is not None
    assert sorted(np.concatenate(cells.ues)) == list(range(11))
    assert max(cells.sizes) <= 4
    assert played(spec).rounds == 8
    assert make_space(spec, {"quorum": ["2", "5"]}).axes["quorum"] == (2, 5)  # a plan can search it


def test_paths_that_begin_after_the_run_are_mentioned(tmp_path):
    (tmp_path / "paths.csv").write_text("time_s,ue,x_m,y_m\n28800,a,1,2\n28900,a,99,2\n")
    settings = {"ues": 1, "quorum": 1, "mobility": str(tmp_path / "paths.csv")}
    assert "begins at 28800 s, when the run is over" in fleet_warnings(spec_from(**settings, horizon_s=60))[0]
    assert fleet_warnings(spec_from(**settings, horizon_s=30000)) == []
