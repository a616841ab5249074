"""What runs on a server? What lies in its queue: a folder of small files, one a run, which only its user can write.

There is no port for operators. ``submit`` and ``resume`` put a run into the queue, ``stop`` takes it out; the server does one
after the other, and after a crash it finds there what it was at.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.claim import already_runs
from perfeds2.deployment.mqtt.site import KeptRun, Site
from perfeds2.deployment.processes import Processes, is_alive
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder, alone

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Queue:
    """The runs a server has to do, in a folder of its state."""

    state: Path

    @property
    def folder(self) -> Path:
        return self.state / "queue"

    def open(self) -> None:
        """Make it, for its user only."""
        for path in (self.state, self.folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)

    def runs(self) -> dict[Path, Path]:
        """Run folders by their file in the queue, oldest first."""
        found = {}
        for file in sorted(self.folder.glob("*.json")):
            try:
                found[file] = Path(json.loads(file.read_text(encoding="utf-8"))["folder"])
            except (OSError, ValueError, KeyError, TypeError):  # just taken out, or not ours
                continue
        return found

    def put(self, run: Path) -> int:
        """Returns how many are before it."""
        run = run.resolve()
        self.open()
        before = list(self.runs().values())
        self.check_new(run)
        with alone(run, otherwise=already_runs(run)):  # nor does another server write there
            write_text(self.folder / f"{time.time_ns()}.json", json.dumps({"folder": str(run)}))
        return len(before)

    def check_new(self, run: Path) -> None:
        if run.resolve() in self.runs().values():
            raise InputError(
                f"{run} is in the queue of {self.state} already; follow it with perfeds2 federate watch {run}."
            )

    def take_out(self, run: Path) -> None:
        files = [file for file, each in self.runs().items() if each == run.resolve()]
        if not files:
            raise InputError(f"{run} is not in the queue of {self.state}: it is over, or another server's (--state).")
        for file in files:
            file.unlink(missing_ok=True)

    def server_process(self) -> int | None:
        """The server that works on it, if one does."""
        try:
            process = int((self.state / "server.pid").read_text())
        except (OSError, ValueError):
            return None
        return process if is_alive(process) else None


def serve_queue(site: Site, queue: Queue, say: Callable[[str], None]) -> None:
    """Do what is in the queue, for ever."""
    queue.open()
    with alone(queue.state), Processes(queue.state / "logs", {}) as processes:
        write_text(queue.state / "server.pid", str(os.getpid()))
        while True:
            for file, path in queue.runs().items():
                say(f"run {path}")
                say(f"run {path}: {_serve_one(KeptRun(site, processes, Folder(path)), file)}")
            time.sleep(LOOK_EVERY_S)


def _serve_one(run: KeptRun, file: Path) -> str:
    """Until it is over, failed, or taken out of the queue. Returns which, in words."""
    try:
        run.start()
        while not run.keep_up():
            if not file.exists():
                run.stop()
                run.folder.log("stopped")
                return "stopped"
            time.sleep(LOOK_EVERY_S)
    except InputError as error:
        file.unlink(missing_ok=True)
        run.folder.log(f"given up: {error}")
        return f"given up: {error}"
    file.unlink(missing_ok=True)
    return "done"
