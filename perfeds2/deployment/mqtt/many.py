"""How do many devices run on one machine? ``python -m perfeds2.deployment.mqtt.many 0-5 --server HOST:PORT --credentials DIR``

Each has its own certificate and its own connection. Each is a process of its own: one Python imports what all need and is
then forked, before JAX or any thread has started, so that six are ready in the time of one. ``--together`` keeps all in
one process, which compute in turn: for load tests with hundreds.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from perfeds2.deployment.credentials import Credentials, device_name
from perfeds2.deployment.mqtt.device import DeviceClient, Owner, Worker
from perfeds2.deployment.mqtt.site import Site, read_address
from perfeds2.deployment.processes import die_with_parent
from perfeds2.errors import InputError

AGAIN_AFTER_S = 1.0  # a device that died


Turn = Callable[[int], contextlib.AbstractContextManager[object]]


def run_together(site: Site, numbers: Sequence[int], owner: Callable[[int], Owner], turn: Turn | None = None) -> None:
    """For ever, in this process."""
    from perfeds2.learning.compiled import keep_compiled

    keep_compiled()
    worker = Worker(owner) if turn is None else Worker(owner, turn)
    devices = [DeviceClient(number, site.link(number), worker.work) for number in numbers]
    try:
        for device in devices:
            device.start()
        worker.run_for_ever()
    finally:
        for device in devices:
            device.close()


def run_apart(site: Site, numbers: Sequence[int], owner: Callable[[int], Owner]) -> None:
    """For ever, each in a process of its own; one that dies is started again."""
    _import_all()
    for number in numbers:
        site.link(number)  # a file that is missing is missed before anything is started
    turn = _turns(os.cpu_count() or 1)
    running = {_fork(site, number, owner, turn): number for number in numbers}
    while True:
        pid, _ = os.wait()
        if (number := running.pop(pid, None)) is not None:
            print(f"device-{number}: died; starting it again", flush=True)
            time.sleep(AGAIN_AFTER_S)
            running[_fork(site, number, owner, turn)] = number


def _import_all() -> None:
    import sklearn.datasets  # noqa: F401 (the digits)

    import perfeds2.deployment.device  # noqa: F401


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
    status = 1
    try:
        if sys.platform == "linux":
            die_with_parent()
        with contextlib.suppress(KeyboardInterrupt):
            run_together(site, [number], owner, turn)
    except InputError as error:
        print(f"device-{number}: {error}", flush=True)
    finally:
        os._exit(status)


def read_numbers(text: str) -> list[int]:
    """3, 0-5 or 0,2,4-6"""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise InputError(f"device numbers look like 3, 0-5 or 0,2,4-6; got {text!r}.")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perfeds2.deployment.mqtt.many",
        description="Run many devices of a federation on this machine, each with its own certificate and connection.",
        epilog="300 devices in one process, for a load test: %(prog)s 0-299 --server fl.example.org:8883 --credentials credentials --together",
    )
    parser.add_argument("numbers", metavar="NUMBERS", help="which devices: 3, 0-5 or 0,2,4-6")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server's broker is")
    parser.add_argument(
        "--credentials",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder with ca.crt and, in devices/, their keys and certificates (perfeds2 federate credentials)",
    )
    parser.add_argument("--app-module", type=Path, metavar="FILE", help="their own file with model and load_data")
    parser.add_argument(
        "--data", metavar="PATTERN", help="each device's data folder, with {} for its number: data/device-{}"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("mqtt/devices"),
        metavar="DIR",
        help="what each keeps between jobs, where the algorithm has devices keep something, goes to DIR/device-N (default: mqtt/devices)",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="all in one process, which compute in turn; without it each is a process of its own, started again if it dies",
    )
    given = parser.parse_args()

    def owner(number: int) -> Owner:
        data = None if given.data is None else Path(given.data.format(number))
        return Owner(given.app_module, data, given.state / device_name(number))

    try:
        site = Site(*read_address(given.server, "--server"), Credentials(given.credentials))
        (run_together if given.together else run_apart)(site, read_numbers(given.numbers), owner)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
