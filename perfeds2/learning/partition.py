"""Divide samples among UEs.

A split is called with the samples' labels, the number of UEs and a seed, and returns a ``Partition``. ``labels:K`` is
the paper's; ``dirichlet:ALPHA``, ``quantity:SIGMA`` and ``iid`` are common in the literature; ``natural`` uses the
owners that the data name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator, default_rng

Labels = Int[np.ndarray, " N"]  # one number per training sample: its label or its owner
TestLabels = Int[np.ndarray, " M"]
Counts = Int[np.ndarray, " n"]  # one number per UE
ShareRows = Float[np.ndarray, "g n"]  # share of each label's samples that each UE gets
Amounts = Int[np.ndarray, "g n"]
SIZE_SPREAD = 0.6  # standard deviation of the logarithm of UEs' data sizes; the paper says only that they differ
TEST_SHARE = 0.25  # share of a UE's samples for testing, if the data have no test set of their own
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
    """What a split sees. Test samples, if the data have any, are numbered after the training samples."""

    labels: Labels  # from 0; for numbers, the tenth each is in
    test_labels: TestLabels | None = None
    owners: Labels | None = None  # natural owner of each sample, from 0
    test_owners: TestLabels | None = None
    names: tuple[str, ...] = ()  # names of the owners


Split = Callable[[Samples, int, int], Partition]  # (samples, number of UEs, seed) -> partition


# ---- the splits; each docstring begins with the name that selects the split


@dataclass(frozen=True)
class ByLabel:
    """``labels:K``: every UE has K of the labels, and a different amount of data."""

    labels_per_ue: int

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        return partition_by_label(samples.labels, ues, self.labels_per_ue, seed, samples.test_labels)


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
            raise ValueError("--split natural needs data that name the owner of each sample, and this data does not.")
        count = int(samples.owners.max()) + 1
        if ues > count:
            raise ValueError(f"its samples belong to {count} UEs, got {ues} UEs; use fewer UEs (--ues).")
        random = default_rng([seed, 3])
        chosen = np.arange(count) if ues == count else random.choice(count, ues, replace=False)
        place = np.full(count, -1)
        place[chosen] = np.arange(ues)
        mine = place[samples.owners]
        theirs = None if samples.test_owners is None else place[samples.test_owners]
        short = too_few(mine, theirs, ues)
        if short is not None:
            name = samples.names[chosen[short]] if samples.names else str(chosen[short])
            found = " and ".join(str(np.count_nonzero(who == short)) for who in (mine, theirs) if who is not None)
            raise ValueError(f"UE {name} has {found} samples, {TOO_FEW}; leave it out of the data.")
        return hand_out(samples.labels, mine, theirs, ues, random)


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
            is_legal = -1 <= found.min() <= found.max() < ues and too_few(found, None, ues) is None
            if samples.test_labels is not None or not is_legal:
                raise ValueError(
                    f"--split {self.name} must give each of {ues} UEs, numbered from 0, at least 2 samples. If the data "
                    f"has its own test set, it must return shares instead."
                )
            return hand_out(samples.labels, found, None, ues, default_rng([seed, 3]))
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


def partition_by_label(
    labels: Labels,
    ues: int,
    labels_per_ue: int,
    seed: int,
    test_labels: TestLabels | None = None,
) -> Partition:
    """Give every UE ``labels_per_ue`` of the labels (l in the paper) and a different amount of data.

    Labels are dealt in turn, so all of them are used as evenly as possible. The UEs that hold a label divide its
    samples in proportion to the UEs' random sizes. A UE's test part has the labels of its training part. It comes from
    ``test_labels`` (numbered after the training samples) if the data set has a test set, and is split off otherwise.
    """
    classes = np.unique(labels)
    check_labels_per_ue(labels_per_ue, classes.size)
    random = default_rng([seed, 3])
    going_round = np.resize(random.permutation(classes.size), ues * labels_per_ue).reshape(ues, labels_per_ue)
    size = np.exp(SIZE_SPREAD * random.standard_normal(ues))
    halves: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in range(ues)]  # training and test part
    for number, label in enumerate(classes.tolist()):
        holders = np.flatnonzero((going_round == number).any(axis=1))
        if holders.size == 0:
            continue
        mine = random.permutation(np.flatnonzero(labels == label))
        if test_labels is None:
            parts = _divide(mine, size[holders], 2, label)
            cuts = [min(max(round(part.size * TEST_SHARE), 1), part.size - 1) for part in parts]
            pairs = [(part[cut:], part[:cut]) for part, cut in zip(parts, cuts, strict=True)]
        else:
            theirs = labels.size + random.permutation(np.flatnonzero(test_labels == label))
            pairs = zip(*(_divide(each, size[holders], 1, label) for each in (mine, theirs)), strict=True)
        for ue, pair in zip(holders, pairs, strict=True):
            for half, part in zip(halves[ue], pair, strict=True):
                half.append(part)
    drawn = [[random.permutation(np.concatenate(half)) for half in both] for both in halves]
    sizes = np.array([[half.size for half in both] for both in drawn])
    start = np.concatenate([[0], sizes.sum(axis=1).cumsum()[:-1]])
    return Partition(np.concatenate([half for both in drawn for half in both]), start, sizes[:, 0], sizes[:, 1])


def check_labels_per_ue(labels_per_ue: int, classes: int) -> None:
    if not 1 <= labels_per_ue <= classes:
        raise ValueError(f"--labels-per-ue must be from 1 to the task's {classes} labels, got {labels_per_ue}.")


def _divide(samples: Int[np.ndarray, " s"], weights: np.ndarray, least: int, label: int) -> list[np.ndarray]:
    """Cut samples into parts in proportion to weights, each of at least ``least`` samples."""
    if samples.size < least * weights.size:
        raise ValueError(
            f"label {label} has {samples.size} samples, too few for the {weights.size} UEs that share it; "
            f"use fewer UEs or fewer labels per UE."
        )
    spare = samples.size - least * weights.size
    ends = np.floor(np.cumsum(weights) / weights.sum() * spare + 1e-9).astype(int)
    ends += least * np.arange(1, weights.size + 1)
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

    Shares are drawn again until every UE has ten samples, or a fifth of an equal share if that is less. After 100
    draws the best one is taken, if it gives every UE enough to train and test on. A test set is divided by the same
    shares.
    """
    random = default_rng([seed, 3])
    sets = [samples.labels] if samples.test_labels is None else [samples.labels, samples.test_labels]
    enough = min(FEW, samples.labels.size // (5 * ues))
    best: tuple[int, list[Amounts]] = (-1, [])
    for _ in range(MOST_DRAWS):
        shares = draw(random, 1 + max(int(labels.max()) for labels in sets))
        groups = [labels if len(shares) > 1 else np.zeros_like(labels) for labels in sets]
        sizes = [amounts(shares, np.bincount(group, minlength=len(shares)), random) for group in groups]
        least = [int(size.sum(axis=0).min()) for size in sizes]
        if least[0] >= 3 - len(sets) and least[-1] >= 1 and least[0] > best[0]:
            best = least[0], sizes
        if best[0] >= enough:
            break
    if best[0] < 0:
        raise ValueError(
            f"--split {what} gives a UE {TOO_FEW} (in {MOST_DRAWS} draws): {samples.labels.size} samples for {ues} UEs; use "
            f"fewer UEs, or a more even split."
        )
    owners = [owned(group, size, random) for group, size in zip(groups, best[1], strict=True)]
    return hand_out(samples.labels, owners[0], owners[1] if len(sets) > 1 else None, ues, random)


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


def too_few(owners: Labels, test_owners: TestLabels | None, ues: int) -> int | None:
    """Return the first UE with too few samples to train and test on, or None."""
    count = np.bincount(owners[owners >= 0], minlength=ues)
    lacking = count < 2
    if test_owners is not None:
        lacking = (count < 1) | (np.bincount(test_owners[test_owners >= 0], minlength=ues) < 1)
    return int(lacking.argmax()) if lacking.any() else None


def hand_out(
    labels: Labels,
    owners: Labels,
    test_owners: TestLabels | None,
    ues: int,
    random: Generator,
) -> Partition:
    """Return the partition of samples whose UEs are known, with each part shuffled.

    Without a test set, a quarter of each of a UE's labels is split off for testing. A label with one sample is trained
    on; a UE that has every label only once tests on one of them.
    """
    if test_owners is None:
        numbers = np.flatnonzero(owners >= 0)
        numbers = numbers[np.lexsort((random.random(numbers.size), labels[numbers], owners[numbers]))]
        owner, label = owners[numbers], labels[numbers]
        new = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(label, prepend=-1))
        size = np.diff(new, append=numbers.size)
        cut = np.where(size > 1, np.clip(np.round(size * TEST_SHARE).astype(int), 1, size - 1), 0)
        none = np.bincount(owner[new], cut, ues) == 0
        first_of = np.searchsorted(owner[new], np.flatnonzero(none))
        cut[first_of] = 1
        is_test = np.arange(numbers.size) - np.repeat(new, size) < np.repeat(cut, size)
    else:
        held = np.flatnonzero(test_owners >= 0)
        numbers = np.concatenate([np.flatnonzero(owners >= 0), labels.size + held])
        owner = np.concatenate([owners[owners >= 0], test_owners[held]])
        is_test = numbers >= labels.size
    order = np.lexsort((random.random(numbers.size), is_test, owner))
    train, test = (np.bincount(owner[is_test == which], minlength=ues) for which in (False, True))
    start = np.concatenate([[0], (train + test).cumsum()[:-1]])
    return Partition(numbers[order], start, train, test)
