"""Which algorithm learns fastest on the same cell, data, fading and initial weights, in the same simulated time?"""

import os
import tempfile
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax

from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.learning import on_gpu
from perfeds2.learning.task import parameters
from perfeds2.learning.train_many import group_lanes
from perfeds2.runs.comparison import Comparison, Which, write_results
from perfeds2.runs.crew import Assignment, Moved
from perfeds2.runs.entrants import Contender, Entrant, Progress, ProgressWatch, Props, Teller, Trained, finish
from perfeds2.runs.folder import Folder
from perfeds2.runs.jobs import alone_with_it, count_group_jobs, count_jobs, do_jobs
from perfeds2.runs.live import Follower, Live, Place, open_live
from perfeds2.runs.sharing import sharing
from perfeds2.runs.summary import summarise
from perfeds2.runs.table import csv_text
from perfeds2.spec.build import (
    Algorithm,
    Stage,
    make_algorithms,
    make_timelines,
    model_of,
)
from perfeds2.spec.fields import Spec
from perfeds2.timeline.record import Timeline

DAY_S = 86_400.0


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
    live: Live | None = None,
    label: str = "",
    followers: Sequence[Follower] = (),
) -> Comparison:
    """Do what a spec says, going on from what the folder already has.

    Trainings are independent. A processor trains one on each core, while the next timelines are being simulated.
    Anything else (a GPU) trains those of equal shape together, usually all seeds of an algorithm: one of them alone
    would leave it idle. ``together`` decides instead of the kind of device.

    With ``jobs`` above 1 so many processes do it, in this one's environment and with what it has told JAX: a processor's
    trainings each by one of them, a GPU's as they are trained together. None decides by the cores, the memory and the
    work. The results are the same.

    Others see how far it is where it is ``live``: in its folder, unless it is part of something larger.
    """
    own = None if folder is None else [folder]
    with (
        nullcontext() if folder is None or live is not None else open_live(folder.path, command, followers) as own_live
    ):
        watch = watch if own_live is None else own_live.progress(watch)
        live = live or own_live
        (comparison,) = execute_all(
            [spec], command, own, watch=watch, together=together, jobs=jobs, live=live, labels=[label]
        )
    return comparison


def execute_all(
    specs: Sequence[Spec],
    command: str,
    folders: Sequence[Folder] | None = None,
    *,
    watch: ProgressWatch | None = None,
    together: bool | None = None,
    jobs: int | None = 1,
    live: Live | None = None,
    labels: Sequence[str] = (),
) -> list[Comparison]:
    """The same for several specs at once: what is of equal shape goes together, whichever spec it is of.

    ``folders`` has one for each spec; its results are written as soon as all of its entrants have been trained.
    """
    together = on_gpu.is_there() if together is None else together
    teller = Teller(watch, sum(len(spec.algorithms) * len(spec.run.seeds) for spec in specs), live, labels)
    results = _Results(specs, command, folders)
    groups = _alike(_contenders(specs)) if together else []
    processes = count_group_jobs(groups, jobs) if together else count_jobs(specs, jobs)
    if processes > 1:
        groups = [[replace(one, task=None) for one in group] for group in groups]  # data may be large, and others train
        groups = groups or [[one] for one in _contenders(specs, trained=False)]
        with _places(specs, folders) as places:
            place = None if live is None else live.place(labels or [""] * len(specs))
            _execute_in_processes(groups, together, places, processes, teller, results, place)
        return results.comparisons()
    busy = together or on_gpu.is_there() or jax.local_device_count() > 1  # one loop is enough for these
    cores = int(os.environ.get("NPROC") or 0) or os.cpu_count()  # as many threads as XLA has
    with ThreadPoolExecutor(1 if busy else cores) as pool:
        try:
            futures = list[Future[list[tuple[Entrant, Trained]]]]()
            for company in _companies(groups, teller) if together else _one_by_one(specs, teller):
                futures.append(pool.submit(finish, company, folders, teller))
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


def _contenders(specs: Sequence[Spec], *, trained: bool = True) -> Iterator[Contender]:
    """Every algorithm with every seed."""
    props = Props()
    for number, spec in enumerate(specs):
        for seed in spec.run.seeds:
            yield from props.contenders(spec, number, seed, trained=trained)


def _one_by_one(specs: Sequence[Spec], teller: "Teller") -> Iterator[list[Entrant]]:
    """Who is trained next, as their timelines are simulated."""
    for contender in _contenders(specs):
        yield [contender.enter(teller)]


def _alike(contenders: Iterable[Contender]) -> list[list[Contender]]:
    """Who may be trained together."""
    alike: dict[Hashable, list[Contender]] = {}
    for contender in contenders:
        alike.setdefault(contender.company, []).append(contender)
    return list(alike.values())


def _companies(
    groups: Iterable[Sequence[Contender]], teller: "Teller", folders: Sequence[Folder] | None = None
) -> Iterator[list[Entrant]]:
    """Who is trained together next, as their timelines are simulated: of a group as many as there is memory for."""
    for group in groups:
        entrants = [one.enter(teller, None if folders is None else folders[one.number]) for one in group]
        for numbers in group_lanes([entrant.trial for entrant in entrants]) if len(entrants) > 1 else [[0]]:
            yield [entrants[number] for number in numbers]


# ---- where processes train


def _execute_in_processes(
    groups: Sequence[Sequence[Contender]],
    together: bool,
    folders: Sequence[Folder],
    processes: int,
    teller: "Teller",
    results: _Results,
    live: Place | None,
) -> None:
    """Let processes train what the folders lack, and collect what they leave there as it comes."""
    jobs, waiting, silent = list[Assignment](), list[Sequence[Contender]](), Teller(None, 1)

    def collect(group: Sequence[Contender], tells: Teller = silent) -> None:
        for contender in group:
            entrant = contender.enter(teller, folders[contender.number])
            results.add(finish([entrant], folders, tells))
            teller.hear(entrant, 1.0, entrant.points[-1].time_s, entrant.points[-1].round)

    def hear(job: Assignment, now: Moved) -> None:
        for one in waiting[job.number]:
            teller.hear(one, now.share, now.time_s, now.rounds // len(waiting[job.number]))

    for group in groups:
        if all(folders[one.number].has_part(one.name) for one in group):
            collect(group, teller)  # of those that are trained now, who trains them tells
        else:
            jobs.append(_assignment(len(jobs), group, folders, live))
            waiting.append(group)
    given = (
        *(folders[0].path / "workers.log", lambda job: collect(waiting[job.number]), hear),
        lambda job, words: folders[job.points[0]].log(f"{job.label}: {words}"),
    )
    if not together:
        do_jobs(jobs, processes, *given)
        return
    left = jobs
    if len(jobs) > 1:
        with sharing(folders[0].log) as environment:
            left = do_jobs(jobs, processes, *given, here=False, environment=environment, hand_back=True)
    do_jobs([alone_with_it(job) for job in left], 1, *given)  # in this process


def _assignment(number: int, group: Sequence[Contender], folders: Sequence[Folder], live: Place | None) -> Assignment:
    """That somebody train these."""
    first, points = group[0], tuple(dict.fromkeys(one.number for one in group))
    members = [(points.index(one.number), one.place[0], one.seed) for one in group]
    return Assignment(
        number,
        points,
        len(group),
        f"{first.algorithm.name} seed {first.seed}{f' and {len(group) - 1} more' if len(group) > 1 else ''}",
        first.program,
        [next(one.spec for one in group if one.number == point) for point in points],
        part=([str(folders[point].path) for point in points], members, False),
        live=None if live is None else (live[0], [live[1][point] for point in points]),
    )


def train_part(
    specs: Sequence[Spec],
    paths: Sequence[str],
    members: Sequence[Sequence[int]],
    halves: bool = True,
    *,
    watch: ProgressWatch | None = None,
    live: Live | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Train members of specs, (spec, algorithm, seed), and leave them in the specs' folders. What such a process does.

    They may be trained together; half of them at a time where memory is short, if there may be ``halves``.
    """
    teller, folders = Teller(watch, len(members), live, labels), [Folder(Path(path)) for path in paths]
    props = _kept_props(len({(number, seed) for number, _, seed in members}))
    group = [props.contenders(specs[number], number, seed)[rank] for number, rank, seed in members]
    for company in _companies([group], teller, folders):
        finish(company, folders, teller, halves=halves)


@lru_cache(maxsize=1)
def _kept_props(most: int) -> Props:
    return Props(most)


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


def execute_timelines(
    spec: Spec,
    command: str,
    folder: Folder | None,
    watch: ProgressWatch | None = None,
    followers: Sequence[Follower] = (),
) -> Comparison:
    """Only the clock: who is merged when, without training anything."""
    if folder is None:
        return _play(spec, command, None, watch)
    with open_live(folder.path, command, followers) as live:
        return _play(spec, command, folder, live.progress(watch))


def _play(spec: Spec, command: str, folder: Folder | None, watch: ProgressWatch | None) -> Comparison:
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
