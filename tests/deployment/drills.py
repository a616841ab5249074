"""What happens to a real federation when parts of it die or lie? Run by hand: python tests/deployment/drills.py NAME

Each drill starts a whole federation on this machine, hurts it, and prints what came of it. The figures in docs/reports/federation.md
come from here.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from perfeds2.deployment.audit import verify_log
from perfeds2.timeline.record import Timeline

PERFEDS2 = str(Path(sys.executable).parent / "perfeds2")
MERGED = re.compile(r"UE (\d+) \(version (\d+), ticket (\d+)\)")


class Drill:
    """A federation in a process of its own, which can be looked at and hurt."""

    def __init__(self, folder, *flags):
        self.folder = folder
        self.process = subprocess.Popen(
            [PERFEDS2, "federate", "local", "--out", str(folder), "--quiet", *flags],
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

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


def seconds(folder):
    """Seconds of each round."""
    return np.diff(Timeline.load(folder / "timeline.npz").time_s, prepend=0.0)


def show(name, values):
    values = np.asarray(values)
    print(f"{name}: median {np.median(values):.2f} s, p90 {np.quantile(values, 0.9):.2f} s (of {values.size})")


def slow(folder):
    """One device of six takes 2 s a job, the others 0.2 s: 180 updates in rounds of 2, against 180 in rounds of all six."""
    paces = ["--slow", ",".join(f"{ue}={pace_s}" for ue, pace_s in enumerate([0.2] * 5 + [2]))]
    compare(folder, (*paces, "--max-staleness", "60"), updates=180)


def compare(folder, flags, updates):
    for name, rules in {
        "semi-synchronous": ("--quorum", "2", "--rounds", str(updates // 2)),
        "synchronous": ("--algorithm", "PerFed-SYN", "--rounds", str(updates // 6)),
    }.items():
        with Drill(folder / name, "--devices", "6", *flags, *rules) as drill:
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


def kills(folder, count=50, seed=0, protection=("--quorum", "2")):
    """kill -9 of a device, of all devices, of the process that has the model, or of the broker, at random, some two at a time; six devices."""
    rng, rounds = random.Random(seed), 7 * count
    paces = ["--slow", ",".join(f"{ue}=0.2" for ue in range(6))]  # so that most die at work
    flags = ("--devices", "6", "--max-staleness", "9", "--rounds", str(rounds), *protection, *paces)
    told, killed = {}, []
    with Drill(folder, *flags) as drill:

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
    print(verify_log(folder))
    assert all(timeline.ues[number].tolist() == ues for number, ues in told.items()), "a closed round was lost"
    print({kind: killed.count(kind) for kind in VICTIMS}, f"= {len(killed)} kills within {timeline.end_s:.0f} s")
    print(f"{len(told)} rounds seen closed, none lost")
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
    "all devices": by_command("federate device"),
    "server": by_command("mqtt.runs"),
    "broker": by_command("mosquitto -c"),
}
PROTECTIONS = {
    "kills": ("--quorum", "2"),
    "kills-masks": ("--quorum", "4", "--secure-aggregation", "--clip", "5"),
    "kills-noise": ("--quorum", "2", "--clip", "1", "--dp-noise", "0.1"),
}
DRILLS = {**dict.fromkeys(PROTECTIONS, kills), "slow": slow}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the federation is ended too
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="+", choices=sorted(DRILLS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in given.names:
        drill = DRILLS[name]
        place = Path(tempfile.mkdtemp(prefix="drill-")) / name
        began = time.monotonic()
        print(f"== {name}: {drill.__doc__}", flush=True)
        drill(place, given.kills, given.seed, PROTECTIONS[name]) if name in PROTECTIONS else drill(place)
        print(
            f"== {name}: {time.monotonic() - began:.0f} s, load average {os.getloadavg()[0]:.1f}, {place}", flush=True
        )
