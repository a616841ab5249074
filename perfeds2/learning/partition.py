"""Divide samples among UEs.

A split is called with the samples' labels, the number of UEs and a seed, and returns a ``Partition``. ``labels:K`` is
the paper's; ``dirichlet:ALPHA``, ``quantity:SIGMA`` and ``iid`` are common in the literature; ``natural`` uses the
owners that the data name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator, default_rng

Labels = Int[np.ndarray, " N"]  # one number per sample: its label or its owner
IsTest = Bool[np.ndarray, " N"]
Counts = Int[np.ndarray, " n"]  # one number per UE
ShareRows = Float[np.ndarray, "g n"]  # share of each label's samples that each UE gets
Amounts = Int[np.ndarray, "g n"]
SIZE_SPREAD = 0.6  # standard deviation of the logarithm of UEs' data sizes; the paper says only that they differ
TEST_SHARE = 0.25  # share of the samples for testing, if the data have no test set of their own
FEW = 10  # samples that every UE should have at least
MOST_DRAWS = 100  # draws to reach this before the best one is taken
TOO_FEW = "too few to train and test on"


@dataclass(frozen=True)
class Partition:
    """Sample indices grouped by UE: the training part, then the test part of each."""

    order: Int[np.ndarray, " m"]  # sample indices, UE after UE
    start: Counts  # where a UE's part of ``order`` begins
    train_count: Counts  # number of training samples
    test_count: Counts  # number of test samples, which follow them


@dataclass(frozen=True)
class Samples:
    """What a split sees of the samples."""

    labels: Labels  # from 0; for numbers, the tenth each is in
    is_test: IsTest  # the same for every seed, so no seed trains on another seed's test samples
    owners: Labels | None = None  # natural owner of each sample, from 0
    names: tuple[str, ...] = ()  # names of the owners

    @classmethod
    def of(cls, labels: Labels, tests: int = 0, owners: Labels | None = None, names: tuple[str, ...] = ()) -> "Samples":
        """Take the last ``tests`` samples as the test set, or cut one if there are none."""
        is_test = np.arange(labels.size) >= labels.size - tests if tests else cut_test_set(labels, owners)
        return cls(labels, is_test, owners, names)


def cut_test_set(labels: Labels, owners: Labels | None) -> IsTest:
    """Choose a quarter of each owner's samples of each label for testing, at random but always the same ones.

    A label with one sample is trained on; an owner that has every label only once tests on one of them.
    """
    owner = np.zeros_like(labels) if owners is None else np.unique(owners, return_inverse=True)[1]
    order = np.lexsort((default_rng(0).random(labels.size), labels, owner))
    new = np.flatnonzero(np.diff(owner[order], prepend=-1) | np.diff(labels[order], prepend=-1))
    size = np.diff(new, append=labels.size)
    cut = np.where(size > 1, np.clip(np.round(size * TEST_SHARE).astype(int), 1, size - 1), 0)
    none = np.flatnonzero(np.bincount(owner[order[new]], cut) == 0)
    cut[np.searchsorted(owner[order[new]], none)] = 1
    is_test = np.empty(labels.size, bool)
    is_test[order] = np.arange(labels.size) - np.repeat(new, size) < np.repeat(cut, size)
    return is_test


Split = Callable[[Samples, int, int], Partition]  # (samples, number of UEs, seed) -> partition


# ---- the splits; each docstring begins with the name that selects the split


@dataclass(frozen=True)
class ByLabel:
    """``labels:K``: every UE has K of the labels, and a different amount of data."""

    labels_per_ue: int

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        return partition_by_label(samples, ues, self.labels_per_ue, seed)


@dataclass(frozen=True)
class Dirichlet:
    """``dirichlet:ALPHA``: each UE's share of a label's samples is drawn; a smaller α makes UEs more different."""

    alpha: float

    def __post_init__(self) -> None:
        if not 1e-3 <= self.alpha <= 1e6:
            raise ValueError(f"alpha from 0.001 to 1e6, got {self.alpha:g}")

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}"

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        def draw(random: Generator, labels: int) -> ShareRows:
            return random.dirichlet(np.full(ues, self.alpha), labels)

        return divide(samples, ues, seed, draw, str(self))


@dataclass(frozen=True)
class Quantity:
    """``quantity:SIGMA``: only the amounts of data differ, log-normally; ``iid`` is σ = 0."""

    sigma: float

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 10:
            raise ValueError(f"sigma from 0 to 10, got {self.sigma:g}")

    def __str__(self) -> str:
        return f"quantity:{self.sigma:g}"

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        def draw(random: Generator, _: int) -> ShareRows:
            size = np.exp(self.sigma * random.standard_normal(ues))
            return (size / size.sum())[None]

        return divide(samples, ues, seed, draw, str(self))


@dataclass(frozen=True)
class Natural:
    """``natural``: the data name the owners; if there are more owners than UEs, some are drawn."""

    def __str__(self) -> str:
        return "natural"

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        if samples.owners is None:
            raise ValueError(
                "--split natural needs data that name the owner of each sample, and this data does not; choose another --split."
            )
        count = int(samples.owners.max()) + 1
        if ues > count:
            raise ValueError(f"its samples belong to {count} UEs, got {ues} UEs; use fewer UEs (--ues).")
        random = default_rng([seed, 3])
        chosen = np.arange(count) if ues == count else random.choice(count, ues, replace=False)
        place = np.full(count, -1)
        place[chosen] = np.arange(ues)
        owners = place[samples.owners]
        short = too_few(owners, samples.is_test, ues)
        if short is not None:
            name = samples.names[chosen[short]] if samples.names else str(chosen[short])
            train, test = (np.count_nonzero(samples.is_test[owners == short] == which) for which in (False, True))
            raise ValueError(
                f"UE {name} has {train} training and {test} test samples, {TOO_FEW}; leave it out of the data."
            )
        return to_partition(owners, samples.is_test, ues, random)


@dataclass(frozen=True)
class Given:
    """A user's function that returns shares, or the UE of each sample.

    Shares say how much of each label's samples each UE gets. A sample of UE -1 belongs to none.
    """

    name: str
    function: Callable[[Samples, int, int], Any]

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        found = np.asarray(self.function(samples, ues, seed))
        labels = int(samples.labels.max()) + 1
        if found.shape == samples.labels.shape and found.dtype.kind in "iu":
            if not -1 <= found.min() <= found.max() < ues or too_few(found, samples.is_test, ues) is not None:
                raise ValueError(
                    f"--split {self.name} must give each of {ues} UEs, numbered from 0, at least one training and one "
                    f"test sample."
                )
            return to_partition(found, samples.is_test, ues, default_rng([seed, 3]))
        shares = np.atleast_2d(found)
        are_shares = found.shape in ((ues,), (labels, ues)) and found.dtype.kind == "f" and (found >= 0).all()
        if not (are_shares and (shares.sum(axis=1) > 0).all() and shares.max() < np.inf):
            raise ValueError(
                f"--split {self.name} gave {found.dtype} of shape {found.shape}; expected a UE for each of "
                f"{samples.labels.size} samples, or positive shares of shape ({labels}, {ues}) or ({ues},)."
            )
        return divide(samples, ues, seed, lambda *_: shares / shares.sum(axis=1, keepdims=True), self.name)


def labels_of(number: float) -> ByLabel:
    if number != int(number) or number < 1:
        raise ValueError(f"a whole number of labels, got {number:g}")
    return ByLabel(int(number))


SPLITS: Mapping[str, Any] = {
    "labels:K": labels_of,
    "dirichlet:ALPHA": Dirichlet,
    "quantity:SIGMA": Quantity,
    "iid": Quantity(0.0),
    "natural": Natural(),
}


# ---- the paper's split, step by step


def partition_by_label(samples: Samples, ues: int, labels_per_ue: int, seed: int) -> Partition:
    """Give every UE ``labels_per_ue`` of the labels (l in the paper) and a different amount of data.

    Labels are dealt in turn, so all of them are used as evenly as possible. The UEs that hold a label divide its
    samples in proportion to the UEs' random sizes. Test samples are divided like the training samples, so a UE's test
    part has the labels of its training part.
    """
    classes = np.unique(samples.labels)
    check_labels_per_ue(labels_per_ue, classes.size)
    random = default_rng([seed, 3])
    going_round = np.resize(random.permutation(classes.size), ues * labels_per_ue).reshape(ues, labels_per_ue)
    size = np.exp(SIZE_SPREAD * random.standard_normal(ues))
    halves: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in range(ues)]  # training and test part
    for number, label in enumerate(classes.tolist()):
        holders = np.flatnonzero((going_round == number).any(axis=1))
        for half in (0, 1) if holders.size else ():
            mine = random.permutation(np.flatnonzero((samples.labels == label) & (samples.is_test == half)))
            if mine.size < holders.size:
                raise ValueError(
                    f"label {label} has {mine.size} {('training', 'test')[half]} samples, too few for the "
                    f"{holders.size} UEs that share it; use fewer UEs or fewer labels per UE."
                )
            for ue, part in zip(holders, _divide(mine, size[holders]), strict=True):
                halves[ue][half].append(part)
    drawn = [[random.permutation(np.concatenate(half)) for half in both] for both in halves]
    sizes = np.array([[half.size for half in both] for both in drawn])
    start = np.concatenate([[0], sizes.sum(axis=1).cumsum()[:-1]])
    return Partition(np.concatenate([half for both in drawn for half in both]), start, sizes[:, 0], sizes[:, 1])


def check_labels_per_ue(labels_per_ue: int, classes: int) -> None:
    if not 1 <= labels_per_ue <= classes:
        raise ValueError(f"--labels-per-ue must be from 1 to the task's {classes} labels, got {labels_per_ue}.")


def _divide(samples: Int[np.ndarray, " s"], weights: np.ndarray) -> list[np.ndarray]:
    """Cut samples into parts in proportion to weights, each of at least one sample."""
    ends = np.floor(np.cumsum(weights) / weights.sum() * (samples.size - weights.size) + 1e-9).astype(int)
    ends += np.arange(1, weights.size + 1)
    ends[-1] = samples.size
    return np.split(samples, ends[:-1])


# ---- splits by shares


def divide(
    samples: Samples,
    ues: int,
    seed: int,
    draw: Callable[[Generator, int], ShareRows],
    what: str,
) -> Partition:
    """Divide each label's samples by the shares drawn for it, or all samples if one row is drawn.

    Shares are drawn again until every UE has ten training samples, or a fifth of an equal share if that is less. After
    100 draws the best one is taken, if it gives every UE enough to train and test on. Test samples are divided by the
    same shares.
    """
    random = default_rng([seed, 3])
    labels, sets = samples.labels, (~samples.is_test, samples.is_test)
    enough = np.clip(np.count_nonzero(sets[0]) // (5 * ues), 1, FEW)
    best: tuple[int, list[Amounts]] = (0, [])
    for _ in range(MOST_DRAWS):
        shares = draw(random, 1 + int(labels.max()))
        group = labels if len(shares) > 1 else np.zeros_like(labels)
        sizes = [amounts(shares, np.bincount(group[each], minlength=len(shares)), random) for each in sets]
        least, least_test = (int(size.sum(axis=0).min()) for size in sizes)
        if least_test and least > best[0]:
            best = least, sizes
        if best[0] >= enough:
            break
    if not best[0]:
        raise ValueError(
            f"--split {what} gives a UE {TOO_FEW} (in {MOST_DRAWS} draws): {samples.labels.size} samples for {ues} UEs; use "
            f"fewer UEs, or a more even split."
        )
    owners = np.empty_like(labels)
    for each, size in zip(sets, best[1], strict=True):
        owners[each] = owned(group[each], size, random)
    return to_partition(owners, samples.is_test, ues, random)


def amounts(shares: ShareRows, count: Int[np.ndarray, " g"], random: Generator) -> Amounts:
    """Return how many samples each UE gets: its share, rounded up or down at random so that the mean is exact."""
    ends = np.floor(shares.cumsum(axis=1) * count[:, None] + random.random((len(count), 1))).astype(int)
    ends = np.minimum(ends, count[:, None])
    ends[:, -1] = count
    return np.diff(ends, axis=1, prepend=0)


def owned(labels: Labels, sizes: Amounts, random: Generator) -> Labels:
    """Return the UE of each sample, given how many of each label every UE gets. Which ones is random."""
    shuffled = random.permutation(labels.size)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owners = np.empty(labels.size, int)
    owners[by_label] = np.repeat(np.tile(np.arange(sizes.shape[1]), len(sizes)), sizes.ravel())
    return owners


def too_few(owners: Labels, is_test: IsTest, ues: int) -> int | None:
    """Return the first UE without a training or without a test sample, or None."""
    counts = [np.bincount(owners[(owners >= 0) & (is_test == half)], minlength=ues) for half in (False, True)]
    lacking = np.min(counts, axis=0) < 1
    return int(lacking.argmax()) if lacking.any() else None


def to_partition(owners: Labels, is_test: IsTest, ues: int, random: Generator) -> Partition:
    """Return the partition of samples whose UEs are known, with each part shuffled."""
    numbers = np.flatnonzero(owners >= 0)
    owner, is_test = owners[numbers], is_test[numbers]
    order = np.lexsort((random.random(numbers.size), is_test, owner))
    train, test = (np.bincount(owner[is_test == half], minlength=ues) for half in (False, True))
    start = np.concatenate([[0], (train + test).cumsum()[:-1]])
    return Partition(numbers[order], start, train, test)
