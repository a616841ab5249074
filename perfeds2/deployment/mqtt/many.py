"""How do many devices run on one machine?

Each has its own certificate and its own connection. Each is a process of its own: one Python imports what all need and is
then forked, before JAX or any thread has started, so that six are ready in the time of one. Or all are in one process and compute in
turn: for load tests with hundreds.
"""

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from perfeds2.deployment.mqtt.device import DeviceClient, Owner, Turn, Worker, in_any_order
from perfeds2.deployment.mqtt.link import Link, Site
from perfeds2.deployment.processes import die_with_parent
from perfeds2.errors import InputError

AGAIN_AFTER_S = 1.0  # a device that died


def run_together(site: Site, numbers: Sequence[int], owner: Callable[[int], Owner], turn: Turn = in_any_order) -> None:
    """For ever, in this process."""
    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()
    worker = Worker(owner, turn)
    devices = [DeviceClient(number, Link(site, number), worker.work) for number in numbers]
    try:
        for device in devices:
            device.start()
        worker.run_for_ever()
    finally:
        for device in devices:
            device.close()


def run_apart(site: Site, numbers: Sequence[int], owner: Callable[[int], Owner]) -> None:
    """For ever, each in a process of its own; one that dies is started again."""
    import sklearn.datasets  # noqa: F401 (the digits)

    for number in numbers:
        site.tls(number)  # a file that is missing is missed before anything is started
    turn = _turns(os.cpu_count() or 1)
    running = {_fork(site, number, owner, turn): number for number in numbers}
    while True:
        pid, _ = os.wait()
        if (number := running.pop(pid, None)) is not None:
            print(f"device-{number}: died; starting it again", flush=True)
            time.sleep(AGAIN_AFTER_S)
            running[_fork(site, number, owner, turn)] = number


def _turns(at_once: int) -> Turn:
    """So many devices get ready at a time: those after them find compiled what the first compiled. Dies with its holder."""
    import fcntl

    files = [tempfile.TemporaryFile() for _ in range(at_once)]  # noqa: SIM115 (kept open)

    @contextlib.contextmanager
    def turn(number: int) -> Iterator[None]:
        file = files[number % at_once]
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)

    return turn


def _fork(site: Site, number: int, owner: Callable[[int], Owner], turn: Turn) -> int:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # JAX: but it has not started yet
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
    finally:
        os._exit(1)


def read_numbers(text: str) -> list[int]:
    """3, 0-5 or 0,2,4-6"""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise InputError(f"device numbers look like 3, 0-5 or 0,2,4-6; got {text!r}.")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
