"""An MQTT client that can be told to misbehave, for tests of brokers."""

import socket
import ssl
import time
from pathlib import Path

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.mqtt.embedded import Fields, Message, Packets, Type, packet, read_publish


def tls_to(
    address: tuple[str, int], credentials: Credentials, name: int | str | None, timeout_s: float = 5.0
) -> ssl.SSLSocket:
    """A TLS connection as a device (its number), as the server, or (None) without a certificate."""
    context = ssl.create_default_context(cafile=str(credentials.authority))
    if name is not None:
        context.load_cert_chain(*files_of(credentials, name))
    connection = socket.create_connection(address, timeout=timeout_s)
    try:
        return context.wrap_socket(connection, server_hostname=address[0])
    except BaseException:
        connection.close()
        raise


def files_of(credentials: Credentials, name: int | str) -> tuple[Path, Path]:
    if isinstance(name, int):
        return credentials.file(name, "crt"), credentials.file(name, "key")
    return credentials.certificate, credentials.certificate_key


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return len(value).to_bytes(2, "big") + value


def connect_packet(
    client_id: str = "x",
    will: Message | None = None,
    keep_alive_s: int = 60,
    user: str | None = None,
) -> bytes:
    flags = 2 | (0 if will is None else 4 | will.qos << 3 | will.retain << 5) | (0 if user is None else 0x80)
    body = text("MQTT") + bytes([4, flags]) + keep_alive_s.to_bytes(2, "big") + text(client_id)
    body += b"" if will is None else text(will.topic) + text(will.payload)
    return packet(Type.CONNECT, body + (b"" if user is None else text(user)))


class Client:
    """Speaks when told to, and remembers what it heard."""

    def __init__(self, broker, credentials: Credentials, name: int | str, **connect) -> None:
        self.socket = tls_to((broker.host, broker.port), credentials, name)
        self.heard: list[Message] = []
        self.answers: list[tuple[int, bytes]] = []
        self.number = 0
        self._packets = Packets(2**28)
        try:
            self.socket.sendall(connect_packet(**connect))
            _, code = self.answer(Type.CONNACK)
        except BaseException:
            self.drop()
            raise
        if code:
            self.drop()
            raise ConnectionRefusedError(code)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Without a word."""
        self.socket.close()

    def leave(self) -> None:
        self.socket.sendall(packet(Type.DISCONNECT))
        self.socket.close()

    def listen(self, timeout_s: float) -> bool:
        """Take in what comes. False: the broker hung up."""
        self.socket.settimeout(max(timeout_s, 0.001))
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return True
        except OSError:
            return False
        for first, fields in self._packets.feed(data):
            self._take(first, fields)
        return bool(data)

    def _take(self, first: int, fields: Fields) -> None:
        if first >> 4 != Type.PUBLISH:
            self.answers.append((first >> 4, fields.rest()))
            return
        message, number = read_publish(first & 15, fields)
        self.heard.append(message)
        if number:
            self.socket.sendall(packet(Type.PUBACK, number))

    def answer(self, kind: Type, timeout_s: float = 5.0) -> bytes:
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            for place, (each, body) in enumerate(self.answers):
                if each == kind:
                    del self.answers[place]
                    return body
            if not self.listen(ends_s - time.monotonic()):
                raise ConnectionError("the broker hung up")
        raise TimeoutError(f"no {kind.name}")

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, retain: bool = False) -> None:
        self.number = self.number % 65535 + 1
        self.socket.settimeout(5.0)
        number = self.number.to_bytes(2, "big") if qos else b""
        self.socket.sendall(packet(Type.PUBLISH, text(topic) + number + payload, qos << 1 | retain))
        if qos:
            assert self.answer(Type.PUBACK) == number

    def subscribe(self, *filters: str, qos: int = 1) -> bytes:
        body = b"\0\7" + b"".join(text(each) + bytes([qos]) for each in filters)
        self.socket.sendall(packet(Type.SUBSCRIBE, body, 2))
        return self.answer(Type.SUBACK)[2:]

    def unsubscribe(self, *filters: str) -> None:
        self.socket.sendall(packet(Type.UNSUBSCRIBE, b"\0\7" + b"".join(map(text, filters)), 2))
        self.answer(Type.UNSUBACK)

    def ping(self) -> None:
        """The broker answers in the order it was asked, so whatever came before has been heard by then."""
        self.socket.sendall(packet(Type.PINGREQ))
        self.answer(Type.PINGRESP)

    def hears(self, topic: str, timeout_s: float = 5.0) -> Message:
        """Wait for a message."""
        ends_s = time.monotonic() + timeout_s
        while True:
            for each in self.heard:
                if each.topic == topic:
                    return each
            if time.monotonic() > ends_s:
                raise TimeoutError(f"nothing on {topic}, only {[each.topic for each in self.heard]}")
            if not self.listen(ends_s - time.monotonic()):
                raise ConnectionError("the broker hung up")

    def listen_until(self, what, timeout_s: float = 5.0) -> None:
        ends_s = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < ends_s, f"never came true; heard {self.topics()}"
            assert self.listen(ends_s - time.monotonic()), "the broker hung up"

    def topics(self) -> list[str]:
        return [each.topic for each in self.heard]

    def is_let_go(self, timeout_s: float = 5.0) -> bool:
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            if not self.listen(ends_s - time.monotonic()):
                return True
        return False


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(what, timeout_s=120.0):
    """Wait until a function returns something true, and return that."""
    ends_s = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < ends_s, "it never happened"
        time.sleep(0.05)
    return found
