"""How are many processes started on one machine, and certainly ended?

An engine's processes start others, some of them detached. All inherit one mark in their environment, by which they are
found and ended, whoever their parent is by then. Should this process be killed, the kernel ends its children.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path

MARK = "PERFEDS2_FEDERATION"
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Processes:
    """Starts processes with their output in files, and ends all of them and all they started."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = os.environ | environment | {MARK: self.mark}
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()

    def start(self, name: str, command: Sequence[str]) -> None:
        with self.log(name).open("ab") as log, warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # JAX: but another program follows at once
            self._running[name] = subprocess.Popen(  # noqa: S603 (our own commands)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is ours to pass on
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    def log(self, name: str) -> Path:
        """Where its output goes."""
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line of its output."""
        lines = [line for line in self.log(name).read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def running(self, name: str) -> bool:
        return name in self._running and self.status(name) is None

    def status(self, name: str) -> int | None:
        """With which exit status it ended; None while it runs."""
        return self._running[name].poll()

    def ended(self) -> list[str]:
        """Which of those started are no longer running."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def end(self, *names: str, grace_s: float = 3.0) -> None:
        """Ask processes and what is in their sessions to end, then make sure."""
        processes = [self._running.pop(name) for name in names]
        for process in processes:
            _signal(process.pid, signal.SIGTERM)
        ends_s = time.monotonic() + grace_s
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(ends_s - time.monotonic(), 0.0))
        for process in processes:
            _signal(process.pid, signal.SIGKILL)
            process.wait()

    def end_all(self) -> None:
        """Everything that was started, and everything that those started."""
        self.end(*self._running, grace_s=5.0)
        while left := marked(self.mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def die_with_parent() -> None:
    """Should whoever started this process be killed, the kernel ends it too. (Linux)"""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Everybody with a mark in the environment they were started with, this process excepted. (Linux; elsewhere nobody.)"""
    text = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        os.kill(process, 0)
        stat = Path(f"/proc/{process}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True
