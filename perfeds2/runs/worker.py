"""What does a worker of a sweep or a comparison do all day?

It reads one job a line, trains it, and writes what came out in a line. It lives until its input ends, so programs
compiled for one job serve the next of the same shape, and nobody is left over when the one who asked is killed.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.errors import InputError

if TYPE_CHECKING:
    from perfeds2.runs.comparison import Comparison
    from perfeds2.runs.execute import Progress, ProgressWatch
    from perfeds2.runs.live import Place
    from perfeds2.spec.fields import Spec

Reply = dict[str, Any]
Result = dict[str, Any]  # what came out of one seed
FACTS = ("rounds", "merges", "staleness_mean", "seconds_per_round", "waiting_share", "wasted_share")  # of a timeline
TELL_EVERY_S = 0.2
Part = Sequence[Any]  # which trainings of the specs, and where they leave what comes out: as ``train_part`` takes it
Jobs = queue.SimpleQueue[tuple[list[dict[str, Any]], bool | None, Part | None, "Place | None"]]


def work(
    specs: "Sequence[Spec | dict[str, Any]]",
    together: bool | None = None,
    part: Part | None = None,
    watch: "ProgressWatch | None" = None,
    live: "Place | None" = None,
) -> Reply:
    """Train what specs say, those of equal shape at once unless told otherwise. Returns for each spec a result per seed.

    Of a part there are none: its folder has it. Or in words what went wrong, and whether it may help to try again.
    """
    from perfeds2.runs.live import Live

    told = None if live is None else Live(Path(live[0]))
    shown: dict[str, Any] = {} if live is None else {"live": told, "labels": live[1]}
    try:
        from perfeds2.runs.execute import execute_all, train_part
        from perfeds2.spec.resolve import resolve

        if part is not None:
            known = [_resolved(json.dumps(spec)) if isinstance(spec, dict) else spec for spec in specs]
            train_part(known, *part, watch=watch, **shown)
            return {"results": []}
        resolved = [resolve(spec) if isinstance(spec, dict) else spec for spec in specs]
        together = (len(specs) > 1 or None) if together is None else together
        compared = execute_all(resolved, "sweep", watch=watch, together=together, **shown)
        return {"results": [results_of(each) for each in compared]}
    except InputError as error:
        return {"error": str(error), "again": False}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "again": True}
    finally:
        if told is not None:
            told.close()


@lru_cache(maxsize=64)
def _resolved(values: str) -> "Spec":
    """The same spec for the same text, so that what is the user's own is loaded once."""
    from perfeds2.spec.resolve import resolve

    return resolve(json.loads(values))


def results_of(compared: "Comparison") -> list[Result]:
    """What a sweep keeps of a comparison: per seed, each algorithm's facts and metrics, and how each UE ended."""
    from perfeds2.spec.build import upload_bits

    metrics: dict[tuple[str, int], list[Result]] = {}
    ues: dict[tuple[str, int], list[float]] = {}
    for row in compared.ue_rows:
        ues.setdefault((row["algorithm"], row["seed"]), []).append(row["test_accuracy_personal"])
    bits = {each.name: upload_bits(compared.spec, each.learner.objective) for each in compared.algorithms}
    for row in compared.rows:
        kept = {key: value for key, value in row.items() if key not in ("algorithm", "seed")}
        metrics.setdefault((row["algorithm"], row["seed"]), []).append(kept)
    return [
        {
            "seed": seed,
            "algorithms": [
                {
                    "algorithm": row["algorithm"],
                    **{fact: row[fact]["values"][place] for fact in (*FACTS, "time_to_target_s")},
                    **{fact: row[fact] for fact in ("mode", "quorum")},
                    "upload_bits": bits[row["algorithm"]],
                    "metrics": metrics[row["algorithm"], seed],
                    "ue_accuracy_personal": ues[row["algorithm"], seed],
                }
                for row in compared.summary["algorithms"]
            ],
        }
        for place, seed in enumerate(compared.spec.run.seeds)
    ]


def work_for_cluster(specs: list[dict[str, Any]], together: bool | None) -> Reply:
    """The same in a process that a cluster has started."""
    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()
    return work(specs, together)


def main() -> None:
    """Serve jobs from standard input until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whoever prints must not talk into the replies
    jobs: Jobs = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()

    def say(reply: Reply) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    from perfeds2.learning.compiled import collect_rarely, keep_compiled

    collect_rarely()
    keep_compiled()  # what one worker has compiled, the others and the next sweep find
    watch = now_and_then(say)
    while True:
        specs, together, part, live = jobs.get()
        say(work(specs, together, part, watch, live))


def now_and_then(say: Callable[[Reply], None], may_wait: Callable[[], bool] = lambda: True) -> "ProgressWatch":
    """Says how far the work is, a few times a second; at once where it may not wait."""
    told = 0.0

    def watch(now: "Progress") -> None:
        nonlocal told
        if time.monotonic() - told > TELL_EVERY_S or not may_wait():
            told = time.monotonic()
            say({"share": now.share, "time_s": now.time_s, "rounds": now.rounds})

    return watch


def _read(jobs: "Jobs") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # nobody is there any more, whatever the other threads are at
