"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
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
from perfeds2.runs.crew import Assignment
from perfeds2.runs.folder import Arrays, Folder, alone, open_folder
from perfeds2.runs.jobs import count_jobs, do_jobs
from perfeds2.runs.summary import Row, costs_at, summarise
from perfeds2.spec.build import (
    Algorithm,
    Stage,
    make_algorithms,
    make_task,
    make_timelines,
    model_of,
    what_is_played,
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
    jobs: int | None = 1,
    yes: bool = False,
    **settings: Any,
) -> Comparison:
    """Run algorithms side by side: ``compare(task="digits", ues=20, quorum=5, seeds=range(3), horizon_s=30)``.

    Settings are the command line's flags as keywords, or whole sections (``cell={"layout": "equal"}``). Where they take a
    name, your own object goes in as well: ``task`` a ``Task`` or a function of the seed, ``cell`` a ``Cell``, a
    subclass or a function, ``algorithms`` names and ``Algorithm``s, and so on (``perfeds2.spec.build`` says what is
    called with what). Without ``out`` nothing is written. ``together`` and ``jobs`` are explained at ``execute``; ``yes``
    starts also what would take days.
    """
    refuse_while_loading("compare")
    spec = spec_from(**settings)
    refuse_days([spec], yes=yes)
    if out is None:
        return execute(spec, "compare", None, watch=watch, together=together, jobs=jobs)
    folder = open_folder(Path(out), spec)
    with alone(folder.path):
        if folder.finished:
            return load_comparison(spec, folder)
        return execute(spec, "compare", folder, watch=watch, together=together, jobs=jobs)


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
    jobs: int | None = 1,
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Trainings are independent. A processor trains one on each core, while the next timelines are being simulated.
    Anything else (a GPU) trains those of equal shape together, usually all seeds of an algorithm: one of them alone
    would leave it idle. ``together`` decides instead of the kind of device.

    With ``jobs`` above 1 a processor's trainings are done by so many processes, started with this one's environment
    and JAX's own settings; None decides by the cores, the memory and the work. The results are the same.
    """
    own = None if folder is None else [folder]
    (comparison,) = execute_all([spec], command, own, watch=watch, together=together, jobs=jobs)
    return comparison


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

    @property
    def trial(self) -> Trial:
        assert self.task is not None
        return Trial(self.task, self.timeline, self.algorithm.learner, self.points, self.seed)


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
    jobs: int | None = 1,
) -> list[Comparison]:
    """The same for several specs at once: what is of equal shape goes together, whichever spec it is of.

    ``folders`` has one for each spec; its results are written as soon as all of its entrants have been trained.
    """
    together = jax.default_backend() != "cpu" if together is None else together
    teller = Teller(watch, sum(len(spec.algorithms) * len(spec.run.seeds) for spec in specs))
    results = _Results(specs, command, folders)
    processes = 1 if together else count_jobs(specs, jobs)
    if processes > 1:
        with _places(specs, folders) as places:
            _execute_in_processes(specs, places, processes, teller, results)
        return results.comparisons()
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
        timelines = {entrant.which: entrant.timeline for entrant, _ in own}
        algorithms = [entrant.algorithm for entrant, _ in own if entrant.seed == spec.run.seeds[-1]]
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
    task: Task | None
    stage: Stage
    algorithms: Sequence[Algorithm]  # all of the spec's

    @property
    def algorithm(self) -> Algorithm:
        return self.algorithms[self.place[0]]

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
        what = partial(what_is_played, self.spec)
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


class _Props:
    """What contenders share: specs that agree in the data, or in all that the clock looks at, have the same."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most  # how many are kept: data may be large
        self._tasks: dict[Any, Task] = {}
        self._stages: dict[Any, Stage] = {}

    def contenders(self, spec: Spec, number: int, seed: int, *, trained: bool = True) -> list[_Contender]:
        """Every algorithm of a spec with one seed; without a task if it is trained elsewhere."""
        data, clock = (spec.task, spec.cell.ues, seed), (what_the_clock_sees(spec), seed)
        task = self._kept(self._tasks, data, lambda: make_task(spec, seed)) if trained else None
        stage = self._kept(self._stages, clock, lambda: Stage.of(spec, seed))
        algorithms, place = make_algorithms(spec, stage), spec.run.seeds.index(seed)
        ranks = range(len(algorithms))
        return [_Contender(spec, number, (rank, place), seed, task, stage, algorithms) for rank in ranks]

    def _kept(self, known: dict[Any, Any], what: Any, make: Callable[[], Any]) -> Any:
        if what not in known:
            while self._most is not None and len(known) >= self._most:
                del known[next(iter(known))]
            known[what] = make()
        return known[what]


def _contenders(specs: Sequence[Spec]) -> Iterator[_Contender]:
    """Every algorithm with every seed."""
    props = _Props()
    for number, spec in enumerate(specs):
        for seed in spec.run.seeds:
            yield from props.contenders(spec, number, seed)


# ---- where processes train


def _execute_in_processes(
    specs: Sequence[Spec], folders: Sequence[Folder], processes: int, teller: "Teller", results: _Results
) -> None:
    """Let processes train what the folders lack, and collect what they leave there as it comes."""
    props, jobs, waiting = _Props(), list[Assignment](), list[_Contender]()

    def collect(contender: _Contender) -> None:
        entrant = contender.enter(teller, folders[contender.number])
        results.add(_finish([entrant], folders, teller))
        teller.tell(entrant, len(entrant.points))

    for number, spec in enumerate(specs):
        for seed in spec.run.seeds:
            for contender in props.contenders(spec, number, seed, trained=False):
                if folders[number].has_part(f"{contender.algorithm.name}-{seed}"):
                    collect(contender)
                else:
                    part = (str(folders[number].path), contender.place[0], seed)
                    label, one = f"{contender.algorithm.name} seed {seed}", len(jobs)
                    jobs.append(Assignment(one, (number,), 1, label, contender.program, [spec], part=part))
                    waiting.append(contender)
    do_jobs(
        jobs,
        processes,
        folders[0].path / "workers.log",
        lambda job: collect(waiting[job.number]),
        lambda job, now: teller.hear(waiting[job.number], now.share, now.time_s, now.rounds),
        lambda job, words: folders[job.points[0]].log(f"{job.label}: {words}"),
    )


def train_part(spec: Spec, path: str, rank: int, seed: int, watch: ProgressWatch | None = None) -> None:
    """Train one algorithm of a spec with one seed, and leave it in the spec's folder. What such a process does."""
    teller, folder = Teller(watch, 1), Folder(Path(path))
    entrant = _kept_props().contenders(spec, 0, seed)[rank].enter(teller, folder)
    _finish([entrant], [folder], teller)


@cache
def _kept_props() -> _Props:
    return _Props(most=1)


@contextmanager
def _places(specs: Sequence[Spec], folders: Sequence[Folder] | None) -> Iterator[Sequence[Folder]]:
    """Where processes leave what they trained: the runs' folders, else some that are gone afterwards."""
    if folders is not None:
        yield folders
        return
    with tempfile.TemporaryDirectory(prefix="perfeds2-") as place:
        made = [Folder(Path(place) / str(number)) for number in range(len(specs))]
        for folder in made:
            folder.parts.mkdir(parents=True)
        yield made


# ---- training


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
    (name, seed), timeline = entrant.which, entrant.timeline
    rows = [
        {"algorithm": name, "seed": seed, "round": point.round, "time_s": point.time_s, **values, **cost}
        for point, values, cost in zip(entrant.points, training.values, entrant.costs, strict=True)
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
    """Adds up the progress of trainings that run side by side, and stops them all when one must."""

    def __init__(self, watch: ProgressWatch | None, total: int) -> None:
        self._watch, self._total = watch, total
        self._at: dict[tuple[int, Which], tuple[float, int]] = {}  # share and rounds of each
        self._lock = threading.Lock()
        self._stopped = False
        self._told_at = time.monotonic()

    def tell(self, entrant: Entrant, evaluated: int) -> None:
        """An entrant has been evaluated so many times."""
        now, last = entrant.points[evaluated - 1], entrant.points[-1]
        self.hear(entrant, now.time_s / max(last.time_s, 1e-300), now.time_s, now.round)

    def hear(self, one: "Entrant | _Contender", share: float, time_s: float, rounds: int) -> None:
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
