"""Run the trainings that a store lacks on the available workers, and retry those that fail."""

import errno
import os
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax

from perfeds2.errors import InputError
from perfeds2.learning import on_gpu
from perfeds2.runs import estimate
from perfeds2.runs.progress import Reporter
from perfeds2.runs.store import Result, Store
from perfeds2.runs.training import Training, group_key, groups_of
from perfeds2.runs.workers import (
    Event,
    Inbox,
    Job,
    Place,
    Process,
    ThisProcess,
    TrainingWorker,
    as_this_process,
    one_gpu_each,
    share_gpu,
    take_job,
)
from perfeds2.spec.tasks import check_model, recipe_of

HERE = "here"
PROCESSES = "processes"


@dataclass(frozen=True)
class WorkerChoice:
    """Which workers train.

    ``here`` is this process and, with ``count`` above 1, others like it. ``processes`` are processes of one core
    each, or one per GPU. Results do not depend on ``count``.
    """

    count: int | None = 1  # None: derived from cores, memory and the amount of work
    on: str = HERE
    retries: int = 2  # of a failed training
    together: bool | None = None  # train groups in one batch; None: only on a GPU

    def check(self) -> None:
        """Check the values before anything is written.

        Raises:
            InputError: If a value is out of range.
        """
        if self.count is not None and self.count < 1:
            raise InputError(f"--workers must be at least 1, got {self.count}.")
        if self.retries < 0:
            raise InputError(f"--retries must be 0 or more, got {self.retries}.")


@dataclass(frozen=True)
class Failure:
    """A training or group of trainings that failed for good."""

    label: str
    attempts: int
    error: str


@dataclass(frozen=True)
class Results:
    """The outcome of trainings; results are read from the store on demand."""

    store: Store
    failures: tuple[Failure, ...] = ()
    found: int = 0  # trainings that were already in the store
    reused: int = 0  # trainings copied from other folders

    def get(self, training: Training) -> Result | None:
        """Return a training's result; None if it failed."""
        return self.store.get(training.key)

    def those_of(self, trainings: Iterable[Training]) -> list[Result]:
        """Return the results of trainings, without those that failed."""
        return [result for one in trainings if (result := self.get(one)) is not None]

    def __getitem__(self, training: Training) -> Result:
        result = self.get(training)
        if result is None:
            raise KeyError(training.title)
        return result


def check_work(trainings: Sequence[Training], workers: WorkerChoice, *, yes: bool) -> None:
    """Check workers, models and the estimated time before anything is written.

    Raises:
        InputError: If a setting is invalid, a model does not fit its task, or the work takes over a day without
            ``yes``.
    """
    workers.check()
    # A user's own task would have to be made here, and this process would hold the GPU that the workers need.
    known = [one for one in trainings if workers.on == HERE or recipe_of(one.spec) is not None]
    for one in known:
        check_model(one.spec)
    estimate.refuse_days(known, yes=yes)


def run_all(
    trainings: Sequence[Training],
    store: Store,
    workers: WorkerChoice = WorkerChoice(),
    reporter: Reporter | None = None,
    *,
    strict: bool = False,
) -> Results:
    """Train what a store lacks.

    Args:
        trainings: Trainings to run, in any order; duplicates are trained once.
        store: Where results and checkpoints are written.
        workers: Which workers train.
        reporter: Receives the progress.
        strict: Raise if a training fails for good, instead of continuing with the others.

    Returns:
        The results and failures.

    Raises:
        InputError: If a training is refused and ``strict``, or if all are refused.
        ChildProcessError: If a worker process keeps dying and ``strict``.
    """
    workers.check()
    wanted = list({one.key: one for one in trainings}.values())
    missing = [one for one in wanted if store.get(one.key) is None]
    found, reused = len(wanted) - len(missing), 0
    run = _Run(store, workers, reporter or Reporter(), strict)
    jobs: list[Job] = []
    engine = Engine()
    if missing:
        engine = find_workers(wanted, workers)
        groups = _groups(wanted, together=engine.together)
        jobs, reused = _jobs(groups, {one.key for one in missing}, store, together=engine.together)
    run.reporter.asked(len(wanted), len(wanted) - sum(len(job.trainings) for job in jobs))
    if jobs:
        run.do(jobs, engine)
    return Results(store, run.failures(found + reused), found, reused)


def _groups(wanted: Sequence[Training], *, together: bool) -> list[list[Training]]:
    """Return the trainings of each job."""
    return groups_of(wanted) if together else [[one] for one in wanted]


def _jobs(
    groups: Sequence[Sequence[Training]], missing: set[str], store: Store, *, together: bool
) -> tuple[list[Job], int]:
    """Make a job for every group that lacks a result, in the store and in the folders to reuse.

    Returns:
        The jobs, and how many results were reused.
    """
    jobs: list[Job] = []
    reused = 0
    for group in groups:
        key = group_key(group) if together else ""
        taken = [one.key for one in group if one.key in missing and store.take(one.key, key)]
        reused += len(taken)
        if any(one.key in missing and one.key not in taken for one in group):
            jobs.append(Job(len(jobs), tuple(group), key))
    return jobs, reused


# ---- workers


@dataclass(frozen=True)
class Engine:
    """The workers that are available."""

    count: int = 1
    here: bool = True  # this process is one of them; if it is the only one, it uses several threads
    together: bool = False  # they train groups in one batch
    shares_gpu: bool = False  # they are processes that share one GPU
    environment: Callable[[int], Mapping[str, str]] = lambda _: {}  # environment of the process with this number

    @property
    def is_alone(self) -> bool:
        return self.here and self.count == 1

    @property
    def threads(self) -> int:
        """Return how many trainings this process runs at a time.

        One keeps a GPU busy; on a CPU it is the number of XLA's threads.
        """
        if not self.is_alone or self.together or on_gpu.is_there() or jax.local_device_count() > 1:
            return 1
        return int(os.environ.get("NPROC") or 0) or os.cpu_count() or 1


def serve(waiting: list[Job], place: Place, engine: Engine, log: Path) -> Iterator[Event]:
    """Run jobs until the list is empty, and yield the workers' events.

    Args:
        waiting: Jobs to run; the caller may append to it meanwhile.
        place: Where results and evaluations are written.
        engine: The workers.
        log: The file that receives the standard error of worker processes.
    """
    workers: dict[int, TrainingWorker] = {}
    inbox: Inbox = queue.SimpleQueue()

    def make(number: int) -> TrainingWorker:
        if engine.here and number == 0:
            return ThisProcess(inbox, place, engine.threads, takes_all=engine.is_alone)
        return Process(number, inbox, place, engine.environment(number), log)

    try:
        while True:
            for number in range(engine.count):
                if waiting and number not in workers:
                    workers[number] = make(number)
                worker = workers.get(number)
                while waiting and worker is not None and (worker.takes_all or not worker.jobs):
                    busy = [other.jobs[0].program for other in workers.values() if other.jobs]
                    worker.give(waiting.pop(0) if worker.takes_all else take_job(waiting, worker.program, busy))
            if not any(worker.jobs for worker in workers.values()):
                return
            worker, event = inbox.get()
            if event is None:  # the worker died; a new one starts if there is work
                del workers[worker.number]
                worker.end()
                for job in worker.jobs:
                    yield Event(worker.number, job, {"error": worker.why_ended, "again": True, "died": True})
                continue
            if "done" in event.reply or "error" in event.reply:
                worker.jobs.remove(event.job)
            yield event
    finally:
        for worker in workers.values():
            worker.stop()
        for worker in workers.values():
            worker.end()


def find_workers(wanted: Sequence[Training], workers: WorkerChoice) -> Engine:
    """Find the available workers. Objects defined in no file cannot be sent to another process and train here."""
    unwritten = any(one.spec.unwritten for one in wanted)
    if workers.on == HERE or unwritten:
        together = on_gpu.is_there() if workers.together is None else workers.together
        if unwritten:
            return Engine(together=together)
        count = estimate.count_processes(_groups(wanted, together=together), workers.count, together=together)
        shares_gpu = together and count > 1
        environment = share_gpu() if shares_gpu else as_this_process() if count > 1 else {}
        return Engine(count, not shares_gpu, together, shares_gpu, lambda _: environment)
    gpus = estimate.count_gpus()
    known = [one for one in wanted if not gpus and workers.count is None and recipe_of(one.spec) is not None]
    count = workers.count or gpus or estimate.count_workers(known)
    return Engine(count, False, gpus > 0, environment=partial(one_gpu_each, gpus))


class _Run:
    """The loop over worker events: it keeps results and retries failures."""

    def __init__(self, store: Store, workers: WorkerChoice, reporter: Reporter, strict: bool) -> None:
        self.store, self.workers, self.reporter, self.strict = store, workers, reporter, strict
        self._attempts = Counter[int]()
        self._failed: list[tuple[Job, Failure, bool]] = []  # the flag: whether a retry could have helped
        self._done = 0

    def do(self, jobs: Sequence[Job], engine: Engine) -> None:
        waiting, place = list(jobs), Place(self.store, self.reporter.live)
        log = self.store.path.parent / "workers.log"
        if engine.shares_gpu:
            if len(jobs) > 1:
                waiting = [replace(job, halves=False) for job in jobs]
                left = self._follow(waiting, serve(waiting, place, engine, log), hands_back=True)
                waiting = [replace(job, halves=True) for job in left]
            engine = Engine(together=True)  # retried by this process, which has all GPU memory
        self._follow(waiting, serve(waiting, place, engine, log), alone=engine.is_alone)
        if log.is_file() and log.stat().st_size == 0:
            log.unlink()

    def _follow(
        self, waiting: list[Job], events: Iterator[Event], *, alone: bool = False, hands_back: bool = False
    ) -> list[Job]:
        """Handle events until all jobs are done.

        With ``hands_back``, return the jobs that failed while their process survived, instead of retrying them.
        """
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
                    self.reporter.log(f"{job.title}: {reply['error']}; trained again when the others have ended")
                    self.reporter.failed(event.place, reply["error"], again=True)
                    left.append(job)
                else:
                    again = self._fail(event, alone=alone)
                    self.reporter.failed(event.place, f"{job.title}: {reply['error']}", again=again)
                    if again:
                        waiting.append(job)
        return left

    def _keep(self, job: Job) -> None:
        self._done += 1
        for one in job.trainings:
            result = self.store.get(one.key)
            if result is None:
                raise RuntimeError(f"{one.title} left no result.")
            facts = result.facts
            self.reporter.log(f"{one.title}: {facts['rounds']} rounds, {facts['end_s']:.6g} simulated seconds")

    def _fail(self, event: Event, *, alone: bool) -> bool:
        """Count a failed attempt and return whether to retry the job."""
        job, reply, retries = event.job, event.reply, self.workers.retries
        self._attempts[job.number] += 1
        attempts, error = self._attempts[job.number], reply["error"]
        if self.strict and (alone or not reply["again"]):
            raise reply.get("cause") or InputError(error)
        self.reporter.log(f"{job.title}: {error} (attempt {attempts} of {retries + 1})")
        if reply["again"] and attempts <= retries:
            return True
        if self.strict:
            raise ChildProcessError(
                errno.ECHILD,
                f"{job.title} failed {attempts} times: {error}; see workers.log, and if memory is short, take fewer --workers",
                str(self.store.path.parent),
            )
        self._failed.append((job, Failure(job.title, attempts, error), reply["again"]))
        return False

    def failures(self, found: int) -> tuple[Failure, ...]:
        """Return the failed trainings, in the order of the jobs; raise InputError if all trainings were refused."""
        if self._failed and found + self._done == 0 and not any(again for *_, again in self._failed):
            raise InputError(self._failed[0][1].error)  # every training was refused for input the user can fix
        return tuple(failure for _, failure, _ in sorted(self._failed, key=lambda each: each[0].number))
