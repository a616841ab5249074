"""What can a client cost a broker, however it behaves? Asked of Mosquitto and of the embedded broker alike."""

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings
from raw_mqtt import Client, connect_packet, is_alive, text, tls_to, wait_for

from perfeds2.deployment.mqtt import broker as brokers
from perfeds2.deployment.mqtt import embedded
from perfeds2.deployment.mqtt.embedded import Type, packet

pytestmark = pytest.mark.slow
HUGE = 400 * 2**20


def memory_mb(process: int) -> float:
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


# ---- what one can cost


def flood(connection, data: bytes, count: int) -> int:
    """Send until it breaks. How many bytes were sent."""
    sent = 0
    try:
        while sent < count:
            connection.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent


def test_400_mb_are_refused_before_memory_is_taken(broker, made):
    """From a device, before and after it introduced itself; from one without a certificate; and without TLS."""
    address, data = (broker.host, broker.port), bytes(2**18)
    length = packet(Type.PINGREQ, bytes(HUGE))[1:5]
    before = most = memory_mb(broker.process_id)

    def attack(connection, greeting: bytes, limit=HUGE) -> None:
        nonlocal most
        with connection:
            connection.settimeout(5)
            flood(connection, greeting, len(greeting))
            sent = flood(connection, data, limit)
            most = max(most, memory_mb(broker.process_id))
        assert sent < 32 * 2**20  # it hung up long before

    for topic in ("perfeds2/reply/device-0/1/0", "perfeds2/run"):
        head = bytes([Type.PUBLISH << 4]) + length + text(topic)
        device = Client(broker, made, 0)
        attack(device.socket, head)
    attack(tls_to(address, made, 0), bytes([Type.CONNECT << 4]) + length)
    attack(tls_to(address, made, 0), bytes([Type.PUBLISH << 4]) + length)
    attack(tls_to(address, made, None), bytes([Type.CONNECT << 4]) + length)
    attack(socket.create_connection(address, timeout=5), bytes([Type.CONNECT << 4]) + length)
    attack(socket.create_connection(address, timeout=5), b"\x16\x03\x01\xff\xff")
    assert most - before < 16
    with Client(broker, made, 0) as witness:
        witness.ping()


def test_many_small_subscriptions_at_once_take_no_memory(own, made):
    """18 kB that ask 400 times for 10 MB, and take in nothing."""
    topic = "perfeds2/model/#"
    packets = packet(Type.SUBSCRIBE, b"\0\7" + text(topic) + b"\1", 2)
    packets += packet(Type.UNSUBSCRIBE, b"\0\7" + text(topic), 2)
    with (
        own() as broker,
        Client(broker, made, "server") as server,
        Client(broker, made, 0) as deaf,
        Client(broker, made, 1) as witness,
    ):
        for chunk in range(40):
            server.publish(f"perfeds2/model/0/{chunk}", bytes(brokers.CHUNK_BYTES - 4096), retain=True)
        before = memory_mb(broker.process_id)
        deaf.socket.sendall(400 * packets)
        time.sleep(1.0)
        witness.ping()
        assert memory_mb(broker.process_id) - before < 80
        ends_s = time.monotonic() + 60
        while len(deaf.heard) < 80 and time.monotonic() < ends_s and deaf.listen(5.0):  # it goes on once it listens
            pass
        assert len(deaf.heard) >= 80


def test_a_chunk_fits_and_a_little_more_does_not(broker, made):
    with Client(broker, made, "server") as server, Client(broker, made, 0) as device:
        server.subscribe("perfeds2/reply/#")
        device.publish("perfeds2/reply/device-0/1/0", bytes(brokers.CHUNK_BYTES))
        assert len(server.hears("perfeds2/reply/device-0/1/0").payload) == brokers.CHUNK_BYTES
        with pytest.raises((ConnectionError, ssl.SSLError, TimeoutError)):
            device.publish("perfeds2/reply/device-0/1/1", bytes(brokers.CHUNK_BYTES + 4096))
        server.ping()


def test_who_does_not_listen_costs_a_bounded_amount_and_delays_no_one(own, made):
    with (
        own(queued_bytes=4 * 2**20) as broker,
        Client(broker, made, "server") as server,
        Client(broker, made, 0) as slow,
        Client(broker, made, 1) as quick,
    ):
        slow.subscribe("perfeds2/job/device-0")
        quick.subscribe("perfeds2/job/device-1")
        server.ping()
        before = memory_mb(broker.process_id)
        slowest_s = 0.0
        for _ in range(150):  # 30 MB to someone who takes nothing
            server.publish("perfeds2/job/device-0", bytes(200_000))
            began_s = time.monotonic()
            server.publish("perfeds2/job/device-1", b"hello")
            quick.hears("perfeds2/job/device-1")
            quick.heard.clear()
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert memory_mb(broker.process_id) - before < 40
        assert slowest_s < 2
        while slow.listen(0.5) and len(slow.heard) < 20:  # what was kept for it is intact
            pass
        assert len(slow.heard) >= 20


def test_who_asks_and_never_listens_is_no_longer_listened_to(own, made):
    """Mosquitto sends no more answers than it can; the embedded broker hangs up after a minute's packets."""
    with own() as broker, Client(broker, made, 0) as deaf, Client(broker, made, 1) as witness:
        before = memory_mb(broker.process_id)
        deaf.socket.settimeout(2)
        flood(deaf.socket, packet(Type.PINGREQ) * 10_000, 2 * 2**20)
        witness.answers.clear()
        witness.socket.sendall(packet(Type.PINGREQ))
        witness.answer(Type.PINGRESP, timeout_s=20)
        assert memory_mb(broker.process_id) - before < 12
        assert broker.kind == "mosquitto" or deaf.is_let_go(60.0)


def test_the_embedded_broker_reads_no_more_from_who_does_not_listen_until_it_does(made, tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "UNSENT_BYTES", 2**14)
    (tmp_path / "access.txt").write_text(brokers.access_list())
    lines = brokers.configuration(made, ("127.0.0.1", 0), tmp_path, brokers.Limits()).splitlines()
    broker = embedded.EmbeddedBroker({name: value for name, _, value in (line.partition(" ") for line in lines)})
    pings = 5_000  # each is answered with a TLS record of its own: 120 kB

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            host, port = listener.getsockname()
            await asyncio.get_running_loop().create_server(lambda: embedded.ClientConnection(broker), sock=listener)
            with await asyncio.to_thread(Client, SimpleNamespace(host=host, port=port), made, 0) as deaf:
                deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                (connection,) = broker.connections
                assert connection.transport.is_reading()
                await asyncio.to_thread(deaf.socket.sendall, packet(Type.PINGREQ) * pings)
                while connection.transport.is_reading():
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(deaf.listen_until, lambda: len(deaf.answers) == pings, 60.0)
                await asyncio.to_thread(deaf.socket.sendall, packet(Type.PINGREQ))
                await asyncio.to_thread(deaf.listen_until, lambda: len(deaf.answers) > pings, 60.0)

    asyncio.run(asyncio.wait_for(play(), 60.0))


def let_in(broker, made) -> bool:
    try:
        with Client(broker, made, 0):
            return True
    except OSError:
        return False


def test_only_so_many_connections(own, made):
    with own(connections=5) as broker:
        held, address = [], (broker.host, broker.port)
        for _ in range(20):
            held.append(socket.create_connection(address, timeout=5))
        until = time.monotonic() + 10
        while let_in(broker, made):  # a client that has just hung up keeps its place for a moment
            held.append(socket.create_connection(address, timeout=5))
            assert time.monotonic() < until
        for each in held:
            each.close()
        wait_for(lambda: let_in(broker, made))


def test_a_device_that_has_everything_retained_ends_nothing_for_good(own, made):
    """No one can forbid Mosquitto to retain; its memory is bounded, and it is begun anew when it is full."""
    with own(memory_bytes=48 * 2**20) as broker:
        before = memory_mb(broker.process_id)
        with contextlib.suppress(OSError), Client(broker, made, 0) as greedy:
            for ticket in range(300):
                greedy.publish(f"perfeds2/reply/device-0/{ticket}", bytes(250_000), retain=True)
        assert memory_mb(broker.process_id) - before < 70

        def goes_on() -> bool:
            try:
                with Client(broker, made, "server") as server:
                    server.publish("perfeds2/model/1/0", bytes(250_000), retain=True)
                    return True
            except OSError:
                return False

        wait_for(goes_on)


@pytest.fixture
def unconnected(made, tmp_path):
    """An embedded broker without a socket, and a connection of device 0 to it."""
    (tmp_path / "access.txt").write_text(brokers.access_list())
    lines = brokers.configuration(made, ("127.0.0.1", 0), tmp_path, brokers.Limits()).splitlines()
    broker = embedded.EmbeddedBroker({name: value for name, _, value in (line.partition(" ") for line in lines)})
    sent = list[bytes]()
    connection: Any = SimpleNamespace(broker=broker, name="device-0", unsent_bytes=0, filters=set(), send=sent.append)
    for chunk in range(4):
        topic = f"perfeds2/model/3/{chunk}"
        broker.retained[topic] = embedded.Message(topic, bytes(400), 1, True)

    def subscribe(*filters):
        sent.clear()
        body = b"\0\7" + b"".join(text(each) + b"\1" for each in filters)
        embedded.ClientConnection.subscribe(connection, embedded.Fields(body))
        return len(sent) - 1

    return SimpleNamespace(broker=broker, subscribe=subscribe)


def test_a_subscription_has_few_filters_and_gets_what_is_retained_once(unconnected):
    assert unconnected.subscribe("perfeds2/model/+/+", "perfeds2/model/#", "perfeds2/#") == 4
    with pytest.raises(embedded.MalformedError, match="100 filters; at most 20 are allowed"):
        unconnected.subscribe(*["perfeds2/model/#"] * 100)


def test_a_client_that_asks_for_what_is_retained_again_and_again_is_ended(unconnected):
    assert unconnected.broker.fetches["device-0"].bytes == 2**30
    unconnected.broker.fetches["device-0"].bytes = 4000
    assert unconnected.subscribe("perfeds2/model/#") == unconnected.subscribe("perfeds2/model/#") == 4
    with pytest.raises(embedded.MalformedError, match="too many subscriptions"):
        unconnected.subscribe("perfeds2/model/#")


def test_forbidden_topics_fill_no_log(unconnected, capsys):
    for number in range(1000):
        unconnected.broker.publish("device-0", embedded.Message(f"no/{number}/" + "x" * 60_000, b"", 1, False))
    said = capsys.readouterr().err
    assert said.count("may not write") == 10  # the powers of two
    assert len(said) < 3000


def test_a_client_that_closes_tls_and_stays_connected_ends_only_its_own_connection(broker, made, watcher):
    """Closing TLS (close_notify) without closing the socket made the embedded broker read nothing forever."""
    with Client(broker, made, 0) as device:
        device.socket.settimeout(2)
        with contextlib.suppress(OSError):
            device.socket.unwrap()
        watcher.ping()
        with Client(broker, made, 1) as other:
            other.ping()


# ---- what is no MQTT

KINDS_OF_PACKETS = st.builds(
    lambda first, body, length: bytes([first]) + length + body,
    st.integers(0, 255),
    st.binary(max_size=60),
    st.one_of(st.integers(0, 127).map(lambda n: bytes([n])), st.binary(min_size=1, max_size=5)),
)
SUBSCRIBE_EMPTY = packet(Type.SUBSCRIBE, b"\0\1", 2)


@given(
    st.lists(st.one_of(st.binary(max_size=200), KINDS_OF_PACKETS), max_size=6),
    st.sampled_from(["greeted", "tls", "plain"]),
)
@example([SUBSCRIBE_EMPTY], "greeted")
@example([packet(Type.SUBSCRIBE, b"\0\1" + text("a/#/b") + b"\1", 2)], "greeted")
@example([packet(Type.SUBSCRIBE, b"\0\1" + text("/" * 60_000) + b"\1", 2)], "greeted")
@example([packet(Type.PUBLISH, text("perfeds2/here/+"))], "greeted")
@example([packet(Type.PUBLISH, text(b"\xff\xfe"))], "greeted")
@example([packet(Type.PUBLISH, text("perfeds2/here/device-0") + b"\0\0", 2)], "greeted")
@example([packet(Type.PUBLISH, text("perfeds2/here/device-0") + b"\0\1", 4)], "greeted")
@example([connect_packet()], "greeted")
@example([packet(Type.CONNECT, text("MQTT") + b"\5\2\0\0\0" + text("v5"))], "tls")
@example([packet(Type.CONNECT, text("MQIsdp") + b"\3\2\0\0" + text("v3"))], "tls")
@example([packet(Type.CONNECT, text("MQTT") + b"\x84\2\0\0" + text("bridge"))], "tls")
@example([b"\xff" * 300], "plain")
@pytest.mark.filterwarnings("ignore:Do not use the .random. module")  # the broker's thread does
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nonsense_ends_at_most_its_own_connection(broker, made, watcher, sent, after):
    process = broker.process_id
    address = (broker.host, broker.port)
    connection = socket.create_connection(address, timeout=5) if after == "plain" else tls_to(address, made, 0)
    with connection:
        if after == "greeted":
            connection.sendall(connect_packet())
            connection.recv(4)
        flood(connection, b"".join(sent) or b"\0", 1)
    watcher.ping()
    assert broker.process_id == process
    assert is_alive(process)
