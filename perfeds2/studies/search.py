"""Successive halving: train all candidates for a short time, and only the promising ones for longer.

``tune`` searches step sizes this way, ``plan`` settings of the protocol. They differ in the candidates and in who is promising.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

FACTOR = 3  # a rung is so many times as long as the one before; the share that tune lets go on is one over it
TUNING_SEEDS, RUNGS = 2, 3  # of tune and arena, by default

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Rung:
    """How the candidates that came this far are trained."""

    seeds: tuple[int, ...]
    horizon_s: float  # simulated


def successive_halving(
    candidates: Sequence[Candidate],
    rungs: Iterable[Rung],
    train: Callable[[Sequence[Candidate], Rung], None],
    promising: Callable[[Sequence[Candidate], Rung], Sequence[Candidate]],
) -> Sequence[Candidate]:
    """Train candidates rung by rung and return those that are promising after the last.

    Args:
        candidates: Everything that is tried on the first rung.
        rungs: Short ones first.
        train: Train candidates as a rung says, and keep what came out.
        promising: Choose by what came out who goes on.
    """
    for rung in rungs:
        train(candidates, rung)
        candidates = promising(candidates, rung)
    return candidates
