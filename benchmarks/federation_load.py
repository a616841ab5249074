"""Measure what hundreds of devices cost the server and the broker of a federation.

    python benchmarks/federation_load.py [--idle 1000]

Every device has its own certificate and TLS connection. The working devices share processes (``perfeds2 federate
device --together``) and compute in turn, so a round takes as long as computing its updates on this machine. The idle
devices connect, join the run and receive a job, but never do it. Prints JSON: the cost of the idle devices while
nothing happens, then the time of a round and what each process spends on it.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from idle_connections import KEEP_ALIVE_S, connect, cost

from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.messages import Here
from perfeds2.deployment.mqtt.broker import Broker, running_broker
from perfeds2.deployment.mqtt.embedded import Message, Type, packet
from perfeds2.deployment.mqtt.wire import Topics
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.status import read_status
from perfeds2.deployment.supervisor import SERVING, claim_run, devices_command, serving_command

AT_ONCE = 20  # concurrent connection attempts
CLOSED = re.compile(r"round (\d+) closed at ([\d.]+) s")


def measure(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    everybody, path = given.devices + given.idle, folder / "run"
    settings = {"task": given.task, "labels-per-ue": given.labels_per_ue, "devices": everybody, "rounds": 1_000_000}
    settings |= {"quorum": given.quorum, "max-staleness": 4 * -(-given.devices // given.quorum), "gather-s": 600}
    setup = Setup.from_texts(settings)
    setup.task(0)  # too few samples for that number of devices: say so before anything starts
    credentials = make_credentials(folder / "credentials", everybody)
    with (
        running_broker(credentials, ("127.0.0.1", 0), folder / "broker", "mosquitto") as broker,
        claim_run(path, setup),
        Processes(path / "logs") as processes,
    ):
        setup.write(path)
        site = Site(broker.host, broker.port, credentials)
        pids = {
            "broker": broker.process_id,
            "server": processes.start(SERVING, serving_command(site, path)),
        }
        wait_for(lambda: "connected to" in processes.log(SERVING).read_text())
        with idle(credentials, broker, range(given.devices, everybody)):
            if given.idle:
                wait_for(lambda: here(path) == given.idle)
                before, began_s = costs(pids), time.monotonic()
                time.sleep(given.idle_s)
                yield {"idle": given.idle} | spent(before, costs(pids), time.monotonic() - began_s, "of_a_second")
            began_s = time.monotonic()
            for part in np.array_split(np.arange(given.devices), given.processes):
                name = f"{part[0]}-{part[-1]}"
                together = [*devices_command(site, name, {}), "--together"]
                pids[f"devices {name}"] = processes.start(name, together)
            wait_for(lambda: rounds(path) >= given.warm)
            first_s, before = time.monotonic() - began_s, (costs(pids), rounds(path))
            wait_for(lambda: rounds(path) >= given.warm + given.rounds)
            after = costs(pids), rounds(path)
    closed_s = [float(seconds) for _, seconds in CLOSED.findall((path / "events.log").read_text())]
    took_s = np.diff(closed_s)[given.warm : given.warm + given.rounds]
    yield {
        "devices": given.devices,
        "idle": given.idle,
        "quorum": given.quorum,
        "rounds": len(took_s),
        "round_s": {"median": round(float(np.median(took_s)), 3), "p90": round(float(np.quantile(took_s, 0.9)), 3)},
        f"round_{given.warm}_after_s": round(first_s, 1),
        **spent(before[0], after[0], after[1] - before[1], "a_round"),
    }


def costs(pids: dict[str, int]) -> dict[str, tuple[float, float, int]]:
    """Return, per process, the CPU seconds so far, the memory in MB and the bytes read and written so far."""
    return {name: (*cost(pid), passed(pid)) for name, pid in pids.items()}


def passed(process: int) -> int:
    counts = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])


def spent(before: dict[str, Any], after: dict[str, Any], times: float, unit: str) -> dict[str, Any]:
    return {
        name: {
            f"cpu_ms_{unit}": round(1e3 * (after[name][0] - before[name][0]) / times, 2),
            f"read_and_written_mb_{unit}": round((after[name][2] - before[name][2]) / times / 1e6, 3),
            "memory_mb": round(after[name][1]),
        }
        for name in before
    } | {"load_average": round(os.getloadavg()[0], 1)}


def wait_for(what: Callable[[], bool], within_s: float = 240.0) -> None:
    ends_s = time.monotonic() + within_s
    while not what():
        if time.monotonic() > ends_s:
            raise SystemExit("it did not happen in time; see the logs.")
        time.sleep(0.05)


def here(path: Path) -> int:
    status = read_status(path)
    return 0 if status is None else sum(count for state, count in status.states.items() if state != "away")


def rounds(path: Path) -> int:
    status = read_status(path)
    return 0 if status is None else status.round


@contextmanager
def idle(credentials: Credentials, broker: Broker, numbers: range) -> Iterator[None]:
    """Keep devices connected from a thread; they announce themselves and ping, nothing else."""
    ended = threading.Event()

    async def run() -> None:
        few = asyncio.Semaphore(AT_ONCE)
        writers = await asyncio.gather(*(connect(credentials, broker, number, few) for number in numbers))
        for number, writer in zip(numbers, writers, strict=True):
            said = Here(here=True, session=str(number)).to_bytes()
            writer.write(Message(Topics().here(number), said, 0, True).packet(retained=True))
        while not ended.is_set():
            for writer in writers:  # spread evenly over time
                writer.write(packet(Type.PINGREQ))
                await asyncio.sleep(KEEP_ALIVE_S / len(writers) / 2)
                if ended.is_set():
                    break
        for writer in writers:
            writer.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()) if numbers else None, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--devices", type=int, default=300, help="that work")
    parser.add_argument("--idle", type=int, default=0, help="further ones that do nothing")
    parser.add_argument("--idle-s", type=float, default=20.0, help="how long these are looked at alone")
    parser.add_argument("--processes", type=int, default=1, help="that the working devices share")
    parser.add_argument("--quorum", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--warm", type=int, default=20, help="rounds before those that are counted")
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--labels-per-ue", type=int, help="1 for 300 devices on the digits")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfeds2-load-") as folder:
        for measured in measure(given, Path(folder)):
            print(json.dumps(measured, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
