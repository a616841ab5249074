"""A small HTTP server, with or without TLS, that silent or greedy clients cannot occupy.

It never refuses a connection. If there are too many, it ends the oldest of the address that has the most, so a client
competes only with its own address. Clients with a certificate have places of their own.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_CLIENTS = 64  # at once without a certificate, and as many with one
HANDSHAKE_S = 3.0
PATIENCE_S = 20.0

Address = tuple[str, int]  # host and port


@dataclass(eq=False)
class _Visit:
    """A connection."""

    connection: socket.socket
    host: str
    ends_s: float
    certified: bool = False

    def end(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


class BoundedServer(ThreadingHTTPServer):
    """Answers each connection in a thread, of which there is a limited number."""

    request_queue_size = 2 * MOST_CLIENTS

    def __init__(
        self,
        address: Address,
        handler: type[BaseHTTPRequestHandler],
        context: Callable[[], ssl.SSLContext] | None = None,  # called for every connection
        patience_s: float = PATIENCE_S,  # for a whole request
    ) -> None:
        self._context, self._lock, self._patience_s = context, threading.Lock(), patience_s
        self._visits: dict[_Visit, None] = {}  # oldest first
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """End connections that take too long. The loop of the server calls this all the time."""
        with self._lock:
            for visit in [visit for visit in self._visits if time.monotonic() > visit.ends_s]:
                visit.end()

    def process_request_thread(self, request: socket.socket, client_address: Address) -> None:
        """Answer a client. Called in a thread of its own."""
        patience_s = self._patience_s if self._context is None else HANDSHAKE_S
        visit = _Visit(request, client_address[0], time.monotonic() + patience_s)
        try:
            request.settimeout(self._patience_s)
            if self._context is not None:
                visit.connection = self._context().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            self._admit(visit)
            if isinstance(visit.connection, ssl.SSLSocket):
                visit.connection.do_handshake()
                visit.ends_s = time.monotonic() + self._patience_s
                visit.certified = bool(visit.connection.getpeercert(binary_form=True))
            self.finish_request(visit.connection, client_address)
        except OSError:
            pass  # a stranger, or a connection that broke
        finally:
            with self._lock:
                self._visits.pop(visit, None)
            self.shutdown_request(visit.connection)

    def _admit(self, visit: _Visit) -> None:
        with self._lock:
            self._visits[visit] = None
            for certified in (False, True):
                alike = [each for each in self._visits if each.certified == certified]
                if len(alike) > MOST_CLIENTS:
                    [(host, _)] = Counter(each.host for each in alike).most_common(1)
                    oldest = next(each for each in alike if each.host == host)
                    del self._visits[oldest]
                    oldest.end()


@contextlib.contextmanager
def serving(server: BoundedServer) -> Iterator[int]:
    """Answer requests in threads within the context, and yield the port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
