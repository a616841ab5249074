"""Does a whole federation over MQTT work with real processes, TLS and a real broker, whichever process is killed?"""

import _thread
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import command_line
import pytest
from drills import MERGED, VICTIMS
from needs import needs
from raw_mqtt import wait_for
from test_own_model import example, write_samples

from perfeds2.deployment.audit import verify_log
from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.device_state import Inbox
from perfeds2.deployment.mqtt.broker import find_mosquitto, free_port
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.runs.folder import Folder
from perfeds2.timeline.record import Timeline

PERFEDS2 = [sys.executable, "-m", "perfeds2", "federate"]
DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = [
    pytest.mark.slow,
    needs("mosquitto"),
]


def text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def status_of(out):
    return json.loads(text(out / "status.json") or '{"round": 0, "process": 0}')


def processes_of(out):
    """Every process whose command names this run or its credentials."""
    commands = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [str(path) for path, command in commands.items() if str(out.parent).encode() in command]


def check(out, rounds, data=None):
    """Every round once, no ticket twice, and the simulator comes to the same weights."""
    timeline = Timeline.load(out / "timeline.npz")
    assert timeline.rounds == rounds
    closed = re.findall(r"round (\d+) closed at .*: merged (.*)", text(out / "events.log"))
    assert [int(number) for number, _ in closed] == list(range(rounds))
    tickets = [ticket for _, who in closed for *_, ticket in MERGED.findall(who)]
    assert len(tickets) == len(set(tickets)) == timeline.ues.size
    assert f"{rounds} rounds, each merged once" in verify_log(out)
    assert replay_run(out, data).relative <= 1e-6


@pytest.mark.usefixtures("forking")
def test_random_kills_of_devices_server_and_broker_lose_and_double_nothing(tmp_path):
    """PERFEDS2_FEDERATION_KILLS says how often; each kind dies once before any dies again."""
    out, kills, chance = tmp_path / "run", int(os.environ.get("PERFEDS2_FEDERATION_KILLS", "4")), random.Random(0)
    rounds, told, drill = 20 + 10 * kills, {}, SimpleNamespace(folder=out)
    settings = ("--devices", 2, "--quorum", 1, "--max-staleness", 9, "--rounds", rounds, "--slow", "0=.4,1=.4")

    def passes(number):
        """Rounds that were told as closed must stay what they were."""
        status = status_of(out)
        for each in status.get("recent", []):
            assert told.setdefault(each["round"], each["ues"]) == each["ues"], f"round {each['round']} closed twice"
        return status["round"] >= number

    def kill_all_kinds():
        wait_for(lambda: passes(5))
        kinds = chance.sample(list(VICTIMS), len(VICTIMS))
        for kind in kinds + chance.choices(list(VICTIMS), k=max(kills - len(kinds), 0)):
            now = status_of(out)["round"]
            assert now < rounds, "over before all were killed"
            for victim in wait_for(lambda kind=kind: VICTIMS[kind](drill, chance)):
                os.kill(victim, signal.SIGKILL)
            saved = Checkpoints(Folder(out)).intact()
            assert saved
            assert saved[-1].facts["round"] >= now
            verify_log(out)
            until = now + chance.randint(2, 6)
            wait_for(lambda until=until: passes(until))

    with ThreadPoolExecutor() as beside:
        killing = beside.submit(kill_all_kinds)
        killing.add_done_callback(lambda done: done.exception() and _thread.interrupt_main())
        status, said = command_line.perfeds2("federate", "local", "--out", out, *settings, "--quiet")
    killing.result()
    assert status == 0, said
    assert processes_of(out) == []
    assert "the process serving died: starting it again" in text(out / "events.log")
    assert "died; starting it again" in text(out / "logs" / "devices.log")
    check(out, rounds)
    line = Timeline.load(out / "timeline.npz")
    assert all(line.ues[number].tolist() == ues for number, ues in told.items())
    assert not (tmp_path / ".run.credentials").exists()  # keys of a federation that is over
    for name in ("metrics.csv", "summary.json", "report.html", "model.safetensors", "ue_metrics.csv"):
        assert (out / name).exists(), name


def test_server_and_devices_as_commands_of_their_own(nursery, tmp_path, monkeypatch):
    """Credentials, server, devices, submit, stop, resume, with a broker of its own and with one started by hand from deploy/;
    strangers and the revoked are told why."""
    monkeypatch.chdir(tmp_path)

    def perfeds2(*words, status=0):
        ended, said = command_line.perfeds2("federate", *words)
        assert ended == status, said
        return said

    running = []

    def start(name, *command):
        with (tmp_path / f"{name}.log").open("w") as log:
            running.append(nursery.popen(command, stdout=log))
        return running[-1]

    port, out = free_port(), tmp_path / "runs" / "first"
    where, run = f"127.0.0.1:{port}", ("runs/first", "--state", "state")
    for folder, devices in (("credentials", 2), ("others", 1)):
        perfeds2("credentials", folder, "--devices", str(devices), "--host", "127.0.0.1")
    perfeds2("revoke", "--number", "1")
    try:
        server = start("server", *PERFEDS2, "server", "--listen", where, "--state", "state")
        start("device", *PERFEDS2, "device", "--number", "0", "--server", where)
        settings = ("--devices", "2", "--quorum", "1", "--gather-s", "0", "--slow", "0=0.1")
        perfeds2("submit", *run, *settings, "--rounds", "5000")
        assert "is in the queue" in perfeds2("resume", *run, status=2)
        assert "is in the queue" in perfeds2("submit", *run, *settings, "--rounds", "7", status=2)
        assert "rounds = 5000" in text(out / "federation.toml")  # what waits is not touched
        wait_for(lambda: status_of(out)["round"] > 5)
        assert "device-1 was revoked" in refused(1, where, tmp_path / "credentials")
        assert "cannot be verified" in refused(0, where, tmp_path / "others")
        perfeds2("stop", *run)
        wait_for(lambda: re.search(r" stopped \w+\n$", text(out / "events.log")))
        stopped, run_id = status_of(out)["round"], text(out / "run-id")
        assert "trouble: UE 1: was revoked" in text(out / "events.log")

        server.kill()  # with its broker
        server.wait()
        perfeds2("resume", *run)
        wait_for(lambda: can_listen(port))
        start("broker", find_mosquitto(), "-c", by_hand(tmp_path, port))
        start("server", *PERFEDS2, "server", "--broker", where, "--state", "state")
        wait_for(lambda: status_of(out)["round"] > stopped + 5)
        assert text(out / "run-id") == run_id
        assert "resumed: rounds 0 to" in text(out / "events.log")
        perfeds2("stop", *run)
        assert "is not in the queue" in perfeds2("stop", *run, status=2)
    finally:
        for process in running:
            process.kill()
            process.wait()


def refused(number, where, credentials):
    """What a device says that the broker refuses; it needs no process of its own."""
    said, link = list[str](), Link(Site.read(where, "--server", Credentials(credentials)), number)
    link._tell = lambda text: said.append(text)
    device = DeviceClient(number, link, SimpleQueue(), Inbox())
    device.start()
    try:
        wait_for(lambda: said)
    finally:
        device.close()
    return said[0]


def can_listen(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def by_hand(folder, port):
    """deploy/'s configuration, with the paths and the port of here."""
    shutil.copytree(DEPLOY / "mosquitto", folder / "mosquitto")
    file = folder / "mosquitto" / "mosquitto.conf"
    lines = (
        file.read_text().replace("/etc/perfeds2", str(folder)).replace("listener 8883", f"listener {port} 127.0.0.1")
    )
    file.write_text(lines + ("user root\n" if os.geteuid() == 0 else ""))
    return str(file)


@pytest.mark.usefixtures("forking")
def test_own_model_and_data_where_mosquitto_is_missing(tmp_path):
    """The example of docs/how-to/deploy.md; the embedded broker carries it, and the command says so."""
    (tmp_path / "my_task.py").write_text(example())
    write_samples(tmp_path / "data")
    said, out = [], tmp_path / "run"
    setup = Setup.from_texts({"devices": 2, "quorum": 1, "rounds": 6, "app-module": str(tmp_path / "my_task.py")})
    data = str(tmp_path / "data" / "device-{}")
    run_locally(setup, out, data, broker="embedded", say=said.append)
    assert "embedded" in said[0]
    check(out, 6, data)
