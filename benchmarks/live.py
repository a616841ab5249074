"""Measure what progress lines and the live page cost a run, in CPU seconds.

The cost is measured within a single run, because on a busy machine two consecutive runs differ by more than that.

    python benchmarks/live.py [TURNS]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.report.live import LivePage
from perfeds2.runs import progress
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.session import Execution
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import train_spec

SPEC = {"seeds": [0], "horizon_s": 30.0}  # the default comparison: six algorithms, 61 evaluations each


def counted(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Wrap a function so that the CPU seconds of each call are appended to ``spent``."""

    def measured(*given: Any, **more: Any) -> Any:
        began_s = time.thread_time()
        try:
            return call(*given, **more)
        finally:
            spent.append(time.thread_time() - began_s)

    return measured


def turn(place: Path) -> tuple[float, float, float]:
    """Return the CPU seconds of one comparison: for its progress lines, for its followers, and in total."""
    spec, lines, followers, began_s = spec_from(**SPEC), list[float](), list[float](), time.process_time()
    patch = mock.patch.object
    with (
        patch(progress.LiveFile, "evaluations", counted(progress.LiveFile.evaluations, lines)),
        patch(progress.LiveFile, "training", counted(progress.LiveFile.training, lines)),
        patch(progress.LiveFile, "share", counted(progress.LiveFile.share, lines)),
        patch(progress, "_follow", counted(progress._follow, followers)),
    ):
        train_spec(spec, "compare", place, Execution(WorkerChoice(), followers=[LivePage(place)]))
    return sum(lines), sum(followers), time.process_time() - began_s


def main(turns: int) -> None:
    prepare_to_train(2)
    with tempfile.TemporaryDirectory() as home:
        turn(Path(home) / "first")  # warm-up: compiles
        shares = list[float]()
        for number in range(turns):
            lines, followers, all_s = turn(Path(home) / str(number))
            shares.append((lines + followers) / all_s)
            print(f"lines {lines:.3f} s, page {followers:.3f} s of {all_s:.1f} s: {shares[-1]:.2%}", flush=True)
        print(f"median of {turns} turns: {statistics.median(shares):.2%} of the processor seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
