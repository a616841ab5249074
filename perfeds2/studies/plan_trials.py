"""Simulate and train the choices of a plan, each once.

The clock says whether a choice is possible, how fast its rounds close and which UEs it leaves out; how it learns is trained. Choices that
merge the same UEs at the same seconds and compute alike are one training.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfeds2.runs.pool import Workers, run_all
from perfeds2.runs.progress import Reporter
from perfeds2.runs.store import Store
from perfeds2.runs.training import Training
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.studies.plan_data import Choice, ClockFacts, SeedOutcome
from perfeds2.studies.plan_score import judge
from perfeds2.studies.plan_space import Space
from perfeds2.studies.search import Rung
from perfeds2.timeline.record import Timeline

EVALUATIONS = 60  # of one training


@dataclass(frozen=True)
class Played:
    """What the clock shows of a choice with one seed."""

    facts: ClockFacts
    digest: str  # equal where the same UEs are merged at the same seconds until the horizon, and compute alike
    starved: tuple[int, ...]  # UEs that were never merged


@dataclass
class Trials:
    """Everything that has been simulated and trained so far."""

    space: Space
    keep: float  # the share of later evaluations in which the target must be held
    store: Store = field(default_factory=lambda: Store(None))
    reporter: Reporter = field(default_factory=Reporter)
    evaluations: int = EVALUATIONS
    played: dict[tuple[Choice, int, float], Played | str] = field(default_factory=dict)  # or why it is impossible
    timelines: dict[tuple[Choice, int], tuple[float, Timeline | str]] = field(default_factory=dict)  # the longest
    outcomes: dict[tuple[str, int, float], SeedOutcome] = field(default_factory=dict)  # by digest, seed and horizon

    def play(self, choice: Choice, seed: int, horizon_s: float) -> Played | str:
        """Return what the clock shows until the horizon, or why the choice is impossible."""
        key = choice, seed, horizon_s
        if key not in self.played:
            until_s, known = self.timelines.get((choice, seed), (0.0, ""))
            if until_s < horizon_s:
                known = _timeline(self.space.spec_of(choice, [seed], horizon_s, self.evaluations))
                self.timelines[choice, seed] = horizon_s, known
            self.played[key] = known if isinstance(known, str) else _until(known, choice, horizon_s)
        return self.played[key]

    def train(self, choices: Sequence[Choice], rung: Rung) -> None:
        """Train those choices that are possible with all seeds of a rung."""
        wanted: dict[tuple[str, int, float], tuple[Choice, Played]] = {}
        for choice in choices:
            played = {seed: self.play(choice, seed, rung.horizon_s) for seed in rung.seeds}
            possible = {seed: one for seed, one in played.items() if isinstance(one, Played)}
            for seed, one in possible.items() if len(possible) == len(played) else ():
                wanted.setdefault((one.digest, seed, rung.horizon_s), (choice, one))
        missing = {key: value for key, value in wanted.items() if key not in self.outcomes}
        curves = self.run([(choice, seed, horizon_s) for (_, seed, horizon_s), (choice, _) in missing.items()])
        for (key, (_, played)), rows in zip(missing.items(), curves, strict=True):
            accuracy = self.space.spec.run.target_accuracy
            self.outcomes[key] = judge(key[1], rows, played.facts.least_share, accuracy, self.keep)

    def run(self, wanted: Sequence[tuple[Choice, int, float]]) -> list[Sequence[Mapping[str, Any]]]:
        """Return the evaluations of a training for each choice, seed and horizon."""
        trainings = [
            Training(self.space.spec_of(choice, [seed], horizon_s, self.evaluations), f"{choice}, {horizon_s:.4g} s")
            for choice, seed, horizon_s in wanted
        ]
        results = run_all(trainings, self.store, Workers(), self.reporter, strict=True)
        return [results[one].rows for one in trainings]

    def known(self, choice: Choice, seeds: Sequence[int], horizon_s: float) -> list[SeedOutcome]:
        """Return the outcomes of seeds that have been trained for as long."""
        played = [(seed, self.played.get((choice, seed, horizon_s))) for seed in seeds]
        keys = [(one.digest, seed, horizon_s) for seed, one in played if isinstance(one, Played)]
        return [self.outcomes[key] for key in keys if key in self.outcomes]


def _timeline(spec: Spec) -> Timeline | str:
    try:
        stage = Stage.of(spec, spec.run.seeds[0])
        (timeline,) = make_timelines(spec, stage, make_algorithms(spec, stage))
    except ValueError as error:  # also an InputError: this choice is impossible
        return str(error)
    return timeline


def _until(timeline: Timeline, choice: Choice, horizon_s: float) -> Played | str:
    """Return what the beginning of a timeline shows."""
    rounds = int(np.searchsorted(timeline.time_s, horizon_s, side="right"))
    if rounds == 0:
        return f"no round closes within {horizon_s:.4g} s"
    ues, staleness, time_s = timeline.ues[:rounds], timeline.staleness[:rounds], timeline.time_s[:rounds]
    merges = np.bincount(ues.ravel(), minlength=timeline.population)
    digest = hashlib.sha256(f"{choice.local_steps} {choice.bits} {ues.shape}".encode())
    for column in (ues, staleness, time_s):
        digest.update(np.ascontiguousarray(column).tobytes())
    facts = ClockFacts(
        seconds_per_round=float(time_s[-1]) / rounds,
        merges_per_s=ues.size / float(time_s[-1]),
        staleness_mean=float(staleness.mean()),
        staleness_max=int(staleness.max()),
        waiting_share=timeline.waiting_share,
        least_share=float(merges.min() / ues.size),
    )
    return Played(facts, digest.hexdigest(), tuple(map(int, np.flatnonzero(merges == 0))))
