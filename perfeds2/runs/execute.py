"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning.evaluate import evaluate, own_model
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.replay import on_one
from perfeds2.learning.task import Task, parameters
from perfeds2.learning.train import EvaluationPoint, Training, evaluation_points, train
from perfeds2.learning.train_many import Trial, group_trials, shape_of, train_together
from perfeds2.runs.checkpoint import Pace, load_checkpoint, save_checkpoint
from perfeds2.runs.comparison import Comparison, Which, csv_text, load_comparison, write_results
from perfeds2.runs.folder import Arrays, Folder, alone, open_folder
from perfeds2.runs.summary import Row, costs_at, summarise
from perfeds2.spec.build import (
    Algorithm,
    Stage,
    make_algorithms,
    make_task,
    make_timelines,
    model_of,
    what_the_clock_sees,
)
from perfeds2.spec.fields import Spec
from perfeds2.spec.names import blaming, refuse_while_loading
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.timeline import Timeline

DAY_S = 86_400.0


@dataclass(frozen=True)
class Progress:
    """How far a command is: for a bar, nothing else."""

    algorithm: str
    seed: int
    share: float  # of the whole command
    time_s: float  # simulated, in this run
    rounds: int  # trained by this process so far


ProgressWatch = Callable[[Progress], None]


def compare(
    *,
    out: Path | str | None = None,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
    yes: bool = False,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are the command line's flags as keywords, or whole sections (``cell={"layout": "equal"}``). Where they take a
    name, your own object goes in as well: ``task`` a ``Task`` or a function of the seed, ``cell`` a ``Cell``, a
    subclass or a function, ``algorithms`` names and ``Algorithm``s, and so on (``perfeds2.spec.build`` says what is
    called with what). Without ``out`` nothing is written. ``together`` is explained at ``execute``; ``yes`` starts
    also what would take days.
    """
    refuse_while_loading("compare")
    spec = spec_from(**settings)
    refuse_days([spec], yes=yes)
    if out is None:
        return execute(spec, "compare", None, watch=watch, together=together)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        if folder.finished:
            return load_comparison(spec, folder)
        return execute(spec, "compare", folder, watch=watch, together=together)


def refuse_days(specs: Sequence[Spec], *, yes: bool, trains: bool = True) -> None:
    """Refuse what would take more than a day of this machine, by the pace of its first rounds and its arithmetic."""
    some = specs[:: max(1, len(specs) // 16)]  # of a sweep
    days = 0.0 if yes or not specs else sum(_needed_s(spec, trains) for spec in some) / len(some) * len(specs) / DAY_S
    if days > 1:
        raise InputError(
            f"this would take about {days:.3g} days of this machine's time; "
            f"give a shorter --horizon-s or fewer --rounds, or --yes if you mean it."
        )


def _needed_s(spec: Spec, trains: bool) -> float:
    seed, rounds, run = spec.run.seeds[0], 8, spec.run
    stage, needed_s = Stage.of(spec, seed), 0.0
    short = spec.model_copy(update={"run": run.model_copy(update={"rounds": rounds, "horizon_s": None})})
    sample_s = 6.0 * parameters(model_of(spec)) / 2e10 if trains else 0.0  # forward and backward, at 20 Gflop/s
    for algorithm in make_algorithms(spec, stage):
        began = time.perf_counter()
        (played,) = make_timelines(short, replace(stage, timelines={}), [algorithm])
        round_s = (time.perf_counter() - began) / rounds + sample_s * algorithm.learner.samples * played.quorum
        needed_s += round_s * (run.rounds or (run.horizon_s or 0.0) / max(played.end_s / rounds, 1e-12))
    return needed_s * len(run.seeds)


def execute(
    spec: Spec,
    command: str,
    folder: Folder | None,
    *,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Trainings are independent. A processor trains one on each core, while the next timelines are being simulated.
    Anything else (a GPU) trains those of equal shape together, usually all seeds of an algorithm: one of them alone
    would leave it idle. ``together`` decides instead of the kind of device.
    """
    (comparison,) = execute_all([spec], command, None if folder is None else [folder], watch=watch, together=together)
    return comparison


@dataclass(frozen=True)
class Entrant:
    """One algorithm of a spec with one seed, to be trained."""

    spec: Spec
    number: int  # of the spec
    place: tuple[int, int]  # of the algorithm among the spec's, and of the seed
    algorithm: Algorithm
    trial: Trial
    costs: list[Row]  # by the time of each evaluation: joules, and bits that were merged

    @property
    def which(self) -> Which:
        return self.algorithm.name, self.trial.seed

    @property
    def name(self) -> str:
        return f"{self.algorithm.name}-{self.trial.seed}"


@dataclass(frozen=True)
class Trained:
    """What an entrant leaves."""

    rows: list[Row]
    ue_rows: list[Row]
    params: Arrays


def execute_all(
    specs: Sequence[Spec],
    command: str,
    folders: Sequence[Folder] | None = None,
    *,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
) -> list[Comparison]:
    """The same for several specs at once: what is of equal shape goes together, whichever spec it is of.

    ``folders`` has one for each spec; its results are written as soon as all of its entrants have been trained.
    """
    together = jax.default_backend() != "cpu" if together is None else together
    teller = Teller(watch, sum(len(spec.algorithms) * len(spec.run.seeds) for spec in specs))
    results = _Results(specs, command, folders)
    busy = together or jax.default_backend() != "cpu" or jax.local_device_count() > 1  # one loop is enough for these
    with ThreadPoolExecutor(1 if busy else os.cpu_count()) as pool:
        try:
            futures = list[Future[list[tuple[Entrant, Trained]]]]()
            for company in _companies(specs, teller, together):
                futures.append(pool.submit(_finish, company, folders, teller))
                while futures and futures[0].done():  # while the clock goes on
                    results.add(futures.pop(0).result())
            for future in futures:
                results.add(future.result())
        except BaseException:
            teller.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return results.comparisons()


class _Results:
    """What has been trained so far, by spec. Folders get what there is of them."""

    def __init__(self, specs: Sequence[Spec], command: str, folders: Sequence[Folder] | None) -> None:
        self._specs, self._command, self._folders = specs, command, folders
        self._trained: list[list[tuple[Entrant, Trained]]] = [[] for _ in specs]

    def add(self, trained: Sequence[tuple[Entrant, Trained]]) -> None:
        for entrant, one in trained:
            self._trained[entrant.number].append((entrant, one))
        for number in {entrant.number for entrant, _ in trained}:
            own, spec = self._trained[number], self._specs[number]
            own.sort(key=lambda each: each[0].place)
            if self._folders is None or self._folders[number].finished:
                continue
            if len(own) == len(spec.algorithms) * len(spec.run.seeds):
                write_results(self._comparison(number), self._folders[number])
            else:
                rows = [row for _, one in own for row in one.rows]
                write_text(self._folders[number].path / "metrics.csv", csv_text(rows))

    def comparisons(self) -> list[Comparison]:
        return [self._comparison(number) for number in range(len(self._specs))]

    def _comparison(self, number: int) -> Comparison:
        spec, own = self._specs[number], self._trained[number]
        timelines = {entrant.which: entrant.trial.timeline for entrant, _ in own}
        algorithms = [entrant.algorithm for entrant, _ in own if entrant.trial.seed == spec.run.seeds[-1]]
        rows = {entrant.which: one.rows for entrant, one in own}
        return Comparison(
            spec,
            summarise(spec, self._command, algorithms, timelines, rows),
            timelines,
            [row for _, one in own for row in one.rows],
            [row for _, one in own for row in one.ue_rows],
            {entrant.which: one.params for entrant, one in own},
            algorithms,
        )


@dataclass(frozen=True)
class _Contender:
    """An entrant whose timeline has not been simulated yet."""

    spec: Spec
    number: int
    place: tuple[int, int]
    seed: int
    task: Task
    stage: Stage
    algorithm: Algorithm

    @property
    def company(self) -> Hashable:
        """Who may be trained together: those of equal shape that stop, or do not stop, when they diverge."""
        shape = shape_of(self.task, self.algorithm.learner, self.algorithm.protocol.quorum)
        return bool(self.spec.run.stop_when_diverged), shape

    def enter(self, teller: "Teller") -> Entrant:
        """With its timeline."""
        run, tell = self.spec.run, partial(teller.tell_clock, self.seed)
        (timeline,) = make_timelines(self.spec, self.stage, [self.algorithm], tell)
        points = evaluation_points(timeline, horizon_s=run.horizon_s, every_s=run.eval_every_s)
        trial = Trial(self.task, timeline, self.algorithm.learner, points, self.seed)
        costs = costs_at(self.spec, self.stage.cell, self.algorithm, timeline, points)
        return Entrant(self.spec, self.number, self.place, self.algorithm, trial, costs)


def _companies(specs: Sequence[Spec], teller: "Teller", together: bool) -> Iterator[list[Entrant]]:
    """Who is trained next, as their timelines are simulated: one alone, or everybody of a shape together."""
    if not together:
        for contender in _contenders(specs):
            yield [contender.enter(teller)]
        return
    alike: dict[Hashable, list[_Contender]] = {}
    for contender in _contenders(specs):
        alike.setdefault(contender.company, []).append(contender)
    for contenders in alike.values():
        entrants = [contender.enter(teller) for contender in contenders]
        for numbers in group_trials([entrant.trial for entrant in entrants]):
            yield [entrants[number] for number in numbers]


def _contenders(specs: Sequence[Spec]) -> Iterator[_Contender]:
    """Every algorithm with every seed. Specs that agree in the data, or in all that the clock looks at, share them."""
    tasks: dict[Any, Task] = {}
    stages: dict[Any, Stage] = {}
    for number, spec in enumerate(specs):
        for place, seed in enumerate(spec.run.seeds):
            data, clock = (spec.task, spec.cell.ues, seed), (what_the_clock_sees(spec), seed)
            task = tasks[data] = tasks.get(data) or make_task(spec, seed)
            stage = stages[clock] = stages.get(clock) or Stage.of(spec, seed)
            for rank, algorithm in enumerate(make_algorithms(spec, stage)):
                yield _Contender(spec, number, (rank, place), seed, task, stage, algorithm)


def _finish(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller"
) -> list[tuple[Entrant, Trained]]:
    """Train a few entrants of equal shape, or take what their folders have of them."""
    finished: list[tuple[Entrant, Trained]] = []
    for entrant in entrants if folders is not None else ():
        assert folders is not None
        if (saved := folders[entrant.number].load_part(entrant.name)) is not None:
            params, facts = saved
            rows = [
                row | cost for row, cost in zip(facts["rows"], entrant.costs, strict=True)
            ]  # older ones had no costs
            finished.append((entrant, Trained(rows, facts["ue_rows"], params)))
    found = {id(entrant) for entrant, _ in finished}
    left = [entrant for entrant in entrants if id(entrant) not in found]
    return finished + (_train(left, folders, teller) if left else [])


def _train(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller"
) -> list[tuple[Entrant, Trained]]:
    """Train entrants of equal shape: one as it is, several together, half of them at a time if memory is short."""
    try:
        train_them = _train_one if len(entrants) == 1 else _train_together
        learner = entrants[0].algorithm.learner
        with blaming(f"--algorithms {entrants[0].algorithm.name}", learner.objective, learner.merge):
            ends = train_them(entrants, folders, teller)
        return [(one, _trained(one, training, folders)) for one, training in zip(entrants, ends, strict=True)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or len(entrants) == 1:
            raise
    half = len(entrants) // 2
    return _train(entrants[:half], folders, teller) + _train(entrants[half:], folders, teller)


def _train_one(entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller") -> Sequence[Training]:
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
        teller.tell(entrant, len(training.values))
    assert training is not None
    return [training]


def _train_together(
    entrants: Sequence[Entrant], folders: Sequence[Folder] | None, teller: "Teller"
) -> Sequence[Training]:
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
            teller.tell(entrants[number], len(stand.values[number]))
    assert stand is not None
    return [stand[number] for number in range(len(entrants))]


def _trained(entrant: Entrant, training: Training, folders: Sequence[Folder] | None) -> Trained:
    """What an entrant leaves when it has been trained to its end."""
    (name, seed), timeline = entrant.which, entrant.trial.timeline
    rows = [
        {"algorithm": name, "seed": seed, "round": point.round, "time_s": point.time_s, **values, **cost}
        for point, values, cost in zip(entrant.trial.points, training.values, entrant.costs, strict=True)
    ]
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
    (name, seed), task = entrant.which, entrant.trial.task
    learner = entrant.trial.learner
    own, steps = own_model(learner.objective), learner.personal_steps
    table = evaluate(task, weights, learner.personal_step, memory, own, steps)
    metrics = {key: np.asarray(values) for key, values in table.items()}
    samples = np.asarray(getattr(task.data, "train_count", np.zeros(task.ues, int)))  # generated data have no end
    merges = entrant.trial.timeline.merges
    return [
        {"algorithm": name, "seed": seed, "ue": ue, "samples": int(samples[ue]), "merges": int(merges[ue])}
        | {key: float(metrics[key][ue]) for key in METRICS}
        for ue in range(metrics[METRICS[0]].size)
    ]


class Teller:
    """Adds up the progress of trainings that run side by side, and stops them all when one must."""

    def __init__(self, watch: ProgressWatch | None, total: int) -> None:
        self._watch, self._total = watch, total
        self._at: dict[tuple[int, Which], tuple[float, int]] = {}  # share and rounds of each
        self._lock = threading.Lock()
        self._stopped = False
        self._told_at = time.monotonic()

    def tell(self, entrant: Entrant, evaluated: int) -> None:
        """An entrant has been evaluated so many times."""
        points: Sequence[EvaluationPoint] = entrant.trial.points
        now, last = points[evaluated - 1], points[-1]
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._at[entrant.number, entrant.which] = (now.time_s / max(last.time_s, 1e-300), now.round)
            if self._watch is not None:
                share = sum(share for share, _ in self._at.values()) / self._total
                rounds = sum(rounds for _, rounds in self._at.values())
                self._watch(Progress(*entrant.which, share, now.time_s, rounds))

    def tell_clock(self, seed: int, algorithm: Algorithm, closed: int, time_s: float) -> None:  # noqa: ARG002 (as the clock says it)
        """The clock is being played ahead. Said now and then, as long as nothing has been trained."""
        with self._lock:
            if self._watch is not None and not self._at and time.monotonic() - self._told_at > 0.2:
                self._told_at = time.monotonic()
                self._watch(Progress(algorithm.name, seed, 0.0, time_s, 0))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


def execute_timelines(
    spec: Spec, command: str, folder: Folder | None, watch: ProgressWatch | None = None
) -> Comparison:
    """Only the clock: who is merged when, without training anything."""
    timelines: dict[Which, Timeline] = {}
    algorithms: list[Algorithm] = []
    total, rounds = len(spec.algorithms) * len(spec.run.seeds), 0

    def tell(algorithm: Algorithm, closed: int, time_s: float) -> None:
        if watch is not None:
            share = (len(timelines) + _share_played(spec, closed, time_s)) / total
            watch(Progress(algorithm.name, seed, share, time_s, rounds + closed))

    for seed in spec.run.seeds:
        stage = Stage.of(spec, seed)
        algorithms = make_algorithms(spec, stage)
        for algorithm, timeline in zip(algorithms, make_timelines(spec, stage, algorithms, tell), strict=True):
            timelines[algorithm.name, seed] = timeline
            rounds += timeline.rounds
            if watch is not None:
                watch(Progress(algorithm.name, seed, len(timelines) / total, timeline.end_s, rounds))
    comparison = Comparison(spec, summarise(spec, command, algorithms, timelines, None), timelines, [], [], {})
    if folder is not None and not folder.finished:
        write_results(comparison, folder)
    return comparison


def _share_played(spec: Spec, closed: int, time_s: float) -> float:
    """How much of a timeline is there, by its rounds or by its horizon."""
    if spec.run.rounds is not None:
        return min(closed / spec.run.rounds, 1.0)
    return min(time_s / spec.run.horizon_s, 1.0) if spec.run.horizon_s else 0.0
