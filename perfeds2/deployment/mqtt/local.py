"""How does a whole federation run on one machine with one command? Credentials, a broker, a server, devices, a report."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from perfeds2.deployment.claim import starting
from perfeds2.deployment.credentials import credentials_beside, device_name, make_credentials
from perfeds2.deployment.mqtt.broker import Kind, running_broker
from perfeds2.deployment.mqtt.link import need_paho
from perfeds2.deployment.mqtt.site import DEVICES, KeptRun, Site
from perfeds2.deployment.processes import Place, Processes
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import ShowStatus, read_status
from perfeds2.errors import InputError
from perfeds2.runs.folder import Folder

LOOK_EVERY_S = 0.2
ALL_IN_ONE = Place().device_command


def run_locally(
    setup: Setup,
    path: Path,
    place: Place = Place(),  # noqa: B008 (frozen)
    show: ShowStatus | None = None,
    broker: Kind | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Folder:
    """Run a federation from certificates to report. Every process it starts is over when this returns, however it does."""
    need_paho()
    path = path.resolve()
    if setup.own.app_module is not None:
        setup.model()  # a mistake in a user's module is better found before anything is started
    with starting(path, setup) as folder:
        return _run(setup, path, folder, place, show, broker, say)


def _run(
    setup: Setup,
    path: Path,
    folder: Folder,
    place: Place,
    show: ShowStatus | None,
    broker: Kind | None,
    say: Callable[[str], None],
) -> Folder:
    if folder.finished:
        return folder
    setup.write(path)
    hosts = list(dict.fromkeys([place.server_host, "127.0.0.1", "localhost"]))
    credentials = make_credentials(credentials_beside(path), setup.ues, hosts)
    with (
        running_broker(credentials, (place.server_host, 0), path / "broker", broker) as runs,
        Processes(path / "logs", {}) as processes,
    ):
        if runs.kind == "embedded":
            say("Mosquitto is not installed: the embedded broker carries the messages.")
        folder.log(f"processes are marked {processes.mark}; the broker ({runs.kind}) is process {runs.process_id}")
        site = Site(runs.host, runs.port, credentials)
        run, devices = KeptRun(site, processes, folder), _device_commands(setup, site, place, path / "devices")
        run.start()
        for name, command in devices.items():
            processes.start(name, command)
        while not run.keep_up():
            for name in set(processes.ended()) & devices.keys():
                if processes.status(name) == 2:
                    raise InputError(processes.log(name).read_text(errors="replace").splitlines()[-1])
                folder.log(f"{name} died: starting again")
                processes.start(name, devices[name])
            if show is not None and (status := read_status(path)) is not None:
                show(status)
            time.sleep(LOOK_EVERY_S)
        if show is not None and (status := read_status(path)) is not None:
            show(status)
    shutil.rmtree(credentials.folder)
    return folder


def _device_commands(setup: Setup, site: Site, place: Place, state: Path) -> dict[str, list[str]]:
    """One Python for all, which forks; or one each, where each has a network of its own."""
    data = place.data_folders or setup.spec.task.data_dir
    own = setup.own.app_module, None if data is None else str(data)
    if place.device_command is ALL_IN_ONE:
        return {DEVICES: site.devices(f"0-{setup.ues - 1}", *own, state=state)}
    return {
        device_name(number): place.device_command(number, site.devices(str(number), *own, state=state))
        for number in range(setup.ues)
    }
