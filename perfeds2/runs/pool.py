"""How are many trainings done? Those that a store lacks, by the workers there are, each tried again when its process dies."""

import errno
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from perfeds2.errors import InputError
from perfeds2.learning import on_gpu
from perfeds2.runs import estimate
from perfeds2.runs.progress import Reporter
from perfeds2.runs.sharing import sharing
from perfeds2.runs.store import Result, Store
from perfeds2.runs.training import Training, group_key, groups_of
from perfeds2.runs.workers import (
    Event,
    Job,
    JobQueue,
    Place,
    Ray,
    as_this_process,
    in_processes,
    in_threads,
    one_gpu_each,
)
from perfeds2.spec.tasks import check_model, recipe_of

HERE = "here"
PROCESSES = "processes"

Kept = Callable[[Training, Result], None]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Workers:
    """Who trains.

    ``here`` is this process, and as many like it as ``count`` says. ``processes`` are processes of one core each, or one per
    GPU; ``ray`` and ``ray://HOST:PORT`` are those of a cluster. Results do not depend on the count.
    """

    count: int | None = 1  # None: by cores, memory and work
    on: str = HERE
    retries: int = 2  # of a training that failed
    together: bool | None = None  # train groups at once, as a GPU does; None: by the kind of device

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is written."""
        flag = "--jobs" if self.on == HERE else "--workers"
        if self.count is not None and self.count < 1:
            raise InputError(f"{flag} must be at least 1, got {self.count}.")
        if self.retries < 0:
            raise InputError(f"--retries must be 0 or more, got {self.retries}.")
        if self.on not in (HERE, PROCESSES, "ray") and not self.on.startswith("ray://"):
            raise InputError(f"--on takes processes, ray or ray://HOST:PORT, got {self.on!r}.")


@dataclass(frozen=True)
class Failure:
    """A training that was given up, or a group of them."""

    label: str
    attempts: int
    error: str


@dataclass(frozen=True)
class Results:
    """What became of trainings. Results are read from the store when they are asked for."""

    store: Store
    failures: tuple[Failure, ...] = ()
    found: int = 0  # trainings that the store had
    reused: int = 0  # … and that other folders had

    def get(self, training: Training) -> Result | None:
        """A training's result; None if it was given up."""
        return self.store.get(training.key)

    def __getitem__(self, training: Training) -> Result:
        result = self.get(training)
        if result is None:
            raise KeyError(training.title)
        return result


def check_work(trainings: Sequence[Training], workers: Workers, *, yes: bool) -> None:
    """Refuse what cannot be begun, before anything is written."""
    workers.check()
    # A user's own task would have to be made here, and a GPU is for the workers.
    known = [one for one in trainings if workers.on == HERE or recipe_of(one.spec) is not None]
    for one in known:
        check_model(one.spec)
    estimate.refuse_days(known, yes=yes)


def run_all(
    trainings: Sequence[Training],
    store: Store,
    workers: Workers = Workers(),  # noqa: B008 (frozen)
    reporter: Reporter | None = None,
    *,
    strict: bool = False,
    kept: Kept | None = None,
    log: Log | None = None,
) -> Results:
    """Train what a store lacks.

    Args:
        trainings: What is wanted, in any order; the same one may be asked for twice.
        store: Where results go, and checkpoints of trainings under way.
        workers: Who trains.
        reporter: Hears how far it is.
        strict: Raise when a training is given up, instead of going on with the others.
        kept: Called with every training and its result, in this thread, as results come.
        log: Called with a sentence for every training that ended, or failed and is tried again.

    Raises:
        InputError: A training is refused and ``strict``, or all are.
    """
    workers.check()
    wanted = list({one.key: one for one in trainings}.values())
    missing = [one for one in wanted if store.get(one.key) is None]
    found, reused = len(wanted) - len(missing), 0
    run = _Run(store, workers, reporter or Reporter(), strict, kept, log or (lambda _: None))
    jobs: list[Job] = []
    with ExitStack() as stack:
        if missing:
            if store.path is None and workers.on != HERE:
                raise ValueError("other workers need a store on disk")
            engine = find_workers(wanted, workers)
            groups = groups_of(wanted) if engine.together else [[one] for one in wanted]
            jobs, reused = _jobs(groups, {one.key for one in missing}, store, together=engine.together)
        run.reporter.asked(len(wanted), len(wanted) - sum(len(job.trainings) for job in jobs))
        for one in wanted if kept is not None else ():
            if (result := store.get(one.key)) is not None:
                assert kept is not None
                kept(one, result)
        if jobs:
            run.do(jobs, engine, stack)
    return Results(store, run.failures(found + reused), found, reused)


def _jobs(
    groups: Sequence[Sequence[Training]], missing: set[str], store: Store, *, together: bool
) -> tuple[list[Job], int]:
    """A job for every group of which something is missing, here and in the folders to reuse; and how many were reused."""
    jobs: list[Job] = []
    reused = 0
    for group in groups:
        key = group_key(group) if together else ""
        taken = [one.key for one in group if one.key in missing and store.take(one.key, key)]
        reused += len(taken)
        if any(one.key in missing and one.key not in taken for one in group):
            jobs.append(Job(len(jobs), tuple(group), key))
    return jobs, reused


# ---- who trains


@dataclass(frozen=True)
class Engine:
    """The workers that were found, and whether they train groups."""

    way: Literal["threads", "processes beside this one", "processes on one GPU", "processes", "ray"] = "threads"
    together: bool = False
    count: int = 1
    gpus: int = 0
    ray: Ray | None = None


def find_workers(wanted: Sequence[Training], workers: Workers) -> Engine:
    """Look which workers there are. What cannot be sent to another process is done in this one."""
    unwritten = any(one.spec.unwritten for one in wanted)
    if workers.on == HERE or unwritten:
        together = on_gpu.is_there() if workers.together is None else workers.together
        count = 1
        if together and not unwritten:
            count = estimate.count_group_processes(groups_of(wanted), workers.count)
        elif not unwritten:
            count = estimate.count_processes(wanted, workers.count)
        if count == 1:
            return Engine("threads", together)
        return Engine("processes on one GPU" if together else "processes beside this one", together, count)
    if workers.on == PROCESSES:
        gpus = estimate.count_gpus()
        return Engine("processes", gpus > 0, workers.count or gpus or estimate.count_cores(), gpus)
    ray = Ray.open(workers.on, workers.count)
    return Engine("ray", ray.has_gpus, ray.count, ray=ray)


class _Run:
    """The one loop over events: results are kept, failures tried again."""

    def __init__(
        self, store: Store, workers: Workers, reporter: Reporter, strict: bool, kept: Kept | None, log: Log
    ) -> None:
        self.store, self.workers, self.reporter = store, workers, reporter
        self.strict, self.kept, self.log = strict, kept, log
        self._attempts = Counter[int]()
        self._failed: list[tuple[Job, Failure, bool]] = []  # with whether trying again could have helped
        self._done = 0

    def do(self, jobs: Sequence[Job], engine: Engine, stack: ExitStack) -> None:
        waiting, store = JobQueue(jobs), self.store
        if engine.count > 1 and store.path is None:
            self.store = Store(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfeds2-"))), whole=store.whole
            )
        place = Place(self.store, self.reporter.live)
        log = (self.store.path or Path()).parent / "workers.log"  # only other processes write it, and they need a store
        if engine.ray is not None:
            self._follow(waiting, engine.ray.events(waiting, place))
        elif engine.way == "processes":
            environment = partial(one_gpu_each, engine.gpus)
            self._follow(waiting, in_processes(waiting, place, engine.count, environment, log))
        elif engine.way == "processes beside this one":
            as_this = as_this_process()
            self._follow(waiting, in_processes(waiting, place, engine.count, lambda _: as_this, log, here=True))
        elif engine.way == "processes on one GPU" and len(jobs) > 1:
            beside = JobQueue(replace(job, halves=False) for job in jobs)
            with sharing(self.log) as shared:
                events = in_processes(beside, place, engine.count, lambda _: shared, log)
                waiting = JobQueue(replace(job, halves=True) for job in self._follow(beside, events, hands_back=True))
            self._follow(waiting, in_threads(waiting, place, 1), alone=True)  # with all the memory
        else:
            self._follow(waiting, in_threads(waiting, place, _threads(engine)), alone=True)
        if self.store.path is not None and log.is_file() and log.stat().st_size == 0:
            log.unlink()
        if self.store is not store:
            for one in (one for job in jobs for one in job.trainings):
                if (result := self.store.get(one.key)) is not None:
                    store.put(one.key, result)

    def _follow(
        self, waiting: JobQueue, events: Iterator[Event], *, alone: bool = False, hands_back: bool = False
    ) -> list[Job]:
        """Hear events until all is done. With ``hands_back``, return jobs that failed although their process lived."""
        left: list[Job] = []
        with closing(events):  # type: ignore[type-var]  # a generator
            for event in events:
                job, reply = event.job, event.reply
                if "started" in reply:
                    self.reporter.started(event.place, job.title, len(job.trainings))
                elif "share" in reply:
                    self.reporter.moved(event.place, reply["share"], reply["time_s"], reply["rounds"])
                elif "clock" in reply:
                    self.reporter.clock(reply["clock"], reply["time_s"])
                elif "done" in reply:
                    self._keep(job)
                    self.reporter.done(event.place)
                elif hands_back and reply["again"] and "died" not in reply:
                    self.log(f"{job.title}: {reply['error']}; trained again when the others have ended")
                    self.reporter.failed(event.place, reply["error"], again=True)
                    left.append(job)
                else:
                    again = self._fail(event, alone=alone)
                    self.reporter.failed(event.place, f"{job.title}: {reply['error']}", again=again)
                    if again:
                        waiting.put(job)
        return left

    def _keep(self, job: Job) -> None:
        self._done += 1
        for one in job.trainings:
            result = self.store.get(one.key)
            if result is None:
                raise RuntimeError(f"{one.title} left no result.")
            facts = result.facts
            self.log(f"{one.title}: {facts['rounds']} rounds, {facts['end_s']:.6g} simulated seconds")
            if self.kept is not None:
                self.kept(one, result)

    def _fail(self, event: Event, *, alone: bool) -> bool:
        """Whether a job is tried again; else it is given up."""
        job, reply, retries = event.job, event.reply, self.workers.retries
        self._attempts[job.number] += 1
        attempts, error = self._attempts[job.number], reply["error"]
        if self.strict and (alone or not reply["again"]):
            raise reply.get("cause") or InputError(error)
        self.log(f"{job.title}: {error} (attempt {attempts} of {retries + 1})")
        if reply["again"] and attempts <= retries:
            return True
        if self.strict:
            folder = "" if self.store.path is None else str(self.store.path.parent)
            raise ChildProcessError(
                errno.ECHILD,
                f"{job.title} failed {attempts} times: {error}; see workers.log, and if memory is short, take fewer --jobs",
                folder,
            )
        self._failed.append((job, Failure(job.title, attempts, error), reply["again"]))
        return False

    def failures(self, found: int) -> tuple[Failure, ...]:
        """What was given up, in the order of the trainings."""
        if self._failed and found + self._done == 0 and not any(again for *_, again in self._failed):
            raise InputError(self._failed[0][1].error)  # nothing could be trained, and the user can put it right
        return tuple(failure for _, failure, _ in sorted(self._failed, key=lambda each: each[0].number))


def _threads(engine: Engine) -> int:
    """How many trainings this process does at a time: one keeps a GPU busy; else as many as XLA has threads."""
    if engine.together or on_gpu.is_there() or jax.local_device_count() > 1:
        return 1
    return int(os.environ.get("NPROC") or 0) or os.cpu_count() or 1
