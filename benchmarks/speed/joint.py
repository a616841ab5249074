"""Measure whether scheduling UEs and allocating the band to them pays off."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from benchmarks.speed.timing import BATCH, BETA, QUORUM, STALENESS, Announce, Measurement
from perfeds2.allocation.bandwidth import Policy, equal_finish, equal_share
from perfeds2.allocation.schedule import as_schedule, deficit
from perfeds2.allocation.shares import distance_shares, equal_shares, nearest_feasible
from perfeds2.learning.datasets import digits
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import PerFed
from perfeds2.learning.operations import counted_cycles
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.task import payload_bits
from perfeds2.learning.train import train
from perfeds2.network.cell import Cell
from perfeds2.runs.statistics import statistic, time_to_target
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Schedule


@dataclass(frozen=True)
class Rounds:
    """One way to run the rounds."""

    name: str
    words: str
    bandwidth: Policy
    shares: Callable[[Cell, float, float], Float[np.ndarray, " n"]] | None  # None: the first A arrivals close a round


WAYS = (
    Rounds("first", "equal_share, first A arrivals", equal_share, None),
    Rounds(
        "equal", "equal_finish, deficit schedule, equal shares", equal_finish, lambda cell, *_: equal_shares(cell.ues)
    ),
    Rounds("distance", "equal_finish, deficit schedule, distance shares", equal_finish, distance_shares),
)


def joint_group(
    repeats: int,
    seed: int,
    announce: Announce,
    *,
    ues: int = 20,
    horizon_s: float = 15.0,
    every_s: float = 0.1,
    target: float = 0.9,
) -> Iterator[Measurement]:
    """Measure seconds per round and seconds to an accuracy, over ``repeats`` seeds; differences are paired by seed.

    The paper's cell with distances uniform in [0, 200 m], A = 5, S = 5, restart; the digits; PerFed with exact
    Hessian.
    """
    seeds = range(seed, seed + repeats)
    announce(f"joint: {len(WAYS)} ways to run the rounds, {repeats} seeds …")
    pace: dict[str, list[float]] = {way.name: [] for way in WAYS}
    reach: dict[str, list[float | None]] = {way.name: [] for way in WAYS}
    for each in seeds:
        for way in WAYS:
            a_round_s, reached_s = run_rounds(way, ues, each, horizon_s, every_s, target)
            pace[way.name].append(a_round_s)
            reach[way.name].append(reached_s)
    base = WAYS[0]
    for kind, unit, values in (("a-round", "s/round", pace), (f"to-{target:.0%}".rstrip("%"), "s", reach)):
        for way in WAYS:
            yield _over_seeds(f"joint/{kind}-{way.name}", way.words, values[way.name], unit)
        for way in WAYS[1:]:
            saved = [
                None if ours is None or theirs is None else theirs - ours
                for ours, theirs in zip(values[way.name], values[base.name], strict=True)
            ]
            words = f"{way.name} shares save against first A, paired by seed"
            yield _over_seeds(f"joint/{kind}-saved-{way.name}", words, saved, unit)


def run_rounds(
    way: Rounds, ues: int, seed: int, horizon_s: float, every_s: float, target: float
) -> tuple[float, float | None]:
    """Return the seconds per round, and the first evaluation time at the target (None if it is never reached)."""
    task, learner, quorum = digits(ues, 3, seed), Learner(PerFed(0.03), BETA, BATCH), min(QUORUM, ues)
    cell = Cell.draw(ues, seed, layout="uniform", cycles_per_sample=counted_cycles(task.model, task.sample))
    payload = payload_bits(task.model)
    schedule: Schedule | None = None
    if way.shares is not None:
        shares = nearest_feasible(way.shares(cell, payload, learner.samples), quorum, STALENESS)
        schedule = as_schedule(deficit(shares, quorum, 2_000))
    line = simulate(
        cell,
        Protocol(quorum, STALENESS),
        payload_bits=payload,
        samples=learner.samples,
        horizon_s=horizon_s,
        bandwidth=way.bandwidth,
        schedule=schedule,
    )
    points = evaluation_points(line, horizon_s=horizon_s, every_s=every_s)
    reached_s = None
    for training in train(task, line, learner, points, seed=seed):
        reached_s = time_to_target([training.values[-1] | {"time_s": points[len(training.values) - 1].time_s}], target)
        if reached_s is not None:
            break
    return line.end_s / max(line.rounds, 1), reached_s


def _over_seeds(name: str, what: str, values: Sequence[float | None], unit: str) -> Measurement:
    """Return the mean and 95 % Student-t interval over seeds; empty if a seed has no value."""
    known = statistic(values)
    missing = sum(value is None for value in values)
    some = f" ({len(values) - missing} of {len(values)} seeds got there)" if missing else ""
    return Measurement(name, what + some, known["mean"], unit, low=known["low"], high=known["high"])
