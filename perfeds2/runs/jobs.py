"""How many processes train, when a command has several trainings, and who trains what?

A training hardly gains from a second core, but two trainings do from two. So each has a process of its own, and leaves
what comes out in the run's folder, where the one who asked finds it, as it would when resuming.
"""

import errno
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import jax

from perfeds2.errors import InputError
from perfeds2.learning.task import Task, parameters
from perfeds2.runs.crew import Assignment, Done, Failed, Moved, WaitingLine, count_cores, crew_as_this
from perfeds2.runs.entrants import Contender
from perfeds2.spec.build import Stage, make_algorithms, make_task, make_timelines, model_of
from perfeds2.spec.fields import Spec

LEAST_WORK_S = 4.0  # of one core: with less to do, another process would come too late
WORK_EACH_S = 2.0  # at least: what a process takes to start
PROCESS_BYTES = 600 << 20  # of Python, JAX and its compiler; of a GPU, what CUDA loads
GPU_PROCESS_BYTES = 2 << 30  # of the machine's memory, where a process computes on a GPU
MOST_ON_GPU = 4  # processes, unless asked for more: they fill it
GRADIENT_S = 1e-4  # of a small model, whatever its arithmetic
FLOPS = 1e10  # a second, of one core
RETRIES = 2  # of a training whose process died
ON_CORES = {"JAX_PLATFORMS": "cpu"}


def count_jobs(specs: Sequence[Spec], jobs: int | None) -> int:
    """How many processes train, this one among them: as many as asked for, or as cores, memory and the work call for.

    What is written down nowhere cannot be told to another process.
    """
    _check(jobs)
    most = sum(len(spec.algorithms) * len(spec.run.seeds) for spec in specs)
    if jobs == 1 or most < 2 or any(spec.unwritten for spec in specs):
        return 1
    if jax.default_backend() != "cpu" or jax.local_device_count() > 1:
        return 1
    if jobs is not None:
        return min(jobs, most)
    count = min(most, count_cores())
    if count < 2 or (work := work_s(specs)) < LEAST_WORK_S:
        return 1
    count = min(count, math.ceil(work / WORK_EACH_S))
    free = free_bytes()
    return count if free is None else max(1, min(count, free // max(map(bytes_needed, _one_a_task(specs)))))


def _check(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}.")


def count_group_jobs(groups: Sequence[Sequence[Contender]], jobs: int | None) -> int:
    """How many processes train groups of trainings on one GPU, this one not among them; 1: this one, group after group.

    While one compiles the others train, and small models leave each other most of a GPU. Several GPUs share a group.
    """
    _check(jobs)
    if len(groups) < 2 or any(one.spec.unwritten for group in groups for one in group):
        return 1
    if jax.default_backend() not in ("cpu", "gpu") or jax.local_device_count() > 1:
        return 1
    if jobs is not None:
        return min(jobs, len(groups))
    needed = max(_group_bytes(group) for group in groups)
    return side_by_side(len(groups), count_cores(), needed, free_gpu_bytes(), free_bytes())


def side_by_side(groups: int, cores: int, needed: int, free_gpu: int | None, free: int | None) -> int:
    """As many as there are groups, cores to compile on, and memory for on the GPU and beside it; a few are enough."""
    count = min(groups, cores, MOST_ON_GPU)
    if free_gpu is not None:
        count = min(count, free_gpu // needed)
    if free is not None:
        count = min(count, free // GPU_PROCESS_BYTES)
    return max(1, count)


def _group_bytes(group: Sequence[Contender]) -> int:
    """About what a group takes of a GPU, twice: an evaluation looks at many UEs at once."""
    return PROCESS_BYTES + 2 * sum(_training_bytes(one.spec, one.task) for one in group if one.task is not None)


def free_gpu_bytes() -> int | None:
    """What this process leaves of its GPU to others: nothing, if JAX took all at once. None where nobody says it."""
    known = jax.local_devices()[0].memory_stats() or {}
    return max(0, known["bytes_limit"] - known.get("pool_bytes", 0)) if "bytes_limit" in known else None


def work_s(specs: Sequence[Spec], rounds: int = 8) -> float:
    """About how long one core would train, by the pace of the first rounds."""
    some = specs[:: max(1, len(specs) // 8)]  # of a set of figures
    total_s = 0.0
    for spec in some:
        stage, run = Stage.of(spec, spec.run.seeds[0]), spec.run
        short = spec.model_copy(update={"run": run.model_copy(update={"rounds": rounds, "horizon_s": None})})
        sample_s = 6.0 * parameters(model_of(spec)) / FLOPS  # forward and backward
        for algorithm in make_algorithms(spec, stage):
            (played,) = make_timelines(short, replace(stage, timelines={}), [algorithm])
            closed = run.rounds or (run.horizon_s or 0.0) / max(played.end_s / rounds, 1e-12)
            gradient_s = GRADIENT_S + sample_s * algorithm.learner.samples
            total_s += closed * played.quorum * gradient_s * len(run.seeds)
    return total_s / len(some) * len(specs)


def _one_a_task(specs: Sequence[Spec]) -> list[Spec]:
    return list({(spec.task, spec.cell.ues): spec for spec in specs}.values())


def bytes_needed(spec: Spec) -> int:
    """About what a process takes that trains one of these: the data, and the models that wait on the shelf."""
    return PROCESS_BYTES + _training_bytes(spec, make_task(spec, spec.run.seeds[0]))


def _training_bytes(spec: Spec, task: Task) -> int:
    data = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(task.data))
    models = 128 + 2 * spec.cell.ues  # the shelf, a round's uploads, and what each UE may keep
    return 2 * data + 4 * parameters(task.model) * models


def free_bytes() -> int | None:
    """The memory that is free, for this machine and its container; None where nobody says it."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        found.append(limit - used)
    return max(0, min(found)) if found else None


def do_jobs(
    jobs: Sequence[Assignment],
    processes: int,
    log: Path,
    collect: Callable[[Assignment], None],
    tell: Callable[[Assignment, Moved], None],
    say: Callable[[Assignment, str], None],
    *,
    here: bool = True,
    environment: Mapping[str, str] = ON_CORES,
    hand_back: bool = False,
) -> list[Assignment]:
    """Let processes do all jobs: ``collect`` hears of each when it is done, ``tell`` how far it is, ``say`` what went wrong.

    This one is among them unless not ``here``; the others see no GPU, unless their ``environment`` is another. A job
    whose process died is done again, and goes on where its checkpoint stands. Those that failed although their process
    lived are not, if they are to be handed back: they are returned.
    """
    line, attempts, failed = WaitingLine(jobs), Counter[int](), list[Assignment]()
    crew = crew_as_this(processes, log, environment, here=here)
    with closing(crew.events(line)) as events:  # type: ignore[type-var]  # a generator
        for event in events:
            match event:
                case Moved():
                    tell(event.job, event)
                case Done():
                    collect(event.job)
                case Failed(again=False):
                    raise InputError(event.error)
                case Failed(died=False) if hand_back:
                    say(event.job, f"{event.error}; trained again when the others have ended")
                    failed.append(event.job)
                case Failed():
                    attempts[event.job.number] += 1
                    say(event.job, f"{event.error} (attempt {attempts[event.job.number]} of {RETRIES + 1})")
                    if attempts[event.job.number] > RETRIES:
                        raise ChildProcessError(
                            errno.ECHILD,
                            f"{event.job.label} failed {RETRIES + 1} times: {event.error}; see {log.name}, and if memory "
                            f"is short, take fewer --jobs",
                            str(log.parent),
                        )
                    line.put(event.job)
                case _:
                    pass
    with suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()
    return failed


def alone_with_it(job: Assignment) -> Assignment:
    """The same for somebody who has all the memory: what is too large even so is trained by halves."""
    assert job.part is not None
    return replace(job, part=(*job.part[:2], True))
