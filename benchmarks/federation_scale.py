"""Measure what a round costs the server of a federation, for few and for many devices.

    python benchmarks/federation_scale.py

Devices are functions in this process and time is virtual, so only the server is measured: receiving and judging
replies, closing rounds, merging, handing out models, a checkpoint after every round (with its fsyncs), and a status as
often as ``serve`` writes it. Times are CPU seconds, which depend least on the machine's load. The first rounds, in
which all devices receive their first model, are not counted; the very first one is reported separately.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.server import status_of
from perfeds2.deployment.transport import Reply
from perfeds2.learning.learner import Learner
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.objectives import FedAvg
from perfeds2.runs.folder import Folder
from perfeds2.timeline.protocol import Protocol, Stale

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deployment"))
from in_process import InProcess  # type: ignore[import-not-found]  # in tests/

STATUS_EVERY_S = 0.5
PROTOCOLS: dict[str, tuple[Any, Stale]] = {  # the bound S, and the rule for UEs that would exceed it
    "restart, S = 2n/A": ("in time", "restart"),
    "ignore, S = 2n/A": ("in time", "ignore"),
    "no bound": (None, "restart"),
    "wait, S = 4": (4, "wait"),  # 150 work at a time, all others wait for their turn
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--quorum", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=200, help="measured, after half as many that are not")
    parser.add_argument("--parameters", type=int, default=79_510, help="of the model (the MNIST network's by default)")
    parser.add_argument("--churn", type=float, default=0.0, help="devices that leave and come back, a round")
    given = parser.parse_args()
    print(
        f"{'protocol':>18} {'devices':>8} {'first round':>12} {'a round, median':>16} {'p90':>10} {'of it saving':>13} {'status':>8}"
    )
    for name in PROTOCOLS:
        for devices in given.devices:
            print(f"{name:>18} {devices:>8,} {measure(name, devices, given)}", flush=True)
    return 0


def measure(name: str, devices: int, given: argparse.Namespace) -> str:
    in_time = 2 * devices // given.quorum  # rounds in which every device can be merged
    most, stale = PROTOCOLS[name]
    protocol = Protocol(given.quorum, in_time if most == "in time" else most, stale)
    rng = np.random.default_rng(0)
    update = {"w": rng.normal(size=given.parameters).astype(np.float32) / np.float32(300)}
    said: dict[str, float] = dict.fromkeys(METRICS, 0.5)
    # Keep arrivals per round constant; otherwise more devices would mean more replies to judge in each round.
    pace_s = rng.uniform(0.5, 1.5, devices) * max(devices / given.quorum, 1.0)
    net = InProcess(
        lambda job, _: Reply(job.ue, job.ticket, job.version, update, said), lambda job: float(pace_s[job.ue]), devices
    )
    learner, own = Learner(FedAvg(), beta=0.07), DeploymentSpec(readmit_s=0.0)
    first = {"w": rng.normal(size=given.parameters).astype(np.float32)}
    warm, rounds = given.rounds // 2, given.rounds + given.rounds // 2
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        folder.parts.mkdir()
        checkpoints, saving_s, status_s = Checkpoints(folder), [0.0], [0.0]
        federation = Federation(protocol, learner, first, net, devices, rounds, own, folder.log)

        def save(state: Federation) -> None:
            began_s = time.process_time()
            checkpoints.save(state, 0.0)
            saving_s[0] += time.process_time() - began_s

        federation.save = save
        took_s, parts, told_s, before, began_s = [], [], time.monotonic(), 0, time.process_time()
        while federation.round < rounds:
            federation.step(wait_s=1e9)  # the virtual clock jumps to the next arrival
            if time.monotonic() - told_s > STATUS_EVERY_S:
                told_s, writing_s = time.monotonic(), time.process_time()
                status_of(federation, "training").write(folder.path)
                status_s[0] += time.process_time() - writing_s
            if federation.round > before:
                now_s, closed = time.process_time(), federation.round - before
                took_s += [(now_s - began_s) / closed] * closed
                parts += [(saving_s[0] / closed, status_s[0] / closed)] * closed
                before, began_s, saving_s[0], status_s[0] = federation.round, now_s, 0.0, 0.0
                for ue in rng.integers(devices, size=rng.poisson(given.churn)).tolist():
                    net.present.discard(ue)
                    net.present.add(ue)
    measured = np.array(took_s[warm:rounds])
    saving, status = np.array(parts[warm:rounds]).mean(axis=0)
    return (
        f"{took_s[0] * 1e3:>9.1f} ms {np.median(measured) * 1e3:>13.2f} ms {np.quantile(measured, 0.9) * 1e3:>7.2f} ms "
        f"{saving * 1e3:>10.2f} ms {status * 1e3:>5.2f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
