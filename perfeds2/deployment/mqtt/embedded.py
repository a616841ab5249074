"""What if Mosquitto is not installed? A small MQTT 3.1.1 broker: for ``federate local`` and for tests, not for a fleet.

It reads the two files that ``broker.py`` writes for Mosquitto and keeps to them: TLS with client certificates, who speaks is who the
certificate names, the same access list, the same limits. It has what our transport needs: quality of service 0 and 1, retained
messages, last wills, wildcards, sessions that outlive a connection. It has no disk: what it retains ends with it.

One thread; a connection is a TLS object between a socket and a stream of packets. Whatever goes wrong in one ends that one.
"""

import asyncio
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfeds2.deployment.mqtt.packets import (
    Connect,
    Fields,
    MalformedError,
    Message,
    Packets,
    Type,
    check_filter,
    matches,
    packet,
    read_connect,
    read_filters,
    read_publish,
)

GREETS_WITHIN_S = 10.0  # from the first byte to an accepted CONNECT
CLOSES_WITHIN_S = 2.0
SERVER = "server"  # the name in its certificate
MOST_FILTERS = 100  # a session
IGNORED_BYTES = 2**20
RETAINED_PACKETS = 4  # of full size, of one device; the server's share is the rest
UNSENT_BYTES = 8 * 2**20  # to one connection; beyond, we no longer listen to it until it listens to us


@dataclass(frozen=True)
class Access:
    """Who may read and write what. A rule is a verb and a topic filter; with no user it is everybody's, %u their name."""

    rules: tuple[tuple[str | None, str, str], ...]

    @classmethod
    def read(cls, path: Path) -> "Access":
        rules, user = list[tuple[str | None, str, str]](), None
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] == "user":
                user = words[1]
            elif words[0] in ("topic", "pattern") and words[1] in ("read", "write", "readwrite"):
                rules.append((user if words[0] == "topic" else None, words[1], check_filter(words[2])))
            else:
                raise ValueError(f"{path}: cannot follow {line!r}")
        return cls(tuple(rules))

    def allows(self, name: str, verb: str, topic: str) -> bool:
        return any(
            verb in may and user in (None, name) and matches(what.replace("%u", name), topic)
            for user, may, what in self.rules
        )


@dataclass(eq=False)
class Session:
    """What is known of one name, connected or not."""

    name: str
    filters: dict[str, int] = field(default_factory=dict)  # with their quality of service
    connection: "ClientConnection | None" = None
    inflight: dict[int, tuple[Message, bool]] = field(default_factory=dict)  # sent, not acknowledged; whether retained
    waiting: deque[tuple[Message, bool]] = field(default_factory=deque)
    waiting_bytes: int = 0
    number: int = 0

    def send_waiting(self, most_inflight: int) -> None:
        while self.connection is not None and self.waiting and len(self.inflight) < most_inflight:
            message, retained = self.waiting.popleft()
            self.waiting_bytes -= len(message.payload)
            self.number = self.number % 65535 + 1
            while self.number in self.inflight:
                self.number = self.number % 65535 + 1
            self.inflight[self.number] = (message, retained)
            self.connection.send(message.packet(1, retained, self.number))

    def send_again(self) -> None:
        """What was not acknowledged on the connection before this one."""
        assert self.connection is not None
        for number, (message, retained) in self.inflight.items():
            self.connection.send(message.packet(1, retained, number, again=True))


class EmbeddedBroker:
    """Sessions, who listens to what, and what is retained."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.access = Access.read(Path(settings["acl_file"]))
        self.packet_bytes = int(settings["max_packet_size"])
        self.most_inflight = int(settings["max_inflight_messages"])
        self.most_waiting = int(settings["max_queued_messages"]), int(settings["max_queued_bytes"])
        self.most_connections = int(settings["max_connections"])
        self.most_bytes = int(settings["memory_limit"])
        self.context = make_context(settings)
        self.sessions: dict[str, Session] = {}
        self.listeners: dict[str, set[Session]] = {}  # by filter
        self.wild: set[str] = set()  # those filters that have wildcards
        self.retained: dict[str, tuple[str, Message]] = {}  # by topic, with who wrote it
        self.retained_bytes: Counter[str] = Counter()  # of each
        self.connections: set[ClientConnection] = set()

    def begin(self, name: str, connect: Connect, connection: "ClientConnection") -> tuple[Session, bool]:
        """The session of a new connection, and whether it was there before. An old connection of that name ends."""
        session = self.sessions.get(name)
        if session is not None and session.connection is not None:
            session.connection.end("its certificate connected again")
            session = self.sessions.get(name)
        if session is not None and connect.clean:
            self.forget(session)
            session = None
        known = session is not None
        session = session or Session(name)
        session.connection = self.sessions.setdefault(name, session).connection = connection
        return session, known

    def forget(self, session: Session) -> None:
        self.sessions.pop(session.name, None)
        for filter_ in list(session.filters):
            self.unsubscribe(session, filter_)

    def subscribe(self, session: Session, filter_: str, qos: int) -> int:
        """The quality of service it gets; 128 is a refusal."""
        if filter_ not in session.filters and len(session.filters) >= MOST_FILTERS:
            return 0x80
        session.filters[filter_] = min(qos, 1)
        self.listeners.setdefault(filter_, set()).add(session)
        if "+" in filter_ or "#" in filter_:
            self.wild.add(filter_)
        return session.filters[filter_]

    def unsubscribe(self, session: Session, filter_: str) -> None:
        if session.filters.pop(filter_, None) is None:
            return
        self.listeners[filter_].discard(session)
        if not self.listeners[filter_]:
            del self.listeners[filter_]
            self.wild.discard(filter_)

    def send_retained(self, session: Session, filter_: str) -> None:
        topics = [topic for topic in self.retained if matches(filter_, topic)] if filter_ in self.wild else [filter_]
        for topic in topics:
            if topic in self.retained:
                self.deliver(session, self.retained[topic][1], session.filters[filter_], retained=True)

    def publish(self, name: str, message: Message) -> None:
        """Pass on what somebody says, if they may."""
        if not self.access.allows(name, "write", message.topic):
            say(f"{name} may not write {message.topic!r}")
            return
        if message.retain:
            self.retain(name, message)
        heard = [filter_ for filter_ in self.wild if matches(filter_, message.topic)]
        if message.topic in self.listeners:
            heard.append(message.topic)
        qos: dict[Session, int] = {}
        for filter_ in heard:
            for session in self.listeners[filter_]:
                qos[session] = max(qos.get(session, 0), session.filters[filter_])
        for session, each in qos.items():
            self.deliver(session, message, each, retained=False)

    def retain(self, name: str, message: Message) -> None:
        writer, old = self.retained.pop(message.topic, (name, None))
        self.retained_bytes[writer] -= 0 if old is None else cost(old)
        if not message.payload:
            return
        most_bytes = self.most_bytes if name == SERVER else RETAINED_PACKETS * self.packet_bytes
        if self.retained_bytes[name] + cost(message) > most_bytes:
            say(f"no room to retain what {name} wrote to {message.topic!r}")
            return
        self.retained[message.topic] = name, message
        self.retained_bytes[name] += cost(message)

    def deliver(self, session: Session, message: Message, qos: int, retained: bool) -> None:
        """To one who asked for it, if they may hear it; later, where they are slow; not at all, where they are too slow."""
        if not self.access.allows(session.name, "read", message.topic):
            return
        if not min(qos, message.qos):
            if session.connection is not None and session.connection.listens:
                session.connection.send(message.packet(0, retained))
            return
        messages, most_bytes = self.most_waiting
        if len(session.waiting) >= messages or session.waiting_bytes + len(message.payload) > most_bytes:
            say(f"{session.name} is too slow: a message to {message.topic!r} was dropped")
            return
        session.waiting.append((message, retained))
        session.waiting_bytes += len(message.payload)
        session.send_waiting(self.most_inflight)

    async def look_after(self) -> None:
        """End connections that no longer say anything."""
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for connection in list(self.connections):
                if now > connection.quiet_until_s:
                    connection.end("nothing was heard of it")


def cost(message: Message) -> int:
    return len(message.payload) + len(message.topic) + 200


class ClientConnection(asyncio.Protocol):
    """One socket: TLS, then packets."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.listens = True  # or is too slow for what it is sent
        self.ended = False
        self.ignored_bytes = 0  # since then
        self.name: str | None = None  # from its certificate
        self.session: Session | None = None  # since it introduced itself
        self.will: Message | None = None
        self.keep_alive_s = 0.0
        self.quiet_until_s = time.monotonic() + GREETS_WITHIN_S
        self.packets = Packets(broker.packet_bytes)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.unsent: list[bytes] = []
        self.tls = broker.context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    # ---- what the socket tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = "{}:{}".format(*(transport.get_extra_info("peername") or ("unknown", 0)))
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self.broker.connections.add(self)
        if len(self.broker.connections) > self.broker.most_connections:
            self.end("there are too many connections")

    def data_received(self, data: bytes) -> None:
        if self.ended:  # we only wait for it to hear why
            self.ignored_bytes += len(data)
            if self.ignored_bytes > IGNORED_BYTES:
                self.transport.abort()
            return
        self.incoming.write(data)
        try:
            if self.name is None:
                self.tls.do_handshake()
                self.name = name_in(self.tls)
            while data := self.tls.read(65536):
                for first, fields in self.packets.feed(data):
                    self.handle(first, fields)
                    if self.ended:
                        return
            self.end("it closed TLS")  # an empty read is the client's close_notify
        except ssl.SSLWantReadError:
            self.flush()
        except ssl.SSLCertVerificationError as error:
            self.end(error.verify_message)  # such as: certificate revoked
        except ssl.SSLError as error:
            self.end((error.reason or str(error)).lower().replace("_", " "))
        except MalformedError as error:
            self.end(f"it sent {error}")

    def pause_writing(self) -> None:
        self.listens = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.listens = True
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        self.end("it hung up")
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self.end("the connection broke")
        self.broker.connections.discard(self)

    # ---- what a client says

    def handle(self, first: int, fields: Fields) -> None:
        kind, flags = first >> 4, first & 15
        if self.session is None:
            if kind != Type.CONNECT or flags:
                raise MalformedError("something else before it introduced itself")
            self.connect(read_connect(fields))
            return
        self.heard()
        if kind == Type.PUBLISH:
            message, number = read_publish(flags, fields)
            self.broker.publish(self.session.name, message)
            if message.qos:
                self.send(packet(Type.PUBACK, number.to_bytes(2, "big")))
            return
        if kind == Type.SUBSCRIBE:
            self.subscribe(*read_filters(flags, fields, wanted=True))
            return
        if kind == Type.UNSUBSCRIBE:
            number, filters = read_filters(flags, fields, wanted=False)
            for filter_, _ in filters:
                self.broker.unsubscribe(self.session, filter_)
            self.send(packet(Type.UNSUBACK, number.to_bytes(2, "big")))
            return
        if flags:
            raise MalformedError("reserved bits that are set")
        if kind == Type.PUBACK:
            self.session.inflight.pop(fields.number(), None)
            self.session.send_waiting(self.broker.most_inflight)
        elif kind == Type.PINGREQ:
            self.send(packet(Type.PINGRESP))
        elif kind == Type.DISCONNECT:
            self.will = None
            self.end("")
            return
        else:
            raise MalformedError(f"a packet of kind {kind}")
        fields.end()

    def connect(self, said: Connect) -> None:
        if said.level != 4:
            self.send(bytes([0x20, 3, 0, 0x84, 0]) if said.level == 5 else packet(Type.CONNACK, b"\0\1"))
            self.end(f"it speaks level {said.level} of MQTT, and only 4 is spoken here")
            return
        assert self.name is not None
        self.will, self.keep_alive_s = said.will, 1.5 * said.keep_alive_s
        self.clean = said.clean
        self.session, known = self.broker.begin(self.name, said, self)
        self.heard()
        say(f"{self.name} connected from {self.peer}")
        self.send(packet(Type.CONNACK, bytes([known, 0])))
        self.session.send_again()
        self.session.send_waiting(self.broker.most_inflight)

    def subscribe(self, number: int, filters: list[tuple[str, int]]) -> None:
        assert self.session is not None
        granted = [self.broker.subscribe(self.session, filter_, qos) for filter_, qos in filters]
        self.send(packet(Type.SUBACK, number.to_bytes(2, "big") + bytes(granted)))
        for (filter_, _), qos in zip(filters, granted, strict=True):
            if qos != 0x80:
                self.broker.send_retained(self.session, filter_)

    def heard(self) -> None:
        self.quiet_until_s = time.monotonic() + self.keep_alive_s if self.keep_alive_s else float("inf")

    # ---- what we say

    def send(self, data: bytes) -> None:
        """Soon, together with what else there is to be said by then."""
        if not self.ended:
            if not self.unsent:
                asyncio.get_running_loop().call_soon(self.flush)
            self.unsent.append(data)

    def flush(self) -> None:
        if self.unsent:
            with suppress(ssl.SSLError):  # it ended TLS already; that will be noticed
                self.tls.write(b"".join(self.unsent))
            self.unsent.clear()
        if self.outgoing.pending and not self.transport.is_closing():
            self.transport.write(self.outgoing.read())

    def end(self, why: str) -> None:
        """Let go, once. Whoever is not told why, because they said good-bye, leaves no will."""
        if self.ended:
            return
        self.ended = True
        say(f"{self.name or self.peer} {f'was let go: {why}' if why else 'disconnected'}")
        self.flush()  # such as TLS's word for why it was refused
        if not self.transport.is_closing():
            if self.transport.can_write_eof():
                self.transport.write_eof()  # and not closed at once, or the word would be lost
            asyncio.get_running_loop().call_later(CLOSES_WITHIN_S, self.transport.abort)
        if self.session is not None:
            self.session.connection = None
            if self.clean:
                self.broker.forget(self.session)
            if self.will is not None:
                self.broker.publish(self.session.name, self.will)


def make_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Certificates of one authority only, and none that it has revoked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.options |= ssl.OP_NO_TICKET  # everybody shows a certificate every time
    context.num_tickets = 0
    context.load_cert_chain(settings["certfile"], settings["keyfile"])
    for name in ("cafile", "crlfile"):
        context.load_verify_locations(settings[name])
    return context


def name_in(tls: ssl.SSLObject) -> str:
    """The one common name in a certificate."""
    shown: dict[str, Any] = dict(tls.getpeercert() or {})
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    if len(names) != 1 or not names[0] or set(names[0]) & set("+#/\0"):
        raise MalformedError("a certificate that names nobody")
    return names[0]


def say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%S:"), text, file=sys.stderr, flush=True)


def read_settings(path: Path) -> dict[str, str]:
    lines = [line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    return {name: value for name, _, value in lines}


async def serve(settings: Mapping[str, str]) -> None:
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
    asyncio.run(serve(read_settings(Path(sys.argv[1]))))
