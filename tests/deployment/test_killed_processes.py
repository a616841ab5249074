"""Do devices, edges, clouds and servers go on without loss when their processes are killed? They are real, and forked from one."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import command_line
import pytest
from forked import waiting
from raw_mqtt import wait_for

from perfeds2.deployment.audit import verify_log
from perfeds2.deployment.credentials import LOOPBACK, make_credentials
from perfeds2.deployment.lease import FREE, owner
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.processes import Processes, repeating
from perfeds2.deployment.replay_run import joined_timeline, replay_run
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.status import read_status
from perfeds2.deployment.supervisor import SERVING, claim_run, devices_command, serving_command
from perfeds2.errors import InputError

DIES = {"0-2": "never", "3": "shares", "4": "seeds", "5": "train"}  # by device: the step in which it kills itself
SETTINGS = {
    "devices": 6,
    "quorum": 6,
    "rounds": 1,
    "algorithm": "FedAvgS2",
    "schedule": "round_robin",
    "clip": 5.0,
    "secure-aggregation": True,
    "gather-s": 300,
    "wait-s": 300,
    "evaluate-s": 5,
}
CELLS = {"devices": 4, "cells": 2, "edge-rounds": 2, "quorum": 1}
QUICK = """
from perfeds2.cli import main
from perfeds2.deployment import lease
lease.RENEW_S, lease.EXPIRE_S = 0.5, 5.0
main()
"""
FORKED = """
import os, sys
import perfeds2.deployment.mqtt.many
from perfeds2.cli import main
from perfeds2.deployment.masking import MaskedUpdate
from perfeds2.deployment.processes import die_with_parent
dies, upright, command = eval(sys.argv[1]), MaskedUpdate.answer, sys.argv[2:]

def answer(self, request):
    if request.kind == step:
        os.kill(os.getpid(), 9)
    return upright(self, request)

MaskedUpdate.answer = answer
children = {}
for numbers, step in dies.items():
    if (child := os.fork()) == 0:
        die_with_parent()
        sys.argv = ["perfeds2", *command, "--number", numbers, "--together"]
        main()
    children[child] = numbers
while children:
    child, status = os.wait()
    print(children.pop(child), "ended with", os.waitstatus_to_exitcode(status), flush=True)
"""  # imports once for all devices, before JAX starts


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_devices_killed_in_every_step_count_as_zeros_or_as_themselves(tmp_path):
    setup, path = Setup.from_texts(SETTINGS), tmp_path / "run"
    credentials = make_credentials(tmp_path / "credentials", 6)
    with (
        running_broker(credentials, ("127.0.0.1", 0), tmp_path / "broker") as broker,
        claim_run(path, setup),
        Processes(path / "logs") as processes,
    ):
        setup.write(path)
        site = Site(broker.host, broker.port, credentials)
        processes.start(SERVING, serving_command(site, path, wait_for_all=True))
        words = devices_command(site, "", {})[3:]
        del words[words.index("--number") : words.index("--number") + 2]
        processes.start("devices", [sys.executable, "-c", FORKED, repr(DIES), *words])
        ends_s = time.monotonic() + 300
        while (status := processes.status(SERVING)) is None and time.monotonic() < ends_s:
            time.sleep(0.2)
        assert status == 0, processes.log(SERVING).read_text()
        said = processes.log("devices").read_text()
        assert sorted(re.findall(r"^(\d) ended with -9$", said, re.MULTILINE)) == ["3", "4", "5"], said
    events = (path / "events.log").read_text()
    assert "gone: UE 4, 5, whose updates count as zeros" in events
    assert "1 rounds, each merged once" in verify_log(path)
    assert replay_run(path).relative <= 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_a_killed_edge_and_a_killed_cloud_go_on_and_the_simulator_agrees(tmp_path):
    """Updates are clipped at both levels, so that the replay has to do that, too."""
    out, killed = tmp_path / "run", {}
    setup = Setup.from_texts(CELLS | {"rounds": 6 * 2 * 2, "slow": "0=0.1,1=0.1,2=0.1,3=0.1", "norm-bound": 0.05})

    def kill(_status):
        for folder, first in ((out, 2), (out / "edges" / "1", 5)):
            status = read_status(folder)
            if folder not in killed and status is not None and status.round >= first:
                killed[folder] = status.round
                os.kill(status.process, signal.SIGKILL)

    run_locally(setup, out, show=kill, broker="embedded")
    assert len(killed) == 2
    for folder in (out, *killed):
        verify_log(folder)
        assert (folder / "report.html").exists()
        assert "resumed: rounds" in (folder / "events.log").read_text()
    timeline = joined_timeline(out, setup)
    assert timeline.population == 4
    assert timeline.cloud is not None
    assert timeline.cloud.rows.size == 6
    agreement = replay_run(out)
    assert agreement.relative <= 1e-6
    assert agreement.job_by_job
    with pytest.raises(InputError, match="give the folder of the cloud"):
        replay_run(out / "edges" / "0")


def test_what_a_forked_process_repeats_has_ended_once_before_the_process_forks():
    order = []

    def read_slowly():
        time.sleep(0.05)
        order.append("read")

    with waiting(repeating)(read_slowly):
        order.append("fork")
    assert order == ["read", "fork"]


@pytest.mark.slow
def test_a_standby_takes_over_after_kill_9_and_after_kill_stop_with_nothing_lost_or_doubled(
    nursery, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    credentials, out = make_credentials(tmp_path / "credentials", 3, LOOPBACK), tmp_path / "run"
    running = []

    def start(*words, popen=nursery.popen):
        with (tmp_path / f"{len(running)}.log").open("wb") as log:
            command = [sys.executable, "-c", QUICK, "federate", *words]
            running.append(popen(command, stdout=log, stderr=log, start_new_session=True))
        return running[-1]

    def status():
        text = (out / "status.json").read_text() if (out / "status.json").exists() else ""
        return json.loads(text or '{"round": 0, "process": 0}')

    def goes_on_without(process):
        now, began_s = status()["round"], time.monotonic()
        try:
            wait_for(lambda: status()["process"] != process and status()["round"] > now + 2)
        except AssertionError:
            pytest.fail(str({path: path.read_text()[-1500:] for path in tmp_path.rglob("*.log")}))
        print(f"closed three more rounds after {time.monotonic() - began_s:.1f} s")

    with running_broker(credentials, (LOOPBACK[0], 0), tmp_path / "broker") as broker:
        where = f"{broker.host}:{broker.port}"
        server = ("server", "--broker", where, "--state", "state")
        try:
            first = start(*server)
            wait_for(lambda: owner(tmp_path / "state") not in ("", FREE))
            second = start(*server, "--standby")
            start("device", "--number", "0-2", "--together", "--server", where)
            settings = ("--devices", "3", "--quorum", "2", "--rounds", "9999", "--slow", "0=0.3,1=0.3,2=0.3")
            assert command_line.perfeds2("federate", "submit", "run", "--state", "state", *settings)[0] == 0
            wait_for(lambda: status()["round"] > 3)
            serving = status()["process"]
            first.kill()
            goes_on_without(serving)
            third, serving = start(*server, "--standby", popen=subprocess.Popen), status()["process"]
            wait_for(lambda: b"Standing by" in (tmp_path / "3.log").read_bytes())
            assert "jaxlib" not in Path(f"/proc/{third.pid}/maps").read_text()  # one that waits takes little memory
            for process in (second.pid, serving):
                os.kill(process, signal.SIGSTOP)
            with (out / "events.log").open() as log:
                with contextlib.suppress(BlockingIOError):  # one of the two was stopped with the lock
                    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                goes_on_without(serving)
            for process in (second.pid, serving):
                os.kill(process, signal.SIGCONT)
            assert second.wait(60) == 2
            assert b"another server has taken over" in (tmp_path / "1.log").read_bytes()
            goes_on_without(serving)
            assert third.poll() is None
            assert command_line.perfeds2("federate", "stop", "run", "--state", "state")[0] == 0
            wait_for(lambda: " stopped " in (out / "events.log").read_text())
        finally:
            for process in running:
                process.kill()
                process.wait()
    assert "each merged once" in verify_log(out)
    assert (out / "events.log").read_text().count(" resumed: ") == 2
