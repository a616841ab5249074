"""How do jobs travel with Flower? A transport over its grid, and the two apps it runs: one on the server, one on devices.

Flower's own strategies wait for everybody, so the grid's messages are used directly. A pull blocks while a reply is still
being uploaded, so every job has a thread that waits for its reply.
"""

import os
import queue
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from perfeds2.deployment.settings import Settings
from perfeds2.deployment.transport import Arrays, Job, Reply
from perfeds2.learning.compiled import keep_compiled

GONE = {3: "the reply never came", 4: "the reply is lost", 5: "the device went away"}  # Flower's error codes
FAILED = {
    1: "the app could not be loaded",
    2: "the app raised an exception",
    7: "the app bundle is not valid",
    8: "the app crashed",
}
LOOK_EVERY_S = 2.0  # who is there
MODEL, JOB, UPDATE, ANSWER, METRICS = "model", "job", "update", "answer", "metrics"  # names of records


class FlowerTransport:
    """Devices are the nodes registered as device-0, device-1, …; nodes with other names get the numbers left over."""

    def __init__(self, grid: Grid, ues: int) -> None:
        self._grid, self._ues = grid, ues
        self._node: dict[int, int] = {}  # UE to node
        self._members: frozenset[int] = frozenset()
        self._looked_s = float("-inf")
        self._replies: queue.Queue[Reply] = queue.Queue()
        self._closed = threading.Event()
        self._pull_every_s = max(0.3, ues / 40)

    def __enter__(self) -> "FlowerTransport":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()

    def dispatch(self, job: Job, params: Arrays) -> bool:
        content = RecordDict(
            {
                MODEL: ArrayRecord({name: Array(values) for name, values in params.items()}),
                JOB: ConfigRecord({"ticket": job.ticket, "ue": job.ue, "version": job.version}),
            }
        )
        message = Message(content, dst_node_id=self._node[job.ue], message_type=job.kind, group_id=str(job.version))
        sent = list(self._grid.push_messages([message]))
        if not sent or not sent[0]:
            return False
        threading.Thread(target=self._wait_for, args=(sent[0], job), daemon=True).start()
        return True

    def poll(self, wait_s: float) -> list[Reply]:
        replies = []
        try:
            replies.append(self._replies.get(timeout=wait_s))
            while True:
                replies.append(self._replies.get_nowait())
        except queue.Empty:
            return replies

    def members(self) -> frozenset[int]:
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            online = {node.node_id: node.name for node in self._grid.get_nodes() if node.status in ("", "online")}
            self._number(online)
            self._members = frozenset(ue for ue, node in self._node.items() if node in online)
            self._looked_s = time.monotonic()
        return self._members

    def now(self) -> float:
        return time.monotonic()

    def _number(self, online: dict[int, str]) -> None:
        """Who is which UE. The name was given when the server's operator registered the key, so it can be relied on."""
        for node, name in sorted(online.items()):
            kind, _, number = name.rpartition("-")
            if kind == "device" and number.isdecimal() and int(number) < self._ues:
                self._node[int(number)] = node
        known = set(self._node.values())
        spare = iter(sorted(set(range(self._ues)) - self._node.keys()))
        for node, name in sorted(online.items()):
            if node not in known and not name.startswith("device-") and (ue := next(spare, None)) is not None:
                self._node[ue] = node

    def _wait_for(self, message_id: str, job: Job) -> None:
        while not self._closed.is_set():
            try:
                for message in self._grid.pull_messages([message_id]):
                    self._replies.put(_read(message, job, time.monotonic()))
                    return
            except Exception as error:  # the server is away or refuses; it will be back, or the run is over
                if self._closed.wait(1.0):
                    return
                print(f"pull failed: {error}", flush=True)
            self._closed.wait(self._pull_every_s)


def _read(message: Message, job: Job, received_s: float) -> Reply:
    """A reply as it came, for the server to judge. Flower says which job it answers, and checks who signed it."""
    if message.has_error():
        code = message.error.code
        why = GONE.get(code) or FAILED.get(code) or f"error {code}"
        return Reply(job.ue, received_s, job.ticket, job.version, error=why, gone=code in GONE, on=job.ticket)
    try:
        content = message.content
        answer: Any = content[ANSWER]
        metrics = {str(name): float(value) for name, value in _metrics(content).items()}
        update = content.array_records.get(UPDATE)
        arrays = None if update is None else {name: array.numpy() for name, array in update.items()}
        said = int(answer["ticket"]), int(answer["version"])
        return Reply(job.ue, received_s, *said, arrays, metrics, float(answer["compute_s"]), on=job.ticket)
    except Exception as error:  # whatever they sent, the server goes on
        why = f"unreadable reply ({type(error).__name__})"
        return Reply(job.ue, received_s, job.ticket, job.version, error=why, on=job.ticket)


def _metrics(content: RecordDict) -> dict[str, Any]:
    return dict(content.metric_records.get(METRICS, {}))


def server_app() -> ServerApp:
    """What the SuperLink runs."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from perfeds2.deployment.serve import serve

        settings = Settings.from_run_config(context.run_config)
        path = settings.out or Path("runs") / f"federate-{context.run_id}"
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"run folder: {path.resolve()}", flush=True)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with FlowerTransport(grid, settings.spec.cell.ues) as transport:
            serve(settings, transport, path)

    return app


def _end_with_parent() -> None:
    """Whoever started this process has died: nobody will end it, and another server may take up its folder."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def client_app() -> ClientApp:
    """What a SuperNode runs, in a fresh process for every job."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        settings, job, params = _open(message, context)
        from perfeds2.deployment.device import work

        done = work(
            settings.task(job.ue, _data_folder(context)), settings.algorithm.learner, params,
            alpha=settings.spec.learning.alpha, seed=settings.seed, ue=job.ue, version=job.version,
        )  # fmt: skip
        slow_s = dict(settings.slow).get(job.ue, 0.0)
        time.sleep(slow_s)
        update = ArrayRecord({name: Array(values) for name, values in done.update.items()})
        return _answer(message, job, done.metrics, done.compute_s + slow_s, update)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        settings, job, params = _open(message, context)
        from perfeds2.deployment.device import look

        task = settings.task(job.ue, _data_folder(context))
        return _answer(message, job, look(task, params, alpha=settings.spec.learning.alpha, ue=job.ue), 0.0)

    return app


def _open(message: Message, context: Context) -> tuple[Settings, Job, Arrays]:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_compiled()  # every job is a new process, which would compile everything again
    asked: Any = message.content[JOB]
    params = {name: array.numpy() for name, array in message.content.array_records[MODEL].items()}
    job = Job(int(asked["ticket"]), int(asked["ue"]), int(asked["version"]))
    return Settings.from_run_config(context.run_config), job, params


def _data_folder(context: Context) -> Path | None:
    """What the device's owner said when starting it; the server has no say in it."""
    folder = context.node_config.get("data-folder")
    return None if folder in (None, "") else Path(str(folder))


def _answer(
    message: Message, job: Job, metrics: dict[str, float], compute_s: float, update: ArrayRecord | None = None
) -> Message:
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        ANSWER: ConfigRecord({"ticket": job.ticket, "version": job.version, "compute_s": compute_s}),
        METRICS: MetricRecord(dict(metrics)),
    }
    if update is not None:
        records[UPDATE] = update
    return Message(RecordDict(records), reply_to=message)
