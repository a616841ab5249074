"""What is one training of a command: one algorithm of a spec with one seed, and what does it leave?"""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from perfeds2.learning.devices import on_one
from perfeds2.learning.evaluate import evaluate, own_model
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.task import Task
from perfeds2.learning.train import EvaluationPoint, TrainState, Values, evaluation_points, train
from perfeds2.learning.train_many import Lane, shape_of, train_together
from perfeds2.runs.checkpoint import Pace, load_checkpoint, save_checkpoint
from perfeds2.runs.comparison import Which
from perfeds2.runs.folder import Arrays, Folder
from perfeds2.runs.live import Course, Live
from perfeds2.runs.summary import Row, costs_at
from perfeds2.spec.build import (
    Algorithm,
    Stage,
    clock_key,
    make_algorithms,
    make_task,
    make_timelines,
    metric_of,
    timeline_key,
)
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import user_errors
from perfeds2.timeline.record import Timeline


@dataclass(frozen=True)
class Progress:
    """How far a command is: for a bar, nothing else."""

    algorithm: str
    seed: int
    share: float  # of the whole command
    time_s: float  # simulated, in this run
    rounds: int  # trained by this process so far

    @property
    def what(self) -> str:
        return f"{self.algorithm} seed {self.seed}"


ProgressWatch = Callable[[Progress], None]


@dataclass(frozen=True)
class Entrant:
    """One algorithm of a spec with one seed, to be trained."""

    spec: Spec
    number: int  # of the spec
    place: tuple[int, int]  # of the algorithm among the spec's, and of the seed
    seed: int
    algorithm: Algorithm
    task: Task | None  # None: somebody else trains it
    timeline: Timeline
    points: Sequence[EvaluationPoint]
    costs: list[Row]  # by the time of each evaluation: joules, and bits that were merged

    @property
    def which(self) -> Which:
        return self.algorithm.name, self.seed

    @property
    def name(self) -> str:
        return f"{self.algorithm.name}-{self.seed}"

    def rows(self, values: Sequence[Values], first: int = 0) -> list[Row]:
        """What evaluations showed, from the first of these on, and what had been spent by then."""
        every = ((self.points[at], values[at], self.costs[at]) for at in range(first, len(values)))
        return [{"round": point.round, "time_s": point.time_s, **each, **cost} for point, each, cost in every]

    @property
    def trial(self) -> Lane:
        assert self.task is not None
        return Lane(self.task, self.timeline, self.algorithm.learner, self.points, self.seed)


@dataclass(frozen=True)
class Trained:
    """What an entrant leaves."""

    rows: list[Row]
    ue_rows: list[Row]
    params: Arrays


@dataclass(frozen=True)
class Contender:
    """An entrant whose timeline has not been simulated yet."""

    spec: Spec
    number: int
    place: tuple[int, int]
    seed: int
    task: Task | None
    stage: Stage
    algorithms: Sequence[Algorithm]  # all of the spec's

    @property
    def algorithm(self) -> Algorithm:
        return self.algorithms[self.place[0]]

    @property
    def name(self) -> str:
        return f"{self.algorithm.name}-{self.seed}"

    @property
    def program(self) -> str:
        """What is compiled for it, roughly: those with the same had better be trained by the same process."""
        learner = self.algorithm.learner
        made = (type(learner.objective), type(learner.merge), learner.batch, learner.local_steps)
        return repr((self.spec.task, self.spec.cell.ues, made))

    @property
    def company(self) -> Hashable:
        """Who may be trained together: those of equal shape that stop, or do not stop, when they diverge."""
        assert self.task is not None
        shape = shape_of(self.task, self.algorithm.learner, self.algorithm.protocol.quorum)
        return bool(self.spec.run.stop_when_diverged), shape

    def enter(self, teller: "Teller", folder: Folder | None = None) -> Entrant:
        """With its timeline: the folder's if it has it, else played, and left there for others."""
        run, tell, played = self.spec.run, partial(teller.tell_clock, self.seed), self.stage.timelines
        what = partial(timeline_key, self.spec)
        if folder is not None and (same := what(self.algorithm)) not in played:
            first = next(each.name for each in self.algorithms if what(each) == same)  # of those that share it
            name, found = f"{first}-{self.seed}", folder.load_timeline(f"{first}-{self.seed}")
            if found is None:
                (found,) = make_timelines(self.spec, self.stage, [self.algorithm], tell)
                folder.save_timeline(name, found)
            played[same] = found
        (timeline,) = make_timelines(self.spec, self.stage, [self.algorithm], tell)
        points = evaluation_points(timeline, horizon_s=run.horizon_s, every_s=run.eval_every_s)
        costs = costs_at(self.spec, self.stage.cell, self.algorithm, timeline, points)
        return Entrant(
            self.spec, self.number, self.place, self.seed, self.algorithm, self.task, timeline, points, costs
        )


class Props:
    """What contenders share: specs that agree in the data, or in all that the clock looks at, have the same."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most  # how many are kept: data may be large
        self._tasks: dict[Any, Task] = {}
        self._stages: dict[Any, Stage] = {}

    def contenders(self, spec: Spec, number: int, seed: int, *, trained: bool = True) -> list[Contender]:
        """Every algorithm of a spec with one seed; without a task if it is trained elsewhere."""
        data, clock = (spec.task, spec.cell.ues, seed), (clock_key(spec), seed)
        task = self._kept(self._tasks, data, lambda: make_task(spec, seed)) if trained else None
        stage = self._kept(self._stages, clock, lambda: Stage.of(spec, seed))
        algorithms, place = make_algorithms(spec, stage), spec.run.seeds.index(seed)
        ranks = range(len(algorithms))
        return [Contender(spec, number, (rank, place), seed, task, stage, algorithms) for rank in ranks]

    def _kept(self, known: dict[Any, Any], what: Any, make: Callable[[], Any]) -> Any:
        if what not in known:
            while self._most is not None and len(known) >= self._most:
                del known[next(iter(known))]
            known[what] = make()
        return known[what]


def finish(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller", *, halves: bool = True
) -> list[tuple[Entrant, Trained]]:
    """Train a few entrants of equal shape, or take what their folders have of them.

    Where memory is short half of them are trained at a time, unless there must be no ``halves``.
    """
    finished: list[tuple[Entrant, Trained]] = []
    for entrant in entrants if folders is not None else ():
        assert folders is not None
        if (saved := folders[entrant.number].load_part(entrant.name)) is not None:
            params, facts = saved
            rows = [
                row | cost for row, cost in zip(facts["rows"], entrant.costs, strict=True)
            ]  # older ones had no costs
            finished.append((entrant, Trained(rows, facts["ue_rows"], params)))
            if (course := teller.course(entrant)) is not None:
                course.tell(rows)
    found = {id(entrant) for entrant, _ in finished}
    left = [entrant for entrant in entrants if id(entrant) not in found]
    return finished + (_train(left, folders, teller, halves) if left else [])


def _train(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller", halves: bool
) -> list[tuple[Entrant, Trained]]:
    """Train entrants of equal shape: one as it is, several together, half of them at a time if memory is short."""
    try:
        train_them = _train_one if len(entrants) == 1 else _train_together
        learner = entrants[0].algorithm.learner
        with user_errors(f"--algorithms {entrants[0].algorithm.name}", learner.objective, learner.merge):
            ends = train_them(entrants, folders, teller)
        return [(one, _trained(one, training, folders)) for one, training in zip(entrants, ends, strict=True)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(entrants) == 1 or not halves:
            raise
    half = len(entrants) // 2
    return _train(entrants[:half], folders, teller, halves) + _train(entrants[half:], folders, teller, halves)


def _train_one(entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller") -> Sequence[TrainState]:
    (entrant,) = entrants
    trial, pace, folder = entrant.trial, Pace(), None if folders is None else folders[entrant.number]
    training = resume = None if folder is None else load_checkpoint(folder, entrant.name, trial)
    for training in train(
        *(trial.task, trial.timeline, trial.learner, trial.points),
        seed=trial.seed,
        resume=resume,
        stop_when_diverged=bool(entrant.spec.run.stop_when_diverged),
    ):
        if folder is not None and pace.is_due():
            save_checkpoint(folder, entrant.name, training)
            pace.is_done()
        teller.tell(entrant, training.values)
    assert training is not None
    return [training]


def _train_together(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller"
) -> Sequence[TrainState]:
    pace, stand = Pace(), None
    for stand in train_together(
        [entrant.trial for entrant in entrants],
        resume=None
        if folders is None
        else [load_checkpoint(folders[one.number], one.name, one.trial) for one in entrants],
        stop_when_diverged=bool(entrants[0].spec.run.stop_when_diverged),
    ):
        if folders is not None and pace.is_due():
            for number, entrant in enumerate(entrants):
                save_checkpoint(folders[entrant.number], entrant.name, stand[number])
            pace.is_done()
        for number in stand.moved:
            teller.tell(entrants[number], stand.values[number])
    assert stand is not None
    return [stand[number] for number in range(len(entrants))]


def _trained(entrant: Entrant, training: TrainState, folders: Sequence[Folder] | None) -> Trained:
    """What an entrant leaves when it has been trained to its end."""
    (name, seed), timeline = entrant.which, entrant.timeline
    rows = [{"algorithm": name, "seed": seed, **row} for row in entrant.rows(training.values)]
    weights = on_one(training.state.params)
    params = {key: np.asarray(value) for key, value in weights.items()}
    ue_rows = _per_ue(entrant, weights, on_one(training.state.memory))
    if folders is not None:
        folder = folders[entrant.number]
        folder.save_part(entrant.name, params, {"rows": rows, "ue_rows": ue_rows})
        folder.drop_part(f"{entrant.name}.checkpoint")
        folder.log(f"{name} seed {seed}: {timeline.rounds} rounds, {timeline.end_s:.6g} simulated seconds")
    return Trained(rows, ue_rows, params)


def _per_ue(entrant: Entrant, weights: Any, memory: Any) -> list[Row]:
    """How the final model serves each UE."""
    (name, seed), task, learner = entrant.which, entrant.trial.task, entrant.algorithm.learner
    own, steps = own_model(learner.objective), learner.personal_steps
    table = evaluate(task, weights, learner.personal_step, memory, own, steps)
    metrics = {key: np.asarray(values) for key, values in table.items()}
    samples = np.asarray(getattr(task.data, "train_count", np.zeros(task.ues, int)))  # generated data have no end
    merges = entrant.timeline.merges
    return [
        {"algorithm": name, "seed": seed, "ue": ue, "samples": int(samples[ue]), "merges": int(merges[ue])}
        | {key: float(metrics[key][ue]) for key in METRICS}
        for ue in range(metrics[METRICS[0]].size)
    ]


class Teller:
    """Adds up the progress of trainings that run side by side, and stops them all when one must.

    Whoever follows the command sees each evaluation where it is ``live``; ``labels`` are what specs are called there.
    """

    def __init__(
        self, watch: ProgressWatch | None, total: int, live: Live | None = None, labels: Sequence[str] = ()
    ) -> None:
        self._watch, self._total, self._live, self._labels = watch, total, live, labels
        self._courses: dict[tuple[int, Which], Course] = {}
        self._known: dict[int, dict[str, Any]] = {}  # of each spec
        self._at: dict[tuple[int, Which], tuple[float, int]] = {}  # share and rounds of each
        self._lock = threading.Lock()
        self._stopped = False
        self._told_at = time.monotonic()

    def tell(self, entrant: Entrant, values: Sequence[Values]) -> None:
        """An entrant has been evaluated so many times."""
        if (course := self.course(entrant)) is not None:
            course.tell(entrant.rows(values, course.told))
        now, last = entrant.points[len(values) - 1], entrant.points[-1]
        self.hear(entrant, now.time_s / max(last.time_s, 1e-300), now.time_s, now.round)

    def course(self, entrant: Entrant) -> Course | None:
        """Where those who follow see what is known of an entrant; None where nobody can."""
        if self._live is None:
            return None
        which = entrant.number, entrant.which
        if which not in self._courses:
            label, spec = self._labels[entrant.number] if self._labels else "", entrant.spec
            if entrant.number not in self._known:
                known = {"metric": metric_of(spec), "target": spec.run.target_accuracy, "config": spec.values()}
                self._known[entrant.number] = known
            of, known = len(entrant.points), self._known[entrant.number]
            self._courses[which] = self._live.training(label, *entrant.which, of, **known)
        return self._courses[which]

    def hear(self, one: Entrant | Contender, share: float, time_s: float, rounds: int) -> None:
        """How far one of them is."""
        which = one.algorithm.name, one.seed
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._at[one.number, which] = (share, rounds)
            if self._watch is not None:
                whole = sum(share for share, _ in self._at.values()) / self._total
                self._watch(Progress(*which, whole, time_s, sum(rounds for _, rounds in self._at.values())))

    def tell_clock(self, seed: int, algorithm: Algorithm, closed: int, time_s: float) -> None:  # noqa: ARG002 (as the clock says it)
        """The clock is being played ahead. Said now and then, as long as nothing has been trained."""
        with self._lock:
            if self._watch is not None and not self._at and time.monotonic() - self._told_at > 0.2:
                self._told_at = time.monotonic()
                self._watch(Progress(algorithm.name, seed, 0.0, time_s, 0))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
