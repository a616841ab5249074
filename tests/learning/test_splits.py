"""Does every split give each sample to one UE at most, the shares it promises, and a test part like the training part?"""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from perfeds2.learning.datasets import digits, synthetic
from perfeds2.learning.datasets.shakespeare import SHAKESPEARE, shakespeare_data
from perfeds2.learning.files.sources import Found
from perfeds2.learning.partition import (
    SPLITS,
    TEST_SHARE,
    ByLabel,
    Dirichlet,
    Given,
    Natural,
    Partition,
    Quantity,
    Samples,
    amounts,
    partition_by_label,
)

splits = st.one_of(
    st.integers(1, 3).map(ByLabel),
    st.floats(0.1, 100).map(Dirichlet),
    st.floats(0, 1.5).map(Quantity),
    st.just(Natural()),
    st.just(Given("mine", lambda samples, ues, _: np.asarray(samples.owners) % ues)),
)


def parts_of(parts: Partition, ue: int) -> tuple[np.ndarray, np.ndarray]:
    first, train, test = parts.start[ue], parts.train_count[ue], parts.test_count[ue]
    return parts.order[first : first + train], parts.order[first + train : first + train + test]


@pytest.mark.slow
@given(
    split=splits, ues=st.integers(1, 9), seed=st.integers(0, 99), own_test=st.booleans(), order=st.integers(0, 2**32)
)
@settings(max_examples=120, deadline=None)
def test_no_sample_is_used_twice_and_everybody_trains_and_tests(split, ues, seed, own_test, order):
    kinds = 3
    labels = np.random.default_rng(order).permutation(np.repeat(np.arange(kinds), 40))
    tests = 90 if own_test else 0
    labels = np.concatenate([labels, np.arange(tests) % kinds])
    owners = np.concatenate([np.arange(120) % 9, np.arange(tests) % 9])
    samples = Samples.of(labels, tests, owners)
    try:
        parts = split(samples, ues, seed)
    except ValueError:
        if not isinstance(split, Dirichlet):
            raise
        reject()  # 120 samples in very uneven parts
    assert np.unique(parts.order).size == parts.order.size
    assert parts.start.tolist() == [0, *(parts.train_count + parts.test_count).cumsum()[:-1]]
    assert parts.order.size == (parts.train_count + parts.test_count).sum()
    if not isinstance(split, Natural | ByLabel):
        assert parts.order.size == labels.size  # nothing is left over
    if own_test:
        assert samples.is_test.tolist() == [False] * 120 + [True] * 90
    counts = [np.bincount(labels[samples.is_test == half], minlength=kinds) for half in (False, True)]
    for ue in range(ues):
        train, test = parts_of(parts, ue)
        assert min(train.size, test.size) > 0
        assert not samples.is_test[train].any()
        assert samples.is_test[test].all()
        mixes = [np.bincount(labels[part], minlength=kinds) for part in (train, test)]
        if isinstance(split, ByLabel):
            assert set(labels[test]) == set(labels[train])
        elif isinstance(split, Dirichlet):  # the same share of a label's training and test samples, up to rounding
            shares = [mix / count for mix, count in zip(mixes, counts, strict=True)]
            assert (abs(shares[1] - shares[0]) <= sum(1 / count for count in counts)).all()
        elif isinstance(split, Natural):
            assert len(set(owners[np.concatenate([train, test])])) == 1
            if not own_test:  # a label that is tested is trained on, but for one whose labels are all single
                strange = set(labels[test]) - set(labels[train])
                assert not strange or test.size == 1
                for label in set(labels[train]) - strange:
                    assert abs(mixes[1][label] - TEST_SHARE * (mixes[0] + mixes[1])[label]) <= 1


@given(seed=st.integers(0, 9), labels=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_labels_are_given_out_bit_for_bit_as_before(seed, labels):
    y = np.repeat(np.arange(10), 30)
    samples = Samples.of(y)
    before, now = partition_by_label(samples, 6, labels, seed), SPLITS["labels:K"](float(labels))(samples, 6, seed)
    for name in ("order", "start", "train_count", "test_count"):
        np.testing.assert_array_equal(getattr(now, name), getattr(before, name))


@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_dirichlet_shares_are_numpys_own_draw(alpha):
    y = np.repeat(np.arange(10), 5000)
    parts = Dirichlet(alpha)(Samples.of(y), 8, 4)
    shares = np.random.default_rng([4, 3]).dirichlet(np.full(8, alpha), 10)
    found = np.stack([np.bincount(y[np.concatenate(parts_of(parts, ue))], minlength=10) for ue in range(8)], axis=1)
    assert np.abs(found - 5000 * shares).max() <= 2  # one each of training and test samples


def test_quantities_are_log_normal_and_labels_are_not_looked_at():
    y = np.random.default_rng(0).integers(0, 10, 200_000)
    parts = Quantity(0.8)(Samples.of(y), 400, 1)
    size = parts.train_count + parts.test_count
    normal = np.random.default_rng([1, 3]).standard_normal(400)
    wanted = 200_000 * np.exp(0.8 * normal) / np.exp(0.8 * normal).sum()
    assert np.abs(size - wanted).max() <= 2  # one each of training and test samples
    assert np.log(size).std() == pytest.approx(0.8, rel=0.1)
    largest = y[np.concatenate(parts_of(parts, int(size.argmax())))]
    assert np.abs(np.bincount(largest) / largest.size - 0.1).max() < 0.03
    equal = SPLITS["iid"](Samples.of(y), 7, 1)
    assert max(np.ptp(equal.train_count), np.ptp(equal.test_count)) <= 1


@given(
    shares=st.lists(st.floats(0.001, 1), min_size=1, max_size=6), count=st.integers(0, 50), seed=st.integers(0, 1000)
)
def test_amounts_are_shares_up_or_down(shares, count, seed):
    share = np.array([shares]) / np.sum(shares)
    found = amounts(share, np.array([count]), np.random.default_rng(seed))
    assert found.sum() == count
    assert (np.abs(found - share * count) < 1 + 1e-9).all()


def test_no_one_is_favoured_where_there_is_little():
    """Three samples of every label for ten UEs: who gets them is drawn, not always the same."""
    y = np.repeat(np.arange(300), 3)
    share = np.full((300, 10), 0.1)
    found = amounts(share, np.bincount(y), np.random.default_rng(0)).sum(axis=0)
    assert found.min() > 60


def test_some_of_many_natural_ues_are_drawn_by_the_seed():
    samples = Samples.of(
        np.zeros(60, int), owners=np.repeat(np.arange(20), 3), names=tuple(f"writer {i}" for i in range(20))
    )
    chosen = [tuple(samples.owners[Natural()(samples, 5, seed).order[::3]]) for seed in (0, 0, 1)]  # type: ignore[index]
    assert chosen[0] == chosen[1] != chosen[2]
    with pytest.raises(ValueError, match="its samples belong to 20 UEs, got 21 UEs"):
        Natural()(samples, 21, 0)
    few = Samples.of(np.zeros(3, int), owners=np.array([0, 0, 1]), names=("ann", "bob"))
    with pytest.raises(ValueError, match="UE bob has 0 training and 1 test samples, too few to train and test on"):
        Natural()(few, 2, 0)
    with pytest.raises(ValueError, match="--split natural needs data that name the owner"):
        Natural()(Samples.of(np.zeros(3, int)), 1, 0)


def test_of_labels_that_a_ue_all_has_once_one_is_for_testing():
    parts = Natural()(Samples.of(np.array([0, 1, 2, 0, 1, 1]), owners=np.array([0, 0, 0, 1, 1, 1])), 2, 0)
    assert parts.test_count.tolist() == [1, 1]
    assert parts_of(parts, 1)[1][0] in (4, 5)  # of two alike one is tested, and the single one trained on


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (np.zeros(3), "expected a UE for each of 6 samples, or positive shares of shape \\(2, 2\\)"),
        (np.full(6, 2), "must give each of 2 UEs, numbered from 0, at least one training and one test sample"),
        (np.zeros((2, 2)), "or positive shares"),
        (np.ones(2, int), "gave int64 of shape \\(2,\\)"),
        (np.array([2.0, -1.0]), "or positive shares"),
    ],
)
def test_an_own_split_that_is_none_is_refused(found, sentence):
    with pytest.raises(ValueError, match=sentence):
        Given("mine", lambda *_: found)(Samples.of(np.array([0, 1] * 3)), 2, 0)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("dirichlet:ALPHA", (1e-3, 1e6), (9e-4, 1.1e6)),
        ("quantity:SIGMA", (0.0, 10.0), (-0.1, 10.1)),
        ("labels:K", (1, 7), (0, 1.5)),
    ],
)
def test_a_splits_number_is_within_its_limits(name, allowed, refused):
    for number in allowed:
        assert number in vars(SPLITS[name](number)).values()
    for number in refused:
        with pytest.raises(ValueError, match=re.escape(f"got {number:g}")):
            SPLITS[name](number)


@pytest.mark.parametrize("shares", [[[0.75, 0.25], [0.25, 0.75]], [[3.0, 1.0], [1.0, 3.0]]])
def test_own_shares_may_differ_between_two_labels(shares):
    y = np.repeat([0, 1], 80)
    parts = Given("mine", lambda *_: np.array(shares))(Samples.of(y), 2, 0)
    found = [np.bincount(y[np.concatenate(parts_of(parts, ue))]).tolist() for ue in range(2)]
    assert found == [[60, 20], [20, 60]]


def test_too_little_for_a_split_is_a_sentence():
    with pytest.raises(
        ValueError, match=r"gives a UE too few to train and test on .* 30 samples for 20 UEs; use fewer UEs"
    ):
        Dirichlet(0.01)(Samples.of(np.repeat([0, 1], 15)), 20, 0)


def test_built_in_tasks_take_splits_or_say_why_not():
    assert digits(5, None, 0, split=Dirichlet(0.5)).data.ues == 5
    assert digits.learned.labels == 10
    every = synthetic(4, None, 0, split=SPLITS["iid"]).data
    _, y, _ = every.test_part(jnp.int32(0), 64)
    assert np.unique(y).size > 5
    (mine, rule, _), (other, same, _) = (every._world(jnp.int32(ue)) for ue in (0, 3))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(rule, same)
    np.testing.assert_array_equal(mine, other)
    with pytest.raises(ValueError, match="cannot be divided"):
        synthetic(4, None, 0, split=Quantity(1.0))
    with pytest.raises(ValueError, match="each UE is a role"):
        shakespeare_data(4, Quantity(1.0), 0, Found(SHAKESPEARE))
