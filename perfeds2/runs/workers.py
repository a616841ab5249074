"""Run training jobs in this process, or in other processes of this machine.

Workers take jobs from a queue and report events. They know nothing about studies or retries: a job to be retried is
put into the queue again.
"""

import json
import os
import queue
import signal
import subprocess  # only starts this Python interpreter
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import jax

from perfeds2.errors import InputError
from perfeds2.files import Json
from perfeds2.learning.compiled import collect_rarely, deterministic, keep_compiled
from perfeds2.learning.train import MetricMeans
from perfeds2.runs.progress import LiveFile
from perfeds2.runs.store import Store
from perfeds2.runs.trainer import PreparedTraining, Workbench, train_group
from perfeds2.runs.training import Training
from perfeds2.spec.build import Algorithm
from perfeds2.spec.fields import Spec
from perfeds2.spec.resolve import resolve
from perfeds2.spec.tasks import metric_of

# Parallel workers use one core each, so that results do not depend on the number of workers.
ONE_CORE = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # GPU memory, so that processes can share it
CHANGES_NUMBERS = (  # JAX settings that affect results and that a program may have changed
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable"),
    *("jax_numpy_dtype_promotion", "jax_disable_most_optimizations"),
)
TELL_EVERY_S = 0.2
KEPT_DATA = 2  # data sets and stages that a worker caches for its next jobs

Reply = Json  # about a job: started, share, clock, done or error
Tell = Callable[[Reply], None]


@dataclass(frozen=True)
class Job:
    """One unit of work: a training, or a group that a GPU trains in one batch."""

    number: int
    trainings: tuple[Training, ...]
    group: str = ""  # hash of the group; empty for a single training
    halves: bool = True  # may be split in two if memory runs out

    @property
    def title(self) -> str:
        more = len(self.trainings) - 1
        return self.trainings[0].title + (f" and {more} more" if more else "")

    @cached_property
    def program(self) -> str:
        return self.trainings[0].program


@dataclass(frozen=True)
class Event:
    """A worker's reply about a job."""

    place: int  # number of the worker
    job: Job
    reply: Reply


def take_job(waiting: list[Job], last: str | None = None, busy: Sequence[str] = ()) -> Job:
    """Take the next job from the list.

    Prefer the program this worker compiled last, then the one that the fewest other workers are training.
    """

    def cost(at: int) -> tuple[bool, int]:
        return waiting[at].program != last, busy.count(waiting[at].program)

    return waiting.pop(min(range(len(waiting)), key=cost))


# ---- one job


@dataclass(frozen=True)
class Place:
    """Where results and evaluations are written."""

    store: Store
    live: LiveFile | None


def train_job(job: Job, prepared: Sequence[PreparedTraining], place: Place, tell: Tell) -> None:
    """Train a job whose timelines have been simulated, and report its progress to ``tell``."""
    at: dict[str, tuple[float, int]] = {}  # share done and rounds of each training

    def evaluated(one: PreparedTraining, values: Sequence[MetricMeans]) -> None:
        training, spec = one.training, one.training.spec
        if place.live is not None:
            known = {"metric": metric_of(spec), "target": spec.run.target_accuracy, "config": spec.values()}
            of = len(one.points)
            name = place.live.training(training.label, one.algorithm.name, training.seed, of, **known)
            place.live.evaluations(name, partial(one.rows, values))
        now, last = one.points[len(values) - 1], one.points[-1]
        at[training.key] = now.time_s / max(last.time_s, 1e-300), now.round
        share = sum(share for share, _ in at.values()) / len(prepared)
        tell({"share": share, "time_s": now.time_s, "rounds": sum(rounds for _, rounds in at.values())})

    train_group(prepared, place.store, evaluated, group_key=job.group, halves=job.halves)


def _failure(error: Exception) -> Reply:
    again = not isinstance(error, InputError)
    return {"error": f"{type(error).__name__}: {error}" if again else str(error), "again": again, "cause": error}


def throttled(tell: Tell, must: Callable[[], bool] = lambda: False) -> Tell:
    """Return a throttled ``tell`` that passes on a few replies a second, or any reply while ``must()`` is true."""
    told_s = 0.0

    def throttled(reply: Reply) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > TELL_EVERY_S or must():
            told_s = time.monotonic()
            tell(reply)

    return throttled


class TrainingWorker:
    """Runs jobs and puts events into an inbox; an event of None means that the worker has ended."""

    takes_all = False  # whether it is given all jobs at once
    program: str | None = None  # the program it compiled last

    def __init__(self, number: int, inbox: "Inbox", place: Place) -> None:
        self.number, self.inbox, self.place, self.jobs = number, inbox, place, list[Job]()

    def say(self, job: Job, reply: Reply) -> None:
        self.inbox.put((self, Event(self.number, job, reply)))

    @property
    def why_ended(self) -> str:
        """Return why the worker ended."""
        return ""

    def give(self, job: Job) -> None:
        """Start a job."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop without waiting and without finishing jobs."""

    def end(self) -> None:
        """Wait until the worker has stopped."""


Inbox = queue.SimpleQueue[tuple[TrainingWorker, Event | None]]


# ---- in this process


class ThisProcess(TrainingWorker):
    """This process as worker 0: one thread simulates timelines ahead of the threads that train.

    With ``takes_all`` it receives all jobs at once, so that simulation overlaps with training.
    """

    def __init__(self, inbox: Inbox, place: Place, threads: int, *, takes_all: bool) -> None:
        super().__init__(0, inbox, place)
        self.takes_all, self._bench = takes_all, Workbench(None if takes_all else KEPT_DATA)
        self._clocks, self._trainers = ThreadPoolExecutor(1), ThreadPoolExecutor(threads)
        self._free = list(range(threads))  # numbers of the idle threads
        self._compiled: dict[str, threading.Event] = {}  # by program, set when its first training has compiled it
        self._stopped = threading.Event()

    def give(self, job: Job) -> None:
        self.jobs.append(job)
        self._clocks.submit(self._prepare, job)

    def _prepare(self, job: Job) -> None:
        says = throttled(lambda reply: self._say(self.number, job, reply), self._stopped.is_set)

        def told(algorithm: Algorithm, _: int, time_s: float) -> None:
            says({"clock": f"{algorithm.name} seed {job.trainings[0].seed}", "time_s": time_s})

        with suppress(KeyboardInterrupt):
            try:
                prepared = [self._bench.prepare(one, told) for one in job.trainings]
                waits = job.program in self._compiled
                compiled = self._compiled.setdefault(job.program, threading.Event())
                self._trainers.submit(self._train, job, prepared, compiled, waits=waits)
            except Exception as error:
                self._say(self.number, job, _failure(error))

    def _train(self, job: Job, prepared: Sequence[PreparedTraining], compiled: threading.Event, *, waits: bool) -> None:
        """Train a job. It waits for the first one with its program instead of compiling the program a second time."""
        if waits:
            compiled.wait()
        number = self._free.pop()

        def tell(reply: Reply) -> None:
            compiled.set()
            self._say(number, job, reply)

        with suppress(KeyboardInterrupt):
            try:
                self._say(number, job, {"started": True})
                train_job(job, prepared, self.place, tell)
                self._say(number, job, {"done": True})
            except Exception as error:
                self._say(number, job, _failure(error))
        compiled.set()
        self._free.append(number)

    def _say(self, number: int, job: Job, reply: Reply) -> None:
        if self._stopped.is_set():
            raise KeyboardInterrupt  # not an Exception, so no handler reports it as an error
        self.inbox.put((self, Event(number, job, reply)))

    def stop(self) -> None:
        self._stopped.set()

    def end(self) -> None:
        self._clocks.shutdown(cancel_futures=True)
        self._trainers.shutdown(cancel_futures=True)


# ---- in other processes


class Process(TrainingWorker):
    """A process that runs one job after another."""

    def __init__(self, number: int, inbox: Inbox, place: Place, env: Mapping[str, str], log: Path) -> None:
        super().__init__(number, inbox, place)
        code = (  # imports make hardly any garbage
            "import gc, json, sys; gc.disable(); sys.path[:] = json.loads(sys.argv[1]); "
            "from perfeds2.runs.workers import main; gc.enable(); main()"
        )
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | dict(env),
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C goes to the command only
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def give(self, job: Job) -> None:
        self.jobs.append(job)
        self.program = job.program
        self.say(job, {"started": True})
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if it has died, the reader reports it
            self.process.stdin.write(json.dumps(job_as_text(job, self.place)) + "\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # otherwise it died while writing
                self.say(self.jobs[0], json.loads(line))
        self.process.wait()
        self.inbox.put((self, None))

    def stop(self) -> None:
        self.process.kill()

    def end(self) -> None:
        self.process.kill()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # unread input
                pipe.close()

    @property
    def why_ended(self) -> str:
        status = self.process.returncode
        if status < 0:
            name = signal.Signals(-status).name
            return f"its process was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
        return f"its process ended with status {status}"


def job_as_text(job: Job, place: Place) -> Json:
    """Return a job as JSON-compatible values, for another process."""
    return {
        "trainings": [[one.spec.values(), one.label] for one in job.trainings],
        "group": job.group,
        "halves": job.halves,
        "store": str(place.store.path),
        "whole": place.store.whole,
        "live": None if place.live is None else str(place.live.folder),
    }


# ---- environments of worker processes


def as_this_process() -> dict[str, str]:
    """Return the environment in which another process computes the same numbers as this one, without a GPU."""
    told = {name: jax.config.values.get(name) for name in CHANGES_NUMBERS}
    return {name.upper(): str(value) for name, value in told.items() if value is not None} | {"JAX_PLATFORMS": "cpu"}


def share_gpu() -> dict[str, str]:
    """Return the environment of processes that share this process's GPU; with NVIDIA MPS their kernels overlap."""
    if jax.default_backend() == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    environment = dict(ON_DEMAND)
    if not os.environ.get("JAX_PLATFORMS"):  # fail without a GPU instead of training on the CPU
        version = jax.local_devices()[0].client.platform_version
        environment["JAX_PLATFORMS"] = "rocm,cpu" if "rocm" in version.lower() else "cuda,cpu"
    return environment


def one_gpu_each(gpus: int, number: int) -> dict[str, str]:
    """Return the environment of a worker on one of the GPUs, or on one core if there are none."""
    if not gpus:
        return ONE_CORE
    given, gpu = os.environ.get("CUDA_VISIBLE_DEVICES"), number % gpus
    return {"CUDA_VISIBLE_DEVICES": given.split(",")[gpu] if given else str(gpu)} | ON_DEMAND | deterministic()


# ---- the worker process


def main() -> None:
    """Serve jobs from standard input until it closes, which happens even if the command is killed."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep other output out of the replies
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()

    def say(reply: Reply) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    collect_rarely()
    keep_compiled()  # shares compiled programs with other workers and later studies
    bench, tell = Workbench(KEPT_DATA), throttled(say)
    while True:
        say(serve_text(json.loads(lines.get()), bench, tell))


def _read_lines(lines: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the command is gone; exit whatever the other threads do


def serve_text(asked: Json, bench: Workbench, tell: Tell) -> Reply:
    """Run a job given as JSON values."""
    live = None
    try:
        made = tuple(Training(_resolved(json.dumps(values)), label) for values, label in asked["trainings"])
        job = Job(0, made, asked["group"], asked["halves"])
        store = Store(Path(asked["store"]), whole=asked["whole"])
        live = None if asked["live"] is None else LiveFile(Path(asked["live"]))
        train_job(job, [bench.prepare(one) for one in made], Place(store, live), tell)
        return {"done": True}
    except Exception as error:
        if not isinstance(error, InputError):
            traceback.print_exc()
        return _failure(error) | {"cause": None}  # an exception may not survive the way back
    finally:
        if live is not None:
            live.close()


@lru_cache(maxsize=64)
def _resolved(values: str) -> Spec:
    """Resolve a spec, cached by its text so that the user's own objects are loaded only once."""
    return resolve(json.loads(values))
