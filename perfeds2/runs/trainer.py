"""Do a training: simulate its timeline, replay and evaluate it, and store the result."""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from perfeds2.learning.devices import on_one
from perfeds2.learning.evaluate import evaluate, evaluated_ues
from perfeds2.learning.lanes import Lane, group_lanes
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.points import EvaluationPoint, evaluation_points
from perfeds2.learning.replay import start
from perfeds2.learning.script import Script
from perfeds2.learning.task import Task, logits
from perfeds2.learning.train import MetricMeans, TrainState, train, train_in_chunks, train_together
from perfeds2.network.cell import Cell
from perfeds2.runs.leaves import from_leaves, named_leaves
from perfeds2.runs.store import Facts, Result, Row, Store
from perfeds2.runs.training import Training
from perfeds2.spec.build import Algorithm, Stage, clock_key, make_algorithms, make_timelines, open_play
from perfeds2.spec.cells import limits_energy, make_energy, upload_bits_by_ue
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import user_errors
from perfeds2.spec.privacy import losses_at, losses_of, privacy_facts, with_noise
from perfeds2.spec.ranks import ranks_of
from perfeds2.spec.tasks import make_task
from perfeds2.timeline.edges import edge_versions, end_to_end_staleness
from perfeds2.timeline.energy import energy_of, failures_of
from perfeds2.timeline.jobs import OPEN
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.state import too_few

CHECKPOINT_EVERY_S = 2.0
STATE = "state"  # name in a checkpoint
FEEDBACK = "feedback"  # and of what the chunks of a timeline were played with
CHECKPOINT_SHARE = 0.05  # of the time at most
NAMED_STARVED = 6  # starved UEs that are listed: one more than a note shows

Made = TypeVar("Made")
ClockTold = Callable[[Algorithm, int, float], None]  # receives the rounds closed and the simulated second reached
Evaluated = Callable[["PreparedTraining", Sequence[MetricMeans]], None]


@dataclass(frozen=True)
class PreparedTraining:
    """A training with its data, algorithm and timeline. With feedback, the timeline is played while it trains."""

    training: Training
    task: Task
    stage: Stage
    algorithm: Algorithm
    timeline: Timeline
    points: Sequence[EvaluationPoint]

    @cached_property
    def costs(self) -> list[Row]:
        """At each evaluation: joules of all UEs, merged bits, and with noise ε."""
        return costs_at(self.training.spec, self.stage.cell, self.algorithm, self.timeline, self.points)

    @property
    def lane(self) -> Lane:
        return Lane(self.task, self.timeline, self.algorithm.learner, self.points, self.training.seed)

    def rows(self, values: Sequence[MetricMeans], first: int = 0) -> list[Row]:
        """Return the evaluations from number ``first`` on, with metrics and costs."""
        return [
            {"round": self.points[at].round, "time_s": self.points[at].time_s, **values[at], **self.costs[at]}
            for at in range(first, len(values))
        ]


class Workbench:
    """Prepares trainings; those with equal data, or equal inputs of the clock, share them.

    Args:
        most: How many data sets and how many stages to cache, since data may be large; None caches all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tasks: dict[Hashable, Task] = {}
        self._stages: dict[Hashable, Stage] = {}

    def prepare(self, training: Training, told: ClockTold | None = None) -> PreparedTraining:
        """Make a training's data and simulate its timeline."""
        spec, seed, stage = training.spec, training.seed, self.stage(training)
        task = self._kept(self._tasks, (spec.task, spec.cell.ues, ranks_of(spec), seed), lambda: make_task(spec, seed))
        algorithm = training.made or make_algorithms(spec, stage)[0]
        model = algorithm.learner.objective.replacing(task.model, partial(_outputs_and_rank, task))
        task = task if model is task.model else replace(task, model=model)
        if algorithm.learner.feedback is not None:
            nothing = open_play(spec, stage, algorithm).timeline
            return PreparedTraining(training, task, stage, algorithm, nothing, [])
        (timeline,) = make_timelines(spec, stage, [algorithm], told)
        algorithm = replace(algorithm, learner=with_noise(spec.privacy, algorithm.learner, timeline))
        points = evaluation_points(timeline, horizon_s=spec.run.horizon_s, every_s=spec.run.eval_every_s)
        return PreparedTraining(training, task, stage, algorithm, timeline, points)

    def stage(self, training: Training) -> Stage:
        """Return what algorithms with this cell, protocol and seed share."""
        spec, seed = training.spec, training.seed
        return training.stage or self._kept(self._stages, (clock_key(spec), seed), lambda: Stage.of(spec, seed))

    def _kept(self, known: dict[Hashable, Made], what: Hashable, make: Callable[[], Made]) -> Made:
        if what not in known:
            while self._most is not None and len(known) >= self._most:
                del known[next(iter(known))]
            known[what] = make()
        return known[what]


def _outputs_and_rank(task: Task) -> tuple[int, int]:
    """Return how many outputs a task's model has, and the axes of a sample."""
    (outputs,) = logits(task.model, task.sample)
    return outputs, len(task.sample.shape)


def train_group(
    group: Sequence[PreparedTraining], store: Store, evaluated: Evaluated, *, group_key: str = "", halves: bool = True
) -> None:
    """Train a group and store the results, in batches of equal shape that fit into memory.

    With ``halves``, a batch that runs out of memory after all is split in two and retried.
    """
    work = _Work(store, evaluated, group_key, halves)
    alone = [one for one in group if len(group) == 1 or one.algorithm.learner.feedback is not None]
    others = [one for one in group if one not in alone]
    for one in alone:
        _train(work, [one])
    for numbers in group_lanes([one.lane for one in others]):
        _train(work, [others[number] for number in numbers])


@dataclass(frozen=True)
class _Work:
    store: Store
    evaluated: Evaluated
    group_key: str
    halves: bool


def _train(work: _Work, alike: Sequence[PreparedTraining]) -> None:
    try:
        learner = alike[0].algorithm.learner
        with user_errors(f"--algorithms {alike[0].algorithm.name}", learner.objective, learner.merge):
            ends = (_train_one if len(alike) == 1 else _train_together)(work, alike)
        for one, end in ends:
            if work.store.get(one.training.key) is None:  # otherwise keep the result from another group
                work.store.put(one.training.key, _result(one, end, work.group_key))
        return
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(alike) == 1 or not work.halves:
            raise
    half = len(alike) // 2
    _train(work, alike[:half])
    _train(work, alike[half:])


Trained = list[tuple[PreparedTraining, TrainState]]


def _train_one(work: _Work, alike: Sequence[PreparedTraining]) -> Trained:
    (one,), checkpoints = alike, _Checkpoints(work.store, alike)
    end = resume = checkpoints.load()[0]
    for one, end in train_alone(alike[0], resume):
        checkpoints.save_if_due(lambda _, end=end: end)
        work.evaluated(one, end.values)
    assert end is not None
    return [(one, end)]


def train_alone(
    one: PreparedTraining, resume: TrainState | None = None
) -> Iterator[tuple[PreparedTraining, TrainState]]:
    """Train, and yield the training and its state at every evaluation."""
    lane, spec, learner = one.lane, one.training.spec, one.algorithm.learner
    options = {"seed": lane.seed, "resume": resume, "stop_when_diverged": bool(spec.run.stop_when_diverged)}
    if learner.feedback is None:
        for state in train(lane.task, lane.timeline, learner, lane.points, **options):
            yield one, state
        return
    play = open_play(spec, one.stage, one.algorithm)
    for timeline, points, state in train_in_chunks(one.task, play, learner, spec.run.eval_every_s, **options):
        yield replace(one, timeline=timeline, points=points), state


def _train_together(work: _Work, alike: Sequence[PreparedTraining]) -> Trained:
    checkpoints, stand = _Checkpoints(work.store, alike), None
    stop = bool(alike[0].training.spec.run.stop_when_diverged)
    for stand in train_together([one.lane for one in alike], resume=checkpoints.load(), stop_when_diverged=stop):
        checkpoints.save_if_due(stand.__getitem__)
        for number in stand.moved:
            work.evaluated(alike[number], stand.values[number])
    assert stand is not None
    return [(one, stand[number]) for number, one in enumerate(alike)]


class _Checkpoints:
    """Saves checkpoints every two seconds, or less often if saving would take over 5 % of the time."""

    def __init__(self, store: Store, alike: Sequence[PreparedTraining]) -> None:
        self._store, self._alike = store, alike
        self._wait_s, self._since = CHECKPOINT_EVERY_S, time.monotonic()

    def save_if_due(self, standing: Callable[[int], TrainState]) -> None:
        began = time.monotonic()
        if not self._store.has_checkpoints or began - self._since <= self._wait_s:
            return
        for number, one in enumerate(self._alike):
            save_checkpoint(self._store, one.training.key, standing(number))
        self._since = time.monotonic()
        self._wait_s = max(CHECKPOINT_EVERY_S, (self._since - began) / CHECKPOINT_SHARE if CHECKPOINT_EVERY_S else 0.0)

    def load(self) -> list[TrainState | None]:
        return [load_checkpoint(self._store, one.training.key, one.lane) for one in self._alike]


def save_checkpoint(store: Store, key: str, state: TrainState) -> None:
    arrays = named_leaves(STATE, state.state)
    if state.feedback:
        arrays[FEEDBACK] = np.stack(state.feedback)
    store.save_checkpoint(key, arrays, {"values": state.values})


def load_checkpoint(store: Store, key: str, lane: Lane) -> TrainState | None:
    """Return the last checkpoint of a training; None if there is none or its shapes do not match."""
    saved = store.load_checkpoint(key)
    if saved is None:
        return None
    arrays, facts = saved
    feedback = tuple(arrays.get(FEEDBACK, ()))
    fresh = start(lane.task, Script.of(lane.timeline, lane.learner.merge), lane.learner, lane.seed)
    kept = from_leaves(STATE, arrays, fresh, grown=bool(feedback))  # the shelf may have grown with the timeline
    return None if kept is None else TrainState(facts["values"], jax.tree.map(jax.numpy.asarray, kept), feedback)


def _result(one: PreparedTraining, end: TrainState, group_key: str) -> Result:
    weights, which = on_one(end.state.params), {"algorithm": one.algorithm.name, "seed": one.training.seed}
    return Result(
        [{**which, **row} for row in one.rows(end.values)],
        _per_ue(one, weights, on_one(end.state.client_state)),
        facts_of(one.training.spec, one.algorithm, one.timeline, one.training.seed, one.stage.cell),
        group_key,
        {key: np.asarray(value) for key, value in weights.items()},
        one.timeline,
    )


def _per_ue(one: PreparedTraining, weights: PyTree, memory: PyTree) -> list[Row]:
    """Return the metrics of the final model on each UE."""
    task, learner = one.task, one.algorithm.learner
    own, steps = learner.objective.personal, learner.personal_steps
    table = evaluate(task, weights, learner.personal_step, memory, own, steps)
    metrics = {key: np.asarray(values) for key, values in table.items()}
    samples = np.asarray(getattr(task.data, "train_count", np.zeros(task.ues, int)))  # generated data are unlimited
    losses = losses_of(one.training.spec.privacy, learner, one.timeline)
    merges, which = one.timeline.merges, {"algorithm": one.algorithm.name, "seed": one.training.seed}
    return [
        {**which, "ue": int(ue), "samples": int(samples[ue]), "merges": int(merges[ue])}
        | {key: float(metrics[key][place]) for key in METRICS}
        | ({} if losses is None else {"epsilon": float(losses[ue])})
        for place, ue in enumerate(evaluated_ues(task.ues))
    ]


# ---- facts and costs from the timeline


def facts_of(spec: Spec, algorithm: Algorithm, timeline: Timeline, seed: int, cell: Cell | None) -> Facts:
    """Return all facts about one training that tables and notes use, as JSON. Without a cell, energy is left out."""
    protocol, learner, rounds = algorithm.protocol, algorithm.learner, timeline.rounds
    bits = upload_bits_by_ue(spec, learner.objective, protocol.quorum)
    number, version = edge_versions(timeline)
    staleness = number[:, None] - version  # in rounds of the edge
    # A UE without a job may only be away, if UEs leave and return.
    all_stay = cell is None or (cell.moves is None and (cell.fleet is None or cell.fleet.presence is None))
    may_stall = all_stay and rounds != spec.run.rounds
    until_s = stalls_until(timeline, spec.run.horizon_s) if may_stall else timeline.end_s
    stalled = 1 - timeline.end_s / until_s if until_s > timeline.end_s else 0.0  # share of the time
    waiting = timeline.waiting_share
    starved = timeline.starved if algorithm.mode != "none" else np.zeros(0, int)
    known: Facts = {
        "algorithm": algorithm.name,
        "seed": seed,
        "objective": algorithm.objective,
        "is_personal": learner.objective.personal is not None,
        "beta": float(learner.beta),
        "local_steps": learner.local_steps,
        "upload_bits": bits if isinstance(bits, float | int) else float(bits.mean()),
        "mode": algorithm.mode,
        "quorum": protocol.quorum,
        "max_staleness": protocol.max_staleness,
        "stale": protocol.stale,
        "rounds": rounds,
        "end_s": float(timeline.end_s),
        "merges": int(timeline.ues.size),
        "staleness_mean": float(staleness.mean()) if rounds else 0.0,
        "staleness_max": int(staleness.max(initial=0)),
        "seconds_per_round": float(until_s / rounds) if rounds else None,
        "waiting_share": float(waiting + stalled * (1 - waiting)),
        "wasted_share": float(timeline.wasted_share),
        "least_share": float(timeline.shares.min()) if rounds else 0.0,
        "starved": int(starved.size),
        "starved_ues": [int(ue) for ue in starved[:NAMED_STARVED]],
        "is_out_of_energy": limits_energy(spec) and all_stay and too_few(timeline.open_version, rounds, protocol),
    }
    if timeline.cloud is not None:
        reached = end_to_end_staleness(timeline)
        reached = reached[reached >= 0]  # merged by a cloud round
        known |= {
            "cells": timeline.cloud.edges,
            "cloud_rounds": timeline.cloud.rows.size,
            "backhaul_bits": timeline.cloud.total_bits,
            "end_to_end_staleness_mean": float(reached.mean()) if reached.size else None,
            "end_to_end_staleness_max": int(reached.max(initial=0)),
        }
    known |= privacy_facts(spec, learner, timeline)
    known |= {} if isinstance(bits, float | int) else {"ue_upload_bits": bits.tolist()}
    if cell is None:
        return known
    failures = failures_of(timeline, cell, make_energy(spec), bits)
    known |= {} if failures is None else {f"errors_{name}": value for name, value in vars(failures).items()}
    joules = float(energy_of(timeline, cell, make_energy(spec), bits, np.zeros(0)).total_j)
    return known | {"joules": joules, "joules_per_merge": joules / timeline.ues.size if rounds else None}


def stalls_until(timeline: Timeline, horizon_s: float | None) -> float:
    """Return the horizon if every UE only waits after the last round, otherwise when that round closed."""
    if horizon_s is None or horizon_s <= timeline.end_s:
        return timeline.end_s
    open_ = timeline.rows(OPEN)
    works = ~open_.arrived & (open_.start_s + open_.model_s < horizon_s)
    return timeline.end_s if works.any() else horizon_s


def costs_at(
    spec: Spec, cell: Cell, algorithm: Algorithm, timeline: Timeline, points: Sequence[EvaluationPoint]
) -> list[dict[str, float]]:
    """Return the costs up to each evaluation: joules of all UEs, bits of the merged uploads, and with noise ε."""
    bits = upload_bits_by_ue(spec, algorithm.learner.objective, algorithm.protocol.quorum)
    times_s = np.array([point.time_s for point in points], float)
    by_time_j = energy_of(timeline, cell, make_energy(spec), bits, times_s).by_time_j
    losses = losses_at(spec.privacy, algorithm.learner, timeline, [point.round for point in points])

    def merged_bits(rounds: int) -> float:
        if isinstance(bits, float | int):
            return float(rounds * timeline.quorum * bits)
        return float(bits[timeline.ues[:rounds]].sum())

    return [
        {"joules": float(joules), "merged_bits": merged_bits(point.round), **loss}
        for point, joules, loss in zip(points, by_time_j, losses, strict=True)
    ]
