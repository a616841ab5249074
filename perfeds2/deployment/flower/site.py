"""Which processes make up a federation on Flower, and which files are theirs? A server, devices, and a proxy between them."""

import importlib.resources
import ipaddress
import json
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.credentials import Credentials
from perfeds2.errors import InputError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
OPERATOR_HEADER = "perfeds2-operator"


@dataclass(frozen=True)
class Site:
    """Where the server is, who vouches for it, and where Flower keeps its own files."""

    address: str  # HOST:PORT
    credentials: Credentials
    home: Path

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def operator_key(self) -> Path:
        """Whoever can read it says who takes part and what runs."""
        return self.home / "operator.key"

    @property
    def database(self) -> Path:
        return self.home / "superlink.db"

    def environment(self) -> dict[str, str]:
        """Commands are found beside this Python; nobody is told about us."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return QUIET | {"PATH": path, "FLWR_HOME": str(self.home.resolve())}

    def make_private(self) -> None:
        """The server's folder, its database and the operator's key: for its user only."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        if not self.operator_key.exists():
            with os.fdopen(os.open(self.operator_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        os.close(os.open(self.database, os.O_WRONLY | os.O_CREAT, 0o600))  # what lies beside it later has its rights
        self.database.chmod(0o600)

    def read_operator_key(self) -> str:
        try:
            return self.operator_key.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"operators need {self.operator_key} ({error.strerror}); run this on the server, as its user, with its --state."
            ) from None

    def server(self, insecure_operator_port: bool = False) -> list[str]:
        """The SuperLink behind its guard: TLS, registered devices only, its memory in a file."""
        if not (insecure_operator_port or is_loopback(self.host)):
            raise InputError(
                f"--listen {self.address} would let everybody who reaches it talk to Flower's operator calls, which are "
                "kept from them by nothing but one key file and one guard of ours: listen on 127.0.0.1 and put "
                "perfeds2 federate proxy in front, or type --insecure-operator-port."
            )
        files = self.credentials
        inside = f"127.0.0.1:{self.port}" if self.host in ("0.0.0.0", "::", "[::]") else self.address  # noqa: S104
        return [
            *(sys.executable, "-m", "perfeds2.deployment.flower.superlink"),
            *(inside, str(files.authority), str(self.operator_key)),
            *("--host", self.host.strip("[]"), "--port", str(self.port)),
            *("--ssl-ca-certfile", str(files.authority)),
            *("--ssl-certfile", str(files.certificate)),
            *("--ssl-keyfile", str(files.certificate_key)),
            "--enable-supernode-auth",
            *("--isolation", "process", "--superexec-auth-secret-file", str(self.operator_key)),
            *("--database", str(self.database.resolve())),
            "--disable-runtime-dependency-installation",
        ]

    def device(self, number: int, data_folder: Path | None = None, app_module: Path | None = None) -> list[str]:
        """One process that stays: knows the authority, shows its own key."""
        files = {"authority": self.credentials.authority, "key": self.credentials.device_key(number)}
        files |= {"data": data_folder, "app_module": app_module}
        owned = {name: None if path is None else str(path.resolve()) for name, path in files.items()}
        said = json.dumps({"server": self.address} | owned)
        return [sys.executable, "-m", "perfeds2.deployment.flower.device", said]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def app_folder() -> Path:
    """The app that Flower wants a run to carry: a name tag without code."""
    return Path(str(importlib.resources.files("perfeds2.deployment.flower") / "app"))
