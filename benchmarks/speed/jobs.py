"""Measure how well trainings scale over several processes.

Every process gets the same number of trainings, so twice the processes do twice the work, ideally in the same time.
Starting the processes is included.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.timing import Announce, Measurement, measured
from perfeds2.runs.estimate import count_cores
from perfeds2.runs.pool import PROCESSES, WorkerChoice, run_all
from perfeds2.runs.store import Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec.resolve import spec_from

EACH = 6  # trainings per process
SETTINGS = {"algorithms": ["PerFedS2"], "horizon_s": 60.0}  # takes a second or two on one core
TURNS = 2


def jobs_group(
    repeats: int, seed: int, announce: Announce, each: int = EACH, settings: Mapping[str, Any] = SETTINGS
) -> Iterator[Measurement]:
    """Measure one process, two, four, … up to one per core."""
    cores = count_cores()
    counts = sorted({1, *(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores})
    turns = min(repeats, TURNS)
    announce(f"jobs: {each} trainings for each of {', '.join(map(str, counts))} processes, {turns} turns …")
    seconds, kept = {count: np.empty(turns) for count in counts}, dict[str, set[bytes]]()
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"  # as in commands with several trainings
    try:
        for turn in range(-1, turns):  # turn -1 compiles
            for count in counts if turn >= 0 else counts[:1]:
                took_s, files = _train(count, range(seed, seed + count * each), settings)
                if turn >= 0:
                    seconds[count][turn] = took_s
                for name, content in files.items():
                    kept.setdefault(name, set()).add(content)
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before
    yield measured("jobs/one", f"{each} trainings in one process, its start included", seconds[1], "s")
    for count in counts[1:]:
        what = f"{count * each} trainings in {count} processes: the first time over this one"
        yield measured(f"jobs/{count}", what, seconds[1] / seconds[count], "", at_least=0.7)
    differ = np.array([float(sum(len(contents) > 1 for contents in kept.values()))])
    yield measured("jobs/bytes", "trainings that left other bytes beside others", differ, "", at_most=0)


def _train(processes: int, seeds: Sequence[int], settings: Mapping[str, Any]) -> tuple[float, dict[str, bytes]]:
    """Return the seconds taken and the files that the trainings wrote."""
    spec = spec_from(**settings, seeds=list(seeds))
    with tempfile.TemporaryDirectory(prefix="perfeds2-bench-") as place:
        store = Store(Path(place) / "trainings", whole=True)
        began = time.perf_counter()
        trained = run_all(trainings_of(spec), store, WorkerChoice(processes, PROCESSES, retries=0))
        took_s = time.perf_counter() - began
        if trained.failures:
            raise RuntimeError(f"a training of the benchmark failed: {trained.failures[0].error}")
        assert store.path is not None
        return took_s, {path.name: path.read_bytes() for path in store.path.glob("*.safetensors")}
