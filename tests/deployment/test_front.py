"""Does the front of deploy/haproxy keep silent connections away from the broker, and let honest devices in?"""

import contextlib
import csv
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from needs import needs
from raw_mqtt import wait_for

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.mqtt import transport as transport_module
from perfeds2.deployment.mqtt.broker import Limits, free_port, running_broker
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONNECTIONS = 20  # that the broker takes: far fewer than the silent ones
pytestmark = [
    needs("haproxy"),
    needs("mosquitto"),
]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Listening:
    """A device that only connects."""

    def last_will(self):
        return None

    def up(self):
        pass

    def message(self, topic, data, retained):
        pass


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """The shipped configuration with the ports of here, before a real broker with few places: its site and folder."""
    folder, port = tmp_path_factory.mktemp("front"), free_port()
    credentials = make_credentials(folder / "credentials", 1, ["127.0.0.1"])
    limits = Limits(connections=CONNECTIONS)
    with running_broker(credentials, ("127.0.0.1", 0), folder / "broker", "mosquitto", limits) as broker:
        text = CONFIGURATION.read_text(encoding="utf-8")
        for shipped, here in (
            *(
                ("bind :8883", f"bind 127.0.0.1:{port}"),
                ("server mosquitto 127.0.0.1:18883", f"server mosquitto 127.0.0.1:{broker.port}"),
            ),
            *(("    user haproxy\n", f"    stats socket {folder / 'haproxy.sock'}\n"), ("    group haproxy\n", "")),
        ):
            assert text.count(shipped) == 1, shipped
            text = text.replace(shipped, here)
        (folder / "haproxy.cfg").write_text(text)
        process = subprocess.Popen([str(HAPROXY), "-q", "-db", "-f", str(folder / "haproxy.cfg")])
        try:
            wait_for(lambda: answers(port) or process.poll() is not None)
            yield Site("127.0.0.1", port, credentials), folder
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def silent(site, number, address="127.0.0.2", first=b""):
    """Hold connections from another address that send at most the first bytes of something."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(number):
            with contextlib.suppress(ConnectionError):  # refused at once
                connection = stack.enter_context(socket.create_connection((site.host, site.port), 60, (address, 0)))
                connection.sendall(first)
                held.append(connection)
        yield held


def connects_within_s(site):
    """Connect an honest device, and return how long that took."""
    link, began_s = Link(site, 0), time.monotonic()
    link.start(Listening())
    try:
        wait_for(lambda: link.is_up)
    finally:
        link.close(("perfeds2/here/device-0", b""))
    return time.monotonic() - began_s


def is_dropped(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_shipped_file_is_one_for_haproxy(tmp_path):
    text = CONFIGURATION.read_text(encoding="utf-8").replace("    user haproxy\n    group haproxy\n", "")
    (tmp_path / "haproxy.cfg").write_text(text)
    done = subprocess.run([str(HAPROXY), "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"WARNING" not in done.stderr + done.stdout, done.stderr


@pytest.mark.slow
def test_half_open_connections_take_no_places_of_the_broker_and_are_dropped(front):
    """Three times as many as the broker takes; half of them send bytes that are no TLS hello."""
    site, _ = front
    with silent(site, 30) as quiet, silent(site, 30, "127.0.0.3", b"\x16\x03\x01\x02") as slow:
        assert connects_within_s(site) < 20.0
        assert all(map(is_dropped, [*quiet, *slow]))  # recv waits up to a minute


def denied(folder):
    """The number of connections that HAProxy refused before it read anything."""
    with socket.socket(socket.AF_UNIX) as statistics:
        statistics.connect(str(folder / "haproxy.sock"))
        statistics.sendall(b"show stat\n")
        rows = csv.DictReader(statistics.makefile(encoding="utf-8"))
        return next(int(row["dcon"]) for row in rows if row["svname"] == "FRONTEND")


def test_one_address_can_hold_only_so_many_connections(front):
    site, folder = front
    assert denied(folder) == 0
    with silent(site, 150, "127.0.0.4"):
        wait_for(lambda: denied(folder) > 0)
        assert connects_within_s(site) < 20.0


@pytest.mark.slow
def test_a_real_broker_that_hangs_is_noticed_and_forgiven(tmp_path, monkeypatch):
    """Its process is stopped, so its connections stay open. The server's heartbeat is a message it may write and read."""
    monkeypatch.setattr(transport_module, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(transport_module, "BEAT_WITHIN_S", 1.0)
    credentials = make_credentials(tmp_path / "credentials", 1, ["127.0.0.1"])
    run = travelling(Setup.from_texts({"devices": 1, "quorum": 1}), "a-run", 0.0)
    with running_broker(credentials, ("127.0.0.1", 0), tmp_path / "broker", "mosquitto") as broker:
        link = Link(Site("127.0.0.1", broker.port, credentials))
        with transport_module.MqttTransport(link, run, 1) as transport:
            beats = set()

            def trouble():
                beats.add(transport._beat_s)
                return str(transport.troubles()[None])

            wait_for(lambda: trouble() == "None" and len(beats) > 5)  # each but the last came back
            os.kill(broker.process_id, signal.SIGSTOP)
            try:
                wait_for(lambda: "delivers no messages" in trouble())
            finally:
                os.kill(broker.process_id, signal.SIGCONT)
            wait_for(lambda: trouble() == "None")
