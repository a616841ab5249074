"""Successive halving: train all candidates for a short time, and only the promising ones for longer.

``tune`` searches step sizes this way, and ``plan`` searches protocol settings. They differ in the candidates and in
how they select the promising ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

FACTOR = 3  # ratio of rung lengths; tune keeps one candidate in FACTOR per rung
TUNING_SEEDS, RUNGS = 2, 3  # defaults of tune and arena

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Rung:
    """The seeds and horizon of one stage of successive halving."""

    seeds: tuple[int, ...]
    horizon_s: float  # simulated seconds


def successive_halving(
    candidates: Sequence[Candidate],
    rungs: Iterable[Rung],
    train: Callable[[Sequence[Candidate], Rung], None],
    promising: Callable[[Sequence[Candidate], Rung], Sequence[Candidate]],
) -> Sequence[Candidate]:
    """Train candidates rung by rung and return those that are promising after the last.

    Args:
        candidates: Everything that is tried on the first rung.
        rungs: Shortest first.
        train: Trains candidates on a rung and keeps the results.
        promising: Returns the candidates that continue, based on the results.
    """
    for rung in rungs:
        train(candidates, rung)
        candidates = promising(candidates, rung)
    return candidates
