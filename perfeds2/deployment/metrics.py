"""What do monitors see of a federation? ``/metrics`` for Prometheus and ``/healthz``, on loopback only.

The server tells ``Metrics`` where it stands when it writes its status, twice a second at most; only what is new in the record
is looked at. A scrape reads what was told last and never touches the federation itself.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from perfeds2 import __version__
from perfeds2.deployment.record import Record
from perfeds2.deployment.status import STATES, DeviceState, Status
from perfeds2.errors import InputError

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
UNUSABLE: tuple[DeviceState, ...] = ("away", "set aside")  # states in which a device can be handed nothing
SILENT_S = 60.0  # a server that says nothing for so long is not well
PATIENCE_S = 10.0  # with a client that connects and asks nothing


@dataclass
class Histogram:
    """How often something took how long."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))  # the last is for what takes longer
    total_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s

    def lines(self, name: str) -> Iterator[str]:
        below = 0
        for edge, count in zip([*map(str, BUCKETS_S), "+Inf"], self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{edge}"}} {below}'
        yield f"{name}_sum {_number(self.total_s)}"
        yield f"{name}_count {self.count}"


class Metrics:
    """What is known of a federation for monitors. One thread tells, others read."""

    def __init__(self, model_bytes: int) -> None:
        self.model_bytes = model_bytes
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._told_s = time.monotonic()
        self._rounds, self._laps = Histogram(), Histogram()
        self._merges = self._losses = 0

    def tell(self, status: Status, record: Record) -> None:
        """Where the federation stands now. Costs as much as has happened since the last time."""
        with self._lock:
            self._status, self._told_s = status, time.monotonic()
            closed_s = record.closed_s
            for k in range(self._rounds.count, len(closed_s)):
                self._rounds.add(closed_s[k] - (closed_s[k - 1] if k else 0.0))
            for number in range(self._laps.count, len(record.laps)):
                self._laps.add(record.laps[number].took_s)
            self._merges, self._losses = len(record.merges), len(record.losses)

    def health(self) -> tuple[bool, str]:
        """Whether rounds can close, and why not; else how long ago the last one did."""
        with self._lock:
            status, silent_s = self._status, time.monotonic() - self._told_s
        if silent_s > SILENT_S:
            return False, f"the server has said nothing for {silent_s:.0f} s"
        if status is None:
            return False, "starting"
        usable = status.ues - sum(status.states[state] for state in UNUSABLE)
        if usable < status.quorum:
            return False, f"below the quorum: {usable} of {status.ues} devices can be used, {status.quorum} are needed"
        if not status.recent:
            return True, f"ok: {status.phase}, no round has closed yet"
        age_s = status.time_s - status.recent[-1].time_s + silent_s
        return True, f"ok: {status.phase}, round {status.round - 1} of {status.rounds} closed {age_s:.1f} s ago"

    def text(self) -> str:
        """Everything, in Prometheus' text format."""
        with self._lock:
            return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        status = self._status
        yield from _metric("build_info", "gauge", "The version of perfeds2.", {f'{{version="{__version__}"}}': 1})
        if status is None:
            return
        by_state = {f'{{state="{state}"}}': status.states[state] for state in STATES}
        yield from _metric("devices", "gauge", "Devices by what they do.", by_state)
        yield from _metric("quorum", "gauge", "Updates that close a round.", status.quorum)
        yield from _metric("rounds_total", "counter", "Rounds that have closed.", status.round)
        yield from _metric("rounds_wanted", "gauge", "Rounds the run will have.", status.rounds)
        yield from _metric("run_seconds", "gauge", "Since round 0 opened.", status.time_s)
        if status.recent:
            age_s = status.time_s - status.recent[-1].time_s + time.monotonic() - self._told_s
            yield from _metric("last_round_age_seconds", "gauge", "Since the last round closed.", max(age_s, 0.0))
        yield from _histogram("round_seconds", "What rounds took.", self._rounds)
        yield from _histogram("job_seconds", "From handing out a model to having the update.", self._laps)
        yield from _metric("jobs_total", "counter", "Jobs handed out since the server started.", status.jobs)
        yield from _metric("updates_merged_total", "counter", "Updates that went into the model.", self._merges)
        yield from _metric("updates_lost_total", "counter", "Jobs that ended without a merge.", self._losses)
        yield from _metric("updates_refused_total", "counter", "Replies that were not believed.", status.refused)
        sent, received, of = status.jobs * self.model_bytes, self._laps.count * self.model_bytes, "of arrays, without what the network adds"  # fmt: skip
        yield from _metric("sent_bytes_total", "counter", f"Models handed out since the server started, {of}.", sent)
        yield from _metric("received_bytes_total", "counter", f"Updates that came, {of}.", received)
        if status.accuracy is not None:
            words = "Test accuracy after the personal step, mean over devices of what each said last."
            yield from _metric("personal_accuracy", "gauge", words, status.accuracy)


def _metric(name: str, kind: str, words: str, values: float | Mapping[str, float]) -> Iterator[str]:
    """A metric with its explanation; with labels, one line each."""
    yield from (f"# HELP perfeds2_{name} {words}", f"# TYPE perfeds2_{name} {kind}")
    for labels, value in (values if isinstance(values, Mapping) else {"": values}).items():
        yield f"perfeds2_{name}{labels} {_number(value)}"


def _histogram(name: str, words: str, histogram: Histogram) -> Iterator[str]:
    yield from _metric(name, "histogram", words, {})
    yield from histogram.lines(f"perfeds2_{name}")


def _number(value: float) -> str:
    """As Prometheus reads it: NaN, +Inf, or the shortest text that reads back the same."""
    text = repr(value if isinstance(value, int) else float(value))
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)


@contextmanager
def exposed(metrics: Metrics, port: int) -> Iterator[str | None]:
    """Answer monitors on loopback meanwhile; gives the address. Port 0: nobody is answered."""
    if port == 0:
        yield None
        return
    with listening(metrics, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def listening(metrics: Metrics, port: int) -> ThreadingHTTPServer:
    """A server on loopback and nowhere else."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "perfeds2", "", PATIENCE_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, EXPOSITION, metrics.text())
            elif self.path == "/healthz":
                is_well, words = metrics.health()
                self._answer(200 if is_well else 503, "text/plain; charset=utf-8", f"{words}\n")
            else:
                self._answer(404, "text/plain; charset=utf-8", "there are /metrics and /healthz\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Monitors ask every few seconds; nobody wants to read that."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"--metrics-port {port} cannot be opened ({error.strerror}); choose another.") from None
    server.daemon_threads = True
    return server
