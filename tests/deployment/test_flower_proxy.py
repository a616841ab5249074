"""Does a federation work as docs/deploy.md says: a server on loopback, a proxy before it, devices that know the proxy only?"""

import shutil
import socket
import subprocess
import time

import pytest

pytest.importorskip("flwr")
from drills import PERFEDS2, check_log, replayed

from perfeds2.deployment.flower.local import free_port
from perfeds2.deployment.processes import Processes
from perfeds2.timeline.record import Timeline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed: apt install nginx-light"),
]  # fmt: skip


def perfeds2(place, *words):
    done = subprocess.run([PERFEDS2, "federate", *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(address):
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_devices_train_through_the_proxy_with_their_keys(tmp_path):
    inside, outside = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    perfeds2(tmp_path, "credentials", "credentials", "--devices", "2", "--host", "fl.example.org")
    home = ("--credentials", str(tmp_path / "credentials"), "--state", str(tmp_path / "state"))
    # What a device has: the authority and its own key.
    for number in (0, 1):
        own = tmp_path / f"device-{number}"
        (own / "devices").mkdir(parents=True)
        shutil.copy(tmp_path / "credentials" / "ca.crt", own)
        shutil.copy(tmp_path / "credentials" / "devices" / f"device-{number}.key", own / "devices")
    with Processes(tmp_path / "logs", {}) as processes:
        processes.start("server", [PERFEDS2, "federate", "server", "--engine", "flower", "--listen", inside, *home])
        processes.start("proxy", [PERFEDS2, "federate", "proxy", "--listen", outside, "--server", inside, *home])
        ends = time.monotonic() + 60
        while not (answers(inside) and answers(outside)):
            assert time.monotonic() < ends
            time.sleep(0.2)
        assert "device 1 is registered" in perfeds2(tmp_path, "register", "--server", inside, *home)
        for number in (0, 1):
            own = ("--credentials", str(tmp_path / f"device-{number}"), "--state", str(tmp_path / f"state-{number}"))
            command = [
                PERFEDS2,
                "federate",
                "device",
                "--engine",
                "flower",
                "--number",
                str(number),
                "--server",
                outside,
                *own,
            ]
            processes.start(f"device-{number}", command)
        assert "device 1 was registered before" in perfeds2(tmp_path, "register", "--server", inside, *home)
        settings = ("--devices", "2", "--quorum", "2", "--rounds", "2", "--evaluate-s", "20")
        perfeds2(tmp_path, "submit", "run", "--engine", "flower", "--server", inside, *home, *settings)
        ends = time.monotonic() + 150
        while not (tmp_path / "run" / "report.html").exists():
            assert time.monotonic() < ends, (tmp_path / "logs" / "server.log").read_text()
            assert processes.ended() == []
            time.sleep(0.3)
        refused = subprocess.run(
            [PERFEDS2, "federate", "unregister", "--engine", "flower", "--number", "1", "--server", outside, *home],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert refused.returncode == 2
        assert "the server refused" in refused.stderr
    assert check_log(tmp_path / "run").rounds == 2
    assert Timeline.load(tmp_path / "run" / "timeline.npz").population == 2
    assert "relative" in replayed(tmp_path / "run")


def test_the_configuration_is_one_that_nginx_takes(tmp_path):
    perfeds2(tmp_path, "credentials", "credentials", "--devices", "0", "--host", "fl.example.org")
    text = perfeds2(tmp_path, "proxy", "--print", "--server", "127.0.0.1:9092")
    (tmp_path / "flower").mkdir(exist_ok=True)
    (tmp_path / "proxy.conf").write_text(text)
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin") or "nginx"
    done = subprocess.run(
        [nginx, "-t", "-c", str(tmp_path / "proxy.conf")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
