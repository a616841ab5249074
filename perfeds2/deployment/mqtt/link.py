"""How does one side hold its connection to the broker? For ever: it comes back by itself, and says what went wrong.

The paho client has a thread of its own, which calls ``up``, ``down`` and ``message``.
"""

import contextlib
import socket
import ssl
import sys
import time
import traceback
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError

KEEPALIVE_S = 20  # the broker misses a silent machine after one and a half of it; a dead process at once
RETRY_S = 1, 10  # after so long at first, then after up to so long
SHORT_S = 5.0  # a connection that ends before that was not wanted
INFLIGHT = 100  # publications that are not yet acknowledged


@dataclass(frozen=True)
class Login:
    """Where it is, and who we are to it."""

    host: str
    port: int
    authority: Path
    certificate: Path
    key: Path


@typing.runtime_checkable
class Listener(typing.Protocol):
    """Whoever uses a connection."""

    def up(self) -> None:
        """It is there, new: nothing is subscribed."""
        ...

    def message(self, topic: str, data: bytes, retained: bool) -> None: ...

    def last_will(self) -> tuple[str, bytes] | None:
        """A retained publication for when it breaks; asked for before every connection."""
        ...


@typing.runtime_checkable
class Connection(typing.Protocol):
    """What a server and a device need: a ``Link``, or in tests something in memory."""

    is_up: bool

    def start(self, listener: Listener) -> None: ...
    def publish(self, topic: str, data: bytes, retain: bool = False) -> None: ...
    def subscribe(self, topic: str) -> None: ...
    def unsubscribe(self, topic: str) -> None: ...
    def close(self, last: tuple[str, bytes] | None = None) -> None: ...


class Link:
    """A connection to a broker over TLS, both sides with certificates."""

    def __init__(
        self,
        name: str,
        login: Login,
        say: Callable[[str], None] = print,
        why: Callable[[], str | None] = lambda: None,  # a connection fails, in a sentence
    ) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self._name, self._login, self._say, self._why = name, login, say, why
        self._said, self._failure, self._short, self._since_s = "", "", 0, 0.0
        self._listener: Listener | None = None
        self.is_up = False
        client = self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=True)
        try:
            context = ssl.create_default_context(cafile=str(login.authority))
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(login.certificate, login.key)
        except OSError as error:
            files = f"{login.authority}, {login.certificate} and {login.key}"
            raise InputError(f"{files} are not a usable certificate and key: {error}.") from None
        client.tls_set_context(context)
        client.max_inflight_messages_set(INFLIGHT)
        client.reconnect_delay_set(*RETRY_S)
        client.on_pre_connect = self._before
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail, client.on_message = self._failed, self._message
        client.on_socket_open = _send_at_once

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._client.connect_async(self._login.host, self._login.port, keepalive=KEEPALIVE_S)
        self._client.loop_start()

    def publish(self, topic: str, data: bytes, retain: bool = False) -> None:
        self._client.publish(topic, data, qos=1, retain=retain)

    def subscribe(self, topic: str) -> None:
        self._client.subscribe(topic, qos=1)

    def unsubscribe(self, topic: str) -> None:
        self._client.unsubscribe(topic)

    def close(self, last: tuple[str, bytes] | None = None, within_s: float = 5.0) -> None:
        """Let go, in good order: after a last retained publication, and all before it, has reached the broker."""
        with contextlib.suppress(ValueError, RuntimeError):  # never connected
            if last is not None and self.is_up:
                self._client.publish(*last, qos=1, retain=True).wait_for_publish(within_s)
        self._client.disconnect()
        self._client.loop_stop()

    def _before(self, client: Any, _: Any) -> None:
        if self._listener is not None and (will := self._listener.last_will()) is not None:
            client.will_set(*will, qos=1, retain=True)

    def _connected(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._tell(f"the broker {self._where} refuses us: {reason}")
            return
        self.is_up, self._since_s = True, time.monotonic()
        self._failure = ""
        self._tell(f"connected to {self._where}")
        if self._listener is not None:
            with _going_on():
                self._listener.up()

    def _disconnected(self, client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        was_up, self.is_up = self.is_up, False
        if not reason.is_failure:
            return
        if not was_up:
            self._explain(f"no connection to {self._where}: {reason}")
            return
        self._short = self._short + 1 if time.monotonic() - self._since_s < SHORT_S else 0
        client.reconnect_delay_set(min(RETRY_S[0] * 2**self._short, RETRY_S[1]), RETRY_S[1])
        again = f"; does another process use the certificate of {self._name}?" if self._short > 1 else ""
        self._tell(f"lost connection to {self._where}: {reason}{again}")

    def _failed(self, _client: Any, _data: Any) -> None:
        self._explain(f"cannot connect to {self._where}: {sys.exc_info()[1]}")

    def _explain(self, text: str) -> None:
        """Why we are not let in; asked for once, not at every attempt."""
        if text != self._failure:
            self._failure = text
            with _going_on():
                text = self._why() or text
            self._tell(text)

    def _message(self, _client: Any, _data: Any, message: Any) -> None:
        if self._listener is not None:
            with _going_on():
                self._listener.message(message.topic, message.payload, message.retain)

    @property
    def _where(self) -> str:
        return f"{self._login.host}:{self._login.port}"

    def _tell(self, text: str) -> None:
        """Once, not at every attempt."""
        if text != self._said:
            self._said = text
            self._say(text)


def _send_at_once(_client: Any, _data: Any, sock: Any) -> None:
    """Small messages that wait for an answer must not wait to be sent together."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextlib.contextmanager
def _going_on() -> Any:
    """A mistake of ours in the connection's thread must not end it."""
    try:
        yield
    except Exception:
        traceback.print_exc()
