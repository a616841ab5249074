"""A small MQTT 3.1.1 broker for ``federate local`` and tests without Mosquitto; not for a fleet.

It reads the two files that ``broker.py`` writes for Mosquitto and follows them: TLS with client certificates, the
certificate's name as the sender, the same access list and the same limits. It implements only what our clients use:
retained messages of the server, last wills and wildcards. It accepts QoS 0 and 1 and delivers with QoS 0, because TCP
does not lose messages and our tickets repeat what a broken connection loses. Only retained messages outlive a
connection, and they end with the process.

It has one thread. A connection is a TLS object between a socket and a stream of packets. An error closes the
connection in which it occurs and no other, and nothing that an unauthenticated client sends takes memory or has any
other effect.
"""

import asyncio
import ssl
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from perfeds2.deployment.mqtt.quota import Quota
from perfeds2.deployment.tls import tls_context

GREETS_WITHIN_S = 10.0  # from the connection to an accepted CONNECT
CLOSES_WITHIN_S = 0.5  # for a client to read why it was disconnected
SERVER = "server"  # name in the certificate of a server, after that of its federation
MOST_FILTERS = 100  # subscriptions per connection
MOST_IN_A_PACKET = 20  # subscriptions
RETAINED_BYTES = 2**30  # retained messages for one client in a minute: a few bytes ask for all of them
SHOWN = 100  # characters of a topic in the log
MOST_LEVELS = 200  # per topic
UNSENT_BYTES = 8 * 2**20  # to one connection; beyond this, reading from it pauses until it catches up
REFUSED = 0x80  # return code of a refused subscription

# ---- packets


class MalformedError(Exception):
    """A packet that is not MQTT 3.1.1, or uses a part of it that is not supported here."""


class Type(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


@dataclass(frozen=True)
class Message:
    """A message that a client publishes."""

    topic: str
    payload: bytes
    qos: int
    retain: bool

    def packet(self, retained: bool) -> bytes:
        topic = self.topic.encode()
        return packet(Type.PUBLISH, len(topic).to_bytes(2, "big") + topic + self.payload, retained)


def packet(kind: Type, body: bytes = b"", flags: int = 0) -> bytes:
    length, head = len(body), bytearray([kind << 4 | flags])
    while length > 127:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + body


class Packets:
    """Splits a stream into packets. Rejects a packet by its announced length, before it is complete."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, "Fields"]]:
        """Yield the first byte and the fields of each packet that is now complete."""
        self._kept += data
        while (head := _length(self._kept)) is not None:
            start, length = head
            if start + length > self.most_bytes:
                raise MalformedError(f"a packet of {start + length} bytes; at most {self.most_bytes} are allowed")
            if len(self._kept) < start + length:
                return
            first, body = self._kept[0], bytes(self._kept[start : start + length])
            del self._kept[: start + length]
            yield first, Fields(body)


def _length(kept: bytearray) -> tuple[int, int] | None:
    """Return where the fields begin and how long they are; None if the header is incomplete."""
    length = 0
    for place in range(1, min(len(kept), 5)):
        length |= (kept[place] & 0x7F) << 7 * (place - 1)
        if not kept[place] & 0x80:
            return place + 1, length
    if len(kept) >= 5:
        raise MalformedError("a length of more than four bytes")
    return None


class Fields:
    """Reads the fields of a packet from the front."""

    def __init__(self, body: bytes) -> None:
        self._left = memoryview(body)

    def take(self, count: int) -> bytes:
        if count > len(self._left):
            raise MalformedError("a packet that ends too early")
        taken, self._left = self._left[:count], self._left[count:]
        return bytes(taken)

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        try:
            text = self.binary().decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError("a text that is not UTF-8") from None
        if "\0" in text:
            raise MalformedError("a text with a zero in it")
        return text

    def topic(self) -> str:
        topic = self.text()
        if not topic or "+" in topic or "#" in topic or topic.count("/") >= MOST_LEVELS:
            raise MalformedError("an invalid topic")
        return topic

    def filter(self) -> str:
        levels = self.text().split("/")
        wild = any(("+" in level or "#" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
        if levels == [""] or wild or len(levels) > MOST_LEVELS:
            raise MalformedError("an invalid topic filter")
        return "/".join(levels)

    def rest(self) -> bytes:
        return self.take(len(self._left))

    def __len__(self) -> int:
        return len(self._left)


def read_publish(flags: int, fields: Fields) -> tuple[Message, bytes]:
    """Return the message and its packet identifier, which is empty for QoS 0."""
    qos = flags >> 1 & 3
    if qos > 1:
        raise MalformedError(f"a quality of service of {qos}; the highest here is 1")
    topic, number = fields.topic(), fields.take(2 * qos)
    if number == b"\0\0":
        raise MalformedError("a message number of 0")
    return Message(topic, fields.rest(), qos, bool(flags & 1)), number


def matches(filter_: str, topic: str) -> bool:
    """Return whether a filter matches a topic: + matches one level, # all that follow."""
    wanted, levels = filter_.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


# ---- the broker

Rule = tuple[str | None, str, str]  # user (None: everyone), verb, topic filter in which %u is the user's name


def read_access(path: Path) -> list[Rule]:
    """Read the access list. What it does not allow is forbidden."""
    rules, user = list[Rule](), None
    for line in path.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["user", name]:
                user = name
            case ["topic", verb, filter_]:
                rules.append((user, verb, filter_))
            case ["pattern", verb, filter_]:
                rules.append((None, verb, filter_))
    return rules


class EmbeddedBroker:
    """The connections, the subscriptions and the retained messages."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.rules = read_access(Path(settings["acl_file"]))
        self.packet_bytes = int(settings["max_packet_size"])
        self.most_unsent = int(settings["max_queued_bytes"])
        self.most_connections = int(settings["max_connections"])
        trust, own = (settings["cafile"], settings["crlfile"]), (settings["certfile"], settings["keyfile"])
        self.context = tls_context(ssl.PROTOCOL_TLS_SERVER, trust, own)
        self.connections: set[ClientConnection] = set()
        self.named: dict[str, ClientConnection] = {}  # clients that sent CONNECT
        self.quotas: defaultdict[str, Quota] = defaultdict(Quota)  # by name, so that reconnecting does not help
        self.fetches = defaultdict[str, Quota](lambda: Quota(bytes=RETAINED_BYTES))
        self.complaints = Counter[str]()  # by name
        self.retained: dict[str, Message] = {}  # of the server, by topic; a device could fill the memory

    def allows(self, name: str, verb: str, topic: str) -> bool:
        return any(
            verb in may and user in (None, name) and matches(what.replace("%u", name), topic)
            for user, may, what in self.rules
        )

    def publish(self, name: str, message: Message) -> None:
        """Deliver a client's message to its subscribers, if the client may publish it."""
        if not self.allows(name, "write", message.topic):
            self.complain(name, f"may not write {message.topic[:SHOWN]!r}")
            return
        if message.retain and is_server(name):
            self.retained[message.topic] = message
            if not message.payload:
                del self.retained[message.topic]
        for connection in self.named.values():
            if any(matches(filter_, message.topic) for filter_ in connection.filters):
                self.deliver(connection, message, retained=False)

    def complain(self, name: str, what: str) -> None:
        """Log what a client did, ever more rarely: it could fill the disk."""
        self.complaints[name] += 1
        if self.complaints[name].bit_count() == 1:
            say(f"{name} {what} ({self.complaints[name]} such lines so far)")

    def fetch(self, connection: "ClientConnection", filters: Collection[str]) -> None:
        """Deliver each retained message that matches one of the filters once."""
        for topic, message in self.retained.items():
            if any(matches(filter_, topic) for filter_ in filters):
                size = len(message.payload)
                if not is_server(connection.name) and self.fetches[connection.name].exceeded(size, time.monotonic()):
                    raise MalformedError("too many subscriptions to retained messages")
                self.deliver(connection, message, retained=True)

    def deliver(self, connection: "ClientConnection", message: Message, retained: bool) -> None:
        """Send a message to a client that may read it. Drop it if too much waits for that client already."""
        if not self.allows(connection.name, "read", message.topic):
            return
        if connection.unsent_bytes + len(message.payload) > self.most_unsent:
            self.complain(connection.name, f"is too slow: a message to {message.topic[:SHOWN]!r} was dropped")
            return
        connection.send(message.packet(retained))

    async def look_after(self) -> None:
        """Close connections that have been silent for too long."""
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for connection in list(self.connections):
                if now > connection.quiet_until_s:
                    connection.end("it was silent for too long")


class ClientConnection(asyncio.Protocol):
    """A client's socket, its TLS session and its packets."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.name = ""  # from its certificate
        self.greeted = False
        self.ended = False
        self.filters: set[str] = set()
        self.will: Message | None = None
        self.keep_alive_s = float("inf")
        self.quiet_until_s = time.monotonic() + GREETS_WITHIN_S
        self.packets = Packets(broker.packet_bytes)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = broker.context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    # ---- socket events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = str(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self.broker.connections.add(self)
        if len(self.broker.connections) > self.broker.most_connections:
            say(f"there are too many connections for {self.peer}")
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.incoming.write(data)
        self.read()

    def read(self) -> None:
        """Handle the packets that have come, but wait while the client does not take in what it asked for."""
        try:
            if not self.name:
                self.tls.do_handshake()
                self.name = name_in(self.tls)
            data = b""  # packets that had to wait are first
            while not self.ended:
                for first, fields in self.packets.feed(data):
                    self.handle(first, fields)
                    if self.ended or self.is_clogged():
                        return
                data = self.tls.read(65536)
                if not data:  # the client's close_notify
                    self.end("it closed TLS")
        except ssl.SSLWantReadError:
            self.flush()
        except ssl.SSLCertVerificationError as error:
            self.end(error.verify_message)  # such as "certificate revoked"
        except ssl.SSLError as error:
            self.end((error.reason or str(error)).lower().replace("_", " "))
        except MalformedError as error:
            self.end(f"it sent {error}")

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.ended:
            self.transport.resume_reading()
            self.read()

    def eof_received(self) -> None:
        self.end("it hung up")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self.end("the connection broke")
        self.broker.connections.discard(self)

    # ---- packets from the client

    def handle(self, first: int, fields: Fields) -> None:
        kind, flags = first >> 4, first & 15
        if self.greeted == (kind == Type.CONNECT):
            raise MalformedError("a packet before CONNECT, or a second CONNECT")
        if kind != Type.PUBLISH and flags != (2 if kind in (Type.SUBSCRIBE, Type.UNSUBSCRIBE) else 0):
            raise MalformedError("wrong reserved bits")
        quota = self.broker.quotas[self.name]
        if not is_server(self.name) and quota.exceeded(len(fields), time.monotonic()):
            raise MalformedError(str(quota))
        if kind == Type.CONNECT:
            self.connect(fields)
        elif kind == Type.PUBLISH:
            message, number = read_publish(flags, fields)
            self.broker.publish(self.name, message)
            if number:
                self.send(packet(Type.PUBACK, number))
        elif kind == Type.SUBSCRIBE:
            self.subscribe(fields)
        elif kind == Type.UNSUBSCRIBE:
            number = fields.take(2)
            while len(fields):
                self.filters.discard(fields.filter())
            self.send(packet(Type.UNSUBACK, number))
        elif kind == Type.PINGREQ:
            self.send(packet(Type.PINGRESP))
        elif kind == Type.DISCONNECT:
            self.will = None
            self.end("")
        else:
            raise MalformedError(f"a packet of kind {kind}")
        self.quiet_until_s = time.monotonic() + self.keep_alive_s

    def connect(self, fields: Fields) -> None:
        """Accept a client and its last will. Only its certificate identifies it; ID, user and password do not."""
        if fields.text() != "MQTT" or fields.byte() != 4:
            self.send(packet(Type.CONNACK, b"\0\1"))
            raise MalformedError("a greeting that is not that of MQTT 3.1.1")
        flags, keep_alive_s = fields.byte(), fields.number()
        fields.text()
        if flags & 0x11 or (flags & 0x28 and not flags & 4):
            raise MalformedError(
                "a reserved bit, a will of a quality of service above 1, or flags of a will and no will"
            )
        will = Message(fields.topic(), fields.binary(), flags >> 3 & 1, bool(flags & 0x20)) if flags & 4 else None
        if (before := self.broker.named.get(self.name)) is not None:
            before.end("its certificate connected again")
        self.will = will
        self.keep_alive_s = 1.5 * keep_alive_s or float("inf")
        self.broker.named[self.name] = self
        self.greeted = True
        say(f"{self.name} connected from {self.peer}")
        self.send(packet(Type.CONNACK, b"\0\0"))

    def subscribe(self, fields: Fields) -> None:
        number, wanted = fields.take(2), list[str]()
        while len(fields):
            wanted.append(fields.filter())
            fields.byte()  # the requested QoS
        if not 0 < len(wanted) <= MOST_IN_A_PACKET:
            raise MalformedError(f"a subscription to {len(wanted)} filters; at most {MOST_IN_A_PACKET} are allowed")
        room = MOST_FILTERS - len(self.filters)
        self.send(packet(Type.SUBACK, number + bytes(0 if place < room else REFUSED for place in range(len(wanted)))))
        self.filters.update(wanted[:room])
        self.broker.fetch(self, wanted[:room])

    # ---- sending and closing

    @property
    def unsent_bytes(self) -> int:
        return self.outgoing.pending + self.transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Queue data, which is sent soon, together with whatever else is queued by then."""
        if not self.ended:
            if not self.outgoing.pending:
                asyncio.get_running_loop().call_soon(self.flush)
            with suppress(ssl.SSLError):  # TLS has ended, which the next read notices
                self.tls.write(data)

    def is_clogged(self) -> bool:
        """Return whether too much waits for the client; ``resume_writing`` is called once it does not."""
        if self.unsent_bytes > UNSENT_BYTES:
            self.flush()
        return self.unsent_bytes > UNSENT_BYTES

    def flush(self) -> None:
        if self.outgoing.pending:
            self.transport.write(self.outgoing.read())

    def end(self, why: str) -> None:
        """Close the connection, once, and publish its last will if it has one.

        A client that disconnected properly has no last will, and ``why`` is empty.
        """
        if self.ended:
            return
        self.ended = True
        say(f"{self.name or self.peer} {f'was disconnected: {why}' if why else 'disconnected'}")
        self.flush()  # such as the TLS alert that gives the reason
        self.transport.pause_reading()
        self.transport.write_eof()  # closing at once would lose the alert
        asyncio.get_running_loop().call_later(CLOSES_WITHIN_S, self.transport.abort)
        if self.greeted:
            del self.broker.named[self.name]
        if self.will is not None:
            self.broker.publish(self.name, self.will)


def is_server(name: str) -> bool:
    return name.rpartition(".")[2] == SERVER


def name_in(tls: ssl.SSLObject) -> str:
    """Return the only common name in a certificate."""
    subject = (tls.getpeercert() or {}).get("subject", ())
    names = [str(pair[1]) for part in subject for pair in part if pair[0] == "commonName"]
    if len(names) != 1 or not names[0] or set(names[0]) & set("+#/\0"):
        raise MalformedError("a certificate without a usable name")
    return names[0]


def say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%S:"), text, file=sys.stderr, flush=True)


async def serve(configuration: Path) -> None:
    lines = [line.partition(" ") for line in configuration.read_text(encoding="utf-8").splitlines()]
    settings = {name: value for name, _, value in lines}
    broker = EmbeddedBroker(settings)
    port, _, host = settings["listener"].partition(" ")
    server = await asyncio.get_running_loop().create_server(
        lambda: ClientConnection(broker), host, int(port), backlog=1024, reuse_address=True
    )
    say(f"embedded broker on {host}:{port}")
    async with server, asyncio.TaskGroup() as tasks:
        tasks.create_task(broker.look_after())
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
