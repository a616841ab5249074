"""What happens to a real federation when parts of it die or lie? Run by hand: python tests/deployment/drills.py NAME

Each drill starts a whole federation on this machine, hurts it, and prints what came of it. The figures in docs/deploy.md
come from here. With Flower: kill-devices, kill-server-app, kill-superlink, liars, overhead, fedavg, slow. With ``--engine
mqtt``: kills, slow.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tomli_w

from perfeds2.deployment.flower.local import free_port
from perfeds2.deployment.flower.site import QUIET, app_folder
from perfeds2.deployment.processes import Processes, marked
from perfeds2.timeline.record import Timeline

PERFEDS2 = str(Path(sys.executable).parent / "perfeds2")
MERGED = re.compile(r"UE (\d+) \(version (\d+), ticket (\d+)\)")


class Drill:
    """A federation in a process of its own, which can be looked at and hurt."""

    def __init__(self, folder, *flags, command=None, engine="flower"):
        self.folder = folder
        self.process = subprocess.Popen(
            command or [PERFEDS2, "federate", "local", "--engine", engine, "--out", str(folder), "--quiet", *flags],
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    @property
    def mark(self):
        return re.findall(r"processes are marked (\w+)", self.log())[-1]

    def log(self):
        path = self.folder / "events.log"
        return path.read_text() if path.exists() else ""

    def status(self):
        path = self.folder / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"round": 0, "phase": "", "devices": [], "recent": []}

    def wait_for(self, what, timeout_s=600):
        ends = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None or what(), f"ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < ends, self.log()
            time.sleep(0.2)

    def wait_for_round(self, number):
        self.wait_for(lambda: self.status()["round"] >= number or self.process.poll() is not None)

    def end(self, timeout_s=900):
        self.process.wait(timeout_s)
        assert self.process.returncode == 0, self.log()

    def pids(self, *words):
        """Processes of this federation whose command has all these words."""
        found = []
        for pid in marked(self.mark):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in command for word in words):
                found.append(pid)
        return found


def check_log(folder):
    """Every round of the timeline is in the log exactly once, with the jobs it merged, and no job is there twice."""
    timeline = Timeline.load(folder / "timeline.npz")
    rounds = {}
    tickets = []
    for line in (folder / "events.log").read_text().splitlines():
        if match := re.search(r" round (\d+) closed", line):
            assert int(match[1]) not in rounds, f"round {match[1]} is there twice"
            merged = MERGED.findall(line)
            rounds[int(match[1])] = [(int(ue), int(version)) for ue, version, _ in merged]
            tickets += [int(ticket) for *_, ticket in merged]
    assert len(tickets) == len(set(tickets)), "a job was merged twice"
    expected = [
        list(zip(ues, versions, strict=True))
        for ues, versions in zip(timeline.ues.tolist(), timeline.versions.tolist(), strict=True)
    ]
    assert [rounds[k] for k in range(timeline.rounds)] == expected, "the log and the timeline differ"
    return timeline


def replayed(folder):
    done = subprocess.run([PERFEDS2, "replay", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def kill_devices(folder):
    """kill -9 two of six devices in the middle of their jobs."""
    with Drill(folder, "--devices", "6", "--quorum", "2", "--max-staleness", "3", "--rounds", "30") as drill:
        drill.wait_for_round(2)
        keys = ("device-4.key", "device-5.key")
        began = drill.status()
        for key in keys:
            for pid in drill.pids("flower.device", key):
                os.killpg(pid, signal.SIGKILL)
        killed_s, k = began["time_s"], began["round"]
        print(f"killed devices 4 and 5 at {killed_s:.0f} s, in round {k}")
        drill.end()
    timeline = check_log(folder)
    back = [
        (ue, float(timeline.time_s[rounds[0]]), int(rounds[0]))
        for ue in (4, 5)
        if (rounds := np.flatnonzero((timeline.ues == ue).any(axis=1) & (timeline.time_s > killed_s + 20))).size
    ]
    meanwhile = int(
        ((timeline.time_s > killed_s) & (timeline.time_s < min([s for _, s, _ in back], default=np.inf))).sum()
    )
    print(f"rounds closed between the kill and the first return: {meanwhile}")
    for ue, time_s, round_ in back:
        print(f"device {ue} was merged again in round {round_}, {time_s - killed_s:.0f} s after it was killed")
    print(replayed(folder))


def kill_server_app(folder):
    """kill -9 the process that has the model."""
    kill_in_round_3(folder, "flower.server_task")


def kill_superlink(folder):
    """kill -9 the SuperLink."""
    kill_in_round_3(folder, "flower.superlink")


def kill_in_round_3(folder, command):
    with Drill(folder, "--devices", "4", "--quorum", "2", "--rounds", "8") as drill:
        drill.wait_for_round(3)
        before = drill.status()["round"]
        for pid in drill.pids(command):
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        print(f"killed {command} in round {before}")
        drill.wait_for(lambda: "resumed:" in drill.log())
        print(f"resumed after {time.monotonic() - killed:.0f} s: {re.findall('resumed: .*', drill.log())[0]}")
        drill.wait_for_round(before + 1)
        print(f"the next round closed {time.monotonic() - killed:.0f} s after the kill")
        drill.end()
    timeline = check_log(folder)
    print(f"{timeline.rounds} rounds in the log, each once; no job merged twice")
    print(replayed(folder))


LIAR = """
import sys
from dataclasses import replace

import numpy as np

from perfeds2.deployment.flower import device

honest = device.answer


def lie(setup, task, request, params):
    reply = honest(setup, task, request, params)
    if reply.update is None:
        return reply
    update = dict(reply.update)
    first = sorted(update)[0]
    if request.ue == 1:
        update[first] = update[first] * np.nan
    elif request.ue == 2:
        update[first] = np.ones((3, 3), np.float32)
    elif request.ue == 3:
        update["extra"] = np.ones(50_000_000, np.float32)
    elif request.ue == 4:
        reply = replace(reply, ticket=0)
    elif request.ue == 5:
        reply = replace(reply, version=reply.version - 1)
    return replace(reply, update=update)


device.answer = lie
device.main()
"""


def liars(folder):
    """Five of seven devices lie: NaN, a wrong shape, 200 MB too much, an old ticket, an old version."""
    liar = Path(tempfile.mkdtemp()) / "liar.py"
    liar.write_text(LIAR)
    code = (
        "import sys; from pathlib import Path; from perfeds2.deployment.setup import Setup; "
        "from perfeds2.deployment.flower.local import run_locally; from perfeds2.deployment.processes import Place; "
        "settings = {'devices': 7, 'quorum': 1, 'rounds': 5, 'evaluate-s': 30, 'max-staleness': 9}; "
        f"place = Place(device_command=lambda _, command: [sys.executable, {str(liar)!r}, command[-1]]); "
        f"run_locally(Setup.from_texts(settings), Path({str(folder)!r}), place)"
    )
    with Drill(folder, command=[sys.executable, "-c", code]) as drill:
        drill.end()
    timeline = check_log(folder)
    for line in drill.log().splitlines():
        if "refused" in line or "set aside" in line:
            print(line[25:])
    print(f"merges by device: {timeline.merges.tolist()}")
    print(replayed(folder))


def seconds(folder):
    """Seconds of each round."""
    return np.diff(Timeline.load(folder / "timeline.npz").time_s, prepend=0.0)


def show(name, values):
    values = np.asarray(values)
    print(f"{name}: median {np.median(values):.2f} s, p90 {np.quantile(values, 0.9):.2f} s (of {values.size})")


def memory_mb(drill, seen):
    """The most memory each kind of process had, so far."""
    kinds = {"SuperLink": "flower.superlink", "ServerApp": "flower.server_task", "device": "flower.device"}
    for kind, word in kinds.items():
        for pid in drill.pids(word):
            try:
                high = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            except OSError:
                continue
            if high:
                seen[kind] = max(seen.get(kind, 0), int(high[1]) // 1024)


def overhead(folder):
    """Six devices, everybody waited for: what a job and a round cost beyond computing, and memory."""
    seen = {}
    with Drill(folder, "--devices", "6", "--algorithm", "PerFed-SYN", "--rounds", "5") as drill:
        drill.wait_for(lambda: "started with" in drill.log())
        while drill.process.poll() is None:
            memory_mb(drill, seen)
            time.sleep(0.5)
        drill.end()
    summary = json.loads((folder / "summary.json").read_text())
    print("overhead:", json.dumps(summary["overhead"]))
    show("round (first one left out)", seconds(folder)[1:])
    print("most memory, MB:", seen)


FEDAVG_SERVER = """
import json, time
from pathlib import Path

from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from perfeds2.deployment.setup import Setup

app = ServerApp()


@app.main()
def main(grid, context):
    setup = Setup.from_toml(context.run_config["settings"])
    n, out = setup.ues, setup.own.out
    closed = []

    class Timed(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            self.began = time.monotonic()
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            done = super().aggregate_train(server_round, replies)
            closed.append(time.monotonic() - self.began)
            return done

    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    first = ArrayRecord({name: Array(values) for name, values in setup.first_params().items()})
    strategy.start(grid, first, num_rounds=setup.rounds)
    (out / "fedavg.json").write_text(json.dumps(closed))
"""

FEDAVG_CLIENT = """
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from perfeds2.deployment.device import answer
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Request
from perfeds2.learning.compiled import keep_compiled

app = ClientApp()


@app.train()
def train(message, context):
    keep_compiled()
    setup = Setup.from_toml(context.run_config["settings"])
    params = {name: array.numpy() for name, array in message.content["arrays"].items()}
    done = answer(setup, setup.task(0), Request(0, 0, 0), params)
    model = {name: params[name] - 0.07 * done.update[name] for name in params}
    records = {"arrays": ArrayRecord({name: Array(values) for name, values in model.items()}),
               "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(records), reply_to=message)
"""


def fedavg(folder):
    """Flower's own FedAvg, in Flower's own processes as it starts them, on six devices with the same job. (No TLS.)"""
    app, home, server = Path(tempfile.mkdtemp()) / "app", folder / "home", f"127.0.0.1:{free_port()}"
    shutil.copytree(app_folder(), app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "perfeds2_app" / "client_app.py").write_text(FEDAVG_CLIENT)
    (app / "perfeds2_app" / "server_app.py").write_text(FEDAVG_SERVER)
    home.mkdir(parents=True)
    superlink = {"default": "here", "here": {"address": server, "insecure": True}}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": superlink}))
    settings = tomli_w.dumps({"devices": 6, "rounds": 5, "out": str(folder)})
    (home / "run.toml").write_text(tomli_w.dumps({"settings": settings}))
    tools = Path(sys.executable).parent
    environment = QUIET | {"FLWR_HOME": str(home), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with Processes(folder / "logs", environment) as processes:
        here = ("--insecure", "--host", "127.0.0.1", "--port")
        own = "--disable-runtime-dependency-installation"
        processes.start("superlink", [str(tools / "flower-superlink"), *here, server.partition(":")[2], own])
        time.sleep(10)
        for device in range(6):
            node = [str(tools / "flower-supernode"), *here, str(free_port()), "--superlink", server]
            processes.start(f"supernode-{device}", node)
        run = [str(tools / "flwr"), "run", str(app), "here", "--run-config", str(home / "run.toml")]
        subprocess.run(run, env=processes.environment, check=True, capture_output=True)
        while not (folder / "fedavg.json").exists():
            time.sleep(1)
    show("round (first one left out)", json.loads((folder / "fedavg.json").read_text())[1:])


def slow(folder):
    """One device of six is slow (60 s a job): 18 updates in rounds of 2, against 18 updates in rounds of all six."""
    compare(folder, "flower", ("--slow", "5=60", "--max-staleness", "5"), updates=18)


def slow_mqtt(folder):
    """One device of six takes 2 s a job, the others 0.2 s: 180 updates in rounds of 2, against 180 in rounds of all six."""
    paces = [word for ue, pace_s in enumerate([0.2] * 5 + [2]) for word in ("--slow", f"{ue}={pace_s}")]
    compare(folder, "mqtt", (*paces, "--max-staleness", "60"), updates=180)


def compare(folder, engine, flags, updates):
    for name, rules in {
        "semi-synchronous": ("--quorum", "2", "--rounds", str(updates // 2)),
        "synchronous": ("--algorithm", "PerFed-SYN", "--rounds", str(updates // 6)),
    }.items():
        with Drill(folder / name, "--devices", "6", *flags, *rules, engine=engine) as drill:
            drill.end()
        timeline = check_log(folder / name)
        show(f"{name} round", seconds(folder / name))
        end = final(folder / name)
        print(
            f"{name}: {timeline.ues.size} updates merged after {timeline.end_s:.1f} s, personal accuracy {end:.3f}; by device {timeline.merges.tolist()}"
        )


def final(folder):
    """The personal accuracy of the last model, over all devices."""
    rows = (folder / "metrics.csv").read_text().splitlines()
    return float(rows[-1].split(",")[rows[0].split(",").index("test_accuracy_personal")])


def kills(folder, count=50, seed=0):
    """kill -9 of a device, of all devices, of the process that has the model, or of the broker, at random, some two at a time; six devices."""
    rng, rounds = random.Random(seed), 7 * count
    paces = [word for ue in range(6) for word in ("--slow", f"{ue}=0.2")]  # so that most die at work
    flags = ("--devices", "6", "--quorum", "2", "--max-staleness", "9", "--rounds", str(rounds), *paces)
    told, killed = {}, []
    with Drill(folder, *flags, engine="mqtt") as drill:

        def pass_round(number):
            """Rounds that were told as closed must be in the end what they were then."""
            status = drill.status()
            for each in status["recent"]:
                told.setdefault(each["round"], each["ues"])
                assert told[each["round"]] == each["ues"], f"round {each['round']} was closed twice, differently"
            return status["round"] >= number

        drill.wait_for(lambda: pass_round(1))
        while len(killed) < count:
            kinds = list(VICTIMS)
            for kind in rng.sample(kinds, k=2 if rng.random() < 0.2 else 1, counts=[6, 1, 3, 3]):
                for pid in VICTIMS[kind](drill, rng):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(kind)
            before = drill.status()["round"]
            until = before + rng.randint(1, 7)
            drill.wait_for(lambda number=until: pass_round(number))
            time.sleep(rng.uniform(0, 0.5))
            assert before < rounds, "over before all were killed"
        drill.end()
    timeline = Timeline.load(folder / "timeline.npz")
    closed = {}
    for number, who in re.findall(r"round (\d+) closed at .*: merged (.*)", drill.log()):
        closed[int(number)] = MERGED.findall(who)  # a server that was killed before it saved a round closes it again
    tickets = [ticket for who in closed.values() for *_, ticket in who]
    assert sorted(closed) == list(range(rounds)), "a round is missing"
    assert len(tickets) == len(set(tickets)) == timeline.ues.size, "a job was merged twice"
    assert all(timeline.ues[number].tolist() == ues for number, ues in told.items()), "a closed round was lost"
    print({kind: killed.count(kind) for kind in VICTIMS}, f"= {len(killed)} kills within {timeline.end_s:.0f} s")
    print(f"{rounds} rounds, each once; {len(tickets)} updates, none twice; {len(told)} rounds seen closed, none lost")
    print(f"by device {timeline.merges.tolist()}; personal accuracy {final(folder):.3f}")
    print(replayed(folder))


def one_device(drill, rng):
    running = dict(re.findall(r"device-(\d): is process (\d+)", (drill.folder / "logs" / "devices.log").read_text()))
    alive = [int(pid) for pid in running.values() if Path(f"/proc/{pid}").exists()]
    return [rng.choice(alive)] if alive else []


def by_command(*words):
    """The first of the processes of this federation whose command has these words."""

    def find(drill, _):
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
            try:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(drill.folder.parent) in command and all(word in command for word in words):
                return [int(path.name)]
        return []

    return find


VICTIMS = {
    "device": one_device,
    "all devices": by_command("mqtt.many"),
    "server": by_command("mqtt.serving"),
    "broker": by_command("mosquitto -c"),
}
DRILLS = {
    "flower": {
        "kill-devices": kill_devices,
        "kill-server-app": kill_server_app,
        "kill-superlink": kill_superlink,
        "liars": liars,
        "overhead": overhead,
        "fedavg": fedavg,
        "slow": slow,
    },
    "mqtt": {"kills": kills, "slow": slow_mqtt},
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the federation is ended too
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="+", choices=sorted({name for drills in DRILLS.values() for name in drills}))
    parser.add_argument("--engine", choices=sorted(DRILLS), default="flower")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in given.names:
        drill = DRILLS[given.engine].get(name) or parser.error(f"{name} is not for --engine {given.engine}")
        place = Path(tempfile.mkdtemp(prefix="drill-")) / name
        began = time.monotonic()
        print(f"== {name}: {drill.__doc__}", flush=True)
        drill(place, given.kills, given.seed) if name == "kills" else drill(place)
        print(
            f"== {name}: {time.monotonic() - began:.0f} s, load average {os.getloadavg()[0]:.1f}, {place}", flush=True
        )
