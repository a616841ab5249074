"""Does every UE get its labels, its unequal amount, and a test part like its training part?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.learning.data import Generated, Shards
from perfeds2.learning.datasets import digits, synthetic
from perfeds2.learning.datasets.digits import read_digits
from perfeds2.learning.partition import Samples, partition_by_label

LABELS = np.repeat(np.arange(10), 120)


def test_the_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    for ours, theirs in zip(read_digits(), load_digits(return_X_y=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@given(ues=st.integers(1, 30), labels_per_ue=st.integers(1, 10), seed=st.integers(0, 99), own_test=st.booleans())
@settings(max_examples=60, deadline=None)
def test_parts_are_disjoint_and_hold_the_right_labels(ues, labels_per_ue, seed, own_test):
    tests = 400 if own_test else 0
    everything = np.concatenate([LABELS, np.repeat(np.arange(10), tests // 10)])
    samples = Samples.of(everything, tests)
    parts = partition_by_label(samples, ues, labels_per_ue, seed)
    assert np.unique(parts.order).size == parts.order.size
    for ue in range(ues):
        first, train, test = parts.start[ue], parts.train_count[ue], parts.test_count[ue]
        mine, held = parts.order[first : first + train], parts.order[first + train : first + train + test]
        assert np.unique(everything[mine]).size == labels_per_ue
        assert set(everything[held]) == set(everything[mine])
        assert not samples.is_test[mine].any()
        assert samples.is_test[held].all()
        if own_test:
            assert (held >= LABELS.size).all()
    if ues * labels_per_ue >= 10:
        assert set(everything[parts.order]) == set(range(10))


def test_sizes_differ():
    parts = partition_by_label(Samples.of(LABELS), 10, 3, 0)
    assert parts.train_count.max() > 2 * parts.train_count.min()


def test_same_seed_same_parts():
    first, again, other = (partition_by_label(Samples.of(LABELS), 10, 3, seed).order for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("labels_per_ue", [0, 11])
def test_labels_per_ue_out_of_range_is_an_error(labels_per_ue):
    with pytest.raises(ValueError, match=f"from 1 to the task's 10 labels, got {labels_per_ue}"):
        partition_by_label(Samples.of(LABELS), 4, labels_per_ue, 0)


def test_too_many_ues_for_the_data_is_an_error():
    with pytest.raises(ValueError, match="has 30 test samples, too few for the 31 UEs that share it; use fewer UEs"):
        partition_by_label(Samples.of(LABELS), 103, 3, 0)


@pytest.mark.slow
def test_batches_come_from_the_ues_own_training_part():
    import jax

    task = digits(5, 2, 0)
    assert isinstance(task.data, Shards)
    samples, drawn = np.asarray(task.data.x), jax.jit(lambda data, ue: data.batches(jax.random.key(ue), ue, (200,)))
    for ue in range(5):
        first, train = int(task.data.start[ue]), int(task.data.train_count[ue])
        own = {bytes(x) for x in samples[first : first + train]}
        x, _ = drawn(task.data, np.int32(ue))
        rows = {bytes(row) for row in np.asarray(x)}
        assert rows <= own
        assert len(rows) > 0.6 * min(len(own), 200)


@pytest.mark.slow
def test_generated_data_know_only_their_labels_and_stay_the_same():
    import jax

    task = synthetic(1_000_000, 2, 0)
    assert isinstance(task.data, Generated)
    looked_at = jax.jit(lambda data, ue: (data.train_part(ue, 64), data.test_part(ue, 64)))
    (trained, *_), (x, y, mask) = looked_at(task.data, np.int32(999_999))
    assert mask.all()
    assert np.unique(y).size <= 2
    assert np.array_equal(y, looked_at(synthetic(1_000_000, 2, 0).data, np.int32(999_999))[1][1])
    assert not np.array_equal(trained, x)
