"""Start processes on this machine, and end them and all that they started.

Each is the leader of a session of its own, with which the processes that it forks end too. Should this process be killed, the kernel
ends its children.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
GRACE_S = 5.0  # from being asked to end to being killed


class Processes:
    """Processes by name, with their output in files."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(*self._running)

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a process. Returns its number."""
        with self.log(name).open("ab") as log, warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # JAX: but another program follows at once
            self._running[name] = subprocess.Popen(  # noqa: S603 (our own commands)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to pass on
                preexec_fn=die_with_parent,
            )
        return self._running[name].pid

    def log(self, name: str) -> Path:
        """Return the file with its output."""
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line of its output."""
        lines = self.log(name).read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")

    def runs(self, name: str) -> bool:
        return name in self._running and self.status(name) is None

    def status(self, name: str) -> int | None:
        """Return its exit status; None while it runs."""
        return self._running[name].poll()

    def end(self, *names: str) -> None:
        """Ask processes and what they started to end, then make sure."""
        processes = [self._running.pop(name) for name in names if name in self._running]
        for process in processes:
            _signal(process.pid, signal.SIGTERM)
        ends_s = time.monotonic() + GRACE_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(ends_s - time.monotonic(), 0.0))
            _signal(process.pid, signal.SIGKILL)
            process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def die_with_parent() -> None:
    """Have the kernel end this process should its parent be killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
