"""How does a whole federation run on one machine, as it would on many: TLS, device keys, separate processes?"""

import json
import os
import signal
import socket
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfeds2.deployment.claim import starting
from perfeds2.deployment.credentials import LOOPBACK, credentials_beside, device_name, make_credentials
from perfeds2.deployment.flower.operator_calls import Operator
from perfeds2.deployment.flower.site import Site
from perfeds2.deployment.processes import Place, Processes, is_alive, marked
from perfeds2.deployment.setup import Setup, refuse_memory
from perfeds2.deployment.status import STOPPED, ShowStatus, read_status
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder

SERVER = "superlink"
STARTS_WITHIN_S = 60.0
ASK_EVERY_S = 20.0  # after a server that has not said anything
RESTART_AFTER_S = 5.0  # a device that died; Flower refuses its key until it has missed the old one
SUBMISSIONS = 3  # without a round closing in between: then something is wrong that another try will not mend


def run_locally(
    setup: Setup,
    path: Path,
    place: Place = Place(),  # noqa: B008 (frozen)
    show: ShowStatus | None = None,
) -> Folder:
    """Run a federation from certificates to report. Every process it starts is over when this returns, however it does."""
    refuse_memory(setup.algorithm)
    path = path.resolve()
    setup = replace(setup, own=setup.own.model_copy(update={"out": path}))
    setup.model()  # a mistake in a user's module is better found before anything is started
    with starting(path, setup) as folder:
        return _run(setup, path, folder, place, show)


def _run(setup: Setup, path: Path, folder: Folder, place: Place, show: ShowStatus | None) -> Folder:
    if folder.finished:
        return folder
    setup.write(path)
    credentials = make_credentials(credentials_beside(path), setup.ues, [place.server_host, *LOOPBACK])
    site = Site(f"{place.server_host}:{free_port(place.server_host)}", credentials, credentials.folder / "flower")
    site.make_private()
    with closing(Operator(site)) as operator, Processes(path / "logs", site.environment()) as processes:
        folder.log(f"processes are marked {processes.mark}")
        parts = _Parts(setup, site, processes, folder, place, operator)
        parts.begin()
        finished = False
        while not finished:
            parts.keep_up()
            finished = folder.finished
            if show is not None and (status := read_status(path)) is not None:
                show(status)
            time.sleep(0.3)
        _await_report(path)
    return folder


@dataclass
class _Parts:
    """Starts the parts of a federation, and starts again what dies."""

    setup: Setup
    site: Site
    processes: Processes
    folder: Folder
    place: Place
    operator: Operator
    down_s: dict[str, float] = field(default_factory=dict)  # since when a device is down
    run_id: str = ""
    asked_s: float = 0.0
    submissions: int = 0  # how often, in the round it was last submitted in
    submitted_in: int = -1
    dead: int | None = None  # the last process that had the model

    def begin(self) -> None:
        self.dead = self._server_app()  # of a run before this one
        self._start_server()
        for device in range(self.setup.ues):
            self.operator.register(device)
            self._start_device(device)
        self._submit()

    def _start_server(self) -> None:
        self.processes.start(SERVER, self.site.server(insecure_operator_port=True))  # an address of this machine
        ends_s = time.monotonic() + STARTS_WITHIN_S
        while not _listens(self.site.host, self.site.port):
            if SERVER in self.processes.ended() or time.monotonic() > ends_s:
                raise InputError(f"the SuperLink did not start; see {self.folder.path / 'logs' / SERVER}.log.")
            time.sleep(0.2)

    def _start_device(self, device: int) -> None:
        told, module = self.setup.spec.task.data_dir, self.setup.own.app_module
        data = self.place.data_folder(device) or (Path(told) if told else None)
        command = self.site.device(device, data, module)
        self.processes.start(device_name(device), self.place.device_command(device, command))

    def _submit(self) -> None:
        status = read_status(self.folder.path)
        round_ = 0 if status is None else status.round
        self.submissions = self.submissions + 1 if round_ == self.submitted_in else 1
        self.submitted_in = round_
        if self.submissions > SUBMISSIONS:
            said = self.folder.path / "logs" / f"{SERVER}.log"
            raise InputError(f"the server failed {SUBMISSIONS} times in round {round_}; see {said}.")
        self.run_id = self.operator.start(self.setup)
        self.asked_s = time.monotonic()
        write_text(self.site.home / "run.json", json.dumps({"run-id": self.run_id, "server": self.site.address}))
        self.folder.log(f"submitted run {self.run_id}")

    def keep_up(self) -> None:
        """Look after everybody once."""
        ended = self.processes.ended()
        if SERVER in ended:
            self.folder.log("the SuperLink died: starting it again")
            self.processes.end(SERVER)
            self._end_server_app()
            self._start_server()
            self._submit()
        for device in range(self.setup.ues):
            if (name := device_name(device)) in ended:
                since_s = self.down_s.setdefault(name, time.monotonic())
                if time.monotonic() - since_s > RESTART_AFTER_S:
                    del self.down_s[name]
                    self.folder.log(f"{name} died: starting it again")
                    self._start_device(device)
        self._ask_after_server_app()

    def _server_app(self) -> int | None:
        """The process that has the model says which it is."""
        status = read_status(self.folder.path)
        return None if status is None else status.process

    def _end_server_app(self) -> None:
        """It would go on asking for a SuperLink it no longer belongs to."""
        self.dead = self._server_app()
        if self.dead is not None and self.dead in marked(self.processes.mark):
            os.kill(self.dead, signal.SIGKILL)

    def _ask_after_server_app(self) -> None:
        """One that died is submitted again; one that never said who it is, or whose run failed, is asked after."""
        if self.folder.finished:
            return
        process = self._server_app()
        if process is not None and process != self.dead and not is_alive(process):
            self.dead = process
            if (status := read_status(self.folder.path)) is not None and status.phase == STOPPED:
                raise InputError(status.warning or "the federation stopped; see events.log.")
            self.folder.log(f"the ServerApp died: submitting run {self.run_id} again")
            self._submit()
        elif time.monotonic() - self.asked_s > ASK_EVERY_S and process in (None, self.dead):
            self.asked_s = time.monotonic()
            ended = self.operator.how_it_ended(self.run_id)
            if ended is not None and not self.folder.finished:
                self.folder.log(f"run {self.run_id} ended as {ended}: submitting it again")
                self._submit()


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def _await_report(path: Path) -> None:
    """The server draws the report last; it may still be at it."""
    ends_s = time.monotonic() + 60.0
    while not (path / "report.html").exists():
        if time.monotonic() > ends_s:
            from perfeds2.report.run import write_report

            write_report(path)
        time.sleep(0.2)
