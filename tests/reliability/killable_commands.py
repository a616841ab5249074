"""How is the command line killed a hundred times without importing everything a hundred times?

A server imports the package once and starts no computation. For each request it forks: the child is a fresh
``perfeds2`` command in a folder of its choice, killed with SIGKILL after this many seconds or right before an operation on
a file (the n-th of a kind, or of all), or not at all. ``Commands`` is the side of the tests.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree")
MOST_OPERATIONS = 65_536
THEIRS = (
    *("jax.experimental.multihost_utils", "jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo"),
    *("matplotlib.figure", "matplotlib.style", "pandas.core.methods.to_dict", "pandas.io.formats.csvs"),
    *("plotly.offline", "pooch", "pydantic.type_adapter"),
)
UNUSED = ("perfeds2.deployment", "perfeds2.play", "perfeds2.timeline.fast.")
PATIENCE_S = 120.0  # no command here takes this long: one that does hangs


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int  # as subprocess has it: -9 for SIGKILL
    seconds: float
    operations: list[str]  # on files, in the folder it ran in
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Commands:
    """Runs ``perfeds2`` commands, each in a process of its own."""

    def __init__(self, scratch: Path, **environment: str) -> None:
        self.scratch = scratch
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a fork takes only one thread along
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, **environment},
        )

    def __call__(
        self,
        *arguments: object,
        cwd: Path,
        after_s: float | None = None,
        before: tuple[str, int] | None = None,
        setting: dict[str, Any] | None = None,
    ) -> Ended:
        """One command, from its arguments; killed after this many seconds, or before the n-th operation of a kind ("" for
        all), if given.
        """
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "scratch": str(self.scratch),
        }
        request |= {"after_s": after_s, "before": before, "setting": setting or {}}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        said = [(self.scratch / name).read_text() for name in ("out", "err")]
        return Ended(answer["status"], answer["seconds"], answer["operations"], *said)

    def close(self) -> None:
        assert self.process.stdin is not None
        with self.process:  # closes the pipes and waits
            self.process.stdin.close()


def files_of(folder: Path, besides: Sequence[str] = ("events.log",)) -> dict[str, bytes]:
    """Every file in a folder but the log, which tells the time of day."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in besides)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# ---- the server


def serve() -> None:
    import_everything()
    for line in sys.stdin:
        request = json.loads(line)
        done = mmap.mmap(
            -1, MOST_OPERATIONS
        )  # seen by both, whichever dies: a kind's number, from 1, for each operation
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            be_the_command(request, done)
        status = wait(child, request["after_s"])
        operations = [OPERATIONS[kind - 1] for kind in done[:].rstrip(b"\0")]
        seconds = time.monotonic() - began
        print(json.dumps({"status": status, "seconds": seconds, "operations": operations}), flush=True)


def import_everything() -> None:
    """What a command imports late, so that no child has to: the package but its engine, and what that needs."""
    import gc
    import importlib
    import pkgutil

    gc.disable()  # imports make hardly any garbage
    sys.path.append(str(Path(__file__).parents[1]))

    from jax._src import xla_bridge
    from matplotlib.figure import Figure
    from typer.main import get_command
    from unrendered import save_unrendered

    import perfeds2.cli
    from perfeds2.learning.task import weight_shapes

    ours = [module.name for module in pkgutil.walk_packages(perfeds2.__path__, "perfeds2.")]
    for name in (*THEIRS, *(name for name in ours if not name.startswith(UNUSED))):
        importlib.import_module(name)
    perfeds2.cli.app = get_command(perfeds2.cli.app)  # a fifth of a second, for every child
    if "PERFEDS2_AS_USERS" not in os.environ:
        Figure.savefig = save_unrendered  # type: ignore[method-assign]
    importlib.import_module("in_numpy")
    xla_bridge.discover_pjrt_plugins()  # reads the metadata of all installed packages
    xla_bridge.discover_pjrt_plugins = lambda: None
    for task in (perfeds2.digits, perfeds2.synthetic):
        weight_shapes(task.model)
    gc.freeze()
    gc.enable()

    assert not xla_bridge.backends_are_initialized(), "a fork would inherit a computer without its threads"


def wait(child: int, after_s: float | None) -> int:
    deadline = time.monotonic() + (PATIENCE_S if after_s is None else after_s)
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status)


def be_the_command(request: dict[str, Any], done: mmap.mmap) -> None:
    """In the child: a ``perfeds2`` command from here on."""
    os.chdir(request["cwd"])
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{request['scratch']}/{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    warnings.filterwarnings("ignore", message="os.fork")
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")  # as commands do
    sys.argv = ["perfeds2", *request["arguments"]]
    apply(request["setting"])
    count_operations(request["cwd"], request["before"], done)
    status = 1
    try:
        from perfeds2.cli import main

        main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def shorter(panel: Any, horizon_s: dict[str, float]) -> dict[str, Any]:
    """A panel's quick settings, until a task's second."""
    quick = panel.settings["quick"]
    run = quick["run"] | {"horizon_s": horizon_s.get(panel.task, quick["run"]["horizon_s"])}
    return {"quick": {**quick, "run": run}}


def apply(setting: dict[str, Any]) -> None:
    """What a test makes smaller, fewer or faster than a user gets it."""
    import resource

    from perfeds2.paper.figures import FIGURES
    from perfeds2.runs import pool, trainer

    if "checkpoint_every_s" in setting:
        trainer.CHECKPOINT_EVERY_S = setting["checkpoint_every_s"]
    if "horizon_s" in setting:
        panels = [
            replace(panel, lines=panel.lines[: setting["most_lines"]], settings=shorter(panel, setting["horizon_s"]))
            for panel in FIGURES["exp_4"].panels
        ]
        FIGURES["exp_4"] = replace(FIGURES["exp_4"], panels=tuple(panels))
    if setting.get("in_numpy"):
        from in_numpy import train_in_numpy

        train_in_numpy(setattr)
    if "in_process" in setting:
        pool.find_workers = lambda *_: pool.Engine()  # train in the process that writes the tables: its death matters
    if "xla_flags" in setting:
        os.environ["XLA_FLAGS"] = setting["xla_flags"]  # read when the first function is compiled
    if "workers" in setting:
        os.cpu_count = lambda: setting["workers"]
    if "file_bytes" in setting:
        resource.setrlimit(resource.RLIMIT_FSIZE, (setting["file_bytes"], resource.RLIM_INFINITY))
    if "delete_at" in setting:
        operation, folder = setting["delete_at"]
        delete_before_operation(operation, folder)


def count_operations(cwd: str, before: tuple[str, int] | None, done: mmap.mmap) -> None:
    """Write down what the command does to files in its folder, and be killed before one of them."""
    lock = threading.Lock()
    which, last = before or ("", 0)
    count = matching = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, matching
        if event not in OPERATIONS or not isinstance(arguments[0], str) or not inside(arguments[0], cwd):
            return
        with lock:
            done[count] = OPERATIONS.index(event) + 1
            count += 1
            matching += which in ("", event)
            if matching == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def delete_before_operation(operation: int, folder: str) -> None:
    """Someone else deletes the folder while the command is at work."""
    import shutil

    count = 0

    def hook(event: str, _: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "os.rename":
            count += 1
            if count == operation:
                os.rename(folder, f"{folder}.gone")  # at once: no one can write into half of it
                shutil.rmtree(f"{folder}.gone")

    sys.addaudithook(hook)


def inside(path: str, cwd: str) -> bool:
    return not os.path.isabs(path) or path.startswith(cwd)


if __name__ == "__main__":
    serve()
