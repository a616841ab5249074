"""Compare real rounds with the simulator's when every device has the uplink of a radio cell.

    sudo python benchmarks/shaped_uplinks.py --devices 6 --quorum 2 --rounds 10 --bandwidth-hz 2e4 --out runs/shaped

Each device gets its own network (a Linux network namespace) behind a token bucket with the rate of its position in the
cell. The same protocol is then simulated with the same rates and computing times, and the two are compared. Needs
root, Linux, iproute2 and Mosquitto.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perfeds2.deployment.credentials import LOOPBACK, credentials_beside, make_credentials, name_of
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.supervisor import claim_run, devices_command, supervise
from perfeds2.deployment.transport import Arrays, Reply, Request
from perfeds2.files import write_text
from perfeds2.learning.task import payload_bits
from perfeds2.network.link import rate_bps
from perfeds2.spec.cells import make_cell
from perfeds2.timeline.jobs import MERGED
from perfeds2.timeline.record import Timeline

SERVER_HOST = "10.231.255.1"
BURST = "64kb"
ROUNDS_OF_FADING = 101


@dataclass(frozen=True)
class Shaped:
    """A shaped run and its prediction."""

    uplink_bps: list[float]
    sent_bytes_per_job: list[float]  # all bytes on a device's uplink, divided by its jobs
    payload_bits: float  # Z
    overhead_s: float  # median per job, beyond computing and sending Z
    measured_s: list[float]  # seconds per round
    predicted_s: list[float]

    @property
    def gap(self) -> float:
        """Return how much longer the whole run took than predicted, as a share."""
        return sum(self.measured_s) / sum(self.predicted_s) - 1


def run_shaped(setup: Setup, path: Path, bandwidth_hz: float) -> Shaped:
    """Run a federation on shaped uplinks and compare it with its prediction."""
    uplink_bps = uplink_rates(setup, bandwidth_hz)
    with networks(uplink_bps) as names:
        run_inside(setup, path, names)
        sent_bytes = [_sent_bytes(device) for device in range(len(names))]
    return compare_with_prediction(setup, Timeline.load(path / "timeline.npz"), uplink_bps, sent_bytes)


def run_inside(setup: Setup, path: Path, names: list[str]) -> None:
    """Run a federation in which each device has its own network."""
    credentials = make_credentials(credentials_beside(path), setup.ues, [SERVER_HOST, *LOOPBACK])
    with (
        claim_run(path, setup) as folder,
        running_broker(credentials, (SERVER_HOST, 0), path / "broker", "mosquitto") as broker,
        Processes(path / "logs") as processes,
    ):
        setup.write(path)
        site = Site(broker.host, broker.port, credentials)
        state = {"state": path / "devices"}
        devices = {
            name_of(number): ["ip", "netns", "exec", name, *devices_command(site, str(number), state)]
            for number, name in enumerate(names)
        }
        supervise(site, folder, processes, devices)
    shutil.rmtree(credentials.folder)


def why_not() -> str | None:
    """Return what is missing to shape uplinks, or None."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root (sudo)"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"the command {missing[0]} is missing (package iproute2)" if missing else None


def uplink_rates(setup: Setup, bandwidth_hz: float) -> list[float]:
    """Return each UE's uplink rate in bit/s, with an equal share of the band and median fading."""
    # Computing speed does not matter here, and determining it would start JAX, which must not be forked.
    known = setup.spec.cell.model_copy(update={"cycles_per_sample": 1.0, "bandwidth_hz": bandwidth_hz})
    cell = make_cell(setup.spec.model_copy(update={"cell": known}), setup.seed)
    signal_hz = np.median([cell.signal_hz(k) for k in range(ROUNDS_OF_FADING)], axis=0)
    return rate_bps(np.full(cell.ues, cell.bandwidth_hz / cell.ues), signal_hz, cell.cap_bits_per_s_hz).tolist()


@contextmanager
def networks(uplink_bps: list[float]) -> Iterator[list[str]]:
    """Create one network namespace per device, with its uplink behind a token bucket. Remove everything at the end."""
    names = [f"perfeds2-{os.getpid()}-{device}" for device in range(len(uplink_bps))]
    try:
        _run("ip", "address", "add", f"{SERVER_HOST}/32", "dev", "lo")
        for device, (name, rate) in enumerate(zip(names, uplink_bps, strict=True)):
            here, there, net = f"pf2h{device}", f"pf2d{device}", f"10.231.{device}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
            _run("ip", "link", "set", there, "netns", name)
            _run("ip", "address", "add", f"{net}.1/30", "dev", here)
            _run("ip", "link", "set", here, "up")
            _run("ip", "-n", name, "address", "add", f"{net}.2/30", "dev", there)
            _run("ip", "-n", name, "link", "set", there, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "route", "add", "default", "via", f"{net}.1")
            shape = ("tbf", "rate", f"{max(round(rate), 1000)}bit", "burst", BURST, "latency", "2s")
            _run("tc", "-n", name, "qdisc", "add", "dev", there, "root", *shape)
        yield names
    finally:
        for device, name in enumerate(names):
            _run("ip", "link", "delete", f"pf2h{device}", check=False)
            _run("ip", "netns", "delete", name, check=False)
        _run("ip", "address", "delete", f"{SERVER_HOST}/32", "dev", "lo", check=False)


def compare_with_prediction(
    setup: Setup, timeline: Timeline, uplink_bps: list[float], sent_bytes: list[float]
) -> Shaped:
    """Simulate the run's protocol: a job takes the overhead, the device's computing time, and Z over its rate."""
    jobs, bits = timeline.jobs(), payload_bits(setup.model())
    send_s = bits / np.asarray(uplink_bps)
    beyond_s = jobs.arrival_s - jobs.start_s - timeline.compute_s[jobs.ue] - send_s[jobs.ue]
    overhead_s = float(np.median(beyond_s[jobs.outcome == MERGED]))
    predicted = predict(setup, np.maximum(overhead_s + timeline.compute_s + send_s, 1e-9), timeline.rounds)
    count = np.bincount(jobs.ue, minlength=timeline.population)
    return Shaped(
        list(uplink_bps),
        (np.asarray(sent_bytes) / np.maximum(count, 1)).tolist(),
        bits,
        overhead_s,
        np.diff(timeline.time_s, prepend=0.0).tolist(),
        np.diff(predicted.time_s, prepend=0.0).tolist(),
    )


def predict(setup: Setup, job_s: np.ndarray, rounds: int) -> Timeline:
    """Simulate rounds with a fixed job duration per device. Weights do not matter, so the model has only one."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deployment"))
    from in_process import InProcess  # type: ignore[import-not-found]  # in tests/

    def answer(request: Request, params: Arrays) -> Reply:
        return Reply(request.ue, request.ticket, request.version, params)

    clock = InProcess(answer, lambda request: float(job_s[request.ue]), setup.ues)
    protocol, learner, patient = setup.algorithm.protocol, setup.algorithm.learner, DeploymentSpec(job_s=0)
    federation = Federation(protocol, learner, {"w": np.zeros(1, np.float32)}, clock, setup.ues, rounds, patient)
    while federation.round < rounds:
        federation.step(wait_s=math.inf)
    return federation.timeline()


def _sent_bytes(device: int) -> float:
    return float(Path(f"/sys/class/net/pf2h{device}/statistics/rx_bytes").read_text())


def _plot(shaped: Shaped, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    rounds = np.arange(len(shaped.measured_s))
    axes.bar(rounds - 0.2, shaped.measured_s, 0.4, label="measured")
    axes.bar(rounds + 0.2, shaped.predicted_s, 0.4, label="predicted")
    axes.set(xlabel="round", ylabel="seconds", title=f"whole run {shaped.gap:+.1%} against the prediction")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own commands)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--quorum", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bandwidth-hz", type=float, default=2e4)
    parser.add_argument("--out", type=Path, default=Path("runs/shaped"))
    given = parser.parse_args()
    if (obstacle := why_not()) is not None:
        print(f"Cannot shape uplinks: {obstacle}.", file=sys.stderr)
        return 2
    setup = Setup.from_texts({"devices": given.devices, "quorum": given.quorum, "rounds": given.rounds})
    path = given.out.resolve()
    shaped = run_shaped(setup, path, given.bandwidth_hz)
    write_text(path / "shape.json", json.dumps(asdict(shaped) | {"gap": shaped.gap}, indent=1) + "\n")
    _plot(shaped, path / "shape.png")
    measured_s, predicted_s = sum(shaped.measured_s), sum(shaped.predicted_s)
    print(f"Uplinks: {', '.join(f'{rate / 1e3:.0f}' for rate in shaped.uplink_bps)} kbit/s")
    print(f"Median round: {np.median(shaped.measured_s):.2f} s, predicted {np.median(shaped.predicted_s):.2f} s")
    print(f"Whole run: {measured_s:.1f} s, predicted {predicted_s:.1f} s ({shaped.gap:+.1%}); see {path / 'shape.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
