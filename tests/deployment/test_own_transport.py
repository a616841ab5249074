"""Can a transport be written from docs/how-to/own-transport.md, with public names only, in under 150 lines?

Its devices are threads, which compute their jobs and put their replies into a queue.
"""

import queue
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfeds2.deployment import (
    Changes,
    Presence,
    Reply,
    Request,
    Setup,
    StartModel,
    Transport,
    do_job,
    serve,
)

Arrays = Mapping[str, np.ndarray]


class Threads:
    """Devices are threads of this process. One of them leaves after its third job, and comes back."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.task = setup, setup.task(0)
        self.replies = queue.SimpleQueue[Reply]()
        self.jobs = [queue.SimpleQueue[tuple[Request, Arrays]]() for _ in range(setup.ues)]
        self.present, self.lock = Presence(range(setup.ues)), threading.Lock()
        for ue in range(setup.ues):
            threading.Thread(target=self.run_device, args=(ue,), daemon=True).start()

    def run_device(self, ue: int) -> None:
        for number in range(10_000):
            request, params = self.jobs[ue].get()
            if ue == 1 and number == 3:
                with self.lock:
                    self.present.discard(ue)
                    self.present.add(ue)
                continue
            reply, _ = do_job(self.setup, self.task, request, StartModel(params))
            self.replies.put(replace(reply, received_s=self.now()))

    # ---- the interface

    def dispatch(self, request: Request, params: Arrays) -> None:
        self.jobs[request.ue].put((request, params))

    def cancel(self, ue: int) -> None:
        """Jobs are short."""

    def poll(self, wait_s: float) -> list[Reply]:
        found = list[Reply]()
        with suppress(queue.Empty):
            found.append(self.replies.get(timeout=wait_s))
            while True:
                found.append(self.replies.get_nowait())
        return found

    def changes(self) -> Changes:
        with self.lock:
            return self.present.changes()

    def troubles(self) -> Mapping[int | None, str | None]:
        return {}

    def key_of(self, ue: int) -> None:
        """Nothing is masked."""

    def now(self) -> float:
        return time.monotonic()


@pytest.mark.slow
def test_a_transport_of_ones_own_runs_a_federation_to_a_complete_folder(tmp_path):
    setup = Setup.from_texts({"devices": 3, "quorum": 2, "rounds": 12, "max-staleness": 3, "gather-s": 0, "bits": 8})
    transport = Threads(setup)
    assert isinstance(transport, Transport)
    folder = serve(setup, transport, tmp_path / "run").path
    closed = re.findall(r"round (\d+) closed", (folder / "events.log").read_text())
    assert [int(number) for number in closed] == list(range(12))
    assert "lost: UE 1 went away" in (folder / "events.log").read_text()
    for name in ("metrics.csv", "summary.json", "model.safetensors", "timeline.npz", "report.html"):
        assert (folder / name).exists()


def test_it_is_short_and_needs_no_internals():
    text = Path(__file__).read_text()
    assert text.count("\n") < 150
    assert set(re.findall(r"^from (perfeds2[\w.]*)", text, re.MULTILINE)) == {"perfeds2.deployment"}
