"""Let one server at a time use a state folder, and a standby take over when it stops.

The active server has the lease with the highest number, ``lease-N``, and rewrites it every two seconds. A standby
watches that file. If it does not change for ten seconds on the standby's own clock, the standby creates lease N + 1,
which only one can do. A server that was stopped and goes on sees the higher number before its next write, and ends.
"""

import contextlib
import itertools
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfeds2.deployment.processes import repeating
from perfeds2.errors import InputError
from perfeds2.files import is_alive

RENEW_S = 2.0
EXPIRE_S = 10.0
FREE = "free"  # content of a lease whose server has ended


class LeaseLostError(InputError):
    """Another server has taken over."""


@dataclass(frozen=True)
class Lease:
    """The right to write, as long as there is no lease with a higher number."""

    state: Path
    number: int
    stolen: bool = False  # from a server that may only be stopped, and still hold locks

    @property
    def file(self) -> Path:
        return self.state / f"lease-{self.number}"

    def check(self) -> None:
        """Raise if another server has taken over."""
        if newest(self.state) != self.number:
            raise LeaseLostError(f"another server has taken over {self.state}; this one ends.")

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError), self.file.open("r+b") as file:  # never creates it
            file.write(text.encode().ljust(120))
            file.flush()
            os.fsync(file.fileno())


def newest(state: Path) -> int:
    """Return the highest number of a lease; -1 if there is none."""
    names = (path.name.removeprefix("lease-") for path in state.glob("lease-*"))
    return max((int(name) for name in names if re.fullmatch("[0-9]+", name)), default=-1)


def owner(state: Path) -> str:
    """Return the content of the newest lease: host, process and a counter; "free" if no server has it."""
    try:
        text = Lease(state, newest(state)).file.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, IsADirectoryError):
        return FREE
    found = re.fullmatch(r"(\S+) ([0-9]{1,9}) [0-9]+", text)
    if found is None:  # free, just created, or not written by a server
        return text
    # A predecessor in a container may have had the PID of this process.
    process = int(found[2])
    is_dead = found[1] == socket.gethostname() and (process == os.getpid() or not is_alive(process))
    return FREE if is_dead else text


@contextlib.contextmanager
def leased(state: Path, standby: bool = False) -> Iterator[Lease]:
    """Hold the lease of a state folder within the context, and yield it.

    Args:
        state: The folder, which several machines may share.
        standby: Wait as long as another server is active.

    Raises:
        InputError: Another server is active.
    """
    lease, me, count = _take(state, standby), f"{socket.gethostname()} {os.getpid()}", itertools.count()
    try:
        with repeating(lambda: lease.write(f"{me} {next(count)}"), RENEW_S):
            yield lease
    finally:
        lease.write(FREE)


def _take(state: Path, standby: bool) -> Lease:
    seen, since_s = None, 0.0
    while True:
        number, text = newest(state), owner(state)
        if text == FREE or ((number, text) == seen and time.monotonic() - since_s > EXPIRE_S):
            lease = Lease(state, number + 1, stolen=text != FREE)
            with contextlib.suppress(FileExistsError):  # otherwise another standby was faster
                os.close(os.open(lease.file, os.O_CREAT | os.O_EXCL, 0o600))
                for old in set(state.glob("lease-*")) - {lease.file}:
                    with contextlib.suppress(OSError):  # gone already, or a folder
                        old.unlink()
                return lease
        elif (number, text) != seen:
            if seen is not None and not standby:
                raise InputError(f"another server uses {state}; end it first, or start this one with --standby.")
            seen, since_s = (number, text), time.monotonic()
        time.sleep(RENEW_S / 8)
