"""Run a whole federation on one machine over MQTT."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from perfeds2.deployment.credentials import LOOPBACK, Credentials
from perfeds2.deployment.local import run_on_one_machine
from perfeds2.deployment.mqtt.broker import Broker, Kind, running_broker
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import ShowStatus
from perfeds2.runs.folder import Folder


def run_locally(
    setup: Setup,
    path: Path,
    data_folders: str | None = None,
    show: ShowStatus | None = None,
    broker: Kind | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Folder:
    """Run a federation over Mosquitto, or over the embedded broker if that is not installed or ``broker`` says so."""

    def start(credentials: Credentials, folder: Path, also: Sequence[str]) -> AbstractContextManager[Broker]:
        return running_broker(credentials, (LOOPBACK[0], 0), folder, broker, also=also)

    return run_on_one_machine(setup, path, start, data_folders, show, say)
