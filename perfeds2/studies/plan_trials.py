"""Simulate and train the choices of a plan, each once.

The clock shows whether a choice is possible, how fast its rounds close and which UEs it leaves out; how well it
learns is found by training. Choices that merge the same UEs at the same times and compute the same share one
training.

A training is evaluated at equal intervals from 0 to a horizon. The target is *kept from second t on* if it is met at
the evaluation that ends at t, in at least a given share of the evaluations from there to the horizon, and if t is in
the first half of the horizon, so that it is observed for at least as long as it took. Between two evaluations t is
interpolated. A target that was reached in the first half and is not kept from any second of the first three quarters
is *lost*; cases in between are *late*.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfeds2.learning.learner import Learner
from perfeds2.learning.points import EvaluationPoint
from perfeds2.runs.pool import WorkerChoice, run_all
from perfeds2.runs.progress import Reporter
from perfeds2.runs.store import Row, Store
from perfeds2.runs.trainer import costs_at
from perfeds2.runs.training import Training
from perfeds2.spec.build import Algorithm, Stage, make_algorithms, make_timelines
from perfeds2.spec.fields import Spec
from perfeds2.spec.privacy import privacy_facts, with_noise
from perfeds2.studies.plan_data import Choice, SeedOutcome
from perfeds2.studies.plan_space import Space
from perfeds2.studies.search import Rung
from perfeds2.timeline.record import Timeline

EVALUATIONS = 60  # per training


@dataclass(frozen=True)
class Played:
    """What the clock shows about a choice with one seed."""

    seconds_per_round: float = math.inf
    least_share: float = 0.0  # share of the merges of the UE with the fewest
    digest: str = ""  # equal if the same UEs are merged at the same times and compute the same
    starved: tuple[int, ...] = ()  # UEs that were never merged
    privacy: dict[str, float] = field(default_factory=dict)  # noise and ε over the horizon; empty without noise
    obstacle: str = ""  # why the choice is impossible; then nothing else is known


@dataclass
class Trials:
    """Everything that has been simulated and trained so far."""

    space: Space
    keep: float  # share of later evaluations in which the target must be met
    store: Store = field(default_factory=lambda: Store(None))
    reporter: Reporter = field(default_factory=Reporter)
    evaluations: int = EVALUATIONS
    played: dict[tuple[Choice, int, float], Played] = field(default_factory=dict)
    timelines: dict[tuple[Choice, int], tuple[float, Stage, Learner, Timeline]] = field(default_factory=dict)  # longest
    outcomes: dict[tuple[str, int, float], SeedOutcome] = field(default_factory=dict)  # by digest, seed and horizon
    expected_s: float = 0.0  # simulated seconds that are still to be trained, roughly; for the progress

    def play(self, choice: Choice, seed: int, horizon_s: float) -> Played:
        """Return what the clock shows up to the horizon."""
        key = choice, seed, horizon_s
        if key not in self.played:
            known = self.timelines.get((choice, seed))
            try:
                if known is None or known[0] < horizon_s:
                    stage, algorithm, timeline = _simulate(
                        self.space.spec_of(choice, [seed], horizon_s, self.evaluations)
                    )
                    known = self.timelines[choice, seed] = horizon_s, stage, algorithm.learner, timeline
                self.played[key] = _until(self.space.spec, *known[2:], choice, horizon_s)
            except ValueError as error:  # such as resting too long for this A
                self.played[key] = Played(obstacle=str(error))
        return self.played[key]

    def train(self, choices: Sequence[Choice], rung: Rung) -> None:
        """Train those choices that are possible with all seeds of a rung."""
        missing: dict[tuple[str, int, float], tuple[Choice, Played]] = {}
        for choice in choices:
            played = {seed: self.play(choice, seed, rung.horizon_s) for seed in rung.seeds}
            for seed, one in played.items() if not any(one.obstacle for one in played.values()) else ():
                if (one.digest, seed, rung.horizon_s) not in self.outcomes:
                    missing.setdefault((one.digest, seed, rung.horizon_s), (choice, one))
        curves = self.run([(choice, seed, rung.horizon_s) for (_, seed, _), (choice, _) in missing.items()])
        accuracy = self.space.spec.run.target_accuracy
        for (key, (_, played)), rows in zip(missing.items(), curves, strict=True):
            self.outcomes[key] = judge(key[1], rows, played.least_share, accuracy, self.keep)

    def run(self, wanted: Sequence[tuple[Choice, int, float]]) -> list[list[Row]]:
        """Return the evaluations of a training for each choice, seed and horizon."""
        trainings = [self._training(*each) for each in wanted]
        work_s = sum(horizon_s for *_, horizon_s in wanted)
        self.expected_s = max(self.expected_s - work_s, work_s)  # a guess that was too small: as much again
        self.reporter.next_part(work_s / max(work_s + self.expected_s, 1e-9))
        results = run_all(trainings, self.store, WorkerChoice(), self.reporter, strict=True)
        return [results[one].rows for one in trainings]

    def _training(self, choice: Choice, seed: int, horizon_s: float) -> Training:
        """Return a training, with the timeline if it was simulated exactly that far."""
        simulated_s, stage, learner, _ = self.timelines[choice, seed]
        spec = self.space.spec_of(choice, [seed], horizon_s, self.evaluations)
        is_known = simulated_s == horizon_s and learner.feedback is None
        return Training(spec, f"{choice}, {horizon_s:.4g} s", stage if is_known else None)

    def first_round(self, choice: Choice, seed: int) -> tuple[float, float]:
        """Return the seconds and joules that the first round takes; infinite if it never closes."""
        spec = self.space.spec_of(choice, [seed], 1.0, 1)
        spec = spec.with_(run=spec.run.with_(horizon_s=None, rounds=1))
        try:
            stage, algorithm, timeline = _simulate(spec)
        except ValueError:
            return math.inf, math.inf
        return timeline.end_s, costs_at(spec, stage.cell, algorithm, timeline, [EvaluationPoint(1, timeline.end_s)])[0][
            "joules"
        ]

    def known(self, choice: Choice, seeds: Sequence[int], horizon_s: float) -> list[SeedOutcome]:
        """Return the outcomes of the seeds that have been trained up to this horizon."""
        keys = [(one.digest, seed, horizon_s) for seed in seeds if (one := self.played.get((choice, seed, horizon_s)))]
        return [self.outcomes[key] for key in keys if key in self.outcomes]


def _simulate(spec: Spec) -> tuple[Stage, Algorithm, Timeline]:
    """Return the stage, algorithm and timeline of a spec with one seed. Raise ValueError if they are impossible."""
    stage = Stage.of(spec, spec.run.seeds[0])
    (algorithm,) = make_algorithms(spec, stage)
    (timeline,) = make_timelines(spec, stage, [algorithm], guess=True)
    return stage, algorithm, timeline


def _until(spec: Spec, learner: Learner, timeline: Timeline, choice: Choice, horizon_s: float) -> Played:
    """Return what a timeline shows up to the horizon. Raise ValueError if the choice is impossible."""
    rounds = int(np.searchsorted(timeline.time_s, horizon_s, side="right"))
    if rounds == 0:
        raise ValueError(f"no round closes within {horizon_s:.4g} s")
    timeline = timeline.prefix(rounds)
    own = "" if choice.schedule in ("first", "deficit") else choice.schedule  # it may ask for feedback
    digest = hashlib.sha256(f"{choice.local_steps} {choice.bits} {timeline.ues.shape}{own}".encode())
    cloud = () if timeline.cloud is None else vars(timeline.cloud).values()
    for column in (timeline.ues, timeline.staleness, timeline.time_s, *cloud):
        digest.update(np.ascontiguousarray(column).tobytes())
    privacy = privacy_facts(spec, with_noise(spec.privacy, learner, timeline), timeline)
    starved = tuple(map(int, timeline.starved))
    pace_s, least_share = timeline.end_s / rounds, float(timeline.shares.min())
    return Played(pace_s, least_share, digest.hexdigest(), starved, privacy)


def judge(seed: int, rows: Sequence[Row], least_share: float, target: float, keep: float) -> SeedOutcome:
    """Return the outcome of one training, from its evaluations."""
    time_s, score, loss = (
        np.array([row[key] for row in rows], float) for key in ("time_s", "test_accuracy_personal", "train_loss")
    )
    score[~np.isfinite(score + loss)] = -np.inf
    half_s = time_s[-1] / 2
    there = score >= target
    held = there[::-1].cumsum()[::-1] / np.arange(len(there), 0, -1)  # share met from each evaluation on
    first = next(map(int, np.flatnonzero(there)), None)
    at = next(map(int, np.flatnonzero(there & (held >= keep))), None)
    if score[-1] == -np.inf:
        state = "diverged"
    elif first is None:
        state = "never"
    elif at is not None and time_s[at] <= half_s:
        state = "kept"
    else:
        settles = at is not None and time_s[at] <= 1.5 * half_s
        state = "late" if settles or time_s[first] > half_s else "lost"
    at = at if state == "kept" else None
    needed = first if at is None else at
    return SeedOutcome(
        seed=seed,
        state=state,
        time_s=None if at is None else _crossing(time_s, score, at, target),
        reached_s=None if first is None else _crossing(time_s, score, first, target),
        held=None if first is None else float(held[first]),
        joules=None if at is None else float(rows[at]["joules"]),
        least_share=least_share,
        scores=tuple(each if math.isfinite(each) else None for each in score.tolist()),
        fall=_fall(score, target, first),
        needs_s=float(time_s[-1]) if needed is None else _crossing(time_s, score, needed, target),
        needs_j=float(rows[-1 if needed is None else needed]["joules"]),
        end_global=end if math.isfinite(end := float(rows[-1].get("test_accuracy", math.nan))) else None,
    )


def _crossing(time_s: np.ndarray, score: np.ndarray, at: int, target: float) -> float:
    """Return when the score crosses the target, interpolated linearly from the previous evaluation."""
    if at == 0 or not math.isfinite(score[at - 1]) or score[at - 1] >= target:
        return float(time_s[at])
    part = (target - score[at - 1]) / (score[at] - score[at - 1])
    return float(time_s[at - 1] + part * (time_s[at] - time_s[at - 1]))


def _fall(score: np.ndarray, target: float, first: int | None) -> float:
    """Return how far the score fell back, relative to the way from the start to the target.

    After the target was reached, the fall is measured from the target, and before that from the best score so far.
    """
    finite = np.where(np.isfinite(score), score, score[0])
    if not math.isfinite(finite[0]) or target <= finite[0]:
        return 0.0
    back = np.maximum.accumulate(finite) - finite if first is None else target - finite[first:]
    return float(max(back.max(), 0.0) / (target - finite[0]))
