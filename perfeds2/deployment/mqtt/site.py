"""Where the broker is, and the processes that connect to it: the one with the model, and devices."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.credentials import SERVER, Credentials, device_name
from perfeds2.deployment.mqtt.link import Link, Login
from perfeds2.deployment.mqtt.refusal import why_refused
from perfeds2.errors import InputError

BAD_INPUT = 2  # exit status of a process that cannot do what it is asked to


@dataclass(frozen=True)
class Site:
    """The broker's address and the credentials of this machine."""

    host: str
    port: int
    credentials: Credentials

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def link(self, number: int | None = None) -> Link:
        """Return a connection as a device, or as the server (None). It is not started yet."""
        files = self.credentials
        name = SERVER if number is None else device_name(number)
        certificate, key = files.own_files(number)
        for path in (files.authority, certificate, key):
            if not path.exists():
                raise InputError(f"{path} does not exist; copy it from where perfeds2 federate credentials was run.")
        login = Login(self.host, self.port, files.authority, certificate, key)
        return Link(
            name,
            login,
            lambda text: print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), f"{name}: {text}", flush=True),
            lambda: why_refused(files, (self.host, self.port), number),
        )

    def serving(self, folder: Path) -> list[str]:
        """Return the command of the process with a run's model."""
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
        """Return the command of devices such as 0-5, each a process, or all together in one."""
        flags = {"--app-module": app_module, "--data": data, "--state": state}
        return [
            *(sys.executable, "-m", "perfeds2.deployment.mqtt.many", numbers),
            *("--server", self.address, "--credentials", str(self.credentials.folder)),
            *(word for name, value in flags.items() if value is not None for word in (name, str(value))),
            *(("--together",) if together else ()),
        ]


def read_address(text: str, flag: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 2**16):
        raise InputError(f"{flag} takes HOST:PORT, got {text!r}.")
    return host.strip("[]"), int(port)
