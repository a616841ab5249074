"""How does a whole federation run on one machine, as it would on many: TLS, device keys, separate processes?"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfeds2.deployment.flower.credentials import make_credentials
from perfeds2.deployment.flower.engine import Site, read_json
from perfeds2.deployment.flower.processes import Processes, is_alive, marked
from perfeds2.deployment.settings import Settings
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder, open_folder

SERVER = "superlink"
STARTS_WITHIN_S = 60.0
ASK_EVERY_S = 20.0  # after a server that has not said anything
RESTART_AFTER_S = 5.0  # a device that died; Flower refuses its key until it has missed the old one
SUBMISSIONS = 3  # without a round closing in between: then something is wrong that another try will not mend

Watch = Callable[[dict[str, Any]], None]
Command = Callable[[int, list[str]], list[str]]  # how a device's command is run, such as in a network of its own


@dataclass(frozen=True)
class Place:
    """Where the devices of a local federation are; by default all on loopback."""

    server_host: str = "127.0.0.1"
    device_command: Command = lambda _, command: command


def run_locally(
    settings: Settings,
    path: Path,
    watch: Watch | None = None,
    data_folders: Mapping[int, Path] | None = None,
    place: Place | None = None,
    app: Path | None = None,
) -> Folder:
    """Run a federation from certificates to report. Every process it starts is over when this returns, however it does.

    ``app`` is another Flower app than the one that comes with the package.
    """
    place = place or Place()
    path = path.resolve()
    settings = replace(settings, out=path)
    settings.model()  # a mistake in a user's module is better found before anything is started
    folder = open_folder(path, settings.spec)
    if folder.finished:
        return folder
    write_settings(path, settings)
    hosts = list(dict.fromkeys([place.server_host, "127.0.0.1", "localhost"]))
    credentials = make_credentials(path / "credentials", settings.spec.cell.ues, hosts)
    site = Site(f"{place.server_host}:{free_port(place.server_host)}", credentials, path / "flower")
    site.write_connection()
    with Processes(path / "logs", site.environment()) as processes:
        folder.log(f"processes are marked {processes.mark}")
        federation = _Local(settings, site, processes, folder, dict(data_folders or {}), place, app)
        federation.begin()
        while not folder.finished:
            federation.keep_up()
            if watch is not None and (status := read_status(path)) is not None:
                watch(status)
            time.sleep(0.3)
        if watch is not None and (status := read_status(path)) is not None:
            watch(status)
        _await_report(path)
    return folder


class _Local:
    """Starts the parts of a federation, and starts again what dies."""

    def __init__(
        self,
        settings: Settings,
        site: Site,
        processes: Processes,
        folder: Folder,
        data_folders: Mapping[int, Path],
        place: Place,
        app: Path | None,
    ) -> None:
        self._settings, self._site, self._processes, self._folder = settings, site, processes, folder
        self._data_folders, self._place, self._app = data_folders, place, app
        self._down: dict[str, float] = {}  # since when a device is down
        self._run_id, self._asked_s = "", 0.0
        self._submissions, self._submitted_in = 0, -1  # how often, in which round
        status = read_status(folder.path) or {}
        self._dead: int | None = status.get("process")  # of a run before this one

    def begin(self) -> None:
        self._start_server()
        devices = range(self._settings.spec.cell.ues)
        registered = self._site.home / "registered"
        if not registered.exists():  # a run that is resumed has them in its database
            self._call(self._site.register(list(devices)), "register the devices")
            registered.touch()
        for device in devices:
            self._start_device(device)
        self._submit()

    def keep_up(self) -> None:
        """Look after everybody once."""
        ended = self._processes.ended()
        if SERVER in ended:
            self._folder.log("the SuperLink died: starting it again")
            self._processes.end(SERVER)
            self._end_server_app()
            self._start_server()
            self._submit()
        for name in ended:
            if name == SERVER:
                continue
            since = self._down.setdefault(name, time.monotonic())
            if time.monotonic() - since > RESTART_AFTER_S:
                del self._down[name]
                self._folder.log(f"{name} died: starting it again")
                self._start_device(int(name.rpartition("-")[2]))
        self._ask_after_server_app()

    def _start_server(self) -> None:
        self._processes.start(SERVER, self._site.server())
        ends_s = time.monotonic() + STARTS_WITHIN_S
        while not _listens(self._site.host, self._site.port):
            if SERVER in self._processes.ended() or time.monotonic() > ends_s:
                raise InputError(f"the SuperLink did not start; see {self._folder.path / 'logs' / SERVER}.log.")
            time.sleep(0.2)

    def _start_device(self, device: int) -> None:
        command = self._site.device(device, free_port(), self._data_folders.get(device))
        self._processes.start(f"device-{device}", self._place.device_command(device, command))

    def _submit(self) -> None:
        round_ = (read_status(self._folder.path) or {}).get("round", 0)
        self._submissions = self._submissions + 1 if round_ == self._submitted_in else 1
        self._submitted_in = round_
        if self._submissions > SUBMISSIONS:
            said = self._folder.path / "logs" / "server-app.log"
            write_text(said, self._processes.call(self._site.log(self._run_id)).stdout)
            raise InputError(f"the server failed {SUBMISSIONS} times in round {round_}; see {said}.")
        answer = self._call(self._site.submit(self._settings, self._app), "submit the run")
        self._run_id = str(answer["run-id"])
        self._asked_s = time.monotonic()
        write_text(self._folder.path / "flower" / "run.json", json.dumps({"run-id": self._run_id}))
        self._folder.log(f"submitted run {self._run_id}")

    def _ask_after_server_app(self) -> None:
        """The process that has the model says which it is; one that never said, or whose run failed, is asked after."""
        if self._folder.finished:
            return
        status = read_status(self._folder.path) or {}
        process = status.get("process")
        if process is not None and process != self._dead and not is_alive(process):
            self._dead = process
            self._folder.log(f"the ServerApp died: submitting run {self._run_id} again")
            self._submit()
        elif time.monotonic() - self._asked_s > ASK_EVERY_S and (process is None or process == self._dead):
            self._asked_s = time.monotonic()
            done = self._processes.call(self._site.runs(self._run_id))
            runs: Any = read_json(done.stdout).get("runs", [])
            if runs and runs[0]["status"].startswith("finished") and not self._folder.finished:
                self._folder.log(f"run {self._run_id} ended as {runs[0]['status']}: submitting it again")
                self._submit()

    def _end_server_app(self) -> None:
        """It would go on asking for a SuperLink it no longer belongs to."""
        process = (read_status(self._folder.path) or {}).get("process")
        if process is not None and process in marked(self._processes.mark):
            os.kill(process, signal.SIGKILL)
        self._dead = process

    def _call(self, command: list[str], purpose: str) -> dict[str, Any]:
        for attempt in range(5):
            done = self._processes.call(command)
            answer = read_json(done.stdout)
            if done.returncode == 0 and answer.get("success") is not False:
                return answer
            time.sleep(1.0 + attempt)
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InputError(f"could not {purpose}: {said[-1] if said else 'no reason given'}")


def write_settings(path: Path, settings: Settings) -> None:
    """Beside the spec, what only a deployment needs; ``resume`` and ``replay`` read it."""
    import tomli_w

    write_text(path / "federation.toml", tomli_w.dumps(settings.to_run_config()))


def read_settings(path: Path) -> Settings:
    import tomllib

    file = path / "federation.toml"
    if not file.exists():
        raise InputError(f"{path} holds no federation (no federation.toml).")
    return Settings.from_run_config(tomllib.loads(file.read_text(encoding="utf-8")))


def read_status(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


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
            from perfeds2.report.page import write_report

            write_report(path)
        time.sleep(0.2)
