"""Are the tasks whose UEs are persons or writers read as published, and is anything odd one sentence?"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from small_files import example, grey, har_archive, write_femnist

from perfeds2.learning.datasets import TASKS
from perfeds2.learning.datasets.femnist import FEMNIST, parse_example, read_femnist
from perfeds2.learning.datasets.har import HAR, read_har
from perfeds2.learning.files.formats import DataBroken
from perfeds2.learning.files.sources import find
from perfeds2.learning.partition import Natural
from perfeds2.spec.resolve import resolve


@pytest.mark.parametrize("nested", [True, False])
def test_har_has_both_halves_with_persons_and_activities_from_zero(tmp_path, nested):
    (tmp_path / "har.zip").write_bytes(har_archive(nested=nested))
    x, y, person = read_har(find(HAR, tmp_path).files)
    assert x.shape == (48, 561)
    np.testing.assert_allclose(x[:, 0], (person + 1) / 100, rtol=1e-6)
    np.testing.assert_allclose(x[:, 5], (y + 1) / 10, rtol=1e-6)
    assert np.bincount(person).tolist() == [12] * 4
    assert set(y) == set(range(6))


def test_every_person_is_a_ue_with_its_own_test_part(tmp_path):
    (tmp_path / "har.zip").write_bytes(har_archive())
    data: Any = TASKS["har"](4, None, 0, tmp_path, Natural()).data
    for ue in range(4):
        train, _, train_mask = data.train_part(jnp.asarray(ue), 32)
        test, _, test_mask = data.test_part(jnp.asarray(ue), 32)
        assert np.unique(np.asarray(train)[np.asarray(train_mask), 0]).tolist() == [np.float32((ue + 1) / 100)]
        assert np.unique(np.asarray(test)[np.asarray(test_mask), 0]).tolist() == [np.float32((ue + 1) / 100)]
        assert (int(train_mask.sum()), int(test_mask.sum())) == (6, 6)


def test_an_archive_without_persons_is_one_sentence(tmp_path):
    path = tmp_path / "har.zip"
    path.write_bytes(har_archive(leave_out="subject"))
    with pytest.raises(DataBroken, match=r"har.zip lacks subject_test.txt and subject_train.txt"):
        read_har((path,))


@pytest.mark.parametrize("compressed", [True, False])
def test_femnist_has_the_publishers_test_samples_of_each_writer(tmp_path, compressed):
    database = write_femnist(tmp_path, compressed=compressed)
    written = read_femnist(find(FEMNIST, tmp_path).files)
    assert written.names == ("f0000", "f0001", "f0002")
    assert written.x.shape == (30, 784)
    np.testing.assert_array_equal(written.x[:, 0], written.writer)  # paper is 0, and ink is dark
    assert [int(np.count_nonzero(written.is_test[written.writer == w])) for w in range(3)] == [1, 1, 1]
    assert sorted(written.y[written.writer == 2].tolist()) == list(range(2, 12))
    assert database.exists(), "unpacked beside the compressed file, for the next time"
    assert not list(tmp_path.glob("*.part"))


def test_an_example_record_is_read_by_its_definition():
    x, label = parse_example(example([0.0] * 392 + [1.0] * 392, 61))
    assert label == 61
    np.testing.assert_array_equal(x, np.concatenate([grey(255)[:392], grey(0)[:392]]))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (example([0.0] * 784, 62), "label 62"),
        (example([0.0] * 783, 1), "783 pixels"),
        (example([0.0] * 784, 1)[:-3], "is cut"),
        (b"\xff" * 12, "is cut"),
        (b"", "without pixels or label"),
    ],
)
def test_a_record_that_is_none_is_one_sentence(record, sentence):
    with pytest.raises(DataBroken, match=sentence):
        parse_example(record)


def test_labels_per_ue_replaces_the_natural_split():
    assert str(resolve({"task": {"name": "har"}}).task.split) == "natural"
    chosen = resolve({"task": {"name": "har", "labels_per_ue": 2}}).task
    assert (chosen.split, chosen.labels_per_ue) == (None, 2)


def test_a_ue_has_all_its_samples_however_many(tmp_path):
    (tmp_path / "har.zip").write_bytes(har_archive(persons=2, each=1000))
    task = TASKS["har"](2, None, 0, tmp_path, Natural())
    first, second = task.ue(0), task.ue(1)
    assert len(first.train_y) + len(first.test_y) == len(second.train_y) + len(second.test_y) == 1000
    assert np.unique(first.train_x[:, 0]).tolist() == np.unique(first.test_x[:, 0]).tolist() == [np.float32(0.01)]
    assert len(TASKS["synthetic"](3, 2, 0).ue(2).train_y) == 64
    with pytest.raises(ValueError, match="UEs 0 to 1, got 2"):
        task.ue(2)
