"""Measure how long a round of a real federation takes.

    python benchmarks/federation.py [--cases digits-6-6]

A case is a task, the number of devices and the quorum. It runs as ``perfeds2 federate local`` does: a broker or
server, one process with the model, one process per device, TLS and certificates, all on this machine. Prints one JSON
line per case: the median and 90th percentile of a round and of a job's overhead beyond computing, the time until the
first round closed, and the machine's load.

``--ready 3`` instead runs ``perfeds2 federate local --devices 6 --quorum 2`` three times, the first with an empty
compile cache. It reports the seconds until the first round closed and until the end, and the final personalised
accuracy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2.deployment.calibrate import read_laps
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import Status
from perfeds2.timeline.record import Timeline

CASES = ["digits-6-6", "digits-6-2", "mnist-20-20", "mnist-20-5"]
WARM = 3  # rounds left out at the start


def measure(case: str, rounds: int) -> dict[str, Any]:
    task, devices, quorum = case.split("-")
    setup = Setup.from_texts(
        {"task": task, "devices": devices, "quorum": quorum, "rounds": rounds, "max-staleness": 10}
    )
    with tempfile.TemporaryDirectory(prefix="perfeds2-bench-") as folder:
        path, started_s, first = Path(folder) / "run", time.monotonic(), list[float]()

        def show(status: Status) -> None:
            if status.round and not first:
                first.append(time.monotonic() - started_s)

        run_locally(setup, path, show=show)
        took_s = np.diff(Timeline.load(path / "timeline.npz").time_s, prepend=0.0)[WARM:]
        laps = read_laps(path)
        return {
            "task": task,
            "devices": int(devices),
            "quorum": int(quorum),
            "rounds": rounds,
            "round_s": quantiles(took_s),
            "job_overhead_s": quantiles((laps.took_s - laps.compute_s).to_numpy()),
            "first_round_after_s": round(first[0], 1) if first else None,
            "load_average": round(os.getloadavg()[0], 1),
            "replay_relative_difference": replay_run(path).relative,
        }


def quantiles(seconds: np.ndarray) -> dict[str, float]:
    return {"median": round(float(np.median(seconds)), 4), "p90": round(float(np.quantile(seconds, 0.9)), 4)}


def ready(number: int) -> dict[str, Any]:
    """Time the command from its start; run 0 has an empty compile cache."""
    with tempfile.TemporaryDirectory(prefix="perfeds2-bench-") as folder:
        path, cache = Path(folder) / "run", {} if number else {"PERFEDS2_COMPILE_CACHE": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "perfeds2", "federate", "local", "--devices", "6", "--quorum", "2"]
        started_s, ready_s = time.monotonic(), None
        process = subprocess.Popen([*command, "--quiet", "--out", str(path)], env=os.environ | cache)  # noqa: S603 (ours)
        while process.poll() is None:
            log = path / "events.log"
            if ready_s is None and log.exists() and "round 0 closed" in log.read_text():
                ready_s = time.monotonic() - started_s
            time.sleep(0.05)
        took_s = time.monotonic() - started_s
        rows = [line.split(",") for line in (path / "metrics.csv").read_text().splitlines()]
        return {
            "compiled_before": bool(number),
            "first_round_after_s": None if ready_s is None else round(ready_s, 1),
            "rounds": len(Timeline.load(path / "timeline.npz").time_s),
            "all_done_after_s": round(took_s, 1),
            "personal_accuracy": round(float(rows[-1][rows[0].index("test_accuracy_personal")]), 3),
            "load_average": round(os.getloadavg()[0], 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ready", type=int, default=0, metavar="TIMES")
    given = parser.parse_args()
    for number in range(given.ready):
        print(json.dumps(ready(number)), flush=True)
    if given.ready:
        return 0
    for case in given.cases.split(","):
        print(json.dumps(measure(case, given.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
