"""Measure where the time of a small comparison goes when it is run a second time.

One fresh process does the parts in sequence and reports the CPU seconds of each, which depend little on the machine's
load. The real command overlaps what it can.
"""

import json
import os
import subprocess  # only runs this Python
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.timing import Announce, Measurement, measured

PARTS = {
    "import": "importing Python packages",
    "check": "reading the data, checking what was asked for",
    "clock": "playing the virtual clock",
    "compile": "tracing, and finding compiled programs in the cache",
    "train": "training",
    "evaluate": "evaluating",
    "report": "writing results and the report",
}
SETTINGS = {"horizon_s": 30.0}  # of the comparison, besides the defaults
TURNS = 3


def waiting_group(
    repeats: int, seed: int, announce: Announce, settings: Mapping[str, Any] = SETTINGS
) -> Iterator[Measurement]:
    """Measure the parts of compare --seeds 1."""
    turns = min(repeats, TURNS)
    announce(f"waiting: perfeds2 compare --seeds 1 in a fresh process, in parts, {turns} turns …")
    first = "from perfeds2.learning.compiled import collect_rarely; collect_rarely()"  # as in the commands
    imports = "from benchmarks.speed.waiting import main; from perfeds2.report.run import write_report"
    code = f"{first}; {imports}; main({seed}, {dict(settings)}, write_report)"
    spent: list[dict[str, float]] = []
    for _ in range(-1, turns):  # the first run fills the cache
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
        spent.append(json.loads(done.stdout.splitlines()[-1]))
    each = {part: np.array([one[part] for one in spent[1:]]) for part in PARTS}
    whole = np.sum(list(each.values()), axis=0)
    yield measured("waiting/whole", "perfeds2 compare --seeds 1 again, of one core", whole, "s")
    for part, what in PARTS.items():
        yield measured(f"waiting/{part}", f"of it {what}", each[part], "s")
    share = each["evaluate"] / whole
    yield measured("waiting/evaluations", "share of the whole that evaluations are", share, "", at_most=0.1)


def main(seed: int, settings: Mapping[str, Any], write_report: Callable[[Path], object]) -> None:
    """Print the CPU seconds of each part as JSON; runs in the fresh process."""
    spent, last = dict.fromkeys(PARTS, 0.0), 0.0

    def lap(part: str) -> None:
        nonlocal last
        now = time.process_time()  # since the start of the process
        spent[part] += now - last
        last = now

    import jax

    from perfeds2.learning.compiled import deterministic, keep_compiled, one_core_each
    from perfeds2.learning.evaluate import evaluate
    from perfeds2.learning.replay import Prepared, advance, start
    from perfeds2.learning.script import Script
    from perfeds2.runs.trainer import Workbench
    from perfeds2.runs.training import trainings_of
    from perfeds2.spec.build import check
    from perfeds2.spec.resolve import spec_from
    from perfeds2.studies.compare import train_spec

    lap("import")
    os.environ.update(deterministic())  # as in the commands; otherwise the compile cache would be a different one
    one_core_each()
    keep_compiled()
    spec = spec_from(**settings, seeds=[seed])
    check(spec, trains=True)
    bench = Workbench()
    lap("check")
    every = [bench.prepare(training) for training in trainings_of(spec)]
    lap("clock")
    with tempfile.TemporaryDirectory(prefix="perfeds2-bench-") as place:
        for one in every:
            trial, learner = one.lane, one.algorithm.learner
            own, steps = learner.objective.personal, learner.personal_steps
            script = Script.of(trial.timeline, learner.merge)
            prepared = Prepared.of(trial.task, script, learner, seed)
            state = advance(prepared, start(trial.task, script, learner, seed), 0, 1)
            jax.block_until_ready(
                evaluate(trial.task, state.params, learner.personal_step, state.client_state, own, steps)
            )
            lap("compile")
            state = jax.block_until_ready(advance(prepared, state, 1, trial.timeline.rounds))
            lap("train")
            for _ in one.points[1:]:
                jax.block_until_ready(
                    evaluate(trial.task, state.params, learner.personal_step, state.client_state, own, steps)
                )
            lap("evaluate")
        spec = spec.model_copy(update={"run": spec.run.model_copy(update={"rounds": 1, "horizon_s": None})})
        train_spec(spec, "compare", Path(place) / "run")
        write_report(Path(place) / "run")
    lap("report")
    print(json.dumps(spent))
