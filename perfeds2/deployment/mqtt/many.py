"""Run many devices on one machine, each with its own certificate and connection.

By default each device is a process: one Python process imports what all need and forks before JAX or any thread
starts, so six devices are ready in the time of one. For load tests with hundreds of devices, all can share one process
and compute in turn.
"""

import contextlib
import fcntl
import functools
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from perfeds2.deployment.enrolment import renew
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.wire import Topics
from perfeds2.deployment.preparation import Owner
from perfeds2.deployment.processes import Restarts, die_with_parent, repeating
from perfeds2.deployment.site import Site
from perfeds2.deployment.worker import DeviceWorker, Turn
from perfeds2.errors import InputError

AGAIN_AFTER_S = 1.0  # least delay before a dead device is restarted
LOOK_EVERY_S = 0.1


def run_together(
    site: Site, numbers: Sequence[int], owner: Callable[[int], Owner], turn: Turn = contextlib.nullcontext
) -> None:
    """Run devices in this process, forever."""
    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()
    worker, topics = DeviceWorker(owner, turn), Topics(site.federation)
    devices = [
        DeviceClient(number, Link(site, number), worker.work, worker.inbox, topics=topics, credentials=site.credentials)
        for number in numbers
    ]
    try:
        for device in devices:
            device.start()
        with repeating(lambda: _renew(devices, site)):
            worker.run_for_ever()
    finally:
        for device in devices:
            device.close()


def _renew(devices: Sequence[DeviceClient], site: Site) -> None:
    """Renew certificates that need it, and say which expire soon."""
    for device in devices:
        try:
            renew(site.credentials, device.number)
        except InputError as error:
            print(f"device-{device.number}: {error}", flush=True)
    for warning in site.credentials.warnings():
        print(f"warning: {warning}", flush=True)


def run_apart(site: Site, numbers: Sequence[int], owner: Callable[[int], Owner]) -> None:
    """Run each device in its own process, forever, and restart those that die."""
    for number in numbers:
        site.credentials.tls(number)  # report a missing file before anything is started
    locks = [tempfile.TemporaryFile() for _ in range(os.cpu_count() or 1)]  # noqa: SIM115 (kept open)

    def start(number: int) -> int:
        return _fork(site, number, owner, functools.partial(_locked, locks[number % len(locks)]))

    running, restarts = {start(number): number for number in numbers}, Restarts()
    while True:
        pid = os.waitpid(-1, os.WNOHANG)[0] if running else 0
        if (number := running.pop(pid, None)) is not None:
            wait_s = AGAIN_AFTER_S + restarts.died(number)
            print(f"device-{number}: died; starting it again in {wait_s:.0f} s", flush=True)
        for due in restarts.due(AGAIN_AFTER_S):
            running[start(due)] = due
        time.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Let one device per core prepare at a time, so later ones hit the compilation cache. Locks die with a process."""
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def _fork(site: Site, number: int, owner: Callable[[int], Owner], turn: Turn) -> int:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # from JAX, but it has not started yet
        pid = os.fork()
    if pid:
        print(f"device-{number}: is process {pid}", flush=True)
        return pid
    try:
        die_with_parent()
        with contextlib.suppress(KeyboardInterrupt):
            run_together(site, [number], owner, turn)
    except InputError as error:
        print(f"device-{number}: {error}", flush=True)
    except Exception:  # os._exit would discard it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def read_numbers(text: str) -> list[int]:
    """Parse device numbers such as 3, 0-5 or 0,2,4-6."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise InputError(f"device numbers look like 3, 0-5 or 0,2,4-6; got {text!r}.")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
