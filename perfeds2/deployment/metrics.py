"""Serve ``/metrics`` for Prometheus and ``/healthz``, on loopback only.

The server passes its status to ``Metrics`` whenever it writes it, at most twice a second; only new rows of the record
are counted. A scrape reads the last status and never touches the federation itself.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Histogram, MetricsHandler, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from perfeds2 import __version__
from perfeds2.deployment.record import Record
from perfeds2.deployment.status import PAUSED, STATES, UNUSABLE, Status
from perfeds2.errors import InputError
from perfeds2.http_server import BoundedServer, serving

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SILENT_S = 60.0  # a server without a new status for this long is unhealthy
SHORT_S = 30.0  # so is one with fewer devices than the quorum for this long
STALENESS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
MOST_SHOWN = 10  # devices with the largest shares of the merges
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")


DaysLeft = Callable[[], Mapping[str, float]]  # days until files expire, by name


class Metrics:
    """The metrics of a federation. One thread updates them, others read them."""

    def __init__(self, model_bytes: int, days_left: DaysLeft = dict) -> None:
        disable_created_metrics()
        self.model_bytes, self._days_left = model_bytes, days_left
        self.registry = CollectorRegistry()
        self._status: Status | None = None
        self._told_s = time.monotonic()
        self._enough_s = self._told_s  # when there was last a quorum of devices
        self._rounds = self._jobs = self._losses = 0  # rows of the record counted so far
        self._merges = Counter[int]()  # by device
        self._round_s = self._histogram("round_seconds", "Duration of rounds.", BUCKETS_S)
        self._job_s = self._histogram("job_seconds", "From handing out a model to having the update.", BUCKETS_S)
        self._staleness = self._histogram(
            "staleness", "Rounds between a merged update's model and its merge.", STALENESS
        )
        self.registry.register(self)

    def _histogram(self, name: str, help_: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"perfeds2_{name}", help_, buckets=buckets, registry=self.registry)

    def tell(self, status: Status, record: Record) -> None:
        """Update the metrics. The cost is proportional to what has happened since the last call."""
        closed_s = record.closed_s
        for k in range(self._rounds, len(closed_s)):
            self._round_s.observe(closed_s[k] - (closed_s[k - 1] if k else 0.0))
        for lap in record.laps[self._jobs :]:
            if lap.scale:
                self._job_s.observe(lap.took_s)
        for merge in record.merges[self._merges.total() :]:
            self._staleness.observe(merge.round - merge.version)
            self._merges[merge.ue] += 1
        self._rounds, self._jobs, self._losses = len(closed_s), len(record.laps), len(record.losses)
        self._status, self._told_s = status, time.monotonic()
        if _usable(status) >= status.quorum:
            self._enough_s = self._told_s

    def health(self) -> tuple[int, str]:
        """Return 200 if rounds can close, otherwise 503, and a sentence with the reason or the last round's age."""
        status, silent_s = self._status, time.monotonic() - self._told_s
        if silent_s > SILENT_S:
            return 503, f"the server has not updated its status for {silent_s:.0f} s"
        if status is None:
            return 503, "starting"
        if status.broker is not None:
            return 503, status.broker
        if status.phase == PAUSED:
            return 503, status.warning or PAUSED
        short_s = time.monotonic() - self._enough_s
        if _usable(status) < status.quorum and short_s > SHORT_S:
            return 503, (
                f"below the quorum for {short_s:.0f} s: {_usable(status)} of {status.ues} devices can be used, "
                f"{status.quorum} are needed"
            )
        if not status.recent:
            return 200, f"ok: {status.phase}, no round has closed yet"
        age_s = status.time_s - status.recent[-1].time_s + silent_s
        return 200, f"ok: {status.phase}, round {status.round - 1} of {status.rounds} closed {age_s:.1f} s ago"

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last status. The registry calls this for every scrape."""
        yield _gauges("build_info", "Version of perfeds2.", "version", {__version__: 1})
        left = list[tuple[str, float]]()
        with suppress(InputError, OSError):  # a file that is being replaced
            left = sorted(self._days_left().items(), key=lambda each: each[1])[:MOST_SHOWN]
        yield _gauges("certificate_days_left", "Days until files expire.", "file", dict(left))
        status = self._status
        if status is None:
            return
        yield _gauges("devices", "Devices by state.", "state", {state: status.states[state] for state in STATES})
        refused = CounterMetricFamily(
            "perfeds2_refusals", "Replies refused since the server started, by reason.", labels=["reason"]
        )
        for reason, count in status.reasons.items():
            refused.add_metric([reason], count)
        yield refused
        shares = {str(ue): merges / self._merges.total() for ue, merges in self._merges.most_common(MOST_SHOWN)}
        yield _gauges("merge_share", "Largest shares of all merges.", "device", shares)
        yield _gauge("broker_up", "1 if the broker delivers messages.", status.broker is None)
        yield _counter(
            "broker_failures", "Times that the broker failed since the server started.", status.broker_failures
        )
        yield _gauge("alarm", "1 if there is a warning in status.json.", status.warning is not None)
        sent, received = status.jobs * self.model_bytes, self._jobs * self.model_bytes
        yield _gauge("quorum", "Updates that close a round.", status.quorum)
        yield _gauge("rounds_wanted", "Rounds of the whole run.", status.rounds)
        yield _gauge("run_seconds", "Time since round 0 opened.", status.time_s)
        if status.recent:
            age_s = status.time_s - status.recent[-1].time_s + time.monotonic() - self._told_s
            yield _gauge("last_round_age_seconds", "Time since the last round closed.", max(age_s, 0.0))
        if status.accuracy is not None:
            yield _gauge("personal_accuracy", "Latest personal test accuracy, mean over devices.", status.accuracy)
        if status.epsilon_worst is not None and status.epsilon_median is not None:
            yield _gauge("epsilon_worst", "Largest privacy loss of a device.", status.epsilon_worst)
            yield _gauge("epsilon_median", "Median privacy loss of devices.", status.epsilon_median)
            losses = {str(each.ue): each.epsilon or 0.0 for each in status.devices}
            yield _gauges("epsilon", "Privacy loss of devices in status.json.", "device", losses)
        yield _gauge("accuracy_fall", "Fall of the personal accuracy below its best.", status.fall)
        yield _counter("rounds", "Rounds that have closed.", status.round)
        yield _counter("jobs", "Jobs handed out since the server started.", status.jobs)
        yield _counter("updates_merged", "Updates merged into the model.", self._merges.total())
        yield _counter("updates_lost", "Jobs that ended without a merge.", self._losses)
        yield _counter("updates_refused", "Replies that were refused.", status.refused)
        yield _counter("sent_bytes", "Bytes of arrays handed out since the server started.", sent)
        yield _counter("received_bytes", "Bytes of arrays received.", received)


def _usable(status: Status) -> int:
    return status.ues - sum(status.states[state] for state in UNUSABLE)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"perfeds2_{name}", help_, value)


def _gauges(name: str, help_: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"perfeds2_{name}", help_, labels=[label])
    for own, value in values.items():
        family.add_metric([own], value)
    return family


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(f"perfeds2_{name}", help_, value)


@contextmanager
def exposed(metrics: Metrics, port: int) -> Iterator[str | None]:
    """Serve the metrics on loopback within the context, and yield the URL. With port 0, serve nothing."""
    if port == 0:
        yield None
        return

    class Handler(MetricsHandler):
        registry, server_version, sys_version = metrics.registry, "perfeds2", ""

        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            status, words = 404, "not found; see /metrics and /healthz"
            if not LOOPBACK.fullmatch(self.headers["Host"] or ""):  # a web page that gave this machine its own name
                status, words = 403, "only for requests to 127.0.0.1 or localhost"
            elif self.path == "/metrics":
                super().do_GET()
                return
            elif self.path == "/healthz":
                status, words = metrics.health()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{words}\n".encode())

    try:
        server = BoundedServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"--metrics-port {port} cannot be opened ({error.strerror}); choose another.") from None
    with serving(server):
        yield f"http://127.0.0.1:{port}"
