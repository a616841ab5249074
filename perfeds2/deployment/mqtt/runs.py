"""Run federations: one on this machine from certificates to report, or those in a server's queue.

The queue is a folder with one small file per run that only the server's user can write, so operators need no port.
``submit`` and ``resume`` add a run to the queue and ``stop`` removes it. After a crash, the server finds its current
run there.

A separate process serves each run: ``python -m perfeds2.deployment.mqtt.runs FOLDER HOST:PORT CREDENTIALS``, followed
by ``all`` or by the server's lease.
"""

import functools
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.deployment.authority import read_certificates, read_lists
from perfeds2.deployment.credentials import LOOPBACK, Credentials, credentials_beside, make_credentials
from perfeds2.deployment.lease import FREE, Lease, LeaseLostError, owner
from perfeds2.deployment.mqtt.broker import Kind, running_broker
from perfeds2.deployment.mqtt.link import Link, Site
from perfeds2.deployment.processes import Processes, Restarts
from perfeds2.deployment.status import ShowStatus, read_status
from perfeds2.errors import InputError
from perfeds2.files import retry_while_full, write_text
from perfeds2.learning.compiled import collect_rarely
from perfeds2.runs.folder import Folder, alone, claimed

if TYPE_CHECKING:  # a server or standby that waits needs no JAX
    from perfeds2.deployment.mqtt.backhaul import CloudLink
    from perfeds2.deployment.setup import Setup
    from perfeds2.deployment.transport import Arrays, SignedKey

LOOK_EVERY_S = 0.2
MOST_DEATHS = 3  # of the server in one round; another attempt would not help
BAD_INPUT = 2  # exit status of a process whose input is bad
ALL = "all"  # last word of the server's command: round 0 waits for every device
KEY_NOTE = (  # with secure aggregation
    "this server has clients.key, so it could invent devices and read updates; enrol devices on another machine "
    "(perfeds2 federate enrolment)"
)
SERVING = "serving"  # name of a process and its log; those of edges have a number, too


def already_runs(path: Path) -> str:
    return f"a federation runs there: follow it with perfeds2 federate watch {path}, or stop it first"


@contextmanager
def claim_run(path: Path, setup: "Setup") -> Iterator[Folder]:
    """Claim a run's folder for the one process that starts and supervises its federation.

    The server is another process and claims the run's folder itself, so this one holds the folder of the logs.
    """
    with claimed(path, setup.server_spec, otherwise=already_runs(path)) as folder:
        logs = path / "logs"
        logs.mkdir(exist_ok=True)
    with alone(logs, otherwise=already_runs(path)):
        yield replace(folder, chained=True)


def run_locally(
    setup: "Setup",
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
        data_folders: Each device's own data folder, with {} for its number. A resumed run remembers it.
        show: Called with every new status.
        broker: The broker to start. By default Mosquitto, or the embedded one if that is not installed.
        say: Called with messages for the user.

    Returns:
        The complete run folder.

    Raises:
        InputError: The federation runs already, or cannot be run.
    """
    from perfeds2.deployment.setup import data_folder

    path = path.resolve()
    remembered = path / "device-data"
    if data_folders is None and remembered.exists():
        data_folders = remembered.read_text(encoding="utf-8")
    if setup.own.app_module is not None:
        setup.model()  # report a mistake in the user's module before anything starts
    if setup.is_cloud and data_folders is not None:
        raise InputError("--device-data does not work with --cells on one machine; leave one of them out.")
    for device in range(setup.ues):
        data_folder("--device-data", data_folders, device)
    with claim_run(path, setup) as folder:
        if folder.finished:
            return folder
        setup.write(path)
        if data_folders is not None:
            write_text(remembered, str(Path(data_folders).absolute()))
        credentials = make_credentials(credentials_beside(path), setup.ues, LOOPBACK)
        cells = [_edge_credentials(credentials, each) for each in setup.edges]
        also = [each.federation for each in cells]
        with (
            running_broker(credentials, (LOOPBACK[0], 0), path / "broker", broker, also=also) as started,
            Processes(path / "logs") as processes,
        ):
            if started.kind == "embedded":
                say("Mosquitto is not installed: the embedded broker carries the messages.")
            folder.log(f"the broker ({started.kind}) is process {started.process_id}")
            flags = {
                "app-module": setup.own.app_module,
                "model": setup.spec.task.model if setup.own_model else None,
                "data": data_folders or setup.spec.task.data_dir,
                "state": path / "devices",
            }
            site = Site(started.host, started.port, credentials)
            others = {"devices": devices_command(site, f"0-{setup.ues - 1}", flags)}
            if cells:
                others = _edge_commands(setup, site, cells, path, flags)
            supervise(site, folder, processes, others, show)
        shutil.rmtree(credentials.folder)
        return folder


def _edge_credentials(cloud: Credentials, edge: "Setup") -> Credentials:
    """Make the credentials of an edge's federation, with the cloud's authorities, so that one broker serves both."""
    name = f"edge-{edge.own.edge}"
    folder = cloud.folder / name
    folder.mkdir(mode=0o700, exist_ok=True)
    for authority in (cloud.brokers, cloud.clients):
        for file in cloud.folder.glob(f"{authority.name}.*"):
            shutil.copy2(file, folder)
    return make_credentials(folder, edge.ues, LOOPBACK, name)


def _edge_commands(
    setup: "Setup", site: Site, cells: Sequence[Credentials], path: Path, flags: Mapping[str, object]
) -> dict[str, list[str]]:
    """Return the commands of a cloud's edges and their devices, by process name. Each edge has a folder in edges/."""
    from perfeds2.deployment.edge import EDGES

    commands = {}
    for edge, credentials in zip(setup.edges, cells, strict=True):
        number, own = edge.own.edge, replace(site, credentials=credentials)
        folder = path / EDGES / str(number)
        with claimed(folder, edge.server_spec, otherwise=already_runs(folder)):
            edge.with_own(cloud=site.address, cloud_credentials=site.credentials.folder).write(folder)
        state = {"state": path / "devices" / str(number)}
        commands[f"{SERVING}-{number}"] = serving_command(own, folder, wait_for_all=True)
        commands[f"devices-{number}"] = devices_command(own, f"0-{edge.ues - 1}", {**flags, **state})
    return commands


def serving_command(site: Site, folder: Path, wait_for_all: bool = False, lease: Lease | None = None) -> list[str]:
    """Return the command of the process that serves a run: ``main`` below."""
    words = [folder, site.address, site.credentials.folder, *[ALL] * wait_for_all]
    words += [] if lease is None else [lease.state, lease.number, int(lease.stolen)]
    return [sys.executable, "-m", "perfeds2.deployment.mqtt.runs", *map(str, words)]


def devices_command(site: Site, numbers: str, flags: Mapping[str, object]) -> list[str]:
    """Return the command that runs devices such as 0-5. Flags that are None are left out."""
    given = {"number": numbers, "server": site.address, "credentials": site.credentials.folder, **flags}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "perfeds2", "federate", "device", *words]


def supervise(
    site: Site,
    folder: Folder,
    processes: Processes,
    devices: Mapping[str, list[str]],
    show: ShowStatus | None = None,
    wanted: Callable[[], bool] = lambda: True,
    lease: Lease | None = None,
) -> bool:
    """Start the processes of a run's server and devices, and restart those that die, until the run is done.

    Args:
        site: The broker's address and the credentials.
        folder: The run's folder.
        processes: Starts and ends the processes.
        devices: Commands that run devices, or edges with theirs, by process name.
        show: Called with every new status.
        wanted: Called regularly; supervision ends when it returns False.
        lease: The server's lease; without it, its processes end.

    Returns:
        Whether the run is done; False if it is no longer wanted.

    Raises:
        InputError: A process reports bad input, or the server died too often in one round.
    """
    commands = {SERVING: serving_command(site, folder.path, bool(devices), lease), **devices}
    for name, command in commands.items():
        processes.start(name, command)
    restarts = Restarts()
    died_in, deaths = -1, 0  # round of the server's last crash, and the number of crashes in it
    while wanted():
        time.sleep(LOOK_EVERY_S)
        status = read_status(folder.path)
        for name in [name for name in commands if not (processes.runs(name) or restarts.waits(name))]:
            ended = processes.status(name)
            if name.startswith(SERVING) and ended == 0 and (name != SERVING or folder.finished):
                del commands[name]
                if not any(each.startswith(SERVING) for each in commands):
                    return True
                continue
            if ended == BAD_INPUT:
                raise InputError(processes.last_line(name))
            if lease is not None:
                lease.check()  # before anything is written
            if name == SERVING:
                round_ = 0 if status is None else status.round
                deaths = deaths + 1 if round_ == died_in else 1
                died_in = round_
                if deaths == MOST_DEATHS:
                    raise InputError(f"the server failed {deaths} times in round {round_}; see {processes.log(name)}.")
            delay_s = restarts.died(name)
            again = f" in {delay_s:.0f} s" if delay_s else ""
            retry_while_full(functools.partial(folder.log, f"the process {name} died: starting it again{again}"))
        for name in restarts.due():
            processes.start(name, commands[name])
        if show is not None and status is not None:
            show(status)
    processes.end(SERVING)
    return False


# ---- a server's queue


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
                outcome = "done"
                try:
                    if not supervise(site, Folder(path, chained=True), processes, {}, None, file.exists, lease):
                        outcome = "stopped"
                except (InputError, FileNotFoundError) as error:  # such as when the run's folder was deleted
                    outcome = f"given up: {error}"
                    processes.end(SERVING)
                lease.check()
                file.unlink(missing_ok=True)
                if outcome != "done" and path.exists():
                    retry_while_full(functools.partial(Folder(path, chained=True).log, outcome))
                say(f"run {path}: {outcome}")
            time.sleep(LOOK_EVERY_S)


# ---- the process that serves a run


def serve_run(folder: Path, site: Site, *, wait_for_all: bool = False, lease: Lease | None = None) -> None:
    """Serve a run from its first round, or from its checkpoint, to the report. May be killed at any time."""
    from perfeds2.deployment.mqtt.transport import MqttTransport
    from perfeds2.deployment.mqtt.wire import Topics
    from perfeds2.deployment.preparation import travelling
    from perfeds2.deployment.server import serve
    from perfeds2.deployment.setup import Setup

    def barred() -> dict[int, str]:
        revoked = site.credentials.devices(revoked=True)
        return dict.fromkeys(revoked, "was revoked (perfeds2 federate rotate lets it in again)")

    setup = Setup.read(folder)
    run_id, since_s = retry_while_full(lambda: _run_id(folder))
    clients = site.credentials.clients
    run = travelling(setup, run_id, since_s, clients)
    notes = [] if wait_for_all or not setup.spec.privacy.secure_aggregation or not clients.key.exists() else [KEY_NOTE]
    topics, days_left = Topics(site.federation), site.credentials.days_left
    with (
        _backhaul(setup, folder) as backhaul,
        MqttTransport(
            Link(site),
            run,
            setup.ues,
            topics,
            setup.is_cloud,
            barred=barred,
            check_key=key_check(site.credentials, run_id),
            authority=clients.trust,
            decode=decoder(setup),
        ) as transport,
    ):
        try:
            serve(setup, transport, folder, backhaul, lease, days_left, wait_for_all=wait_for_all, notes=notes)
        except LeaseLostError as error:
            print(error, flush=True)
            os._exit(BAD_INPUT)  # without telling devices that the run is over


def decoder(setup: "Setup") -> "Callable[[Arrays], Arrays]":
    """Return what reads the uploads of a run."""
    from perfeds2.deployment.encoding import decoded
    from perfeds2.deployment.merging import uploaded
    from perfeds2.deployment.validate import form_of

    learner = setup.algorithm.learner
    form = form_of(uploaded(setup.first_params(), learner))
    return lambda came: decoded(came, form, learner.bits)


def key_check(credentials: Credentials, run: str) -> "Callable[[int, SignedKey], None]":
    """Return what checks the keys for masks that devices announce."""
    from perfeds2.deployment.masking import check_key, trusted_lists

    def check(ue: int, signed: "SignedKey") -> None:
        issuers = tuple(read_certificates(credentials.clients.certificate))
        trusted = trusted_lists(issuers, read_lists(credentials.clients.revocations))
        check_key(credentials.federation, run, ue, signed, trusted)

    return check


def _backhaul(setup: "Setup", folder: Path) -> AbstractContextManager["CloudLink | None"]:
    """Return the connection of an edge to the cloud; None for any other server."""
    if setup.own.edge is None:
        return nullcontext()
    from perfeds2.deployment.mqtt.backhaul import CloudLink

    if setup.own.cloud is None or setup.own.cloud_credentials is None:
        raise InputError(
            "--edge needs --cloud HOST:PORT and --cloud-credentials DIR, to reach the cloud as its device."
        )
    cloud = Site.read(setup.own.cloud, "--cloud", Credentials(setup.own.cloud_credentials))
    return CloudLink.to(cloud, setup, folder)


def _run_id(folder: Path) -> tuple[str, float]:
    """Return the run's unique ID, which it keeps when it is resumed, and the Unix time at which it got it."""
    file = folder / "run-id"
    if not file.exists():
        write_text(file, uuid.uuid4().hex)
    if re.fullmatch("[0-9a-f]{32}", run_id := file.read_text(encoding="utf-8", errors="replace")) is None:
        raise InputError(f"{file} is corrupt; restore it from a backup, or start a new run in another folder.")
    return run_id, file.stat().st_mtime


def main() -> int:
    collect_rarely()
    folder, address, credentials, *more = sys.argv[1:]
    lease = Lease(Path(more[0]), int(more[1]), more[2] == "1") if len(more) == 3 else None
    try:
        site = Site.read(address, "the broker", Credentials(Path(credentials)))
        serve_run(Path(folder), site, wait_for_all=ALL in more, lease=lease)
    except InputError as error:
        print(error, flush=True)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
