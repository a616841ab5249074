"""Who does the work of a sweep or a tuning: processes of this machine, a Ray cluster, or this very process?

A crew takes assignments from a line, and tells what happens to them. It knows nothing of grids, folders or retries: one
that is to be tried again is simply put into the line again.
"""

import json
import logging
import os
import queue
import signal
import subprocess  # only ever starts this very Python
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from perfeds2.errors import InputError
from perfeds2.learning.compiled import deterministic, may_have_gpu
from perfeds2.runs.estimate import refuse_days
from perfeds2.runs.live import Place
from perfeds2.runs.training import trainings_of
from perfeds2.runs.worker import Reply, Result, now_and_then, work, work_for_cluster
from perfeds2.spec.build import check_model, recipe_of
from perfeds2.spec.fields import Spec

# Workers stand side by side, so each keeps to one core. Then a result does not depend on how many there are, either.
ONE_CORE = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
WHAT_CHANGES_NUMBERS = (  # of what a program may have told JAX
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable"),
    *("jax_numpy_dtype_promotion", "jax_disable_most_optimizations"),
)


# The specs' folders, the members of a group as (spec, algorithm, seed), and whether they may be trained by halves.
Part = tuple[list[str], list[tuple[int, int, int]], bool]


@dataclass(frozen=True)
class Assignment:
    """One call of a worker."""

    number: int
    points: tuple[int, ...]  # whose it is
    runs: int  # points times seeds
    label: str  # for people
    shape: str  # jobs of equal shape share compiled programs
    specs: list[Spec]  # one per point
    together: bool | None = None  # as ``execute`` takes it; None: several specs are trained at once
    part: Part | None = None  # only these of its specs, into their folders
    live: Place | None = None  # where it is shown how far it is


@dataclass(frozen=True)
class Started:
    job: Assignment
    worker: int
    pid: int | None = None  # where it is a process of this machine


@dataclass(frozen=True)
class Moved:
    job: Assignment
    worker: int
    share: float  # of the job
    time_s: float = 0.0  # simulated
    rounds: int = 0  # trained


@dataclass(frozen=True)
class Done:
    job: Assignment
    worker: int
    results: list[list[Result]]  # for each point, one per seed


@dataclass(frozen=True)
class Failed:
    job: Assignment
    worker: int
    error: str
    again: bool  # whether trying again could help
    died: bool = False  # its process, whatever it was at


Event = Started | Moved | Done | Failed


class WaitingLine:
    """The jobs that wait."""

    def __init__(self, jobs: Iterable[Assignment]) -> None:
        self._waiting: dict[str, deque[Assignment]] = {}
        for job in jobs:
            self.put(job)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, job: Assignment) -> None:
        self._waiting.setdefault(job.shape, deque()).append(job)

    def take(self, last_shape: str | None = None, busy: Iterable[str] = ()) -> Assignment:
        """The next job: of the shape this worker has compiled, else of the one fewest others are at."""
        at = Counter(busy)
        shape = last_shape if last_shape in self._waiting else min(self._waiting, key=lambda shape: at[shape])
        assert shape is not None
        job = self._waiting[shape].popleft()
        if not self._waiting[shape]:
            del self._waiting[shape]
        return job


@dataclass(frozen=True)
class Crew:
    """Who does it."""

    workers: int
    together: bool  # many points and seeds in a job: a GPU trains them at once
    events: Callable[[WaitingLine], Iterator[Event]]


@dataclass(frozen=True)
class Failure:
    """A job that was given up."""

    label: str
    attempts: int
    error: str


@dataclass(frozen=True)
class Standing:
    """How far the work is: for a table, nothing else."""

    total: int  # runs: seeds of points
    done: int
    found: int  # of those done, how many were there before
    failed: int
    retried: int
    elapsed_s: float
    workers: Mapping[int, tuple[str, float]]  # what each is at, and how far
    event: Event | None

    @property
    def error(self) -> str:
        return f"{self.event.job.label}: {self.event.error}" if isinstance(self.event, Failed) else ""

    @property
    def left_s(self) -> float | None:
        """How long the rest will take, by what has been done so far."""
        fresh = self.done - self.found
        return None if fresh == 0 else self.elapsed_s / fresh * (self.total - self.done - self.failed)


StandingWatch = Callable[[Standing], None]


def do_all(
    jobs: Sequence[Assignment],
    crew: Crew,
    total: int,
    retries: int,
    keep: Callable[[Assignment, list[list[Result]]], "Iterable[Assignment] | None"],
    watch: StandingWatch | None = None,
    found: int | None = None,
) -> list[Failure]:
    """Let a crew do all jobs; ``keep`` gets each result the moment it comes, and may name more jobs. Returns what was given up.

    ``total`` counts the runs, ``found`` those that were done before (all but the jobs', unless more will come).
    """
    line, found = WaitingLine(jobs), total - sum(job.runs for job in jobs) if found is None else found
    done, failed, attempts, started_s = found, 0, Counter[int](), time.monotonic()
    failures: list[tuple[Assignment, Failure, bool]] = []
    at: dict[int, tuple[str, float]] = {}
    with closing(crew.events(line)) as events:  # type: ignore[type-var]  # a generator
        for event in events:
            job = event.job
            match event:
                case Started():
                    at[event.worker] = (job.label, 0.0)
                case Moved():
                    at[event.worker] = (job.label, event.share)
                case Done():
                    at.pop(event.worker, None)
                    for more in keep(job, event.results) or ():
                        line.put(more)
                    done += job.runs
                case Failed():
                    at.pop(event.worker, None)
                    attempts[job.number] += 1
                    if event.again and attempts[job.number] <= retries:
                        line.put(job)
                    else:
                        failures.append((job, Failure(job.label, attempts[job.number], event.error), event.again))
                        failed += job.runs
            if watch is not None:
                retried = attempts.total() - len(failures)
                elapsed_s = time.monotonic() - started_s
                watch(Standing(total, done, found, failed, retried, elapsed_s, dict(at), event))
    if done == 0 and failures and not any(again for _, _, again in failures):
        raise InputError(failures[0][1].error)  # nothing could be run, and it is for the user to put right
    return [failure for _, failure, _ in sorted(failures, key=lambda each: each[0].number)]


def crew_for(unwritten: Sequence[str], on: str | Callable[[Path], Crew], workers: int | None, log: Path) -> Crew:
    """Who does it. What is written down nowhere cannot be told to another process, so it is done in this one."""
    if unwritten:
        return crew_here()
    return open_crew(on, workers, log) if isinstance(on, str) else on(log)


def open_crew(on: str, workers: int | None, log: Path) -> Crew:
    """``processes``, ``ray`` or ``ray://address``. What workers have to say besides results goes to the log."""
    check_crew(on, workers)
    return local_crew(workers, log) if on == "processes" else ray_crew(None if on == "ray" else on, workers)


def check_crew(on: str, workers: int | None) -> None:
    """Refuse what is no crew, before anything is written."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}.")
    if on not in ("processes", "ray") and not on.startswith("ray://"):
        raise InputError(f"--on takes processes, ray or ray://HOST:PORT, got {on!r}.")


def local_crew(workers: int | None, log: Path) -> Crew:
    """A process per core; where there are GPUs, one per GPU."""
    gpus = _count_gpus()
    count = workers or gpus or count_cores()

    def environment(place: int) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": _visible(place % gpus), **deterministic()} if gpus else ONE_CORE

    return Crew(count, gpus > 0, lambda line: _on_processes(line, count, environment, log))


def crew_as_this(count: int, log: Path, more: Mapping[str, str], *, here: bool) -> Crew:
    """So many processes of this machine that compute as this one does: in its environment, and with ``more``.

    ``here``: this one is among them, and at work while the others are being started.
    """
    told = {name: jax.config.values.get(name) for name in WHAT_CHANGES_NUMBERS}
    env = {name.upper(): str(value) for name, value in told.items() if value is not None} | dict(more)
    return Crew(count, False, lambda line: _on_processes(line, count, lambda _: env, log, here=here))


def count_cores() -> int:
    """The cores this process may use, and no more than its container is granted."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))  # "max" is no number: there is no limit
    return cores


def crew_here() -> Crew:
    """This process, one assignment after the other."""

    def events(line: WaitingLine) -> Iterator[Event]:
        while line:
            job = line.take()
            yield Started(job, 0, os.getpid())
            yield _outcome(job, 0, work(job.specs, job.together, live=job.live))

    return Crew(1, jax.default_backend() != "cpu", events)


def _count_gpus() -> int:
    """Asked in a process of its own: whoever asks JAX holds the GPU from then on."""
    if not may_have_gpu() or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return 0
    code = "import jax; print(jax.local_device_count() if jax.default_backend() == 'gpu' else 0)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return int(asked.stdout) if asked.returncode == 0 else 0


def _visible(gpu: int) -> str:
    """The name of one GPU among those this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[gpu] if given else str(gpu)


class _Worker:
    """A process that does one job after the other. What it says arrives in an inbox; None when it has ended."""

    def __init__(self, place: int, inbox: "Inbox", env: dict[str, str], log: Path) -> None:
        code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from perfeds2.runs.worker import main; main()"
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | env,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt from the keyboard is for the one who asked
            )
        self.place = place
        self.job: Assignment | None = None
        self.shape: str | None = None  # of the last job
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()

    def give(self, job: Assignment) -> None:
        self.job, self.shape = job, job.shape
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if it has died, its reader says so
            asked = [[spec.values() for spec in job.specs], job.together, job.part, job.live]
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()

    def _read(self, inbox: "Inbox") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # else it died in the middle of a word
                inbox.put((self, json.loads(line)))
        self.process.wait()
        inbox.put((self, None))

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.kill()

    def end(self) -> None:
        self.process.kill()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it had not read yet
                pipe.close()

    @property
    def last_words(self) -> str:
        status = self.process.returncode
        if status < 0:
            name = signal.Signals(-status).name
            return f"its process was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
        return f"its process ended with status {status}"


class _Here:
    """This very process as one of them: a thread that does one job after the other."""

    def __init__(self, place: int, inbox: "Inbox") -> None:
        self.place, self.pid = place, os.getpid()
        self.job: Assignment | None = None
        self.shape: str | None = None
        self._jobs: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(inbox,), daemon=True)
        self._thread.start()

    def give(self, job: Assignment) -> None:
        self.job, self.shape = job, job.shape
        self._jobs.put(job)

    def _work(self, inbox: "Inbox") -> None:
        def watch(reply: Reply) -> None:
            if self._stopped.is_set():
                raise KeyboardInterrupt  # which nobody on the way takes for an error
            inbox.put((self, reply))

        tell = now_and_then(watch, lambda: not self._stopped.is_set())
        while (job := self._jobs.get()) is not None:
            with suppress(KeyboardInterrupt):
                inbox.put((self, work(job.specs, job.together, job.part, tell, job.live)))

    def stop(self) -> None:
        self._stopped.set()
        self._jobs.put(None)

    def end(self) -> None:
        self._thread.join()

    last_words = ""  # it does not die before the one who listens


Inbox = queue.SimpleQueue[tuple[_Worker | _Here, Reply | None]]


def _on_processes(
    line: WaitingLine, count: int, environment: Callable[[int], dict[str, str]], log: Path, *, here: bool = False
) -> Iterator[Event]:
    inbox: Inbox = queue.SimpleQueue()
    crew: dict[int, _Worker | _Here] = {}
    try:
        while True:
            for place in range(count):
                if not line:
                    break
                if place not in crew:
                    in_this = here and place == 0
                    crew[place] = _Here(place, inbox) if in_this else _Worker(place, inbox, environment(place), log)
                worker = crew[place]
                if worker.job is None:
                    busy = [other.shape for other in crew.values() if other.job is not None and other.shape is not None]
                    worker.give(line.take(worker.shape, busy))
                    assert worker.job is not None
                    yield Started(worker.job, place, worker.pid)
            if all(worker.job is None for worker in crew.values()):
                return
            worker, reply = inbox.get()
            place, job = worker.place, worker.job
            if reply is None:  # another takes its place when there is work
                del crew[place]
                worker.end()
                if job is not None:
                    yield Failed(job, place, worker.last_words, again=True, died=True)
            elif job is not None and "share" in reply:
                yield Moved(job, place, reply["share"], reply["time_s"], reply["rounds"])
            elif job is not None:
                worker.job = None
                yield _outcome(job, place, reply)
    finally:
        for worker in crew.values():
            worker.stop()
        for worker in crew.values():
            worker.end()


def _outcome(job: Assignment, worker: int, reply: Reply) -> Event:
    if "results" in reply:
        return Done(job, worker, reply["results"])
    return Failed(job, worker, reply["error"], reply["again"])


def ray_crew(address: str | None, workers: int | None) -> Crew:
    """A Ray of this machine, or the cluster at an address. The cluster needs perfeds2 installed, no shared disk."""
    try:
        import ray  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError:
        raise InputError("--on ray needs Ray, which is not installed; pip install 'perfeds2[ray]'.") from None
    started = not ray.is_initialized()
    if started:
        try:
            local: dict[str, Any] = {"include_dashboard": False, "num_cpus": workers} if address is None else {}
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            raise InputError(f"--on {address or 'ray'}: Ray cannot be reached: {str(error).splitlines()[0]}") from None
    has = ray.cluster_resources()
    gpus = int(has.get("GPU", 0))
    count = workers or gpus or max(1, int(has.get("CPU", 1)))
    return Crew(count, gpus > 0, lambda line: _on_ray(line, count, gpus > 0, started))


def _on_ray(line: WaitingLine, count: int, on_gpu: bool, shut_down: bool) -> Iterator[Event]:
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

    environment = {"env_vars": deterministic() if on_gpu else ONE_CORE}
    task: Any = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=0, runtime_env=environment)(work_for_cluster)
    running: dict[Any, tuple[Assignment, int]] = {}
    try:
        while line or running:
            free = sorted(set(range(count)) - {place for _, place in running.values()})
            for place in free:
                if line:
                    job = line.take()
                    running[task.remote([spec.values() for spec in job.specs], job.together)] = (job, place)
                    yield Started(job, place)
            ended, _ = ray.wait(list(running), num_returns=1)
            job, place = running.pop(ended[0])
            try:
                yield _outcome(job, place, ray.get(ended[0]))
            except RayError as error:  # its process or its machine died
                yield Failed(job, place, f"{type(error).__name__}: {str(error).splitlines()[0]}", again=True)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if shut_down:
            ray.shutdown()


def check_work(
    specs: Sequence[Spec], on: str | Callable[[Path], Crew], workers: int | None, retries: int, *, yes: bool
) -> None:
    """Refuse what cannot be begun, before anything is written."""
    if retries < 0:
        raise InputError(f"--retries must be 0 or more, got {retries}.")
    if isinstance(on, str):
        check_crew(on, workers)
    known = [spec for spec in specs if recipe_of(spec) is not None]
    for spec in known:  # an own task would have to be made here, and the GPU is for the workers
        check_model(spec)
    refuse_days([one for spec in known for one in trainings_of(spec)], yes=yes)


def with_seeds(spec: Spec, seeds: Sequence[int]) -> Spec:
    return spec.model_copy(update={"run": spec.run.model_copy(update={"seeds": tuple(seeds)})})
