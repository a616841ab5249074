"""Run federations: one on this machine from certificates to report, or those in a server's queue.

The queue is a folder of small files, one for each run, that only the server's user can write, so operators need no port. ``submit`` and
``resume`` put a run into the queue and ``stop`` takes it out. After a crash the server finds there what it was working on.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.credentials import LOOPBACK, credentials_beside, make_credentials
from perfeds2.deployment.mqtt.broker import Kind, running_broker
from perfeds2.deployment.mqtt.site import BAD_INPUT, Site
from perfeds2.deployment.processes import Processes, is_alive
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import ShowStatus, read_status
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder, alone, claimed

LOOK_EVERY_S = 0.2
STARTS = 3  # without a round closing in between; another attempt would not help
SERVING, DEVICES = "serving", "devices"  # names of logs


def already_runs(path: Path) -> str:
    return f"a federation runs there: follow it with perfeds2 federate watch {path}, or stop it first"


@contextmanager
def claim_run(path: Path, setup: Setup) -> Iterator[Folder]:
    """Claim a run's folder for the one process that starts and supervises its federation.

    The server is another process and claims the folder itself, so this one claims the folder of the logs.
    """
    with claimed(path, setup.spec, otherwise=already_runs(path)) as folder:
        logs = path / "logs"
        logs.mkdir(exist_ok=True)
    with alone(logs, otherwise=already_runs(path)):
        yield folder


@dataclass
class SupervisedRun:
    """Keeps the process with a run's model alive until the run is done."""

    site: Site
    processes: Processes
    folder: Folder
    _started_in: int = -1  # the round in which the process was last started
    _starts: int = 0  # in that round

    def start(self) -> None:
        status = read_status(self.folder.path)
        round_ = 0 if status is None else status.round
        self._starts = self._starts + 1 if round_ == self._started_in else 1
        self._started_in = round_
        self.processes.start(SERVING, self.site.serving(self.folder.path))

    def is_done(self) -> bool:
        """Return whether the run is done; restart its process if that died earlier."""
        if SERVING not in self.processes.ended():
            return False
        status = self.processes.status(SERVING)
        self.processes.end(SERVING)
        if status == 0 and self.folder.finished:
            return True
        if status == BAD_INPUT:
            raise InputError(self.processes.last_line(SERVING) or "the server failed; see its log.")
        if self._starts >= STARTS:
            log = self.processes.log(SERVING)
            raise InputError(f"the server failed {STARTS} times in round {self._started_in}; see {log}.")
        self.folder.log("the server died: starting it again")
        self.start()
        return False

    def stop(self) -> None:
        if self.processes.running(SERVING):
            self.processes.end(SERVING)


def run_locally(
    setup: Setup,
    path: Path,
    data_folders: str | None = None,
    show: ShowStatus | None = None,
    broker: Kind | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Folder:
    """Run a federation on this machine. No process it started is left when this returns or raises.

    Args:
        setup: The federation's settings.
        path: The run's folder.
        data_folders: Each device's own data folder, with {} for its number.
        show: Called with every new status.
        broker: The broker to start. By default Mosquitto, or the embedded one if that is not installed.
        say: Called with what the user should know.
    """
    path = path.resolve()
    if setup.own.app_module is not None:
        setup.model()  # report a mistake in the user's module before anything starts
    with claim_run(path, setup) as folder:
        if folder.finished:
            return folder
        setup.write(path)
        credentials = make_credentials(credentials_beside(path), setup.ues, LOOPBACK)
        with (
            running_broker(credentials, (LOOPBACK[0], 0), path / "broker", broker) as started,
            Processes(path / "logs", {}) as processes,
        ):
            if started.kind == "embedded":
                say("Mosquitto is not installed: the embedded broker carries the messages.")
            marked = f"processes are marked {processes.mark}"
            folder.log(f"{marked}; the broker ({started.kind}) is process {started.process_id}")
            site = Site(started.host, started.port, credentials)
            data = data_folders or setup.spec.task.data_dir
            devices = site.devices(f"0-{setup.ues - 1}", setup.own.app_module, data, state=path / "devices")
            supervise(SupervisedRun(site, processes, folder), {DEVICES: devices}, show)
        shutil.rmtree(credentials.folder)
        return folder


def supervise(run: SupervisedRun, devices: dict[str, list[str]], show: ShowStatus | None = None) -> None:
    """Start a run and its devices' processes and restart those that die, until the run is done."""
    processes = run.processes
    run.start()
    for name, command in devices.items():
        processes.start(name, command)
    is_done = False
    while not is_done:
        time.sleep(LOOK_EVERY_S)
        is_done = run.is_done()
        for name in set(processes.ended()) & devices.keys():
            if processes.status(name) == BAD_INPUT:
                raise InputError(processes.last_line(name))
            run.folder.log(f"{name} died: starting again")
            processes.start(name, devices[name])
        if show is not None and (status := read_status(run.folder.path)) is not None:
            show(status)


@dataclass(frozen=True)
class Queue:
    """The runs of a server, in a folder of its state."""

    state: Path

    @property
    def folder(self) -> Path:
        return self.state / "queue"

    def open(self) -> None:
        """Make the folders, for their user only."""
        for path in (self.state, self.folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)

    def runs(self) -> dict[Path, Path]:
        """Return run folders by their file in the queue, oldest first."""
        found = {}
        for file in sorted(self.folder.glob("*.json")):
            try:
                found[file] = Path(json.loads(file.read_text(encoding="utf-8"))["folder"])
            except (OSError, ValueError, KeyError, TypeError):  # just taken out, or not ours
                continue
        return found

    def put(self, run: Path) -> int:
        """Append a run. Returns how many are before it."""
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
        """Return the process of the server that uses this queue, or None."""
        try:
            process = int((self.state / "server.pid").read_text())
        except (OSError, ValueError):
            return None
        return process if is_alive(process) else None


def serve_queue(site: Site, queue: Queue, say: Callable[[str], None]) -> None:
    """Execute the runs of a queue, forever."""
    queue.open()
    with alone(queue.state), Processes(queue.state / "logs", {}) as processes:
        write_text(queue.state / "server.pid", str(os.getpid()))
        while True:
            for file, path in queue.runs().items():
                say(f"run {path}")
                outcome = _serve_one(SupervisedRun(site, processes, Folder(path)), file)
                say(f"run {path}: {outcome}")
            time.sleep(LOOK_EVERY_S)


def _serve_one(run: SupervisedRun, file: Path) -> str:
    """Execute a run until it is done, fails or leaves the queue. Returns which."""
    outcome = "done"
    try:
        run.start()
        while not run.is_done():
            if not file.exists():
                run.stop()
                outcome = "stopped"
                break
            time.sleep(LOOK_EVERY_S)
    except InputError as error:
        outcome = f"given up: {error}"
    file.unlink(missing_ok=True)
    if outcome != "done":
        run.folder.log(outcome)
    return outcome
