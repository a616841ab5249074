"""Serve ``/metrics`` for Prometheus and ``/healthz``, on loopback only.

The server passes its status to ``Metrics`` whenever it writes it, at most twice a second; only new rows of the record
are counted. A scrape reads the last status and never touches the federation itself.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Histogram, MetricsHandler, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from perfeds2 import __version__
from perfeds2.deployment.record import Record
from perfeds2.deployment.status import STATES, DeviceState, Status
from perfeds2.errors import InputError

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
UNUSABLE: tuple[DeviceState, ...] = ("away", "set aside")  # a device in one of these states cannot be handed a job
SILENT_S = 60.0  # a server without a new status for this long is unhealthy
PATIENCE_S = 10.0  # for a client that connects and sends no request


class Metrics:
    """The metrics of a federation. One thread updates them, others read them."""

    def __init__(self, model_bytes: int) -> None:
        disable_created_metrics()
        self.model_bytes = model_bytes
        self.registry = CollectorRegistry()
        self._status: Status | None = None
        self._told_s = time.monotonic()
        self._rounds = self._jobs = self._merges = self._losses = 0  # rows of the record counted so far
        self._round_s = self._histogram("round_seconds", "Duration of rounds.")
        self._job_s = self._histogram("job_seconds", "From handing out a model to having the update.")
        self.registry.register(self)

    def _histogram(self, name: str, help_: str) -> Histogram:
        return Histogram(f"perfeds2_{name}", help_, buckets=BUCKETS_S, registry=self.registry)

    def tell(self, status: Status, record: Record) -> None:
        """Update the metrics. The cost is proportional to what has happened since the last call."""
        closed_s = record.closed_s
        for k in range(self._rounds, len(closed_s)):
            self._round_s.observe(closed_s[k] - (closed_s[k - 1] if k else 0.0))
        for lap in record.laps[self._jobs :]:
            self._job_s.observe(lap.took_s)
        self._rounds, self._jobs = len(closed_s), len(record.laps)
        self._merges, self._losses = len(record.merges), len(record.losses)
        self._status, self._told_s = status, time.monotonic()

    def health(self) -> tuple[int, str]:
        """Return 200 if rounds can close, otherwise 503, and a sentence with the reason or the last round's age."""
        status, silent_s = self._status, time.monotonic() - self._told_s
        if silent_s > SILENT_S:
            return 503, f"the server has not updated its status for {silent_s:.0f} s"
        if status is None:
            return 503, "starting"
        usable = status.ues - sum(status.states[state] for state in UNUSABLE)
        if usable < status.quorum:
            return 503, f"below the quorum: {usable} of {status.ues} devices can be used, {status.quorum} are needed"
        if not status.recent:
            return 200, f"ok: {status.phase}, no round has closed yet"
        age_s = status.time_s - status.recent[-1].time_s + silent_s
        return 200, f"ok: {status.phase}, round {status.round - 1} of {status.rounds} closed {age_s:.1f} s ago"

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last status. The registry calls this for every scrape."""
        build = GaugeMetricFamily("perfeds2_build_info", "Version of perfeds2.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        status = self._status
        if status is None:
            return
        devices = GaugeMetricFamily("perfeds2_devices", "Devices by state.", labels=["state"])
        for state in STATES:
            devices.add_metric([state], status.states[state])
        yield devices
        sent, received = status.jobs * self.model_bytes, self._jobs * self.model_bytes
        yield _gauge("quorum", "Updates that close a round.", status.quorum)
        yield _gauge("rounds_wanted", "Rounds of the whole run.", status.rounds)
        yield _gauge("run_seconds", "Time since round 0 opened.", status.time_s)
        if status.recent:
            age_s = status.time_s - status.recent[-1].time_s + time.monotonic() - self._told_s
            yield _gauge("last_round_age_seconds", "Time since the last round closed.", max(age_s, 0.0))
        if status.accuracy is not None:
            yield _gauge("personal_accuracy", "Latest personal test accuracy, mean over devices.", status.accuracy)
        yield _counter("rounds", "Rounds that have closed.", status.round)
        yield _counter("jobs", "Jobs handed out since the server started.", status.jobs)
        yield _counter("updates_merged", "Updates merged into the model.", self._merges)
        yield _counter("updates_lost", "Jobs that ended without a merge.", self._losses)
        yield _counter("updates_refused", "Replies that were refused.", status.refused)
        yield _counter("sent_bytes", "Bytes of arrays handed out since the server started.", sent)
        yield _counter("received_bytes", "Bytes of arrays received.", received)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"perfeds2_{name}", help_, value)


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(f"perfeds2_{name}", help_, value)


@contextmanager
def exposed(metrics: Metrics, port: int) -> Iterator[str | None]:
    """Serve the metrics on loopback within the context, and yield the URL. With port 0, serve nothing."""
    if port == 0:
        yield None
        return

    class Handler(MetricsHandler):
        registry, server_version, sys_version, timeout = metrics.registry, "perfeds2", "", PATIENCE_S

        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            if self.path == "/metrics":
                super().do_GET()
                return
            status, words = (
                metrics.health() if self.path == "/healthz" else (404, "not found; see /metrics and /healthz")
            )
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{words}\n".encode())

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"--metrics-port {port} cannot be opened ({error.strerror}); choose another.") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.shutdown()
            thread.join()
