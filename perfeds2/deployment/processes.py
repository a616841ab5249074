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
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
GRACE_S = 5.0  # between SIGTERM and SIGKILL
RECENT_S, AT_ONCE, LONGEST_DELAY_S = 120.0, 3, 60.0  # deaths that count, those without a delay, and the longest delay
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


class Restarts:
    """When things that ended are started again: at once a few times, then later and later."""

    def __init__(self) -> None:
        self._deaths: dict[Hashable, list[float]] = {}  # of the last minute, by name
        self._due: dict[Hashable, float] = {}

    def died(self, name: Hashable) -> float:
        """Return the delay until something that has died is due."""
        now_s = time.monotonic()
        recent = [each for each in self._deaths.get(name, []) if now_s - each < RECENT_S] + [now_s]
        delay_s = min(2.0 ** (len(recent) - AT_ONCE), LONGEST_DELAY_S) if len(recent) > AT_ONCE else 0.0
        self._deaths[name], self._due[name] = recent, now_s + delay_s
        return delay_s

    def due(self, later_s: float = 0.0) -> list[Any]:
        """Return what is to be started now, once each."""
        now_s = time.monotonic() - later_s
        found = [name for name, due_s in self._due.items() if now_s >= due_s]
        for name in found:
            del self._due[name]
        return found

    def waits(self, name: Hashable) -> bool:
        return name in self._due


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
