"""Do all seeds test on the same samples, which no seed trains on?"""

from collections import Counter

import numpy as np
import pytest

from perfeds2 import Task, digits
from perfeds2.learning.data import Shards
from perfeds2.learning.partition import Dirichlet

EVALUATION = (0, 1, 2)
TUNING = (1_000_000, 1_000_001)
UES = 6
Y = np.arange(192) // UES % 4  # every owner has eight samples of each of four labels
OWNERS = np.arange(192) % UES


def own_csv(folder, seed, head, ends):
    path = folder / "mine.csv"
    path.write_text(f"number,{head}\n" + "".join(f"{number},{end}\n" for number, end in enumerate(ends)))
    return Task.of_file(path, ues=UES, seed=seed)


def own_npz(folder, seed, ues, **more):
    path = folder / "mine.npz"
    np.savez(path, x=np.arange(192.0)[:, None], y=Y, **more)
    return Task.of_file(path, ues=ues, seed=seed)


MAKERS = {
    "digits": lambda _, seed: digits(20, 2, seed),
    "digits-dirichlet": lambda _, seed: digits(20, None, seed, split=Dirichlet(0.5)),
    "arrays": lambda _, seed: Task.of_arrays("mine", np.arange(192)[:, None], Y, ues=UES, seed=seed),
    "csv": lambda folder, seed: own_csv(folder, seed, "label", Y),
    "csv-of-numbers": lambda folder, seed: own_csv(folder, seed, "target", np.sqrt(np.arange(192))),
    "csv-with-owners": lambda folder, seed: own_csv(
        folder, seed, "ue,label", map("{},{}".format, OWNERS.tolist(), Y.tolist())
    ),
    "npz": lambda folder, seed: own_npz(folder, seed, UES),
    "npz-with-owners": lambda folder, seed: own_npz(folder, seed, 4, ue=OWNERS),
}


def parts_of(data: Shards) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of each UE's training and test part."""
    counts = (np.asarray(each) for each in (data.start, data.train_count, data.test_count))
    return [
        (np.arange(start, start + train), np.arange(start + train, start + train + test))
        for start, train, test in zip(*counts, strict=True)
    ]


def names_of(x: np.ndarray) -> np.ndarray:
    """Return a name of each row that is the same in every seed, though each seed scales a CSV file's columns anew."""
    return (
        np.argsort(np.argsort(x[:, 0])) if x.shape[1] == 1 and x.min() < 0 else np.array([row.tobytes() for row in x])
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_no_seed_trains_on_a_sample_that_any_seed_tests_on(tmp_path, name):
    trained, tested = set(), []
    for seed in (*EVALUATION, *TUNING):
        data = MAKERS[name](tmp_path, seed).data
        assert isinstance(data, Shards)
        names = names_of(np.asarray(data.x))
        assert np.unique(names).size == names.size
        trained |= {each for train, _ in parts_of(data) for each in names[train].tolist()}
        tested.append({each for _, test in parts_of(data) for each in names[test].tolist()})
        if seed in TUNING:  # what a tuning scores its settings on is no test sample either
            trained |= {each for _, scored in parts_of(data.held_out()) for each in names[scored].tolist()}
    assert not trained & set.union(*tested)
    if name != "npz-with-owners":  # which draws four of six owners
        assert all(each == tested[0] for each in tested)
        assert len(tested[0]) / (len(trained) + len(tested[0])) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("name", ["digits", "arrays", "csv-with-owners", "npz-with-owners"])
@pytest.mark.parametrize("seed", EVALUATION)
def test_a_ue_tests_on_the_labels_it_trains_on_in_the_same_mix(tmp_path, name, seed):
    data = MAKERS[name](tmp_path, seed).data
    assert isinstance(data, Shards)
    for train, test in parts_of(data):
        trained, tested = (Counter(np.asarray(data.y)[part].tolist()) for part in (train, test))
        assert set(trained) == set(tested)
        for label, count in tested.items():
            assert abs(count / tested.total() - trained[label] / trained.total()) <= 2 / min(
                tested.total(), trained.total()
            )


def test_too_many_ues_for_the_test_set_are_refused_in_one_sentence():
    assert digits(215, 2, 0).ues == 215
    with pytest.raises(ValueError, match=r"label \d has 4\d test samples, too few for the \d+ UEs .* use fewer UEs"):
        digits(230, 2, 0)
