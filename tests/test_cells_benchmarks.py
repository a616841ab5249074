"""Do the benchmarks of many cells train what they say, and keep what they have trained?"""

import json
from argparse import Namespace

import numpy as np
import pytest

from benchmarks import cells_levels, hierfavg
from perfeds2.learning.partition import Samples


def test_edges_have_all_labels_or_five():
    cells = cells_levels.make_cells(
        cells_levels.Cell.draw(hierfavg.UES, 0), cells_levels.Sites.grid(hierfavg.EDGES, 200.0), 200.0
    )
    for split, count in {"edge-iid": 10, "edge-niid": 5}.items():
        labels = np.array(hierfavg.split_of(cells, split).labels)
        assert [np.unique(labels[own]).size for own in cells.ues] == [count] * hierfavg.EDGES
        assert np.bincount(labels).tolist() == ([5] * 10 if split == "edge-iid" else [6, 4] * 5)


def test_a_ue_has_samples_of_its_label_only():
    labels = np.repeat(np.arange(10), 20)
    parts = hierfavg.OneLabel((3, 3, 7))(Samples(labels, np.arange(200) % 4 == 0), 3, 0)
    assert parts.train_count.tolist() == [8, 7, 15]
    own = np.split(labels[parts.order], parts.start[1:])
    assert [set(each) for each in own] == [{3}, {3}, {7}]


@pytest.mark.slow
@pytest.mark.slow
def test_hierfavg_is_trained_once_and_shown_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hierfavg, "KAPPAS", ((2, 1), (1, 2)))
    wanted = ["--task", "digits", "--splits", "edge-iid", "--seeds", "1", "--cloud-rounds", "2", "--out", str(tmp_path)]
    hierfavg.main(wanted)
    kept = json.loads((tmp_path / "hierfavg.json").read_text("utf-8"))
    curves = [curve for seeds in kept.values() for curve in seeds.values()]
    assert [[row["local_steps"] for row in curve] for curve in curves] == [[0.0, 2.0, 4.0]] * 2
    trips_s = np.diff([[row["time_s"] for row in curve] for curve in curves])
    assert (trips_s > [1, 2]).all()  # the backhaul takes 1 s: up, then down and up
    monkeypatch.setattr(hierfavg, "hierarchy", None)
    hierfavg.main(wanted)
    assert "κ₁ = 1, κ₂ = 2" in capsys.readouterr().out


@pytest.mark.slow
def test_every_combination_plays_its_levels():
    cells = cells_levels.network(0, equal=False, backhaul_s=0.1)
    for name, levels in cells_levels.LEVELS.items():
        timeline = cells_levels.played(cells, levels, 77_120.0, 120, 3.0)
        flat = name.startswith("flat")
        assert (timeline.cloud is None) == flat
        assert timeline.rounds > 0
        if timeline.cloud is not None:
            assert timeline.quorum == (2 if levels[0] else 6)
            assert timeline.cloud.cells.shape[1] == levels[1]


def test_times_are_compared_seed_by_seed():
    assert cells_levels.compared(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0])) == [
        "3/3",
        "2 s",
        "0.50 (0.50 to 0.50)",
    ]
    assert cells_levels.compared(np.array([np.inf]), np.array([1.0])) == ["0/1", "", ""]


def test_equal_steps_move_equally_far_per_upload():
    given = Namespace(beta=0.07, equal_steps=True)
    steps = {name: cells_levels.step_size(given, levels) for name, levels in cells_levels.LEVELS.items()}
    assert steps["semi, semi"] == pytest.approx(0.07)
    assert steps["sync, sync"] == steps["flat, sync"] == pytest.approx(0.42)
    assert steps["semi, sync"] == steps["flat, semi"] == pytest.approx(0.14)
