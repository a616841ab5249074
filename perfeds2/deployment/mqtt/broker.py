"""Run an MQTT broker as a child process, and configure who may publish and read what.

A client is identified by the name in its certificate; the access list says what it may publish and read. Mosquitto
reads both from ``mosquitto.conf`` and ``access.txt``. If it is not installed, the small broker in ``embedded.py``
reads the same files. The broker ends with this process. It is restarted if it dies, and also when a certificate is
revoked, because it checks certificates only when clients connect.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfeds2.deployment.authority import Authority, is_issued, number_of, read_certificates, read_lists, write
from perfeds2.deployment.credentials import BROKER, FEDERATION, SERVER, Credentials, federated_name
from perfeds2.deployment.processes import Processes, Restarts, repeating
from perfeds2.deployment.site import Site
from perfeds2.errors import InputError

Kind = Literal["mosquitto", "embedded"]
NAME = "broker"  # of the process and its log
REVOKED = "clients.crl"  # the broker's own copy of the list of revoked clients
CHUNK_BYTES = 256 * 1024  # largest payload of a message
STARTS_WITHIN_S = 20.0
LOOK_EVERY_S = 0.5
LOG_BYTES = 32 * 2**20
INSTALL = "install it (Debian, Ubuntu: sudo apt install mosquitto; macOS: brew install mosquitto)"
ELSEWHERE = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")  # install folders often missing from PATH


@dataclass(frozen=True)
class Limits:
    """The most that a client can cost the broker."""

    packet_bytes: int = CHUNK_BYTES + 4096  # a chunk with its topic and header; larger packets are refused unread
    inflight_messages: int = 20  # sent to one client and not yet acknowledged
    queued_messages: int = 10_000  # waiting for one client; beyond that, the newest are dropped
    queued_bytes: int = 256 * 2**20
    connections: int = 10_000
    memory_bytes: int = 2 * 2**30  # of the whole broker


class Broker:
    """A running broker."""

    def __init__(self, kind: Kind, site: Site, command: list[str], processes: Processes) -> None:
        self.kind: Kind = kind
        self.host, self.port = site.host, site.port
        self.process_id = 0
        self.restarts = 0
        self._restarts = Restarts()
        self._site, self._command, self._processes = site, command, processes
        self._folder = processes.log(NAME).parent
        self._lock = threading.RLock()
        self._log = processes.log(NAME)

    def start(self) -> None:
        """Start the broker and return when it answers."""
        self._stamp = self._files()
        keep_newest(self._site.credentials.clients, self._folder)
        free_port(self.host, self.port)  # fail if another process listens there
        self.process_id = self._processes.start(NAME, self._command)
        self._read_bytes = self._log.stat().st_size
        ends_s = time.monotonic() + STARTS_WITHIN_S
        while not self._answers():
            if not self._processes.runs(NAME) or time.monotonic() > ends_s:
                said = self._processes.last_line(NAME)
                raise InputError(f"the broker did not start on {self._site.address}: {said}.")
            time.sleep(0.02)

    def restart(self) -> None:
        """Restart the broker. Clients reconnect if they still may; retained messages are lost."""
        with self._lock:
            self._processes.end(NAME)
            self.start()
            self.restarts += 1

    def look(self) -> None:
        """Restart the broker if it has died, its certificates have changed, or its memory is used up."""
        with self._lock, suppress(InputError):  # the broker logs the reason, and is started again later
            runs = self._processes.runs(NAME)
            if not runs and not self._restarts.waits(NAME):
                self._restarts.died(NAME)
            changed = runs and (self._files() != self._stamp or b"out of memory" in self._news())
            if changed or self._restarts.due():
                self.restart()

    def _news(self) -> bytes:
        """Return what the broker has logged since the last call. Rotates a long log, which strangers could fill."""
        with self._log.open("r+b") as file:
            file.seek(self._read_bytes)
            news = file.read()
            self._read_bytes = file.tell()
            if self._read_bytes > LOG_BYTES:
                shutil.copy(self._log, self._log.with_suffix(".log.1"))
                file.truncate(0)
                self._read_bytes = 0
        return news

    def _files(self) -> list[int]:
        held = self._site.credentials
        files = (held.clients.revocations, held.clients.certificate, held.brokers.revocations, held.file(BROKER, "crt"))
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in files]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0):
                return True
        except OSError:
            return False


@contextmanager
def running_broker(
    credentials: Credentials,
    address: tuple[str, int],
    folder: Path,
    kind: Kind | None = None,
    limits: Limits = Limits(),
    also: Sequence[str] = (),
) -> Iterator[Broker]:
    """Run a broker within the context, and restart it when needed.

    Args:
        credentials: The server's credentials, with the revocation list.
        address: Host and port to listen on; port 0 picks a free one.
        folder: Folder for the broker's two configuration files and its log.
        kind: The broker to run. By default Mosquitto, or the embedded one if that is not installed.
        limits: The most that a client can cost the broker.
        also: Names of other federations of the same authorities that may use the broker.

    Yields:
        The running broker.

    Raises:
        InputError: The broker is not installed or does not start.
    """
    folder = folder.resolve()
    program = find_mosquitto()
    if kind == "mosquitto" and program is None:
        raise InputError(f"Mosquitto is not installed; {INSTALL}, or use a broker that is running: --broker HOST:PORT.")
    kind = kind or ("embedded" if program is None else "mosquitto")
    listed = credentials.clients.revocations
    if not listed.exists():
        raise InputError(f"{listed} does not exist; make it with perfeds2 federate credentials.")
    check_alone(credentials.clients)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    site = Site(address[0], address[1] or free_port(address[0]), credentials)
    texts = {
        "access.txt": "\n".join(map(access_list, (site.federation, *also))),
        "mosquitto.conf": configuration(credentials, (site.host, site.port), folder, limits, folder / REVOKED),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o600)
    embedded = [sys.executable, "-m", "perfeds2.deployment.mqtt.embedded"]
    command = embedded if kind == "embedded" else [str(program), "-c"]
    # Allow as many open files as connections, if the system permits it.
    allow = f'ulimit -n {limits.connections + 100} || ulimit -n "$(ulimit -H -n)"; exec "$@"'
    with Processes(folder) as processes:
        whole = ["/bin/sh", "-c", allow, "sh", *command, str(folder / "mosquitto.conf")]
        broker = Broker(kind, site, whole, processes)
        broker.start()
        with repeating(broker.look, LOOK_EVERY_S):
            yield broker


def check_alone(clients: Authority) -> None:
    """Raise InputError if clients of several authorities may connect, since each could sign any client's name."""
    known = read_certificates(clients.certificate)
    linked = known[:1]
    for each in known[1:]:  # during a rollover the old authority has signed the new one
        if each.subject == known[0].subject or any(is_issued(old, each, authority=True) for old in linked):
            linked.append(each)
    if len(linked) < len(known):
        raise InputError(
            f"{clients.certificate} has authorities of several federations, and each could sign certificates in the name "
            "of another; run one broker for each federation."
        )


def keep_newest(clients: Authority, folder: Path) -> None:
    """Copy the revocation list to the broker's folder, unless the broker has had one with a higher number."""
    kept, new = folder / REVOKED, read_lists(clients.revocations)
    if kept.exists():
        authorities = [each.subject for each in read_certificates(clients.certificate)]
        old = [number_of(each) for each in read_lists(kept) if each.issuer in authorities]
        if old and max(old) > max(map(number_of, new)):
            print(f"{clients.revocations} is older than the list in use, and is refused; copy the newest", flush=True)
            return
    write(kept, clients.revocations.read_bytes(), 0o600)


def access_list(federation: str = FEDERATION) -> str:
    """Return the access list of a federation. Those of several federations on one broker are put together."""
    return f"""\
# What each client may write and read; %u is the name in the certificate. Everything else is forbidden.
user {federated_name(federation, SERVER)}
topic readwrite {federation}/#

pattern read {federation}/run
pattern read {federation}/trust
pattern read {federation}/model/#
pattern read {federation}/job/%u
pattern write {federation}/here/%u
pattern write {federation}/reply/%u/#
"""


def configuration(
    credentials: Credentials, address: tuple[str, int], folder: Path, limits: Limits, revoked: Path | None = None
) -> str:
    """Return mosquitto.conf: TLS 1.2 or later with client certificates, no anonymous clients, and bounded queues.

    A certificate has one session (use_username_as_clientid), so no client can take over another's.
    """
    for path in (credentials.folder, folder):
        if re.search(r"[\r\n]", str(path.resolve())):
            raise InputError(f"{str(path)!r} has a line break in it; choose another folder.")
    certificate, key = credentials.own_files(BROKER)
    user = "user root" if os.geteuid() == 0 else ""  # otherwise it drops to a user that cannot read the key
    return f"""\
listener {address[1]} {address[0]}
tls_version tlsv1.2
cafile {credentials.clients.certificate.resolve()}
certfile {certificate.resolve()}
keyfile {key.resolve()}
crlfile {(revoked or credentials.clients.revocations).resolve()}
require_certificate true
use_identity_as_username true
use_username_as_clientid true
max_connections {limits.connections}
set_tcp_nodelay true
allow_anonymous false
acl_file {folder.resolve() / "access.txt"}
max_packet_size {limits.packet_bytes}
max_qos 1
max_inflight_messages {limits.inflight_messages}
max_queued_messages {limits.queued_messages}
max_queued_bytes {limits.queued_bytes}
memory_limit {limits.memory_bytes}
persistent_client_expiration 1d
persistence false
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
{user}
"""


def find_mosquitto() -> str | None:
    """Return the path of Mosquitto 2.0 or later; None if it is not installed."""
    path = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), *ELSEWHERE]))
    if path is None:
        return None
    said = subprocess.run([path, "-h"], capture_output=True, text=True, check=False, timeout=10).stdout  # noqa: S603
    version = re.search(r"version (\d+)\.", said)
    return path if version and int(version[1]) >= 2 else None


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """Return a port on which nothing listens now: the given one, or any if 0."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family) as probe:
            return probe.getsockname()[1]
    except OSError as error:
        raise InputError(f"the broker did not start on {host}:{port}: {error.strerror or error}.") from None
