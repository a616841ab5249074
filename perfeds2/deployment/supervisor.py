"""Supervise a federation's processes: its server, and devices or edges on the same machine.

Processes that die are started again, at once a few times and then ever later.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.deployment.lease import Lease
from perfeds2.deployment.processes import Processes, Restarts
from perfeds2.deployment.site import Site
from perfeds2.deployment.status import ShowStatus, read_status
from perfeds2.errors import InputError
from perfeds2.files import retry_while_full
from perfeds2.runs.folder import Folder, alone, claimed

if TYPE_CHECKING:  # a server or standby that waits needs no JAX
    from perfeds2.deployment.setup import Setup

LOOK_EVERY_S = 0.2
MOST_DEATHS = 3  # of the server in one round; another attempt would not help
BAD_INPUT = 2  # exit status of a process whose input is bad
ALL = "all"  # last word of the server's command: round 0 waits for every device
SERVING = "serving"  # name of a process and its log; those of edges have a number, too


def already_runs(path: Path) -> str:
    return f"a federation runs there: follow it with perfeds2 federate watch {path}, or stop it first"


@contextmanager
def claim_run(path: Path, setup: "Setup") -> Iterator[Folder]:
    """Claim a run's folder for the one process that starts and supervises its federation.

    The server is another process and claims the run's folder itself, so this one holds the folder of the logs.
    """
    with claimed(path, setup.server_spec, otherwise=already_runs(path)) as folder:
        logs = path / "logs"
        logs.mkdir(exist_ok=True)
    with alone(logs, otherwise=already_runs(path)):
        yield replace(folder, chained=True)


def serving_command(site: Site, folder: Path, wait_for_all: bool = False, lease: Lease | None = None) -> list[str]:
    """Return the command of the process that serves a run: ``main`` below."""
    words = [folder, site.address, site.credentials.folder, *[ALL] * wait_for_all]
    words += [] if lease is None else [lease.state, lease.number, int(lease.stolen)]
    return [sys.executable, "-m", "perfeds2.deployment.mqtt.runs", *map(str, words)]


def devices_command(site: Site, numbers: str, flags: Mapping[str, object]) -> list[str]:
    """Return the command that runs devices such as 0-5. Flags that are None are left out."""
    given = {"number": numbers, "server": site.address, "credentials": site.credentials.folder, **flags}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "perfeds2", "federate", "device", *words]


def supervise(
    site: Site,
    folder: Folder,
    processes: Processes,
    devices: Mapping[str, list[str]],
    show: ShowStatus | None = None,
    wanted: Callable[[], bool] = lambda: True,
    lease: Lease | None = None,
) -> bool:
    """Start the processes of a run's server and devices, and restart those that die, until the run is done.

    Args:
        site: The broker's address and the credentials.
        folder: The run's folder.
        processes: Starts and ends the processes.
        devices: Commands that run devices, or edges with theirs, by process name.
        show: Called with every new status.
        wanted: Called regularly; supervision ends when it returns False.
        lease: The server's lease; without it, its processes end.

    Returns:
        Whether the run is done; False if it is no longer wanted.

    Raises:
        InputError: A process reports bad input, or the server died too often in one round.
    """
    commands = {SERVING: serving_command(site, folder.path, bool(devices), lease), **devices}
    for name, command in commands.items():
        processes.start(name, command)
    restarts = Restarts()
    died_in, deaths = -1, 0  # round of the server's last crash, and the number of crashes in it
    while wanted():
        time.sleep(LOOK_EVERY_S)
        status = read_status(folder.path)
        for name in [name for name in commands if not (processes.runs(name) or restarts.waits(name))]:
            ended = processes.status(name)
            if name.startswith(SERVING) and ended == 0 and (name != SERVING or folder.finished):
                del commands[name]
                if not any(each.startswith(SERVING) for each in commands):
                    return True
                continue
            if ended == BAD_INPUT:
                raise InputError(processes.last_line(name))
            if lease is not None:
                lease.check()  # before anything is written
            if name == SERVING:
                round_ = 0 if status is None else status.round
                deaths = deaths + 1 if round_ == died_in else 1
                died_in = round_
                if deaths == MOST_DEATHS:
                    raise InputError(f"the server failed {deaths} times in round {round_}; see {processes.log(name)}.")
            delay_s = restarts.died(name)
            again = f" in {delay_s:.0f} s" if delay_s else ""
            retry_while_full(functools.partial(folder.log, f"the process {name} died: starting it again{again}"))
        for name in restarts.due():
            processes.start(name, commands[name])
        if show is not None and status is not None:
            show(status)
    processes.end(SERVING)
    return False
