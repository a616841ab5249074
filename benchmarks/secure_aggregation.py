"""Measure what secure aggregation costs a federation: seconds and bytes of a round, beside a plain one.

    python benchmarks/secure_aggregation.py [--devices 6,20,50]

Every device has its own certificate and TLS connection, all of them share one process and compute in turn, and every
round waits for all of them. Prints a row of JSON for each number of devices: the median seconds of a round, and the
megabytes that the broker reads and writes for it.
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
from perfeds2.deployment.mqtt.link import Site
from perfeds2.deployment.mqtt.runs import SERVING, claim_run, devices_command, serving_command
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.setup import Setup

WARM = 2  # rounds that are not counted


def measure(devices: int, count: int, task: str, folder: Path, *, secure: bool) -> dict[str, Any]:
    """Run some rounds of a federation on this machine, and return what each cost."""
    settings = {"task": task, "devices": devices, "quorum": devices, "rounds": 1_000_000, "clip": 5.0}
    setup = Setup.from_texts(settings | {"algorithm": "FedAvgS2", "secure-aggregation": secure, "gather-s": 600})
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
    given = parser.parse_args()
    for devices in map(int, given.devices.split(",")):
        found = {}
        for name, secure in (("plain", False), ("secure", True)):
            with tempfile.TemporaryDirectory() as folder:
                found[name] = measure(devices, given.rounds, given.task, Path(folder), secure=secure)
        ratio = {what: round(found["secure"][what] / found["plain"][what], 2) for what in ("seconds", "mb")}
        print(json.dumps({"devices": devices, "task": given.task, **found, "ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
