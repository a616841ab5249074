"""How do jobs travel with Flower? A transport over its grid.

Flower's own strategies wait for everybody, so the grid's messages are used directly. A pull blocks while a reply is still
being uploaded, so every job has a thread that waits for its reply. Flower sends each array by itself, in several calls that
cost the server 10 ms each; so arrays travel together, as bytes.
"""

import queue
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import load, save

from perfeds2.deployment.transport import Arrays, Changes, Presence, Reply, Request, Troubles, waited_for

GONE = {3: "the reply never came", 4: "the reply is lost", 5: "the device went away"}  # Flower's error codes
FAILED = {
    1: "the app could not be loaded",
    2: "the app raised an exception",
    7: "the app bundle is not valid",
    8: "the app crashed",
}
PIECE, PIECE_BYTES = "bytes", 4 * 1024**2
LOOK_EVERY_S = 2.0  # who is there
MODEL, JOB, UPDATE, ANSWER, METRICS = "model", "job", "update", "answer", "metrics"  # names of records


class FlowerTransport:
    """Devices are the nodes registered as device-0, device-1, …; others get no jobs."""

    def __init__(self, grid: Grid, ues: int) -> None:
        self._grid, self._ues = grid, ues
        self._node: dict[int, int] = {}  # UE to node
        self._present = Presence()
        self._looked_s = float("-inf")
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._pull_every_s = max(0.3, ues / 40)

    def __enter__(self) -> "FlowerTransport":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def dispatch(self, request: Request, params: Arrays) -> bool:
        asked = ConfigRecord({"ticket": request.ticket, "ue": request.ue, "version": request.version})
        content = RecordDict({JOB: asked, **to_records(MODEL, params)})
        node, group = self._node[request.ue], str(request.version)
        message = Message(content, dst_node_id=node, message_type=request.kind, group_id=group)
        sent = list(self._grid.push_messages([message]))
        if not sent or not sent[0]:
            return False
        threading.Thread(target=self._wait_for, args=(sent[0], request), daemon=True).start()
        return True

    def poll(self, wait_s: float) -> list[Reply]:
        return waited_for(self._replies, wait_s)

    def changes(self) -> Changes:
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            online = {node.node_id: node.name for node in self._grid.get_nodes() if node.status in ("", "online")}
            self._number(online)
            self._present.become(ue for ue, node in self._node.items() if node in online)
            self._looked_s = time.monotonic()
        return self._present.changes()

    def troubles(self) -> Troubles:
        return {}  # whom Flower does not let in, it does not say

    def now(self) -> float:
        return time.monotonic()

    def _number(self, online: dict[int, str]) -> None:
        """Who is which UE. The name was given when the server's operator registered the key, so it can be relied on."""
        for node, name in sorted(online.items()):
            kind, _, number = name.rpartition("-")
            if kind == "device" and number.isdecimal() and int(number) < self._ues:
                self._node[int(number)] = node

    def _wait_for(self, message_id: str, request: Request) -> None:
        while not self._closed.is_set():
            try:
                for message in self._grid.pull_messages([message_id]):
                    self._replies.put(read_reply(message, request, time.monotonic()))
                    return
            except Exception as error:  # the server is away or refuses; it will be back, or the run is over
                if self._closed.wait(1.0):
                    return
                print(f"pull failed: {error}", flush=True)
            self._closed.wait(self._pull_every_s)


def read_reply(message: Message, request: Request, received_s: float) -> Reply:
    """A reply as it came, for the server to judge. Flower says which request it answers, and checks who signed it."""
    known = Reply(request.ue, request.ticket, request.version, received_s=received_s, on=request.ticket)
    if message.has_error():
        code = message.error.code
        return replace(known, error=GONE.get(code) or FAILED.get(code) or f"error {code}", gone=code in GONE)
    try:
        content = message.content
        said: Any = content[ANSWER]
        return replace(
            known,
            ticket=int(said["ticket"]),
            version=int(said["version"]),
            update=to_arrays(UPDATE, content),
            metrics={str(name): float(value) for name, value in dict(content.metric_records.get(METRICS, {})).items()},  # type: ignore[arg-type]  # lists of numbers are refused here
            compute_s=float(said["compute_s"]),
        )
    except Exception as error:  # whatever they sent, the server goes on
        return replace(known, error=f"unreadable reply ({type(error).__name__})")


def to_records(name: str, arrays: Arrays) -> dict[str, ConfigRecord]:
    """Arrays in pieces, each of which fits into one request."""
    data = save({name: np.asarray(values, order="C") for name, values in arrays.items()})
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    return {f"{name}/{number:06d}": ConfigRecord({PIECE: piece}) for number, piece in enumerate(pieces)}


def to_arrays(name: str, content: RecordDict) -> Arrays | None:
    """What ``to_records`` took apart; None if there is nothing by that name."""
    records = sorted((key, record) for key, record in content.config_records.items() if key.startswith(f"{name}/"))
    return load(b"".join(record[PIECE] for _, record in records)) if records else None  # type: ignore[misc]  # load() refuses what are no bytes
