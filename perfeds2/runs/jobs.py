"""How many processes train, when a command has several trainings, and who trains what?

A training hardly gains from a second core, but two trainings do from two. So each has a process of its own, and leaves
what comes out in the run's folder, where the one who asked finds it, as it would when resuming.
"""

import errno
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import jax

from perfeds2.errors import InputError
from perfeds2.learning.task import parameters
from perfeds2.runs.crew import Assignment, Done, Failed, Moved, WaitingLine, core_crew, count_cores
from perfeds2.spec.build import Stage, make_algorithms, make_task, make_timelines, model_of
from perfeds2.spec.fields import Spec

LEAST_WORK_S = 4.0  # of one core: with less to do, another process would come too late
WORK_EACH_S = 2.0  # at least: what a process takes to start
PROCESS_BYTES = 600 << 20  # of Python, JAX and its compiler
GRADIENT_S = 1e-4  # of a small model, whatever its arithmetic
FLOPS = 1e10  # a second, of one core
RETRIES = 2  # of a training whose process died


def count_jobs(specs: Sequence[Spec], jobs: int | None) -> int:
    """How many processes train, this one among them: as many as asked for, or as cores, memory and the work call for.

    What is written down nowhere cannot be told to another process, and a GPU trains all at once.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}.")
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
    task = make_task(spec, spec.run.seeds[0])
    data = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(task.data))
    models = 128 + 2 * spec.cell.ues  # the shelf, a round's uploads, and what each UE may keep
    return PROCESS_BYTES + 2 * data + 4 * parameters(task.model) * models


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
) -> None:
    """Let processes do all jobs: ``collect`` hears of each when it is done, ``tell`` how far it is, ``say`` what went wrong.

    This one is among them unless not ``here``. A job whose process died is done again, and goes on where its checkpoint stands.
    """
    line, attempts = WaitingLine(jobs), Counter[int]()
    with closing(core_crew(processes, log, here=here).events(line)) as events:  # type: ignore[type-var]  # a generator
        for event in events:
            match event:
                case Moved():
                    tell(event.job, event)
                case Done():
                    collect(event.job)
                case Failed(again=False):
                    raise InputError(event.error)
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
