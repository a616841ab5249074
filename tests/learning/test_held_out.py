"""Is a validation part cut from what a UE trains on, beside the rest of it, and never from its test part?"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.learning.data import Divisible, Generated, Shards, held_out_of
from perfeds2.learning.datasets import synthetic
from perfeds2.learning.datasets.shakespeare import WINDOW, Role, Windows
from perfeds2.learning.partition import Partition
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task

UES, MOST = 3, 200  # one size of arrays, so that little is compiled
counts = st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 60)), min_size=UES, max_size=UES)


def shards_of(sizes):
    """Sample i is the number i, which shows its owner. The samples at the end have no owner."""
    train, test = np.array(sizes).T
    start = np.concatenate([[0], np.cumsum(train + test)[:-1]])
    total = UES * (MOST + 60)
    return Shards.of(np.arange(total)[:, None], np.zeros(total, int), Partition(np.arange(total), start, train, test))


@partial(jax.jit, static_argnums=2)  # compiled as a whole: its operations one by one would be compiled one by one
def parts_of(data, ue, tests):
    return data.train_part(ue, MOST), data.test_part(ue, tests), data.batches(jax.random.key(ue), ue, (200,))


def part(found):
    x, _, mask = found
    return set(np.asarray(x)[np.asarray(mask)].ravel().tolist())


def test_by_hand():
    """Of the training samples 0 to 7 the last two; 8 and 9 were tested on, and are no one's now."""
    held = shards_of([(8, 2), (2, 1), (1, 1)]).held_out()
    parts = [tuple(map(part, parts_of(held, ue, MOST)[:2])) for ue in range(UES)]
    assert parts == [({0, 1, 2, 3, 4, 5}, {6, 7}), ({10}, {11}), ({13}, set())]


@pytest.mark.slow
@given(counts)
@settings(max_examples=20)
def test_training_validation_and_test_part_are_disjoint(sizes):
    data = shards_of(sizes)
    held = data.held_out()
    for ue, (count, _) in enumerate(sizes):
        before, tested = map(part, parts_of(data, ue, MOST)[:2])
        *both, batches = parts_of(held, ue, MOST)
        train, validation = map(part, both)
        assert train | validation == before
        assert not train & validation
        assert not (train | validation) & tested
        assert train
        assert bool(validation) == (count > 1)
        if count >= 8:
            assert len(validation) == pytest.approx(count / 4, abs=0.5)
        drawn = np.asarray(batches[0])
        assert set(drawn.ravel().tolist()) <= train


def test_a_quarter_at_least_one_and_never_all_is_held_out():
    assert held_out_of(jnp.array([0, 1, 2, 3, 4, 5, 8, 100, 1001])).tolist() == [0, 0, 1, 1, 1, 1, 2, 25, 250]


# Lines of a play


def windows_of(lengths):
    return Windows.of([Role(str(number), "A", "x" * length) for number, length in enumerate(lengths)])


def in_numpy(data):
    """Where its parts are: to take a number from a JAX array compiles something."""
    names = ("start", "train_count", "test_start", "test_count")
    return SimpleNamespace(**{name: np.asarray(getattr(data, name)) for name in names})


def characters(start, count):
    """Where the characters of this many windows are."""
    return set(range(int(start), int(start) + int(count) + WINDOW)) if int(count) else set()


@pytest.mark.slow
@given(st.lists(st.integers(2 * WINDOW + 2, 1500), min_size=UES, max_size=UES))
@settings(max_examples=20)
def test_no_character_is_trained_and_validated_where_the_gap_fits(lengths):
    data = windows_of(lengths)
    data, held = (in_numpy(each) for each in (data, data.held_out()))
    for ue in range(len(lengths)):
        trained, validated = (
            characters(held.start[ue], held.train_count[ue]),
            characters(held.test_start[ue], held.test_count[ue]),
        )
        before, tested = (
            characters(data.start[ue], data.train_count[ue]),
            characters(data.test_start[ue], data.test_count[ue]),
        )
        assert trained | validated <= before
        assert not (trained | validated) & tested
        had, held_count = int(data.train_count[ue]), int(held.test_count[ue])
        left = had - held_count
        assert int(held.test_start[ue]) == int(data.start[ue]) + left
        assert int(held.train_count[ue]) >= left // 2  # no one loses most of what is left to the gap
        assert int(held.test_start[ue]) >= int(held.start[ue]) + int(held.train_count[ue])  # no window is in both
        if had > 1:
            assert held_count >= 1
        if left >= 2 * WINDOW:
            assert not trained & validated
            assert int(held.train_count[ue]) == left - WINDOW  # no longer a gap than it takes


# Samples made on the fly


@pytest.mark.slow
def test_validation_has_other_noise_than_training_and_test():
    task = synthetic(3, 2, 0)
    data = task.data
    assert isinstance(data, Generated)
    held = data.held_out()

    @jax.jit
    def looked_at(data, ue):
        return data.train_part(ue, 64)[0], data.test_part(ue, 64)[0], data._world(ue)

    for ue in range(3):
        (trained, tested, same), (again, validated, rule) = (
            jax.tree.map(np.asarray, looked_at(each, ue)) for each in (data, held)
        )
        np.testing.assert_array_equal(again, trained)
        for other in (trained, tested):
            assert not np.isin(validated, other).any()
        np.testing.assert_allclose(validated.mean(axis=0), tested.mean(axis=0), atol=1.0)  # the same UE's world
        for mine, theirs in zip(same, rule, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_the_setting_holds_out_and_nothing_else_changes(name):
    plain, held = (make_task(spec_from(task=name, ues=4, **more), 3) for more in ({}, {"held_out": True}))
    assert isinstance(plain.data, Divisible)
    assert (plain.model, plain.ues) == (held.model, held.ues)
    for mine, other in zip(jax.tree.leaves(plain.data.held_out()), jax.tree.leaves(held.data), strict=True):
        np.testing.assert_array_equal(
            jax.random.key_data(mine) if name == "synthetic" else mine,
            jax.random.key_data(other) if name == "synthetic" else other,
        )
    off = make_task(spec_from(task=name, ues=4, held_out=False), 3)
    assert np.asarray(off.data.train_count).tolist() == np.asarray(plain.data.train_count).tolist()
