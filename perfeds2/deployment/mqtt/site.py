"""Which processes make up a federation over MQTT, and how are they kept going? A broker, one that has the model, devices."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.credentials import SERVER, Credentials, device_name
from perfeds2.deployment.mqtt.link import Link, Login
from perfeds2.deployment.mqtt.refusal import why_refused
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.status import read_status
from perfeds2.errors import InputError
from perfeds2.runs.folder import Folder

STARTS = 3  # without a round closing in between: then something is wrong that another try will not mend
BAD_INPUT = 2  # the exit status of a process that cannot do what it is asked to
SERVING, DEVICES = "serving", "devices"  # names of logs


@dataclass(frozen=True)
class Site:
    """Where the broker is, and who vouches for whom."""

    host: str
    port: int
    credentials: Credentials

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def server_link(self) -> Link:
        files = self.credentials
        login = Login(self.host, self.port, files.authority, files.certificate, files.certificate_key)
        return Link(SERVER, login, _say, lambda: why_refused(files, (self.host, self.port)))

    def device_link(self, number: int) -> Link:
        files, name = self.credentials, device_name(number)
        certificate, key = files.device_certificate(number), files.device_key(number)
        for path in (files.authority, certificate, key):
            if not path.exists():
                raise InputError(f"{path} does not exist; copy it from where perfeds2 federate credentials was run.")
        login = Login(self.host, self.port, files.authority, certificate, key)
        say, why = lambda text: _say(f"{name}: {text}"), lambda: why_refused(files, (self.host, self.port), number)
        return Link(name, login, say, why)

    def serving(self, folder: Path) -> list[str]:
        """The process that has the model of a run."""
        module = "perfeds2.deployment.mqtt.serving"
        return [sys.executable, "-m", module, str(folder), self.address, str(self.credentials.folder)]

    def devices(
        self,
        numbers: str,
        app_module: Path | None = None,
        data: str | None = None,
        together: bool = False,
        state: Path | None = None,
    ) -> list[str]:
        """Devices such as 0-5, each a process of its own, or all together in one."""
        return [
            *(sys.executable, "-m", "perfeds2.deployment.mqtt.many", numbers),
            *("--server", self.address, "--credentials", str(self.credentials.folder)),
            *(() if app_module is None else ("--app-module", str(app_module))),
            *(() if data is None else ("--data", data)),
            *(() if state is None else ("--state", str(state))),
            *(("--together",) if together else ()),
        ]


def read_address(text: str, flag: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 2**16):
        raise InputError(f"{flag} takes HOST:PORT, got {text!r}.")
    return host.strip("[]"), int(port)


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), text, flush=True)


@dataclass
class KeptRun:
    """Keeps the process that has a run's model going until the run is done."""

    site: Site
    processes: Processes
    folder: Folder
    _started_in: int = -1
    _starts: int = 0

    def start(self) -> None:
        status = read_status(self.folder.path)
        round_ = 0 if status is None else status.round
        self._starts = self._starts + 1 if round_ == self._started_in else 1
        self._started_in = round_
        self.processes.start(SERVING, self.site.serving(self.folder.path))

    def keep_up(self) -> bool:
        """Whether it is over; starts it again if it died before that."""
        if SERVING not in self.processes.ended():
            return False
        status = self.processes.status(SERVING)
        self.processes.end(SERVING)
        if status == 0 and self.folder.finished:
            return True
        log = self.processes.log(SERVING)
        if status == BAD_INPUT:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise InputError(lines[-1] if lines else f"the server failed; see {log}.")
        if self._starts >= STARTS:
            raise InputError(f"the server failed {STARTS} times in round {self._started_in}; see {log}.")
        self.folder.log("the server died: starting it again")
        self.start()
        return False

    def stop(self) -> None:
        if self.processes.running(SERVING):
            self.processes.end(SERVING)
