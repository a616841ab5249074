"""Start commands of Python by forking a process that has imported the package, which saves each of them its imports.

They are processes like any others: with their own session, command line, folder, environment and exit status, and they
end with the process that started them. ``Nursery`` is the side of the tests; ``Forked`` stands in for ``subprocess.Popen``.
"""

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from perfeds2.deployment import processes
from perfeds2.deployment.processes import die_with_parent

LONGEST = 8192  # bytes of a command line
PREPARED = (
    *(
        "perfeds2.cli",
        "perfeds2.commands.federate",
        "perfeds2.deployment.mqtt.backhaul",
        "perfeds2.deployment.mqtt.many",
    ),
    *("perfeds2.deployment.mqtt.runs", "perfeds2.deployment.mqtt.transport", "perfeds2.deployment.server"),
    *("perfeds2.report.run", "jaxlib.mlir.dialects.mhlo"),
)


class Nursery:
    """A process that forks on request."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a fork takes only one thread along
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), "." * LONGEST],
                pass_fds=[theirs.fileno()],
                env=os.environ | threads,
            )

    def popen(self, command: Sequence[str], *, stdout: IO[Any], start_new_session: bool = False, **more: Any) -> Any:
        """Start a process whose two outputs go to a file; with ``subprocess`` if it is no command of Python."""
        if command[0] != sys.executable:
            return subprocess.Popen(command, stdout=stdout, start_new_session=start_new_session, **more)
        request = {"words": list(command[1:]), "cwd": os.getcwd(), "environment": dict(os.environ)}
        data = json.dumps(request | {"session": start_new_session}).encode()
        status, told = os.pipe()
        socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], [stdout.fileno(), told])
        self._socket.sendall(data)
        os.close(told)
        return Forked(read_number(self._socket), status)

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


class Forked:
    """A process that was forked, as ``subprocess.Popen`` shows one."""

    def __init__(self, pid: int, status: int | None = None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # a pipe from the process that waits for it; None: it is this process's own child

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        elif select.select([self._status], [], [], 0)[0]:
            self.returncode = int(os.read(self._status, 100) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float = 120.0) -> int:
        ends_s = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > ends_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def stand_in(popen: Callable[..., Any]) -> SimpleNamespace:
    """Return what ``perfeds2.deployment.processes`` uses of ``subprocess``."""
    return SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def read_number(connection: socket.socket) -> int:
    return int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")


# ---- the process that forks


def serve(connection: socket.socket) -> None:
    import importlib

    from jax._src import xla_bridge

    for name in PREPARED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("equinox")  # of the example in docs/how-to/deploy.md
    assert not xla_bridge.backends_are_initialized(), "a fork would inherit a computer without its threads"
    warnings.filterwarnings("ignore", message=r"os\.fork")
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # modules are imported already
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    running = dict[int, int]()  # where to tell the exit status, by process
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            woken.recv(1000)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                told = running.pop(ended[0])
                os.write(told, str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(told)
        if connection in ready:
            size, files, _, _ = socket.recv_fds(connection, 4, 2)
            if not size:
                return
            log, told = files
            request = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                be(request, log, connection)
            running[child] = told
            os.close(log)


def fork_here(command: Sequence[str], *, stdout: IO[bytes], start_new_session: bool, **more: Any) -> Any:
    """In a child that starts processes itself, before it computes anything."""
    if command[0] != sys.executable:
        return subprocess.Popen(command, stdout=stdout, start_new_session=start_new_session, **more)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if os.fork() == 0:
            be({"words": list(command[1:]), "session": start_new_session}, stdout.fileno(), theirs)
        return Forked(read_number(ours))


def be(request: dict[str, Any], log: int, connection: socket.socket) -> None:
    """In the child: the requested command from here on."""
    words, status = request["words"], 1
    try:
        if request["session"]:
            os.setsid()
        die_with_parent()
        connection.sendall(os.getpid().to_bytes(4, "big"))  # only now: who started it may kill its session
        connection.close()
        if "cwd" in request:
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["environment"])
        processes.subprocess = stand_in(fork_here)
        processes.repeating = waiting(processes.repeating)
        for descriptor, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(file, descriptor)
        rename([sys.executable, *words])
        option, what, *sys.argv[1:] = words
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def waiting(repeating: Callable[..., Any]) -> Callable[..., Any]:
    """Return the context manager, which now waits until its thread has called the function once.

    A child has only the thread that forked, so what another thread has locked stays locked. A server reads certificates
    once a day in such a thread, which takes locks, and it forks as soon as it has found a run.
    """

    @contextlib.contextmanager
    def repeating_then(action: Callable[[], object], *more: float) -> Iterator[None]:
        ended = threading.Event()

        def told() -> None:
            try:
                action()
            finally:
                ended.set()

        with repeating(told, *more):
            ended.wait()
            yield

    return repeating_then


def rename(words: Sequence[str]) -> None:
    """Write another command line over this process's own, for those who look for it in /proc."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = "\0".join(words).encode()[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
