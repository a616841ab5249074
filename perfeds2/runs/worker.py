"""What does a worker of a sweep do all day?

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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfeds2.spec.fields import Spec

Reply = dict[str, Any]
Result = dict[str, Any]  # what came out of one seed
TELL_EVERY_S = 0.2


def work(specs: list[dict[str, Any]], watch: Callable[[float], None] | None = None) -> Reply:
    """Train what specs say, given as nested values. Returns for each spec a result per seed.

    Or in words what went wrong, and whether it may help to try again.
    """
    from perfeds2.spec.fields import InputError

    try:
        from perfeds2.spec.fields import resolve

        return {"results": train_specs([resolve(values) for values in specs], watch)}
    except InputError as error:
        return {"error": str(error), "again": False}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "again": True}


def train_specs(specs: "Sequence[Spec]", watch: Callable[[float], None] | None = None) -> list[list[Result]]:
    """One spec as ``compare`` trains it; several together, those of equal shape at once."""
    if len(specs) > 1:
        from perfeds2.runs.points_together import train_points

        return [results_of(*point) for point in train_points(specs, watch)]
    from perfeds2.runs.execute import execute

    share = None if watch is None else lambda now: watch(now.share)
    comparison = execute(specs[0], "sweep", None, watch=share)
    return [results_of(specs[0], comparison.summary, comparison.rows)]


def results_of(spec: "Spec", summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Result]:
    """What a sweep keeps of a comparison: per seed, each algorithm's facts and metrics."""
    facts = ("rounds", "merges", "staleness_mean", "seconds_per_round", "waiting_share", "wasted_share")
    metrics: dict[tuple[str, int], list[Result]] = {}
    for row in rows:
        kept = {key: value for key, value in row.items() if key not in ("algorithm", "seed")}
        metrics.setdefault((row["algorithm"], row["seed"]), []).append(kept)
    return [
        {
            "seed": seed,
            "algorithms": [
                {
                    "algorithm": row["algorithm"],
                    **{fact: row[fact]["values"][place] for fact in (*facts, "time_to_target_s")},
                    "metrics": metrics[row["algorithm"], seed],
                }
                for row in summary["algorithms"]
            ],
        }
        for place, seed in enumerate(spec.run.seeds)
    ]


def work_for_cluster(specs: list[dict[str, Any]]) -> Reply:
    """The same in a process that a cluster has started."""
    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()
    return work(specs)


def main() -> None:
    """Serve jobs from standard input until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whoever prints must not talk into the replies
    jobs: queue.SimpleQueue[list[dict[str, Any]]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()

    def say(reply: Reply) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()  # what one worker has compiled, the others and the next sweep find
    told = 0.0

    def watch(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            say({"share": share})

    while True:
        say(work(jobs.get(), watch))


def _read(jobs: "queue.SimpleQueue[list[dict[str, Any]]]") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # nobody is there any more, whatever the other threads are at


if __name__ == "__main__":
    main()
