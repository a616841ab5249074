"""Check whether a client follows the wire protocol (docs/explanation/wire.md).

    python benchmarks/conform.py ./client {host} {port} {ca} {certificate} {key} {number} mine.csv

Plays the server to one client on a broker of its own, and prints which points hold. The command starts the client; the
names in braces are filled in, {folder} with that of the credentials. The client must know FedAvg on a logistic model: 64 inputs, 10 classes.
"""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.messages import Head
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.wire import Assembly, Parcel, Topics
from perfeds2.deployment.site import Site

NUMBER = 3  # the client's device number
SETTINGS = 'algorithm = "FedAvgS2"\nalpha = 0.1\nbeta = 0.1\nbatch = 8\nlocal-steps = 1\n'
WITHIN_S = 60.0  # for an answer
SILENCE_S = 1.0  # for no answer
TOPICS = Topics()
Arrays = dict[str, np.ndarray]


class Play:
    """A server that says what a test tells it to, and hears one client."""

    def __init__(self, site: Site) -> None:
        self.link = Link(site)
        self.heard: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.model: Arrays = {
            "dense1.bias": np.linspace(-0.1, 0.1, 10, dtype=np.float32),
            "dense1.weight": np.linspace(-0.1, 0.1, 640, dtype=np.float32).reshape(64, 10),
        }
        self.run = ""
        self.parcel = Parcel.of(self.model).sealed()

    def last_will(self) -> None:
        return None

    def up(self) -> None:
        for topic in TOPICS.from_devices:
            self.link.subscribe(topic)

    def message(self, topic: str, data: bytes, retained: bool) -> None:  # noqa: ARG002 (the interface)
        self.heard.put((topic, data))

    def say(self, topic: str, data: bytes | dict[str, Any], retain: bool = False) -> None:
        self.link.publish(topic, json.dumps(data).encode() if isinstance(data, dict) else data, retain)

    def announce(self, run: str) -> None:
        self.run = run
        told = {"run": run, "settings": SETTINGS, "since_s": 0.0, "own_model": True}
        self.say(TOPICS.run, told if run else b"", retain=True)

    def publish(self, version: int, data: bytes | None = None) -> None:
        for number, chunk in enumerate(Parcel(data or self.parcel.data).chunks):
            self.say(TOPICS.model(version, number), chunk, retain=True)

    def job(self, ticket: int, version: int = 0, **changed: Any) -> None:
        told = {"run": self.run, "ticket": ticket, "version": version, "kind": "train", "key": self.parcel.key}
        self.say(TOPICS.job(NUMBER), told | {**self.parcel.announced} | changed)

    def hear(self, part: str, within_s: float = WITHIN_S) -> tuple[str, bytes] | None:
        """Return the next message whose topic contains a text; None if there is none in time."""
        ends_s = time.monotonic() + within_s
        while (left_s := ends_s - time.monotonic()) > 0:
            try:
                topic, data = self.heard.get(timeout=left_s)
            except queue.Empty:
                return None
            if part in topic:
                return topic, data
        return None

    def here(self) -> dict[str, Any]:
        heard = self.hear(TOPICS.here(NUMBER))
        return {} if heard is None else json.loads(heard[1])

    def answer(self, ticket: int) -> tuple[Head, Arrays | None, bytes] | None:
        """Return the head, the update and all bytes of a reply; None if there is none, or it is malformed."""
        heard = self.hear(f"/reply/{TOPICS.device(NUMBER)}/{ticket}/")
        if heard is None or heard[0] != TOPICS.reply(NUMBER, ticket, "head"):
            return None
        head, whole = Head.model_validate_json(heard[1]), heard[1]
        if head.bytes == 0:
            return head, None, whole
        update = Assembly(head.bytes, head.sha256)
        while not update.complete:
            heard = self.hear(f"/reply/{TOPICS.device(NUMBER)}/{ticket}/")
            if heard is None or not update.put(int(heard[0].rpartition("/")[2]), heard[1]):
                return None
            whole += heard[1]
        return head, update.arrays(), whole

    def silent(self) -> bool:
        return self.hear("/reply/", SILENCE_S) is None


def points(play: Play, reconnect: Callable[[], None]) -> Iterator[tuple[str, bool]]:
    """Yield the points of the protocol, and whether the client keeps each."""
    play.announce("first")
    here = play.here()
    while here and here.get("run") != "first":
        here = play.here()
    yield "Presence: reports that it is ready for the run", bool(here.get("here")) and bool(here.get("session"))
    play.announce("first")
    yield "Presence: reports again when the run is announced again", play.here().get("session") == here.get("session")
    play.publish(0)
    play.job(5)
    first = play.answer(5)
    yield "Answer: sends a head, then every chunk that it announced, with the right checksum", first is not None
    head, update = (first[0], first[1]) if first else (None, None)
    yield (
        "Answer: names the run and the version of the job",
        head is not None and (head.run, head.version) == ("first", 0),
    )
    shapes = {name: values.shape for name, values in play.model.items()}
    same = update is not None and {name: values.shape for name, values in update.items()} == shapes
    yield "Answer: the update has the model's names and shapes", same
    finite = update is not None and all(values.dtype == np.float32 for values in update.values())
    yield (
        "Answer: the update is finite float32",
        finite and all(np.isfinite(values).all() for values in (update or {}).values()),
    )
    play.job(5)
    again = play.answer(5)
    yield (
        "Repetition: answers the same ticket with the same bytes",
        again is not None and first is not None and again[2] == first[2],
    )
    play.job(4)
    yield "Repetition: ignores an older ticket", play.silent()
    play.job(20, run="another")
    yield "Order: ignores a job of another run", play.silent()
    for rubbish in (b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"run": 7}', b'{"run": "first", "ticket": "x"}'):
        play.say(TOPICS.job(NUMBER), rubbish)
    yield "Limits: ignores messages that it cannot read", play.silent()
    play.job(6, kind="evaluate")
    said = play.answer(6)
    names = {"train_loss", "test_accuracy", "train_loss_personal", "test_accuracy_personal"}
    yield (
        "Answer: to evaluate, four metrics and no update",
        said is not None and set(said[0].metrics) == names and said[1] is None,
    )
    play.job(7, key="0" * 64)
    said = play.answer(7)
    yield "Encryption: reports an error if the key is wrong", said is not None and said[0].error is not None
    play.job(8, bytes=2**40)
    said = play.answer(8)
    yield "Limits: reports an error if the model is too large", said is not None and said[0].error is not None
    play.publish(1, bytes(len(play.parcel.data)))
    play.job(9, version=1)
    waited = play.silent()
    play.publish(1)
    said = play.answer(9)
    yield "Order: waits for the chunks with the announced checksum", waited and said is not None and said[1] is not None
    play.job(10, version=77)
    waited = play.silent()
    play.job(10, version=77, cancelled=True)
    said = play.answer(10)
    yield "Order: gives up a cancelled job and says so", waited and said is not None and said[0].error is not None
    before = here.get("session")
    reconnect()
    will = play.here()
    yield (
        "Presence: its last will names the session that ended",
        will.get("here") is False and will.get("session") == before,
    )
    here = play.here()
    while here and here.get("run") != "first":
        here = play.here()
    yield (
        "Presence: connects again by itself, with a new session",
        bool(here.get("here")) and here.get("session") != before,
    )
    play.announce("")
    play.announce("second")
    while here and here.get("run") != "second":
        here = play.here()
    play.job(0)
    said = play.answer(0)
    yield "Order: takes part in the next run, whose tickets begin again", said is not None and said[0].run == "second"


@contextmanager
def playing(command: list[str], folder: Path) -> Iterator[tuple[Play, Callable[[], None]]]:
    """Run a broker, the client and the server. Yields the server, and a function that cuts the client's connection."""
    credentials = make_credentials(folder / "credentials", NUMBER + 1)
    with running_broker(credentials, ("127.0.0.1", 0), folder / "broker") as broker:
        site = Site(broker.host, broker.port, credentials)
        certificate, key = credentials.own_files(NUMBER)
        names = {
            "host": broker.host,
            "port": broker.port,
            "ca": credentials.authority,
            "folder": credentials.folder,
            "number": NUMBER,
        }
        words = [word.format(**names, certificate=certificate, key=key) for word in command]
        play = Play(site)
        play.link.start(play)

        def reconnect() -> None:
            client.send_signal(signal.SIGSTOP)
            rival = Link(site, NUMBER)  # the broker has one connection per certificate
            rival.start(Play(site))
            while not rival.is_up:
                time.sleep(0.05)
            rival.close()
            client.send_signal(signal.SIGCONT)

        client = subprocess.Popen(words)  # noqa: S603 (given by the user)
        try:
            yield play, reconnect
        finally:
            client.kill()
            client.wait()
            play.link.close()


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, playing(command, Path(folder)) as (play, reconnect):
        failed = 0
        for what, holds in points(play, reconnect):
            print("holds " if holds else "FAILS ", what, flush=True)
            failed += not holds
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
