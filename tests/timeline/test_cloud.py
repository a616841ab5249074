"""A timeline of many cells has the rows of all edges in order of time, and the cloud's rounds between them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import config
from random_runs import assert_same

from perfeds2.network.cell import Cell
from perfeds2.timeline.cloud import Cloud
from perfeds2.timeline.edges import edge_versions, end_to_end_staleness, joined
from perfeds2.timeline.jobs import LOST, OPEN
from perfeds2.timeline.protocol import IDLE, Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.recorder import Recorder
from perfeds2.timeline.simulate import simulate

NONE, NEVER = np.empty(0, np.int64), np.empty(0)


def edge(ues: list[int], staleness: list[int], time_s: list[float], lost: bool = False) -> Timeline:
    """An edge of two UEs whose rounds merge one update. UE 1 loses a job in round 1 if ``lost``."""
    at = np.array([1]) if lost else NONE
    closed_s = np.array(time_s, float)
    merges = np.array(ues)[:, None], np.array(staleness)[:, None], closed_s[:, None], closed_s, np.zeros((len(ues), 1))
    recorder = Recorder(np.array([1.0, 2.0]), 1)
    recorder.add_rounds(merges, (at, at * 0, at, np.full(at.size, np.inf), at * 0 + 1, np.zeros(at.size)))
    return recorder.timeline(np.array([len(ues), IDLE]), np.full(2, np.inf), np.array([0.5, 0.0]))


@pytest.fixture(scope="module")
def two_cells() -> Timeline:
    """Edge 0 closes at 1, 2 | 5, 6 and edge 1 at 1, 3 | 3.5: two rounds each, then the cloud merges one of them."""
    return joined(
        [edge([0, 1, 0, 0], [0, 1, 1, 0], [1, 2, 5, 6], lost=True), edge([0, 1, 1], [0, 0, 0], [1, 3, 3.5])],
        [np.array([0, 2]), np.array([1, 3])],
        2,
        cells=np.array([[0], [1]]),
        staleness=np.array([[0], [1]]),
        arrival_s=np.array([[2.5], [3.0]]),
        time_s=np.array([2.5, 3.0]),
        handed=np.array([[True, False], [False, True]]),
        backhaul_bits=100.0,
    )


def test_rows_are_in_order_of_time_with_versions_of_their_edge(two_cells):
    assert two_cells.time_s.tolist() == [1, 1, 2, 3, 3.5, 5, 6]
    assert two_cells.cloud.cell.tolist() == [0, 1, 0, 1, 1, 0, 0]
    assert two_cells.ues.ravel().tolist() == [0, 1, 2, 3, 3, 0, 0]
    # Edge 0 made models 1, 3, 6, 7 and edge 1 made models 2, 4, 5; everybody began with model 0.
    assert two_cells.versions.ravel().tolist() == [0, 0, 0, 2, 4, 1, 6]
    assert two_cells.cloud.rows.tolist() == [3, 4]
    assert two_cells.open_version.tolist() == [7, 5, IDLE, IDLE]
    assert two_cells.rows(OPEN).model_s.tolist() == [0.5, 0.5]
    assert two_cells.compute_s.tolist() == [1, 1, 2, 2]
    lost = two_cells.rows(LOST)
    assert (lost.ue, lost.round, lost.version) == ([2], [2], [0])
    assert two_cells.cloud.sizes.tolist() == [2, 2]


def test_the_model_after_a_row_exists_when_the_cloud_has_merged_it(two_cells):
    assert two_cells.visible_s.tolist() == [1, 1, 2.5, 3, 3.5, 5, 6]
    assert replace(two_cells, cloud=None).visible_s.tolist() == two_cells.time_s.tolist()


def test_staleness_is_counted_in_the_edge_and_from_end_to_end(two_cells):
    rounds, versions = edge_versions(two_cells)
    assert rounds.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert (rounds - versions.ravel()).tolist() == [0, 0, 1, 0, 0, 1, 0]
    # Cloud round 0 merges rows 0 and 2, round 1 merges rows 1 and 3 that began with w_0; the others are not merged.
    assert end_to_end_staleness(two_cells).ravel().tolist() == [0, 1, 0, 1, -1, -1, -1]
    assert two_cells.cloud.total_bits == 400


def test_the_row_after_a_merge_belongs_to_the_next_cloud_round():
    """Edge 0 closes at 1, 2 and edge 1 at 1, 3 | 3.5, 4. The cloud merges edge 0 at 2.5, and edge 1 at 3 and at 4."""
    timeline = joined(
        [edge([0, 1], [0, 1], [1, 2]), edge([0, 1, 1, 1], [0, 0, 0, 0], [1, 3, 3.5, 4])],
        [np.array([0, 2]), np.array([1, 3])],
        2,
        cells=np.array([[0], [1], [1]]),
        staleness=np.array([[0], [1], [0]]),
        arrival_s=np.array([[2.5], [3.0], [4.0]]),
        time_s=np.array([2.5, 3.0, 4.0]),
        handed=np.array([[True, False], [False, True], [False, True]]),
    )
    assert timeline.cloud is not None
    assert timeline.cloud.rows.tolist() == [3, 4, 6]
    assert end_to_end_staleness(timeline).ravel().tolist() == [0, 1, 0, 1, 0, 0]


def test_with_a_free_backhaul_rows_of_the_same_time_stay_on_their_side_of_the_cloud_round():
    edges = [edge([0], [0], [1.0]), edge([0, 0], [0, 0], [1.0, 1.0])]
    timeline = joined(
        edges,
        [np.arange(2), np.arange(2, 4)],
        1,
        cells=np.array([[1]]),
        staleness=np.array([[0]]),
        arrival_s=np.array([[1.0]]),
        time_s=np.array([1.0]),
        handed=np.array([[False, True]]),
    )
    assert timeline.cloud is not None
    assert timeline.cloud.cell.tolist() == [0, 1, 1]
    assert timeline.cloud.rows.tolist() == [2]


def test_an_edge_does_not_go_on_without_the_cloud():
    none = {"cells": np.empty((0, 1), np.int64), "staleness": np.empty((0, 1), np.int64), "time_s": NEVER}
    with pytest.raises(ValueError, match="edge 0 closed 2 rounds, but the cloud handed it too few models"):
        joined(
            [edge([0, 1], [0, 0], [1, 2])],
            [np.arange(2)],
            1,
            **none,
            arrival_s=np.empty((0, 1)),
            handed=np.empty((0, 1), bool),
        )


def test_one_cell_joined_has_the_columns_of_the_cell():
    alone = simulate(Cell.draw(6, 1), Protocol(2, 1), payload_bits=1e5, samples=50.0, rounds=12)
    ends = alone.time_s[3::4]
    rounds = np.zeros((3, 1), np.int64)
    timeline = joined(
        [alone],
        [np.arange(6)],
        4,
        cells=rounds,
        staleness=rounds,
        arrival_s=ends[:, None],
        time_s=ends,
        handed=rounds == 0,
    )
    assert_same(replace(timeline, cloud=None), alone)
    assert timeline.cloud is not None
    assert timeline.cloud.rows.tolist() == [4, 8, 12]


def test_a_prefix_keeps_the_cloud_rounds_before_its_end(two_cells):
    shorter = two_cells.prefix(3)
    assert shorter.cloud.rows.tolist() == [3]
    assert shorter.cloud.handed.tolist() == [[True, False]]
    assert shorter.cloud.cell.tolist() == [0, 1, 0]
    assert two_cells.prefix(2).cloud.cells.shape == (0, 1)


def test_it_comes_back_from_its_file(two_cells, tmp_path):
    two_cells.save(tmp_path / "cells.npz")
    back = Timeline.load(tmp_path / "cells.npz")
    assert_same(replace(back, cloud=None), replace(two_cells, cloud=None))
    for name, column in vars(two_cells.cloud).items():
        np.testing.assert_array_equal(vars(back.cloud)[name], column)
        assert vars(back.cloud)[name].dtype == column.dtype
    back.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "cells.npz").read_bytes()


WRONG = [
    ("cell", lambda a: a + 2, "whole numbers from 0 to 1"),
    ("cell", lambda a: a[1:], "shape"),
    ("sizes", lambda a: a * 0, "whole numbers from 1"),
    ("sizes", lambda a: a[:0], "must have edges"),
    ("sizes", lambda a: a[:, None], "shape"),
    ("rows", lambda a: a - 3, "whole numbers from 1 to 7"),
    ("rows", lambda a: a + 4, "whole numbers from 1 to 7"),
    ("rows", lambda a: a[::-1].copy(), "in order of time"),
    ("rows", lambda a: a - 1, "in order of time"),
    ("cells", lambda a: a + 1, "whole numbers from 0 to 1"),
    ("cells", lambda a: a.ravel(), "merge at least one"),
    ("cells", lambda a: a[:, :0], "merge at least one"),
    ("cells", lambda a: np.repeat(a, 2, axis=1), "shape"),
    ("staleness", lambda a: a + 1, "whole numbers from 0 to 1"),
    ("staleness", lambda a: a[::-1].copy(), "did not exist"),
    ("arrival_s", lambda a: a * np.nan, "finite"),
    ("arrival_s", lambda a: a.astype(str), "finite"),
    ("time_s", lambda a: a[::-1].copy(), "in order of time"),
    ("time_s", lambda a: a + 1, "in order of time"),
    ("time_s", lambda a: a * np.inf, "finite"),
    ("handed", lambda a: a.astype(int), "true or false"),
    ("handed", lambda a: a[:, :1], "shape"),
    ("backhaul_bits", lambda a: -a, "at least 0"),
    ("backhaul_bits", lambda a: a[None], "shape"),
]


@pytest.fixture
def without_type_checks():
    """As in production, where only the timeline itself checks its fields."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(("name", "spoil", "words"), WRONG)
@pytest.mark.usefixtures("without_type_checks")
def test_a_file_with_a_wrong_cloud_is_refused(two_cells, tmp_path, name, spoil, words):
    refused(two_cells.columns | {f"cloud_{name}": spoil(vars(two_cells.cloud)[name])}, words, tmp_path)


def test_a_file_with_part_of_a_cloud_is_refused(two_cells, tmp_path):
    columns = dict(two_cells.columns)
    del columns["cloud_rows"]
    refused(columns, r"lacks \['cloud_rows'\]", tmp_path)


def refused(columns: dict[str, np.ndarray], words: str, folder: Path) -> None:
    np.savez(folder / "wrong.npz", **columns)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=words) as caught:
        Timeline.load(folder / "wrong.npz")
    assert "\n" not in str(caught.value)


def test_a_cloud_round_merges_an_edge_once(two_cells):
    cloud: Cloud = two_cells.cloud
    pair = {"staleness": np.zeros((2, 2), np.int64), "arrival_s": np.ones((2, 2))}
    with pytest.raises(ValueError, match="an edge twice"):
        replace(two_cells, cloud=replace(cloud, cells=np.array([[0, 0], [0, 1]]), **pair))
