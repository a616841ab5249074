"""Which commands make up a federation on Flower? A server, devices, and what an operator says to the server."""

import importlib.resources
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.deployment.flower.credentials import Credentials, device_name
from perfeds2.deployment.settings import Settings

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


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

    def environment(self) -> dict[str, str]:
        """Commands are found beside this Python; nobody is told about us."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return QUIET | {"PATH": path, "FLWR_HOME": str(self.home.resolve())}

    def write_connection(self) -> None:
        """Tell Flower's command line where the server is, under the name perfeds2."""
        self.home.mkdir(parents=True, exist_ok=True)
        connection = {"address": self.address, "root-certificates": str(self.credentials.authority.resolve())}
        text = tomli_w.dumps({"superlink": {"default": "perfeds2", "perfeds2": connection}})
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def server(self) -> list[str]:
        """The SuperLink: TLS, registered devices only, its memory in a file."""
        files = self.credentials
        return [
            _tool("flower-superlink"),
            *("--host", self.host, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(files.authority)),
            *("--ssl-certfile", str(files.certificate)),
            *("--ssl-keyfile", str(files.certificate_key)),
            "--enable-supernode-auth",
            *("--database", str(self.home.resolve() / "superlink.db")),
            "--disable-runtime-dependency-installation",
        ]

    def device(
        self, number: int, own_port: int, data_folder: Path | None = None, own_host: str = "127.0.0.1"
    ) -> list[str]:
        """A SuperNode: knows the authority, shows its own key."""
        config = "" if data_folder is None else f'data-folder="{data_folder.resolve()}"'
        return [
            _tool("flower-supernode"),
            *("--superlink", self.address),
            *("--root-certificates", str(self.credentials.authority)),
            *("--auth-supernode-private-key", str(self.credentials.device_key(number))),
            *("--host", own_host, "--port", str(own_port)),
            *(("--node-config", config) if config else ()),
        ]

    def register(self, devices: Sequence[int]) -> list[str]:
        """One process for all: each start of Flower's command line takes seconds."""
        commands = [
            [
                *("supernode", "register", str(self.credentials.device_public_key(device)), "perfeds2"),
                *("--name", device_name(device), "--format", "json"),
            ]
            for device in devices
        ]
        return [sys.executable, "-m", "perfeds2.deployment.flower.many", json.dumps(commands)]

    def submit(self, settings: Settings, app: Path | None = None) -> list[str]:
        config = self.home / "run.toml"
        config.write_text(tomli_w.dumps(settings.to_run_config()), encoding="utf-8")
        return [
            _tool("flwr"),
            "run",
            str(app or app_folder()),
            "perfeds2",
            "--run-config",
            str(config),
            "--format",
            "json",
        ]

    def stop(self, run_id: str) -> list[str]:
        return [_tool("flwr"), "stop", run_id, "perfeds2", "--format", "json"]

    def log(self, run_id: str) -> list[str]:
        """What the server app printed."""
        return [_tool("flwr"), "log", run_id, "perfeds2", "--show"]

    def runs(self, run_id: str) -> list[str]:
        return [_tool("flwr"), "list", "perfeds2", "--run-id", run_id, "--format", "json"]


def app_folder() -> Path:
    """The Flower app that comes with the package; ``flwr run`` works on it."""
    return Path(str(importlib.resources.files("perfeds2.deployment.flower") / "app"))


def read_json(text: str) -> dict[str, Any]:
    """The first object Flower's command line printed; other lines may stand around it."""
    start = text.find("{")
    return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)
