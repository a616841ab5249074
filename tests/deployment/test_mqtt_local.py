"""Does a whole federation over MQTT work with real processes, TLS and a real broker, whoever is killed?"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("paho")

from drills import MERGED

from perfeds2.deployment.mqtt.broker import find_mosquitto
from perfeds2.deployment.processes import marked
from perfeds2.deployment.replay_run import replay_run
from perfeds2.timeline.timeline import Timeline

PERFEDS2 = [sys.executable, "-m", "perfeds2.cli", "federate"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed."),
]


def wait_for(what, timeout_s=120.0):
    ends_s = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < ends_s, "it never happened"
        time.sleep(0.05)
    return found


def text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def status_of(out):
    return json.loads(text(out / "status.json") or '{"round": 0, "process": 0}')


def check(out, rounds):
    """Every round once, no ticket twice, and the simulator comes to the same weights."""
    timeline = Timeline.load(out / "timeline.npz")
    assert timeline.rounds == rounds
    closed = re.findall(r"round (\d+) closed at .*: merged (.*)", text(out / "events.log"))
    last = {
        int(number): MERGED.findall(who) for number, who in closed
    }  # a round a killed server did not save closes again
    tickets = [ticket for who in last.values() for _, _, ticket in who]
    assert sorted(last) == list(range(rounds))
    assert len(tickets) == len(set(tickets)) == timeline.ues.size
    assert replay_run(out).relative <= 1e-6


def test_kill_9_of_devices_server_and_broker_loses_and_doubles_nothing(tmp_path):
    out, rounds = tmp_path / "run", 400
    command = [*PERFEDS2, "local", "--out", str(out), "--devices", "4", "--quorum", "2", "--max-staleness", "3"]
    process = subprocess.Popen(
        [*command, "--rounds", str(rounds), "--slow", "3=0.05", "--quiet"], start_new_session=True
    )
    try:
        wait_for(lambda: status_of(out)["round"] > 20)
        mark, broker = re.findall(r"marked (\w+); the broker \(mosquitto\) is process (\d+)", text(out / "events.log"))[
            0
        ]
        devices = dict(re.findall(r"device-(\d): is process (\d+)", text(out / "logs" / "devices.log")))
        assert len(devices) == 4
        for victim in (int(devices["1"]), status_of(out)["process"], int(broker), int(devices["3"])):
            os.kill(victim, signal.SIGKILL)
            now = status_of(out)["round"]
            wait_for(lambda before=now: status_of(out)["round"] > before + 15)
        assert process.wait(120) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    assert marked(mark) == []
    assert "the server died: starting it again" in text(out / "events.log")
    assert "device-1: died; starting it again" in text(out / "logs" / "devices.log")
    check(out, rounds)
    assert not (tmp_path / ".run.credentials").exists()  # keys of a federation that is over
    for name in ("metrics.csv", "summary.json", "report.html", "model.safetensors", "ue_metrics.csv"):
        assert (out / name).exists(), name


def test_server_and_devices_as_commands_of_their_own(tmp_path):
    """Credentials, server, devices, submit, stop, resume; strangers and the revoked are told why."""

    def perfeds2(*words, status=0):
        done = subprocess.run([*PERFEDS2, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    running = []

    def start(name, *words):
        with (tmp_path / f"{name}.log").open("w") as log:
            running.append(subprocess.Popen([*PERFEDS2, *words], cwd=tmp_path, stdout=log, stderr=log))
        return running[-1]

    from perfeds2.deployment.mqtt.broker import free_port

    where, out = f"127.0.0.1:{free_port()}", tmp_path / "runs" / "first"
    perfeds2("credentials", "credentials", "--devices", "3", "--host", "127.0.0.1")
    try:
        server = start("server", "server", "--listen", where, "--state", "state")
        wait_for(lambda: "Listening" in text(tmp_path / "server.log"))
        for number in ("0", "1"):
            start(f"device-{number}", "device", "--number", number, "--server", where)
        perfeds2("submit", "runs/first", "--state", "state", "--devices", "2", "--quorum", "2", "--rounds", "3000")
        said = perfeds2("resume", "runs/first", "--state", "state", status=2)
        assert "is in the queue" in said
        wait_for(lambda: status_of(out)["round"] > 5)
        perfeds2("stop", "runs/first", "--state", "state")
        wait_for(lambda: text(out / "events.log").endswith("stopped\n"))
        stopped = status_of(out)["round"]
        run_id = text(out / "run.json")

        os.kill(server.pid, signal.SIGKILL)  # with its broker
        server.wait()
        perfeds2("resume", "runs/first", "--state", "state")
        start("server", "server", "--listen", where, "--state", "state")
        wait_for(lambda: status_of(out)["round"] > stopped + 5)
        assert text(out / "run.json") == run_id
        assert "resumed: rounds 0 to" in text(out / "events.log")

        perfeds2("revoke", "--number", "2")
        start("device-2", "device", "--number", "2", "--server", where)
        wait_for(lambda: "device-2 was revoked" in text(tmp_path / "device-2.log"))
        perfeds2("credentials", "others", "--devices", "1", "--host", "127.0.0.1")
        start("stranger", "device", "--number", "0", "--server", where, "--credentials", "others")
        wait_for(lambda: "is not who it should be" in text(tmp_path / "stranger.log"))
        perfeds2("stop", "runs/first", "--state", "state")
        assert "is not in the queue" in perfeds2("stop", "runs/first", "--state", "state", status=2)
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_the_default_federation_is_ready_soon_and_learns(tmp_path):
    out, started_s = tmp_path / "run", time.monotonic()
    flags = ["--devices", "6", "--quorum", "2", "--out", str(out)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([*PERFEDS2, "local", *flags], stdout=said, stderr=said)
    try:
        wait_for(lambda: status_of(out)["round"] > 0, 60.0)
        ready_s = time.monotonic() - started_s
        assert process.wait(120.0 - ready_s) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    rows = text(out / "metrics.csv").splitlines()
    assert float(rows[-1].split(",")[rows[0].split(",").index("test_accuracy_personal")]) >= 0.8
    assert "round 299 closed" in text(tmp_path / "said")
    print(f"ready after {ready_s:.1f} s")


def test_where_mosquitto_is_missing_the_embedded_broker_carries_a_federation(tmp_path):
    from perfeds2.deployment.mqtt.local import run_locally
    from perfeds2.deployment.setup import Setup

    said = []
    setup = Setup.from_texts({"devices": 3, "quorum": 2, "rounds": 10})
    run_locally(setup, tmp_path / "run", broker="embedded", say=said.append)
    assert "embedded" in said[0]
    check(tmp_path / "run", 10)
    shutil.rmtree(tmp_path / "run")
