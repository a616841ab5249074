"""Start processes on this machine, and end them with everything they started.

Each process leads its own session, so the processes it forks end with it. If this process is killed, the kernel kills
its children (Linux only).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
GRACE_S = 5.0  # between SIGTERM and SIGKILL
DAY_S = 86_400.0


class Processes:
    """Named processes whose output goes to log files."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(*self._running)

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a process and return its process ID."""
        with self.log(name).open("ab") as log, warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # from JAX, but exec follows at once
            self._running[name] = subprocess.Popen(  # noqa: S603 (our own commands)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this process
                preexec_fn=die_with_parent,
            )
        return self._running[name].pid

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line of a process's log that is not blank."""
        lines = self.log(name).read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")

    def runs(self, name: str) -> bool:
        return name in self._running and self.status(name) is None

    def status(self, name: str) -> int | None:
        """Return a process's exit status; None while it runs."""
        return self._running[name].poll()

    def end(self, *names: str) -> None:
        """Send SIGTERM to processes and what they started, and SIGKILL once they ended or ``GRACE_S`` passed."""
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
    """Have the kernel kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


@contextlib.contextmanager
def repeating(action: Callable[[], object], every_s: float = DAY_S) -> Iterator[None]:
    """Call a function now and regularly in a thread, within the context."""
    ended = threading.Event()

    def repeat() -> None:
        while True:
            try:
                action()
            except Exception:  # such as a damaged file, which may be repaired by the next time
                traceback.print_exc()
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=repeat, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
