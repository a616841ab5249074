"""Real devices that are killed in every step of a planned round under masks leave the sum of the others."""

import re
import sys
import time

import pytest

from perfeds2.deployment.audit import verify_log
from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.link import Site
from perfeds2.deployment.mqtt.runs import SERVING, claim_run, devices_command, serving_command
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.replay_run import replay_run
from perfeds2.deployment.setup import Setup

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
