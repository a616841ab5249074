"""A timeline comes back from its file as it was, and nothing else is taken for one."""

import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import config
from random_runs import STALE, assert_same

from perfeds2.network.cell import Cell
from perfeds2.timeline.jobs import LOST
from perfeds2.timeline.protocol import Protocol, Stale
from perfeds2.timeline.record import Timeline, load_timelines, save_timelines
from perfeds2.timeline.simulate import simulate


def small(stale: Stale = "ignore", rounds: int = 12) -> Timeline:
    return simulate(Cell.draw(6, 1), Protocol(2, 1, stale), payload_bits=1e5, samples=50.0, rounds=rounds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def written(folder) -> bytes:
    small().save(folder / "good.npz")
    return (folder / "good.npz").read_bytes()


@pytest.fixture
def without_type_checks():
    """As in production, where only the timeline itself checks its fields."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def refused(path: Path) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(ValueError, match="timeline") as caught:
        Timeline.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_arrays(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def arrays_of(timeline: Timeline) -> dict[str, np.ndarray]:
    return timeline.columns


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_a_timeline_comes_back_as_it_was(folder, stale, rounds):
    timeline = small(stale, rounds)
    timeline.save(folder / "back.npz")
    assert_same(Timeline.load(folder / "back.npz"), timeline)


def test_several_timelines_share_a_file_by_name(folder):
    both = {"PerFedS2/0": small("wait"), "FedAvg-SYN/0": small("restart")}
    save_timelines(folder / "timeline.npz", both)
    read = load_timelines(folder)  # a run's folder will do
    assert list(read) == list(both)
    for name, timeline in both.items():
        assert_same(read[name], timeline)
    with pytest.raises(ValueError, match="holds 2 timelines"):
        Timeline.load(folder / "timeline.npz")


def test_a_missing_file_is_said_to_be_missing(folder):
    with pytest.raises(FileNotFoundError):
        Timeline.load(folder / "nowhere.npz")


@pytest.mark.parametrize("kept", [0, 1, 10, 100, -30, -1])
def test_a_truncated_file_is_refused(folder, written, kept):
    (folder / "cut.npz").write_bytes(written[:kept])
    refused(folder / "cut.npz")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x93NUMPY", b"PK\x03\x04", b"\x80\x04N.", bytes(range(256)), b"round,time_s\n0,1\n"]
)
def test_a_file_of_another_kind_is_refused(folder, content):
    (folder / "other.npz").write_bytes(content)
    refused(folder / "other.npz")


def test_a_lone_array_is_refused(folder):
    with (folder / "lone.npz").open("wb") as file:
        np.save(file, np.arange(3))
    refused(folder / "lone.npz")


def test_an_archive_without_arrays_is_refused(folder):
    with zipfile.ZipFile(folder / "text.npz", "w") as archive:
        for field in fields(Timeline):
            archive.writestr(field.name, "not an array")
    assert "lacks" in refused(folder / "text.npz")
    with zipfile.ZipFile(folder / "empty.npz", "w"):
        pass
    assert "lacks" in refused(folder / "empty.npz")


def test_a_foreign_archive_is_refused_with_what_it_lacks(folder):
    assert "lacks ['arrival_s'" in refused(write_arrays(folder / "foreign.npz", weights=np.ones(3)))
    arrays = arrays_of(small())
    del arrays["time_s"]
    assert "lacks ['time_s']" in refused(write_arrays(folder / "foreign.npz", **arrays))
    assert "extra ['more']" in refused(write_arrays(folder / "foreign.npz", **arrays_of(small()), more=np.ones(1)))


class Trap:
    """Unpickling this would leave a mark."""

    opened = False

    def __reduce__(self):
        return setattr, (Trap, "opened", True)


def test_pickled_arrays_are_not_opened(folder):
    arrays = arrays_of(small()) | {"time_s": np.array([Trap()], object)}
    write_arrays(folder / "pickle.npz", **arrays)
    assert "pickle" in refused(folder / "pickle.npz").lower()
    assert not Trap.opened


WRONG = [
    ("staleness", lambda a: a - 5, "whole numbers from 0"),
    ("staleness", lambda a: a + 1, "model that did not exist"),
    ("staleness", lambda a: a.astype(float), "whole numbers"),
    ("staleness", lambda a: a.astype(np.uint64), "whole numbers"),
    ("staleness", lambda a: a[:, :1], "shape"),
    ("ues", lambda a: a + 6, "whole numbers from 0 to 5"),
    ("ues", lambda a: a - 6, "whole numbers from 0 to 5"),
    ("ues", lambda a: a[:-1], r"expected \(K, A\) and \(K,\)"),
    ("ues", lambda a: a.ravel(), r"expected \(K, A\) and \(K,\)"),
    ("ues", lambda a: a[:, :0], r"expected \(K, A\) and \(K,\)"),
    ("time_s", lambda a: np.where(a > a[3], np.nan, a), "finite and never run backwards"),
    ("time_s", lambda a: np.where(a > a[3], np.inf, a), "finite and never run backwards"),
    ("time_s", lambda a: a[::-1].copy(), "finite and never run backwards"),
    ("time_s", lambda a: a - a[-1], "finite and never run backwards"),
    ("time_s", lambda a: a[:, None], r"expected \(K, A\) and \(K,\)"),
    ("time_s", lambda a: a.astype(str), "must hold seconds"),
    ("time_s", lambda a: a.astype(complex), "must hold seconds"),
    ("arrival_s", lambda a: a * np.nan, "arrival times must be finite"),
    ("arrival_s", lambda a: a * np.inf, "arrival times must be finite"),
    ("arrival_s", lambda a: a[0], "shape"),
    ("compute_s", lambda a: -a, "at least 0"),
    ("compute_s", lambda a: a * np.nan, "finite"),
    ("compute_s", lambda a: a.reshape(2, 3), "shape"),
    ("log_ue", lambda a: a + 6, "whole numbers from 0 to 5"),
    ("log_ue", lambda a: a[:, None], "columns of one length"),
    ("log_count", lambda a: a * 0, "whole numbers from 1 to 6"),
    ("log_count", lambda a: a + 5, "beyond its 6"),
    ("log_version", lambda a: a + 13, "whole numbers from 0 to 12"),
    ("log_version", lambda a: a - 20, "whole numbers from 0 to 12"),
    ("log_round", lambda a: a * 0, "model that did not exist"),
    ("log_round", lambda a: a[1:], "columns of one length"),
    ("log_arrival_s", lambda a: a * np.nan, "finite seconds"),
    ("log_arrived", lambda a: a.astype(int), "true or false"),
    ("log_model_s", lambda a: a - 1, "at least 0"),
]


@pytest.mark.parametrize(("name", "spoil", "words"), WRONG)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.usefixtures("without_type_checks")
def test_a_timeline_with_a_wrong_field_is_refused(folder, name, spoil, words):
    good = small()
    assert good.rows(LOST).round.max() > 0
    wrong, part = spoil(good.columns[name]), name.removeprefix("log_")
    with pytest.raises(ValueError, match=words):
        replace(good, **({name: wrong} if part == name else {"log": replace(good.log, **{part: wrong})}))
    path = write_arrays(folder / "wrong.npz", **(arrays_of(good) | {name: wrong}))
    with pytest.raises(ValueError, match=words):
        Timeline.load(path)
    refused(path)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_file_with_flipped_bytes_is_a_valid_timeline_or_refused(folder, written, data):
    content = bytearray(written)
    for place in data.draw(st.lists(st.integers(0, len(written) - 1), min_size=1, max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    (folder / "flipped.npz").write_bytes(content)
    try:
        timeline = Timeline.load(folder / "flipped.npz")
    except ValueError:
        pass
    else:
        assert sum(timeline.seconds().values()) == pytest.approx(timeline.population * timeline.end_s)


def test_no_prefix_is_longer_than_the_timeline():
    with pytest.raises(ValueError, match="prefix must have 0 to 12 rounds, got 13"):
        small().prefix(13)


@pytest.mark.parametrize("rounds", [-1, 13])
def test_a_prefix_is_part_of_the_timeline(rounds):
    with pytest.raises(ValueError, match="0 to 12 rounds"):
        small().prefix(rounds)
