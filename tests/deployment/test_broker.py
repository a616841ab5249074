"""Who is let in by a broker, and what may they say, hear and cost? Asked of Mosquitto and of the embedded broker alike."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest
from raw_mqtt import Client, connect_packet, files_of, is_alive, tls_to, wait_for

from perfeds2.deployment.credentials import BROKER, Credentials, make_credentials
from perfeds2.deployment.mqtt import broker as brokers
from perfeds2.deployment.mqtt.broker import Kind, find_mosquitto, free_port, keep_newest, running_broker
from perfeds2.deployment.mqtt.embedded import Message
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.site import Site
from perfeds2.errors import InputError

pytestmark = pytest.mark.slow
HUGE = 400 * 2**20


# ---- the access list, every line both ways

WRITES = [  # by device 1
    ("perfeds2/here/device-1", True),
    ("perfeds2/reply/device-1/7/0", True),
    ("perfeds2/reply/device-1/7", True),
    ("perfeds2/here/device-2", False),
    ("perfeds2/here/device-1/more", False),
    ("perfeds2/here/device-10", False),
    ("perfeds2/here", False),
    ("perfeds2/reply/device-2/7/0", False),
    ("perfeds2/reply/device-10/7/0", False),
    ("perfeds2/run", False),
    ("perfeds2/trust", False),
    ("perfeds2/model/0/0", False),
    ("perfeds2/job/device-1", False),
    ("perfeds2/job/device-2", False),
    ("perfeds2/else", False),
    ("perfeds2", False),
]
READS = [  # by device 1
    ("perfeds2/run", True),
    ("perfeds2/trust", True),
    ("perfeds2/model/0/0", True),
    ("perfeds2/model/17/3", True),
    ("perfeds2/job/device-1", True),
    ("perfeds2/job/device-2", False),
    ("perfeds2/job/device-10", False),
    ("perfeds2/job/device-1/more", False),
    ("perfeds2/run/more", False),
    ("perfeds2/here/device-1", False),
    ("perfeds2/here/device-2", False),
    ("perfeds2/reply/device-1/7/0", False),
    ("perfeds2/reply/device-2/7/0", False),
    ("perfeds2/else", False),
]


def test_a_device_writes_under_its_own_name_only(broker, made):
    with Client(broker, made, "server") as server, Client(broker, made, 1) as device:
        server.subscribe("#")
        for topic, _ in WRITES:
            device.publish(topic, b"said")
        device.publish("perfeds2/here/device-1", b"last")
        server.listen_until(lambda: server.heard and server.heard[-1].payload == b"last")
        said = [each.topic for each in server.heard if each.payload == b"said"]
        assert said == [topic for topic, may in WRITES if may]


@pytest.mark.parametrize("retain", [False, True])
def test_a_device_hears_what_is_for_all_and_what_is_for_it(broker, made, retain):
    with Client(broker, made, "server") as server, Client(broker, made, 1) as device, Client(broker, made, 2) as other:
        try:
            if not retain:
                assert device.subscribe("#", *(topic for topic, _ in READS))
                other.subscribe("perfeds2/job/+")
            for topic, _ in READS:
                server.publish(topic, b"said", retain=retain)
            if retain:
                device.subscribe("#")
                for topic, _ in READS:
                    device.subscribe(topic)
                other.subscribe("perfeds2/job/+")
            server.publish("perfeds2/job/device-1", b"last")
            server.publish("perfeds2/job/device-2", b"last")
            for client in (device, other):
                client.listen_until(lambda client=client: client.heard and client.heard[-1].payload == b"last")
            assert {each.topic for each in device.heard} == {topic for topic, may in READS if may}
            assert {each.topic for each in other.heard} == {"perfeds2/job/device-2"}
        finally:
            for topic, _ in READS:
                server.publish(topic, b"", retain=True)


def test_the_server_reads_and_writes_below_perfeds2_and_nowhere_else(broker, made):
    with Client(broker, made, "server") as server, Client(broker, made, 0) as device:
        server.subscribe("#", "$SYS/#")
        device.subscribe("#", "$SYS/#")
        for topic in ("elsewhere", "$SYS/broker/version", "perfeds2/job/device-0", "perfeds2/anything/at/all"):
            server.publish(topic)
        server.hears("perfeds2/anything/at/all")
        device.hears("perfeds2/job/device-0")
        device.ping()
        assert set(server.topics()) == {"perfeds2/job/device-0", "perfeds2/anything/at/all"}
        assert device.topics() == ["perfeds2/job/device-0"]


def test_a_name_that_is_only_claimed_counts_for_nothing(broker, made):
    with Client(broker, made, "server") as server, Client(broker, made, 0) as victim:
        server.subscribe("perfeds2/#")
        with Client(broker, made, 1, client_id="device-0", user="server") as liar:
            liar.publish("perfeds2/run", b"mine")
            liar.publish("perfeds2/here/device-0", b"mine")
            liar.publish("perfeds2/here/device-1", b"last")
            server.hears("perfeds2/here/device-1")
            victim.ping()  # its connection was not taken over
        assert server.topics() == ["perfeds2/here/device-1"]


# ---- who is let in


def refusal(address, credentials, name) -> str:
    """What TLS says to someone who is not let in."""
    try:
        with tls_to(address, credentials, name) as connection:
            connection.sendall(connect_packet())
            answer = connection.recv(4)
    except ssl.SSLError as error:
        return error.reason or str(error)
    except ConnectionError:
        return "HUNG UP"
    return "HUNG UP" if not answer else f"LET IN {answer!r}"


def test_strangers_are_refused(broker, made, tmp_path):
    address = (broker.host, broker.port)
    foreign = make_credentials(tmp_path / "foreign", 1)  # has a device-0 and a server too, of another authority
    mixed = Credentials(tmp_path / "mixed")
    shutil.copytree(foreign.folder, mixed.folder)
    shutil.copy(made.authority, mixed.authority)
    shutil.copy(made.brokers.revocations, mixed.brokers.revocations)
    for credentials, name in ((made, None), (mixed, 0), (mixed, "server")):
        assert "LET IN" not in refusal(address, credentials, name)
    assert "LET IN" in refusal(address, made, 0)
    with socket.create_connection(address, timeout=5) as plain:  # no TLS at all
        plain.sendall(connect_packet())
        with contextlib.suppress(ConnectionError):
            assert plain.recv(100)[:1] != b"\x20"
    with Client(broker, made, 0) as witness:
        witness.ping()


@pytest.mark.parametrize(
    ("name", "trusted", "why"), [(0, "ca.crt", "issuer"), ("server", "ca.crt", "issuer"), (0, "clients.crt", "purpose")]
)
def test_a_client_cannot_pass_for_the_broker(made, name, trusted, why):
    """Not even to one who trusts the clients' authority by mistake."""
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.load_cert_chain(*files_of(made, name))
    client = ssl.create_default_context(cafile=str(made.folder / trusted))
    client.check_hostname = False
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = client.wrap_bio(inward, outward), listener.wrap_bio(outward, inward, server_side=True)
    for side in (ours, theirs):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError, match=why):
        ours.do_handshake()


def test_the_brokers_own_certificate_lets_nobody_in(broker, made, tmp_path):
    thief = Credentials(tmp_path / "thief")
    shutil.copytree(made.folder, thief.folder)
    assert "LET IN" in refusal((broker.host, broker.port), thief, "server")
    for mine, stolen in zip(thief.own_files(None), made.own_files(BROKER), strict=True):
        shutil.copy(stolen, mine)
    assert "LET IN" not in refusal((broker.host, broker.port), thief, "server")


def test_old_tls_is_refused(broker, made):
    context = ssl.create_default_context(cafile=str(made.authority))
    context.load_cert_chain(*files_of(made, 0))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((broker.host, broker.port), timeout=5) as connection,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(connection, server_hostname="127.0.0.1")


def why_refused(credentials, address, number) -> str | None:
    return Site(address[0], address[1], credentials).why_refused(number)


def test_a_revoked_device_is_let_go_and_told_so_until_it_has_a_new_key(kind, tmp_path):
    made = make_credentials(tmp_path / "credentials", 3)
    with running_broker(made, ("127.0.0.1", 0), tmp_path / kind, kind) as broker:
        address = (broker.host, broker.port)
        old = make_credentials(tmp_path / "stolen", 0)
        shutil.copytree(made.folder, old.folder, dirs_exist_ok=True)
        with Client(broker, made, 1) as connected:
            made.revoke(1)
            assert connected.is_let_go()
        wait_for(lambda: broker.restarts == 1)
        assert "revoked" in (why_refused(made, address, 1) or "")
        assert why_refused(made, address, 0) is None
        foreign = make_credentials(tmp_path / "foreign", 2)
        shutil.copy(made.authority, foreign.authority)
        shutil.copy(made.brokers.revocations, foreign.brokers.revocations)
        assert "another authority" in (why_refused(foreign, address, 1) or "")
        made.rotate(1)
        made.rotate(2)
        wait_for(lambda: broker.restarts >= 2 and why_refused(made, address, 1) is None)
        assert "revoked" in (why_refused(old, address, 1) or "")
        assert "revoked" in (why_refused(old, address, 2) or "")
        with Client(broker, made, 1) as back:
            back.ping()


class Silent:
    """A listener that does nothing."""

    def up(self) -> None: ...

    def message(self, topic: str, data: bytes, retained: bool) -> None: ...

    def last_will(self) -> None:
        return None


def test_a_stolen_broker_key_is_refused_once_the_list_is_heard(kind, tmp_path):
    made = make_credentials(tmp_path / "credentials", 1)
    stolen, device = Credentials(tmp_path / "stolen"), Credentials(tmp_path / "device")
    for copy in (stolen, device):
        shutil.copytree(made.folder, copy.folder)
    with (
        running_broker(stolen, ("127.0.0.1", 0), tmp_path / "thief", kind) as thief,
        running_broker(made, ("127.0.0.1", 0), tmp_path / "broker", kind) as broker,
    ):
        made.rotate(BROKER)
        wait_for(lambda: broker.restarts > 0, 60)
        assert why_refused(device, (thief.host, thief.port), 0) is None
        links = [Link(Site(broker.host, broker.port, made)), Link(Site(broker.host, broker.port, device), 0)]
        for link in links:
            link.start(Silent())
        wait_for(lambda: device.brokers.revoked() == made.brokers.revoked() != frozenset(), 60)
        wait_for(lambda: links[1].is_up and links[1]._client.socket() is not None, 60)
        assert "revoked" in (why_refused(device, (thief.host, thief.port), 0) or "")
        assert why_refused(device, (broker.host, broker.port), 0) is None
        for link in links:
            link.close(("perfeds2/here/device-0", b""))


def test_old_and_new_authority_are_both_trusted_until_the_rollover_is_finished(kind, tmp_path):
    made = make_credentials(tmp_path / "credentials", 2)
    device = Credentials(tmp_path / "device")
    shutil.copytree(made.folder, device.folder)
    with running_broker(made, ("127.0.0.1", 0), tmp_path / kind, kind) as broker:
        address = (broker.host, broker.port)
        made.roll()
        made.rotate(1)
        wait_for(lambda: broker.restarts > 0 and why_refused(made, address, 1) is None, 60)
        assert why_refused(device, address, 0) is None
        assert "revoked" in (why_refused(device, address, 1) or "")
        device.take_trust(made.brokers.trust())
        made.roll(finish=True)
        wait_for(lambda: "another authority" in (why_refused(device, address, 0) or ""), 60)
        for number in (1, None):  # the broker may be starting once more
            wait_for(lambda number=number: why_refused(made, address, number) is None, 60)


def test_why_a_broker_does_not_answer_is_a_sentence(made, tmp_path):
    assert "nothing answers at 127.0.0.1" in (why_refused(made, ("127.0.0.1", free_port()), 0) or "")
    assert "does not exist" in (why_refused(Credentials(tmp_path), ("127.0.0.1", 1), 0) or "")


# ---- sessions


def test_a_second_connection_with_the_same_certificate_takes_over(broker, made):
    will = Message("perfeds2/here/device-0", b"gone", 1, retain=False)
    with Client(broker, made, "server") as server, Client(broker, made, 0, will=will) as first:
        server.subscribe("perfeds2/here/#")
        with Client(broker, made, 0, client_id="another") as second:
            assert first.is_let_go()
            second.ping()
            assert server.hears("perfeds2/here/device-0").payload == b"gone"


def test_a_will_is_read_when_somebody_dies_and_not_when_they_leave(broker, made):
    will = Message("perfeds2/here/device-0", b"gone", 1, retain=False)
    with Client(broker, made, "server") as server:
        server.subscribe("perfeds2/here/#")
        Client(broker, made, 0, will=will).leave()
        foul = Message("perfeds2/here/device-3", b"foul", 1, retain=False)
        with contextlib.suppress(ConnectionRefusedError), Client(broker, made, 2, will=foul):
            pass
        with Client(broker, made, 1, will=Message("perfeds2/here/device-1", b"gone", 1, retain=False)):
            pass
        assert server.hears("perfeds2/here/device-1").payload == b"gone"
        time.sleep(0.3)
        server.ping()
        assert server.topics() == ["perfeds2/here/device-1"]


def test_who_says_nothing_is_given_up(broker, made):
    will = Message("perfeds2/here/device-0", b"gone", 1, retain=False)
    with Client(broker, made, "server") as server, Client(broker, made, 0, will=will, keep_alive_s=1):
        server.subscribe("perfeds2/here/#")
        server.hears("perfeds2/here/device-0", timeout_s=8)


def test_what_is_retained_is_there_for_who_comes_later_until_it_is_cleared(broker, made):
    with Client(broker, made, "server") as server:
        for version, chunk in ((3, 0), (3, 1), (4, 0)):
            server.publish(f"perfeds2/model/{version}/{chunk}", f"{version}.{chunk}".encode(), retain=True)
        with Client(broker, made, 0) as device:
            device.subscribe("perfeds2/model/3/+")
            device.hears("perfeds2/model/3/1")
            device.ping()
            assert {each.topic: (each.payload, each.retain) for each in device.heard} == {
                "perfeds2/model/3/0": (b"3.0", True),
                "perfeds2/model/3/1": (b"3.1", True),
            }
            device.unsubscribe("perfeds2/model/3/+")
            server.publish("perfeds2/model/3/2")
            device.ping()
            assert len(device.heard) == 2
        for version, chunk in ((3, 0), (3, 1), (4, 0)):
            server.publish(f"perfeds2/model/{version}/{chunk}", b"", retain=True)
        with Client(broker, made, 0) as device:
            device.subscribe("perfeds2/model/#")
            device.ping()
            assert device.heard == []


def test_quality_of_service_0_goes_out_once_without_an_answer(broker, made):
    with Client(broker, made, "server") as server, Client(broker, made, 0) as device:
        device.subscribe("perfeds2/job/device-0", qos=0)
        server.publish("perfeds2/job/device-0", b"one", qos=1)
        assert device.hears("perfeds2/job/device-0").qos == 0


# ---- the process


def test_a_broker_that_dies_is_started_again_and_ends_with_us(own, made, tmp_path, kind):
    with own() as broker:
        first = broker.process_id
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: broker.restarts == 1)
        second = broker.process_id
        with Client(broker, made, 0) as device:
            device.ping()
        broker.restart()
        third = broker.process_id
        assert is_alive(third)
    assert len({first, second, third}) == 3
    assert not any(is_alive(each) for each in (first, second, third))
    folder = tmp_path / kind
    assert folder.stat().st_mode & 0o077 == 0
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in ("mosquitto.conf", "access.txt"))
    assert b"PRIVATE" not in b"".join(path.read_bytes() for path in folder.iterdir())


def test_a_broker_ends_when_whoever_started_it_is_killed(made, kind, tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from perfeds2.deployment.credentials import Credentials\n"
        "from perfeds2.deployment.mqtt.broker import running_broker\n"
        "with running_broker(Credentials(Path(sys.argv[1])), ('127.0.0.1', 0), Path(sys.argv[2]), sys.argv[3]) as broker:\n"
        "    print(broker.process_id, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", code, str(made.folder), str(tmp_path / kind), kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    wait_for(lambda: not is_alive(child))


def test_what_is_missing_is_said_in_one_sentence(made, tmp_path, monkeypatch):
    with (
        pytest.raises(InputError, match="perfeds2 federate credentials"),
        running_broker(Credentials(tmp_path / "none"), ("127.0.0.1", 0), tmp_path / "b"),
    ):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        kinds: list[Kind] = ["mosquitto", "embedded"] if find_mosquitto() else ["embedded"]
        for kind in kinds:
            with (
                pytest.raises(InputError, match=r"did not start on .*in use"),
                running_broker(made, taken.getsockname(), tmp_path / "b", kind),
            ):
                pass
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    with (
        pytest.raises(InputError, match="sudo apt install mosquitto"),
        running_broker(made, ("127.0.0.1", 0), tmp_path / "b", "mosquitto"),
    ):
        pass
    with running_broker(made, ("127.0.0.1", 0), tmp_path / "b") as broker:
        assert broker.kind == "embedded"


def test_an_older_list_is_refused(tmp_path, capsys):
    """Also after a restart of the server; a list of another authority is not compared."""
    made, folder = make_credentials(tmp_path / "credentials", 1), tmp_path / "broker"
    folder.mkdir()
    older = made.clients.revocations.read_bytes()
    made.revoke(0)
    keep_newest(made.clients, folder)
    made.clients.revocations.write_bytes(older)
    keep_newest(made.clients, folder)
    assert (folder / "clients.crl").read_bytes() != older
    assert "is older than the list in use, and is refused" in capsys.readouterr().out
    other = make_credentials(tmp_path / "other", 0)
    keep_newest(other.clients, folder)
    assert (folder / "clients.crl").read_bytes() == other.clients.revocations.read_bytes()
