"""Run the federations in a server's queue.

The queue is a folder with one small file per run that only the server's user can write, so operators need no port.
``submit`` and ``resume`` add a run to the queue and ``stop`` removes it. After a crash, the server finds its current
run there.
"""

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.lease import FREE, Lease, owner
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.site import Site
from perfeds2.deployment.supervisor import LOOK_EVERY_S, SERVING, already_runs, supervise
from perfeds2.errors import InputError
from perfeds2.files import retry_while_full, write_text
from perfeds2.runs.folder import Folder, alone


@dataclass(frozen=True)
class Queue:
    """A server's queue of runs, in its state folder."""

    state: Path

    @property
    def folder(self) -> Path:
        return self.state / "queue"

    def open(self) -> None:
        """Make the folders, accessible to their owner only."""
        for path in (self.state, self.folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)

    def runs(self) -> dict[Path, Path]:
        """Return run folders by their file in the queue, oldest first."""
        found = {}
        for file in sorted(self.folder.glob("*.run")):
            with suppress(OSError, ValueError):  # removed meanwhile, or not a queue file
                found[file] = Path(file.read_text(encoding="utf-8"))
        return found

    def put(self, run: Path) -> int:
        """Append a run and return how many are ahead of it."""
        run = run.resolve()
        self.open()
        before = list(self.runs().values())
        self.check_new(run)
        with alone(run, otherwise=already_runs(run)):  # fails if another server runs it
            write_text(self.folder / f"{time.time_ns()}.run", str(run))
        return len(before)

    def check_new(self, run: Path) -> None:
        if run.resolve() in self.runs().values():
            raise InputError(
                f"{run} is in the queue of {self.state} already; follow it with perfeds2 federate watch {run}."
            )

    def take_out(self, run: Path) -> None:
        files = [file for file, each in self.runs().items() if each == run.resolve()]
        if not files:
            raise InputError(
                f"{run} is not in the queue of {self.state}: it has ended, or belongs to another server (--state)."
            )
        for file in files:
            file.unlink(missing_ok=True)

    def is_served(self) -> bool:
        """Return whether a server uses this queue."""
        return owner(self.state) != FREE


def serve_queue(site: Site, queue: Queue, lease: Lease, say: Callable[[str], None]) -> None:
    """Execute the runs of a queue in order, until another server takes over."""
    with Processes(queue.state / "logs") as processes:
        while True:
            lease.check()
            for file, path in queue.runs().items():
                say(f"run {path}")
                outcome, folder = "done", Folder(path, chained=True)
                try:
                    if lease.stolen:
                        retry_while_full(folder.free_logs)
                    if not supervise(site, folder, processes, {}, None, file.exists, lease):
                        outcome = "stopped"
                except (InputError, FileNotFoundError) as error:  # such as when the run's folder was deleted
                    outcome = f"given up: {error}"
                    processes.end(SERVING)
                lease.check()
                file.unlink(missing_ok=True)
                if outcome != "done" and path.exists():
                    retry_while_full(functools.partial(folder.log, outcome))
                say(f"run {path}: {outcome}")
            time.sleep(LOOK_EVERY_S)
