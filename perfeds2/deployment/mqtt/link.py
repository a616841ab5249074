"""Keep a connection to the broker: reconnect forever, and say what went wrong.

The paho client has its own thread, which calls ``up`` and ``message``.
"""

import contextlib
import socket
import ssl
import sys
import time
import traceback
import typing
from collections.abc import Iterator

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from perfeds2.deployment.credentials import name_of
from perfeds2.deployment.site import ANSWERS_WITHIN_S, Site
from perfeds2.deployment.tls import NewestContext
from perfeds2.errors import InputError

KEEPALIVE_S = 20  # the broker misses a silent machine after 1.5 times this; a dead process at once
RETRY_S = 1, 10  # shortest and longest delay before reconnecting
SHORT_S = 5.0  # a connection that ends sooner was probably rejected
INFLIGHT = 100  # publications not yet acknowledged


@typing.runtime_checkable
class Listener(typing.Protocol):
    """Handles the events of a connection."""

    def up(self) -> None:
        """Handle a new connection, which has no subscriptions yet."""
        ...

    def message(self, topic: str, data: bytes, retained: bool) -> None: ...

    def last_will(self) -> tuple[str, bytes] | None:
        """Return a message to publish if the connection breaks. Called before every connection."""
        ...


class Link:
    """A connection of a device, or of the server (None), to a broker over mutually authenticated TLS."""

    def __init__(self, site: Site, number: int | None = None) -> None:
        self._site, self._number, self._name = site, number, name_of(number)
        self._said, self._failure, self._short, self._since_s = "", "", 0, 0.0
        self.is_up = False
        self._context()  # report a missing file now
        self._trust_topic = f"{site.federation}/trust"  # retained: the broker's authorities and revocations
        self._trusted = site.credentials.brokers.trust()
        client = self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=self._name, clean_session=True)
        client.tls_set_context(NewestContext(self._context))
        client.max_inflight_messages_set(INFLIGHT)
        client.reconnect_delay_set(*RETRY_S)
        client.on_pre_connect = self._before
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail, client.on_message = self._failed, self._message
        client.on_socket_open = _send_at_once  # type: ignore[assignment]  # paho opens sockets only

    def start(self, listener: Listener) -> None:
        self._listener = listener  # all callbacks come later
        self._client.connect_async(self._site.host, self._site.port, keepalive=KEEPALIVE_S)
        self._client.loop_start()

    def publish(self, topic: str, data: bytes, retain: bool = False) -> None:
        self._client.publish(topic, data, qos=1, retain=retain)

    def subscribe(self, topic: str) -> None:
        self._client.subscribe(topic, qos=1)

    def unsubscribe(self, topic: str) -> None:
        self._client.unsubscribe(topic)

    def close(self, last: tuple[str, bytes] | None = None) -> None:
        """Disconnect after the broker has received a last retained message and everything before it."""
        with contextlib.suppress(ValueError, RuntimeError):  # never connected
            if self.is_up and last is not None:
                self._client.publish(*last, qos=1, retain=True).wait_for_publish(ANSWERS_WITHIN_S)
        self._client.disconnect()
        self._client.loop_stop()

    def _before(self, client: paho.Client, _: object) -> None:
        if (will := self._listener.last_will()) is not None:
            client.will_set(*will, qos=1)

    def _connected(self, _c: paho.Client, _d: object, _f: object, reason: ReasonCode, _p: object) -> None:
        if reason.is_failure:
            self._tell(f"the broker {self._site.address} refuses us: {reason}")
            return
        self.is_up, self._since_s = True, time.monotonic()
        self._failure = ""
        self._tell(f"connected to {self._site.address}")
        with _going_on():
            if self._number is None:
                self.publish(self._trust_topic, self._site.credentials.brokers.trust(), retain=True)
            else:
                self.subscribe(self._trust_topic)
            self._listener.up()

    def _disconnected(self, client: paho.Client, _d: object, _f: object, reason: ReasonCode, _p: object) -> None:
        was_up, self.is_up = self.is_up, False
        if not reason.is_failure:
            return
        if not was_up:
            self._explain(f"no connection to {self._site.address}: {reason}")
            return
        self._short = self._short + 1 if time.monotonic() - self._since_s < SHORT_S else 0
        client.reconnect_delay_set(min(RETRY_S[0] * 2**self._short, RETRY_S[1]), RETRY_S[1])
        again = f"; does another process use the certificate of {self._name}?" if self._short > 1 else ""
        self._tell(f"lost connection to {self._site.address}: {reason}{again}")

    def _failed(self, *_: object) -> None:
        self._explain(f"cannot connect to {self._site.address}: {sys.exc_info()[1]}")

    def _explain(self, text: str) -> None:
        """Report why there is no connection. Probes the broker once per failure, not at every attempt."""
        if text != self._failure:
            self._failure = text
            with _going_on():
                text = self._site.why_refused(self._number) or text
            self._tell(text)

    def _message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with _going_on():
            if message.topic == self._trust_topic:
                self._take_trust(bytes(message.payload))
                return
            self._listener.message(message.topic, bytes(message.payload), message.retain)

    def _context(self) -> ssl.SSLContext:
        return self._site.credentials.tls(self._number)

    def _take_trust(self, text: bytes) -> None:
        """Store a newer revocation list, and connect again, because this broker may be on it."""
        credentials = self._site.credentials
        try:
            credentials.take_trust(text)
        except InputError as error:
            self._tell(str(error))
        trusted = credentials.brokers.trust()
        if trusted != self._trusted:
            self._trusted = trusted
            if isinstance(connection := self._client.socket(), socket.socket):
                connection.shutdown(socket.SHUT_RDWR)

    def _tell(self, text: str) -> None:
        """Print a message, unless it repeats the previous one."""
        if text != self._said:
            self._said = text
            print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), f"{self._name}: {text}", flush=True)


def _send_at_once(_client: object, _data: object, sock: socket.socket) -> None:
    """Turn off Nagle's algorithm, which would delay small messages that wait for an answer."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Print exceptions instead of raising them, so that a bug of ours does not end the connection's thread."""
    try:
        yield
    except Exception:
        traceback.print_exc()
