"""Estimate the time and memory that trainings need, and derive the number of worker processes."""

import math
import os
import subprocess  # only starts this Python interpreter
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from perfeds2.errors import InputError
from perfeds2.learning.compiled import may_have_gpu
from perfeds2.learning.evaluate import evaluated_ues
from perfeds2.learning.operations import multiply_adds
from perfeds2.learning.task import parameters
from perfeds2.runs.trainer import Workbench
from perfeds2.runs.training import Training
from perfeds2.spec.build import make_algorithms, make_timelines
from perfeds2.spec.tasks import make_task, model_of, sample_of

DAY_S = 86_400.0
ROUNDS = 8  # simulated to measure the pace
MOST_LOOKED_AT = 16  # trainings whose pace is measured, at most
LEAST_WORK_S = 4.0  # of one core; with less work a second process would start too late
WORK_EACH_S = 2.0  # minimum work per process: starting one takes about as long
PROCESS_BYTES = 600 << 20  # Python, JAX and its compiler; on a GPU, the CUDA libraries
GPU_PROCESS_BYTES = 2 << 30  # host memory of a process that computes on a GPU
MOST_ON_GPU = 4  # default maximum of processes; four fill a GPU
GRADIENT_S = 1e-4  # overhead per gradient, which dominates for small models
FLOPS = 1e10  # floating-point operations per second of one core
EVALUATIONS = (60, 30, 20, 10)  # of a training: the first that takes no longer than the training
LEAST_EVALUATING_S = 1.0  # core-seconds of a training's evaluations that are always accepted


# ---- time


def seconds_needed(trainings: Sequence[Training], *, trains: bool = True) -> tuple[float, float]:
    """Estimate the core-seconds for simulating and for training, from the pace of the first rounds.

    Returns:
        The seconds of one core for all timelines, and those for all trainings (0 without ``trains``).
    """
    some = [one for one in trainings if one.seed == trainings[0].seed]
    some = some[:: max(1, len(some) // MOST_LOOKED_AT)]
    bench, clock_s, train_s = Workbench(), 0.0, 0.0
    for one in some:
        spec, run, stage = one.spec, one.spec.run, bench.stage(one)
        few = max(ROUNDS, spec.edges * (spec.cells.edge_rounds or 1))  # every edge plays at least one exchange
        short = spec.with_(run=run.with_(rounds=few, horizon_s=None))
        (algorithm,) = make_algorithms(spec, stage)
        began_s = time.perf_counter()
        (played,) = make_timelines(short, replace(stage, timelines={}), [algorithm], guess=True)
        if not played.rounds:  # a baseline without rounds
            continue
        pace_s = (time.perf_counter() - began_s) / few
        rounds = run.rounds or (run.horizon_s or 0.0) / max(played.end_s / few, 1e-12)
        clock_s += rounds * pace_s
        if trains:
            train_s += rounds * played.quorum * (GRADIENT_S + _sample_s(one) * algorithm.learner.samples)
    more = len(trainings) / max(len(some), 1)
    return clock_s * more, train_s * more


def evaluations_worth(trainings: Sequence[Training]) -> int:
    """Return how often each of these should be evaluated: 60 times, or less often if that takes longer than training."""
    train_s = seconds_needed(trainings)[1] / len(trainings)
    once_s = _evaluation_s(trainings[0])
    accepted = (count for count in EVALUATIONS if count * once_s <= max(train_s, LEAST_EVALUATING_S))
    return next(accepted, EVALUATIONS[-1])


def _evaluation_s(training: Training) -> float:
    """Estimate the core-seconds of one evaluation: on each UE's training samples a gradient, and the loss after the step."""
    data = make_task(training.spec, training.seed).data
    longest = data.lengths()[0]
    counts = np.asarray(data.train_count)[evaluated_ues(data.ues)]
    samples = np.where(counts > 0, np.minimum(counts, longest), longest)  # generated data are unlimited
    return float((GRADIENT_S + 4 / 3 * _sample_s(training) * samples).sum())


def _sample_s(training: Training) -> float:
    """Estimate the core-seconds of a forward and a backward pass of one sample."""
    return 2.0 * multiply_adds(model_of(training.spec), sample_of(training.spec)) / FLOPS


def refuse_days(trainings: Sequence[Training], *, yes: bool, trains: bool = True) -> None:
    """Refuse work that is estimated to take more than one day on this machine, unless ``yes``.

    Raises:
        InputError: If the estimate exceeds one day.
    """
    days = 0.0 if yes or not trainings else sum(seconds_needed(trainings, trains=trains)) / DAY_S
    if days > 1:
        raise InputError(
            f"this would take about {days:.3g} days of this machine's time; "
            f"give a shorter --horizon-s or fewer --rounds, or --yes to run it anyway."
        )


# ---- memory


def bytes_needed(trainings: Sequence[Training]) -> int:
    """Estimate the memory in bytes of a process that can train any one of these: its data and its models."""
    every = {(one.spec.task, one.spec.cell.ues): one for one in trainings}
    return PROCESS_BYTES + max(_training_bytes(one) for one in every.values())


def group_bytes(group: Sequence[Training]) -> int:
    """Estimate the GPU memory in bytes of a group. The factor 2 covers evaluation, which batches many UEs."""
    return PROCESS_BYTES + 2 * len(group) * _training_bytes(group[0])


def _training_bytes(one: Training) -> int:
    task = make_task(one.spec, one.seed)
    data = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(task.data))
    models = 128 + 2 * one.spec.cell.ues  # buffered models, one round's uploads, and the state that each UE may keep
    return 2 * data + 4 * parameters(task.model) * models


def free_bytes() -> int | None:
    """Return the free memory of this machine and its container in bytes; None if the system does not report it."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        found.append(limit - used)
    return max(0, min(found)) if found else None


def free_gpu_bytes() -> int | None:
    """Return the GPU memory in bytes that this process leaves to others; None if JAX does not report it.

    It is 0 if JAX preallocated everything.
    """
    known = jax.local_devices()[0].memory_stats() or {}
    return max(0, known["bytes_limit"] - known.get("pool_bytes", 0)) if "bytes_limit" in known else None


# ---- processes


def count_cores() -> int:
    """Return how many cores this process may use, at most the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))  # "max" (no limit) raises ValueError
    return cores


def count_gpus() -> int:
    """Count GPUs in a separate process, because a process that asks JAX holds the GPU from then on."""
    if not may_have_gpu() or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return 0
    code = "import jax; print(jax.local_device_count() if jax.default_backend() == 'gpu' else 0)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return int(asked.stdout) if asked.returncode == 0 else 0


def count_workers(trainings: Sequence[Training]) -> int:
    """Return how many processes of one core can train these, limited by cores and memory."""
    free, cores = free_bytes(), count_cores()
    return cores if free is None or not trainings else max(1, min(cores, free // bytes_needed(trainings)))


def count_processes(groups: Sequence[Sequence[Training]], asked: int | None, *, together: bool = False) -> int:
    """Return how many processes train groups of trainings; 1 means that this process trains them in turn.

    It is the number asked for, or else what cores, memory and the amount of work justify. Objects that are defined in
    no file cannot be sent to another process, so they train in this one. With several GPUs this process trains each
    group on all of them.

    Args:
        groups: The trainings of each job.
        asked: The number asked for; None derives it.
        together: Each group is trained in one batch, and above 1 the processes share a GPU and do not include this
            one. They pay off because some compile while others train, and small models leave most of a GPU idle.
    """
    trainings = [one for group in groups for one in group]
    if len(groups) < 2 or any(one.spec.unwritten for one in trainings):
        return 1
    if jax.default_backend() not in ("cpu", "gpu" if together else "cpu") or jax.local_device_count() > 1:
        return 1
    if asked is not None:
        return min(asked, len(groups))
    limits = [len(groups), count_cores()]
    if together:
        limits.append(MOST_ON_GPU)
        free_gpu, each = free_gpu_bytes(), GPU_PROCESS_BYTES
        if free_gpu is not None:
            limits.append(free_gpu // max(map(group_bytes, groups)))
    else:
        if min(limits) < 2 or (work_s := seconds_needed(trainings)[1]) < LEAST_WORK_S:
            return 1
        limits.append(math.ceil(work_s / WORK_EACH_S))
        each = bytes_needed(trainings)
    free = free_bytes()
    return max(1, min(limits if free is None else [*limits, free // each]))
