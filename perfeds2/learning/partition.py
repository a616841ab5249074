"""Who has which samples?"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

SIZE_SPREAD = 0.6  # standard deviation of the logarithm of UEs' data sizes: the paper says only that they differ


@dataclass(frozen=True)
class Partition:
    """Sample numbers grouped by UE: its training part, then its test part, each UE after the other."""

    order: Int[np.ndarray, " m"]  # sample numbers, UE after UE
    start: Int[np.ndarray, " n"]  # where a UE's part of ``order`` begins
    train_count: Int[np.ndarray, " n"]  # how many training samples it has
    test_count: Int[np.ndarray, " n"]  # how many test samples follow them


def partition_by_label(
    labels: Int[np.ndarray, " N"],
    ues: int,
    labels_per_ue: int,
    seed: int,
    *,
    test_labels: Int[np.ndarray, " M"] | None = None,
    test_fraction: float = 0.25,
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
