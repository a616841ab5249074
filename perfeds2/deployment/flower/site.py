"""Which commands make up a federation on Flower? A server, devices, and what an operator says to the server."""

import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from perfeds2.deployment.credentials import Credentials, device_name
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
ANSWERS_WITHIN_S = 120.0
NAME = "perfeds2"  # of the server, to Flower's command line


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
        """Tell Flower's command line where the server is."""
        self.home.mkdir(parents=True, exist_ok=True)
        connection = {"address": self.address, "root-certificates": str(self.credentials.authority.resolve())}
        text = tomli_w.dumps({"superlink": {"default": NAME, NAME: connection}})
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

    def device(self, number: int, own_port: int, data_folder: Path | None = None) -> list[str]:
        """A SuperNode: knows the authority, shows its own key."""
        data = () if data_folder is None else ("--node-config", f'data-folder="{data_folder.resolve()}"')
        return [
            _tool("flower-supernode"),
            *("--superlink", self.address),
            *("--root-certificates", str(self.credentials.authority)),
            *("--auth-supernode-private-key", str(self.credentials.device_key(number))),
            *("--host", "127.0.0.1", "--port", str(own_port)),
            *data,
        ]

    def register(self, devices: Sequence[int]) -> list[str]:
        """One process for all: each start of Flower's command line takes seconds."""
        commands = [
            [
                *("supernode", "register", str(self.credentials.device_public_key(device)), NAME),
                *("--name", device_name(device), "--format", "json"),
            ]
            for device in devices
        ]
        return [sys.executable, "-m", "perfeds2.deployment.flower.many", json.dumps(commands)]

    def submit(self, setup: Setup, app: Path | None = None) -> list[str]:
        config = self.home / "run.toml"
        config.write_text(tomli_w.dumps({"settings": setup.to_toml()}), encoding="utf-8")
        return [_tool("flwr"), "run", str(app or app_folder()), NAME, "--run-config", str(config), "--format", "json"]

    def stop(self, run_id: str) -> list[str]:
        return [_tool("flwr"), "stop", run_id, NAME, "--format", "json"]

    def log(self, run_id: str) -> list[str]:
        """What the server app printed."""
        return [_tool("flwr"), "log", run_id, NAME, "--show"]

    def runs(self, run_id: str) -> list[str]:
        return [_tool("flwr"), "list", NAME, "--run-id", run_id, "--format", "json"]

    def output(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[bool, str]:
        """Run a short command to its end. Whether it succeeded, and what it printed."""
        try:
            done = subprocess.run(  # noqa: S603 (our own commands)
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment or os.environ | self.environment(),
                timeout=ANSWERS_WITHIN_S,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"no answer within {ANSWERS_WITHIN_S:.0f} s"
        return done.returncode == 0, done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def call(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What Flower answers to a command; where it refuses, why, in one sentence."""
        succeeded, said = self.output(command, environment)
        answer = read_json(said)
        if not succeeded or answer.get("success") is False:
            lines = [line for line in said.splitlines() if line.strip()]
            why = answer.get("error-message") or (lines[-1] if lines else "no reason given")
            raise InputError(f"Flower refused: {' '.join(str(why).split())}")
        return answer


def app_folder() -> Path:
    """The Flower app that comes with the package; ``flwr run`` works on it."""
    return Path(str(importlib.resources.files("perfeds2.deployment.flower") / "app"))


def read_json(text: str) -> dict[str, Any]:
    """The first object Flower's command line printed; other lines may stand around it."""
    start = text.find("{")
    try:
        return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
    except ValueError:  # a brace in what it said
        return {}


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)
