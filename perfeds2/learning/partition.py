"""Who has which samples?

A split is called with the samples' labels, the number of UEs and a seed, and says who gets what. ``labels:K`` is the
paper's; ``dirichlet:ALPHA``, ``quantity:SIGMA`` and ``iid`` are those of the field; ``natural`` is as the data have it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

SIZE_SPREAD = 0.6  # standard deviation of the logarithm of UEs' data sizes: the paper says only that they differ
TEST_SHARE = 0.25  # of a UE's samples, where the data have no test set of their own
FEW = 10  # samples that everybody should have at least,
MOST_DRAWS = 100  # as far as so many draws can do it


@dataclass(frozen=True)
class Partition:
    """Sample numbers grouped by UE: its training part, then its test part, each UE after the other."""

    order: Int[np.ndarray, " m"]  # sample numbers, UE after UE
    start: Int[np.ndarray, " n"]  # where a UE's part of ``order`` begins
    train_count: Int[np.ndarray, " n"]  # how many training samples it has
    test_count: Int[np.ndarray, " n"]  # how many test samples follow them


@dataclass(frozen=True)
class Samples:
    """What a split looks at. Test samples are numbered behind the training samples, where the data have such."""

    labels: Int[np.ndarray, " N"]  # from 0; of numbers, which tenth of them it is in
    test_labels: Int[np.ndarray, " M"] | None = None
    owners: Int[np.ndarray, " N"] | None = None  # whose they are by nature, from 0
    test_owners: Int[np.ndarray, " M"] | None = None
    names: tuple[str, ...] = ()  # of the owners


Split = Callable[[Samples, int, int], Partition]  # of samples, a number of UEs, and a seed


# ---- the splits


@dataclass(frozen=True)
class ByLabel:
    """``labels:K``: every UE has K of the labels, and an unequal amount of data."""

    labels_per_ue: int

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        return partition_by_label(samples.labels, ues, self.labels_per_ue, seed, test_labels=samples.test_labels)


@dataclass(frozen=True)
class Dirichlet:
    """``dirichlet:ALPHA``: which share of a label's samples each UE gets is drawn; a smaller α is more different."""

    alpha: float

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        def draw(random: np.random.Generator, labels: int) -> Float[np.ndarray, "g n"]:
            return random.dirichlet(np.full(ues, self.alpha), labels)

        return divide(samples, ues, seed, draw, f"dirichlet:{self.alpha:g}")


@dataclass(frozen=True)
class Quantity:
    """``quantity:SIGMA``: only the amounts differ, log-normally; ``iid`` is σ = 0."""

    sigma: float

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        def draw(random: np.random.Generator, _: int) -> Float[np.ndarray, "g n"]:
            size = np.exp(self.sigma * random.standard_normal(ues))
            return (size / size.sum())[None]

        return divide(samples, ues, seed, draw, f"quantity:{self.sigma:g}" if self.sigma else "iid")


@dataclass(frozen=True)
class Natural:
    """``natural``: whose they are is known; of more UEs than are wanted, some are drawn."""

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        if samples.owners is None:
            raise ValueError("--split natural needs data that say whose each sample is, and these do not.")
        count = int(samples.owners.max()) + 1
        if ues > count:
            raise ValueError(f"its samples are of {count} UEs, got {ues} UEs; use fewer UEs (--ues).")
        random = np.random.default_rng([seed, 3])
        chosen = np.arange(count) if ues == count else random.choice(count, ues, replace=False)
        place = np.full(count, -1)
        place[chosen] = np.arange(ues)
        mine = place[samples.owners]
        theirs = None if samples.test_owners is None else place[samples.test_owners]
        short = too_few(mine, theirs, ues)
        if short is not None:
            name = samples.names[chosen[short]] if samples.names else str(chosen[short])
            train, test = (0 if who is None else int((who == short).sum()) for who in (mine, theirs))
            found = (
                f"{train} sample{'s' * (train != 1)}" if theirs is None else f"{train} training and {test} test samples"
            )
            needed = "at least 2" if theirs is None else "at least 1 of each"
            raise ValueError(f"UE {name} has {found}, and needs {needed}; leave it out of the data.")
        return hand_out(samples.labels, mine, theirs, ues, random)


@dataclass(frozen=True)
class Given:
    """Somebody's own: which share of each label's samples each UE gets, or whose each sample is (-1: nobody's)."""

    name: str
    function: Callable[[Samples, int, int], Any]

    def __call__(self, samples: Samples, ues: int, seed: int) -> Partition:
        found = np.asarray(self.function(samples, ues, seed))
        labels = int(samples.labels.max()) + 1
        if found.shape == samples.labels.shape and found.dtype.kind in "iu":
            if samples.test_labels is not None:
                raise ValueError(f"--split {self.name} must give shares: the data have a test set of their own.")
            if found.min() < -1 or found.max() >= ues or too_few(found, None, ues) is not None:
                raise ValueError(f"--split {self.name} must give each of {ues} UEs, from 0, at least 2 samples.")
            return hand_out(samples.labels, found, None, ues, np.random.default_rng([seed, 3]))
        if found.shape not in ((ues,), (labels, ues)) or found.dtype.kind != "f" or not (found >= 0).all():
            raise ValueError(
                f"--split {self.name} gave {found.dtype} of shape {found.shape}; expected a UE for each of "
                f"{samples.labels.size} samples, or shares of shape ({labels}, {ues}) or ({ues},)."
            )
        shares = np.atleast_2d(found)
        if not (np.isfinite(shares).all() and (shares.sum(axis=1) > 0).all()):
            raise ValueError(f"--split {self.name} gave shares that do not add up to something.")
        return divide(samples, ues, seed, lambda *_: shares / shares.sum(axis=1, keepdims=True), self.name)


def labels_of(number: float) -> ByLabel:
    if number != int(number) or number < 1:
        raise ValueError(f"a whole number of labels, got {number:g}")
    return ByLabel(int(number))


def dirichlet_of(alpha: float) -> Dirichlet:
    if not 1e-3 <= alpha <= 1e6:
        raise ValueError(f"alpha from 0.001 to 1e6, got {alpha:g}")
    return Dirichlet(alpha)


def quantity_of(sigma: float) -> Quantity:
    if not 0 <= sigma <= 10:
        raise ValueError(f"sigma from 0 to 10, got {sigma:g}")
    return Quantity(sigma)


SPLITS: Mapping[str, Any] = {
    "labels:K": labels_of,
    "dirichlet:ALPHA": dirichlet_of,
    "quantity:SIGMA": quantity_of,
    "iid": Quantity(0.0),
    "natural": Natural(),
}


# ---- the paper's, step by step


def partition_by_label(
    labels: Int[np.ndarray, " N"],
    ues: int,
    labels_per_ue: int,
    seed: int,
    *,
    test_labels: Int[np.ndarray, " M"] | None = None,
    test_fraction: float = TEST_SHARE,
) -> Partition:
    """Give every UE ``labels_per_ue`` of the labels (l in the paper) and an unequal amount of data.

    Labels go round, so that all of them are used as evenly as possible. A label's samples are divided among the UEs
    that have it in proportion to the UEs' random sizes. A UE's test part has the labels of its training part: taken
    from ``test_labels`` (numbered behind the training samples) where the data set has its own test set, else split off.
    """
    classes = np.unique(labels)
    check_labels_per_ue(labels_per_ue, classes.size)
    random = np.random.default_rng([seed, 3])
    going_round = np.resize(random.permutation(classes.size), ues * labels_per_ue).reshape(ues, labels_per_ue)
    size = np.exp(SIZE_SPREAD * random.standard_normal(ues))
    train: list[list[np.ndarray]] = [[] for _ in range(ues)]
    test: list[list[np.ndarray]] = [[] for _ in range(ues)]
    for number, label in enumerate(classes.tolist()):
        holders = np.flatnonzero((going_round == number).any(axis=1))
        if holders.size == 0:
            continue
        mine = random.permutation(np.flatnonzero(labels == label))
        if test_labels is None:
            parts = _divide(mine, size[holders], 2, label)
            for ue, part in zip(holders, parts, strict=True):
                cut = min(max(round(part.size * test_fraction), 1), part.size - 1)
                test[ue].append(part[:cut])
                train[ue].append(part[cut:])
        else:
            theirs = labels.size + random.permutation(np.flatnonzero(test_labels == label))
            for ue, part, held in zip(
                holders, _divide(mine, size[holders], 1, label), _divide(theirs, size[holders], 1, label), strict=True
            ):
                train[ue].append(part)
                test[ue].append(held)
    return _flatten(train, test, random)


def check_labels_per_ue(labels_per_ue: int, classes: int) -> None:
    if not 1 <= labels_per_ue <= classes:
        raise ValueError(f"labels_per_ue must be from 1 to the task's {classes} labels, got {labels_per_ue}.")


def _divide(samples: Int[np.ndarray, " s"], weights: np.ndarray, least: int, label: int) -> list[np.ndarray]:
    """Cut samples into parts in proportion to weights, each of at least so many."""
    if samples.size < least * weights.size:
        raise ValueError(
            f"label {label} has {samples.size} samples, too few for the {weights.size} UEs that share it; "
            f"use fewer UEs or fewer labels per UE."
        )
    spare = samples.size - least * weights.size
    ends = np.floor(np.cumsum(weights) / weights.sum() * spare + 1e-9).astype(int) + least * np.arange(
        1, weights.size + 1
    )
    ends[-1] = samples.size
    return np.split(samples, ends[:-1])


def _flatten(train: list[list[np.ndarray]], test: list[list[np.ndarray]], random: np.random.Generator) -> Partition:
    parts = [[random.permutation(np.concatenate(half[ue])) for half in (train, test)] for ue in range(len(train))]
    order = np.concatenate([half for both in parts for half in both])
    sizes = np.array([[half.size for half in both] for both in parts])
    start = np.concatenate([[0], sizes.sum(axis=1).cumsum()[:-1]])
    return Partition(order, start, sizes[:, 0], sizes[:, 1])


# ---- by shares


def divide(
    samples: Samples,
    ues: int,
    seed: int,
    draw: Callable[[np.random.Generator, int], Float[np.ndarray, "g n"]],
    what: str,
) -> Partition:
    """Give out each label's samples by the shares that are drawn for it; all samples at once where one row is drawn.

    Drawn again until everybody has ten samples, or a fifth of an equal share where that is less; the best of many draws
    does, if it gives everybody something. A test set of the data's own is given out by the same shares.
    """
    random = np.random.default_rng([seed, 3])
    sets = [samples.labels] if samples.test_labels is None else [samples.labels, samples.test_labels]
    enough = min(FEW, samples.labels.size // (5 * ues))
    best: tuple[int, list[Int[np.ndarray, "g n"]]] = (-1, [])
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
        needed = "2 samples" if len(sets) == 1 else "a training and a test sample"
        raise ValueError(
            f"--split {what} leaves a UE without {needed} (in {MOST_DRAWS} draws): {samples.labels.size} samples for {ues} "
            f"UEs; use fewer UEs, or a more even split."
        )
    owners = [owned(group, size, random) for group, size in zip(groups, best[1], strict=True)]
    return hand_out(samples.labels, owners[0], owners[1] if len(sets) > 1 else None, ues, random)


def amounts(
    shares: Float[np.ndarray, "g n"], count: Int[np.ndarray, " g"], random: np.random.Generator
) -> Int[np.ndarray, "g n"]:
    """How many of so many samples each UE gets: its share, up or down to a whole number, on average exactly."""
    ends = np.floor(shares.cumsum(axis=1) * count[:, None] + random.random((len(count), 1))).astype(int)
    ends = np.minimum(ends, count[:, None])
    ends[:, -1] = count
    return np.diff(ends, axis=1, prepend=0)


def owned(
    labels: Int[np.ndarray, " N"], sizes: Int[np.ndarray, "g n"], random: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """Whose each sample is, when each UE gets so many of each label, whichever they are."""
    shuffled = random.permutation(labels.size)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owners = np.empty(labels.size, int)
    owners[by_label] = np.repeat(np.tile(np.arange(sizes.shape[1]), len(sizes)), sizes.ravel())
    return owners


def too_few(owners: Int[np.ndarray, " N"], test_owners: Int[np.ndarray, " M"] | None, ues: int) -> int | None:
    """The first UE that has not enough to train and to test; None if all have."""
    count = np.bincount(owners[owners >= 0], minlength=ues)
    lacking = count < 2
    if test_owners is not None:
        lacking = (count < 1) | (np.bincount(test_owners[test_owners >= 0], minlength=ues) < 1)
    return int(lacking.argmax()) if lacking.any() else None


def hand_out(
    labels: Int[np.ndarray, " N"],
    owners: Int[np.ndarray, " N"],
    test_owners: Int[np.ndarray, " M"] | None,
    ues: int,
    random: np.random.Generator,
) -> Partition:
    """Samples by UE, training part before test part, each shuffled. Without a test set, a quarter of each label is cut off.

    Of a label that a UE has once, the one is trained on; of labels that it all has once, one is for testing.
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
