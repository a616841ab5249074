"""Measure what secure aggregation costs a federation: seconds and bytes of a round, beside a plain one.

    python benchmarks/secure_aggregation.py [--devices 6,20,50] [--kinds "plain planned,secure planned"]

Every device has its own certificate and TLS connection, all of them share one process and compute in turn, and every
round waits for all of them: the first that arrive, or those of a plan. Prints a row of JSON for each number of devices: the
median seconds of a round, and the megabytes that the broker reads and writes for it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from federation_load import CLOSED, passed, rounds, wait_for

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.supervisor import SERVING, claim_run, devices_command, serving_command

WARM = 2  # rounds that are not counted


def measure(devices: int, count: int, task: str, folder: Path, kind: str) -> dict[str, Any]:
    """Run some rounds of a federation on this machine, and return what each cost."""
    settings = {"task": task, "devices": devices, "quorum": devices, "rounds": 1_000_000, "clip": 5.0}
    settings |= {"algorithm": "FedAvgS2", "gather-s": 600, "schedule": "round_robin" if "planned" in kind else "first"}
    setup = Setup.from_texts(settings | {"secure-aggregation": "secure" in kind})
    credentials, path = make_credentials(folder / "credentials", devices), folder / "run"
    with (
        running_broker(credentials, ("127.0.0.1", 0), folder / "broker") as broker,
        claim_run(path, setup),
        Processes(path / "logs") as processes,
    ):
        setup.write(path)
        site = Site(broker.host, broker.port, credentials)
        processes.start(SERVING, serving_command(site, path))
        processes.start("devices", [*devices_command(site, f"0-{devices - 1}", {}), "--together"])
        wait_for(lambda: rounds(path) >= WARM)
        before = passed(broker.process_id), rounds(path)
        wait_for(lambda: rounds(path) >= before[1] + count)
        after = passed(broker.process_id), rounds(path)
    closed_s = [float(seconds) for _, seconds in CLOSED.findall((path / "events.log").read_text())]
    took_s = np.median(np.diff(closed_s)[WARM:])
    return {"seconds": round(float(took_s), 3), "mb": round((after[0] - before[0]) / (after[1] - before[1]) / 1e6, 3)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", default="6,20,50")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--kinds", default="plain,secure,plain planned,secure planned")
    given = parser.parse_args()
    for devices in map(int, given.devices.split(",")):
        found = {}
        for kind in given.kinds.split(","):
            with tempfile.TemporaryDirectory() as folder:
                found[kind] = measure(devices, given.rounds, given.task, Path(folder), kind)
            print(json.dumps({"devices": devices, "task": given.task, "kind": kind, **found[kind]}), flush=True)
        for kind in [each for each in found if "secure" in each and each.replace("secure", "plain") in found]:
            plain = found[kind.replace("secure", "plain")]
            ratio = {what: round(found[kind][what] / plain[what], 2) for what in plain}
            print(json.dumps({"devices": devices, "task": given.task, "kind": kind, "ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
