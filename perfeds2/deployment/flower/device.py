"""What is a device of a federation on Flower? ``python -m perfeds2.deployment.flower.device '{"server": …}'``

One process that stays. Flower's own SuperNode fetches an app from the server and starts it anew for every job; this one speaks
to the server as a SuperNode does, but never fetches an app: it runs what is installed, on the data and the module that its
owner named. Nothing the server says names a file here.
"""

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_connection import http_request_response

from perfeds2.deployment.device import answer
from perfeds2.deployment.flower.transport import ANSWER, JOB, METRICS, MODEL, UPDATE, to_arrays, to_records
from perfeds2.deployment.setup import Setup, refuse_memory
from perfeds2.deployment.transport import Kind, Request
from perfeds2.errors import InputError
from perfeds2.learning.compiled import keep_compiled
from perfeds2.learning.task import Task

ASK_AFTER_S, ASK_EVERY_S = 0.2, 3.0  # for a job: soon after the last one, then less and less often
BEAT_S = 10  # the server misses a device that has been silent for twice as long; Flower's own is 30, the least is 10
KINDS: dict[str, Kind] = {"train": "train", "evaluate": "evaluate"}
RAISED = 2  # Flower's code for an app that raised an exception


@dataclass(frozen=True)
class Owned:
    """What a device's owner said. The server has no say in it."""

    server: str  # HOST:PORT
    authority: Path
    key: Path
    data: Path | None = None
    app_module: Path | None = None

    @classmethod
    def from_json(cls, text: str) -> "Owned":
        said = json.loads(text)
        paths = {name: Path(value) for name, value in said.items() if name != "server" and value is not None}
        return cls(said["server"], **paths)


@dataclass
class Worker:
    """Answers jobs. What it has loaded for a run it keeps for the next job."""

    owned: Owned
    get_run: Callable[[int], Run]
    setups: dict[int, Setup] = field(default_factory=dict)
    tasks: dict[tuple[int, int], Task] = field(default_factory=dict)

    def answer(self, message: Message) -> Message:
        try:
            return Message(self._content(message), reply_to=message)
        except Exception:  # the server is told that it failed, not what our data look like
            traceback.print_exc()
            return Message(Error(RAISED, "the job failed"), reply_to=message)

    def _content(self, message: Message) -> RecordDict:
        asked, run_id = message.content.config_records[JOB], message.metadata.run_id
        ticket, ue, version = (int(str(asked[name])) for name in ("ticket", "ue", "version"))
        request = Request(ticket, ue, version, KINDS[message.metadata.message_type])
        if run_id not in self.setups:
            run = self.get_run(run_id)
            self.setups, self.tasks = {run_id: own_setup(str(run.override_config["settings"]), self.owned)}, {}
        setup = self.setups[run_id]
        if (run_id, ue) not in self.tasks:
            self.tasks[run_id, ue] = setup.task(ue, self.owned.data)
        model = to_arrays(MODEL, message.content)
        assert model is not None
        reply = answer(setup, self.tasks[run_id, ue], request, model)
        said = ConfigRecord({"ticket": reply.ticket, "version": reply.version, "compute_s": reply.compute_s})
        update = {} if reply.update is None else to_records(UPDATE, reply.update)
        return RecordDict({ANSWER: said, METRICS: MetricRecord(dict(reply.metrics)), **update})


def own_setup(settings: str, owned: Owned) -> Setup:
    """A run's settings, with the files that this device's owner named instead of the server's."""
    setup = Setup.from_toml(settings)
    refuse_memory(setup.algorithm)
    if setup.own.app_module is not None and owned.app_module is None:
        raise InputError("the run is of somebody's own model: start this device with --app-module FILE.")
    module = owned.app_module if setup.own.app_module is not None else None
    spec = setup.spec.model_copy(update={"task": setup.spec.task.model_copy(update={"data_dir": None})})
    return replace(setup, spec=spec, own=setup.own.model_copy(update={"out": None, "app_module": module}))


def work(owned: Owned, max_retries: int | None = None) -> None:
    """Take part until told to end."""
    key = load_ssh_private_key(owned.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    keys = key, key.public_key()
    with http_request_response(owned.server, False, owned.authority.read_bytes(), keys, max_retries) as connection:
        node, receive, send, get_run, _, pull_object, push_object, confirm = connection
        print(f"connected to {owned.server} as node {node}", flush=True)
        TaskIdentity.task_id, TaskIdentity.node_id = 0, node
        worker, wait_s = Worker(owned, get_run), ASK_AFTER_S
        while True:
            try:
                came = receive()
                if came is None:
                    time.sleep(wait_s)
                    wait_s = min(1.2 * wait_s, ASK_EVERY_S)
                    continue
                message = _fetch(*came, pull_object, confirm)
                TaskIdentity.run_id = message.metadata.run_id
                began_s = time.monotonic()
                reply = worker.answer(message)
                _send(reply, time.monotonic() - began_s, send, push_object)
                wait_s = ASK_AFTER_S
            except RunNotRunningException:
                print("the run ended meanwhile", flush=True)
            except httpx.HTTPStatusError as error:
                print(f"the server refused: {error}", flush=True)
                time.sleep(wait_s)


def _fetch(
    head: Message, tree: ObjectTree, pull_object: Callable[[int, str], bytes], confirm: Callable[[int, str], None]
) -> Message:
    run_id = head.metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda object_id: pull_object(run_id, object_id),
        lambda object_id: confirm(run_id, object_id),
        return_type=Message,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _send(reply: Message, took_s: float, send: Callable[..., Any], push_object: Callable[..., None]) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), took_s)
        run_id = reply.metadata.run_id
        push_objects(
            get_all_nested_objects(reply),
            lambda object_id, content: push_object(run_id, session, object_id, content),
            object_ids_to_push=wanted,
        )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = BEAT_S  # pyright: ignore[reportPrivateImportUsage]  # Flower has no
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = BEAT_S  # pyright: ignore[reportPrivateImportUsage]  # switch for it
    keep_compiled()
    try:
        work(Owned.from_json(sys.argv[1]))
    except KeyboardInterrupt as interrupt:
        if _was_refused(interrupt):
            sys.exit("Refused: the server no longer knows this device's key; it was unregistered.")


def _was_refused(interrupt: BaseException) -> bool:
    """Flower interrupts its own process when the server answers 401; a person does it with Ctrl-C."""
    behind = interrupt.__context__
    return isinstance(behind, httpx.HTTPStatusError) or (behind is not None and _was_refused(behind))


if __name__ == "__main__":
    main()
