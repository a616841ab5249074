"""Run a whole federation on one machine, from certificates to report."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from perfeds2.deployment.credentials import LOOPBACK, Credentials, credentials_beside, make_credentials
from perfeds2.deployment.edge import EDGES
from perfeds2.deployment.processes import Processes
from perfeds2.deployment.setup import Setup, data_folder
from perfeds2.deployment.site import Site
from perfeds2.deployment.status import ShowStatus
from perfeds2.deployment.supervisor import SERVING, already_runs, claim_run, devices_command, serving_command, supervise
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder, claimed


class LocalBroker(Protocol):
    """What carries the messages of a federation on one machine."""

    host: str
    port: int
    process_id: int

    @property
    def kind(self) -> str: ...


# Starts one, given credentials, a folder for its files, and other federations that use it.
StartBroker = Callable[[Credentials, Path, Sequence[str]], AbstractContextManager[LocalBroker]]


def run_on_one_machine(
    setup: Setup,
    path: Path,
    start_broker: StartBroker,
    data_folders: str | None = None,
    show: ShowStatus | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Folder:
    """Run a federation on this machine. No process it started is left when this returns or raises.

    Args:
        setup: The federation's settings.
        path: The run's folder.
        start_broker: Starts the broker.
        data_folders: Each device's own data folder, with {} for its number. A resumed run remembers it.
        show: Called with every new status.
        say: Called with messages for the user.

    Returns:
        The complete run folder.

    Raises:
        InputError: The federation runs already, or cannot be run.
    """
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
            start_broker(credentials, path / "broker", also) as started,
            Processes(path / "logs") as processes,
        ):
            if started.kind == "embedded":
                say("Mosquitto is not installed: the embedded broker carries the messages.")
            folder.log(f"the broker ({started.kind}) is process {started.process_id}")
            flags = {
                "app-module": setup.own.app_module,
                **setup.files,
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


def _edge_credentials(cloud: Credentials, edge: Setup) -> Credentials:
    """Make the credentials of an edge's federation, with the cloud's authorities, so that one broker serves both."""
    name = f"edge-{edge.own.edge}"
    folder = cloud.folder / name
    folder.mkdir(mode=0o700, exist_ok=True)
    for authority in (cloud.brokers, cloud.clients):
        for file in cloud.folder.glob(f"{authority.name}.*"):
            shutil.copy2(file, folder)
    return make_credentials(folder, edge.ues, LOOPBACK, name)


def _edge_commands(
    setup: Setup, site: Site, cells: Sequence[Credentials], path: Path, flags: Mapping[str, object]
) -> dict[str, list[str]]:
    """Return the commands of a cloud's edges and their devices, by process name. Each edge has a folder in edges/."""
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
