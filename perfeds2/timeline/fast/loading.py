"""Load the compiled loops when that saves time, and compile them in the background for the next run.

``$PERFEDS2_CLOCK`` may be ``numpy`` (never use them) or ``compiled`` (use them at once, compiling them first if
needed).
"""

import atexit
import hashlib
import math
import os
import platform
import subprocess  # starts only this Python
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

VARIABLE, FOLDER = "PERFEDS2_CLOCK", "PERFEDS2_COMPILE_CACHE"
LOAD_S, COMPILE_S = 1.0, 20.0  # time to load and to compile; for less work the NumPy clock is faster
COMPILE_PAYS_S = 1.5  # from this much work on, compile for the next run
COMPILING_S = 300.0  # after this time another process may start compiling


@dataclass(frozen=True)
class Kernel:
    """The compiled functions."""

    names: ModuleType  # the kernel module, for its records and stop reasons
    draw: Callable[..., None]
    loops: tuple[tuple[int, int], ...]  # NumPy's logarithms, exponential and sum


class Loaded:
    """What this process has loaded."""

    kernels: ClassVar[dict[bool, Kernel]] = {}  # keyed by whether the policy needs a search
    broken = False  # loading failed; use the NumPy clock
    spent_s = 0.0  # estimated time the NumPy clock spent on rounds that the compiled loops support
    compiling: "ClassVar[subprocess.Popen[bytes] | None]" = None


def allowed() -> bool:
    return os.environ.get(VARIABLE) != "numpy" and _installed()


@cache
def _installed() -> bool:
    """Return whether there is Numba; looking for it takes as long as a round."""
    return find_spec("numba") is not None


def loaded(searching: bool, work_s: float, *, wait: bool = False) -> Kernel | None:
    """Return the compiled loops if they are loaded, or worth loading for ``work_s`` seconds of the NumPy clock."""
    if searching in Loaded.kernels or Loaded.broken:
        return Loaded.kernels.get(searching)
    at_once = os.environ.get(VARIABLE) == "compiled"
    if not at_once and work_s + Loaded.spent_s < LOAD_S:
        return None
    folder = _folder()
    if at_once or (wait and work_s > COMPILE_S) or (folder is not None and _ready(folder, searching).exists()):
        _load(searching, folder)
    elif folder is None:
        if work_s > 2 * COMPILE_S:
            _load(searching, None)
    elif work_s + Loaded.spent_s > COMPILE_S and (Loaded.compiling is None or Loaded.compiling.poll() is not None):
        _start_compiling(folder)
    elif work_s + Loaded.spent_s > COMPILE_PAYS_S:
        _compile_at_exit(folder)
    return Loaded.kernels.get(searching)


def _load(searching: bool, folder: Path | None) -> None:
    """Import the loops, compiling them unless the cache folder has them."""
    import numba.core.config

    config: Any = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, "" if folder is None else str(folder)
    try:
        from perfeds2.timeline.fast import kernel
        from perfeds2.timeline.fast.numbers import draw, loops

        kernel.play_one_round(draw, loops(), searching)
        Loaded.kernels[searching] = Kernel(kernel, draw, loops())
    except Exception:  # an unknown NumPy or a corrupt cache: the NumPy clock gives the same result
        Loaded.broken = True
        if folder is not None:
            _ready(folder, searching).unlink(missing_ok=True)
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path | None:
    """Return the cache folder for these sources, versions and processor, or None.

    Its contents are executed, so no other user may have write access.
    """
    chosen = os.environ.get(FOLDER) or None
    if str(chosen).lower() == "off":
        return None
    if chosen is None:
        import pooch

        chosen = pooch.os_cache("perfeds2")
    here = Path(__file__).parent
    what = hashlib.sha256(f"{sys.version} {platform.machine()} {version('numba')} {version('llvmlite')}".encode())
    for source in (here / name for name in ("closing.py", "kernel.py", "numbers.py", "search.py")):
        what.update(f"{source} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    folder = Path(chosen).expanduser() / "clock" / what.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        is_safe = status.st_uid == os.getuid() and not status.st_mode & 0o022
        return folder if is_safe and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def _ready(folder: Path, searching: bool) -> Path:
    return folder / ("searching-ready" if searching else "ready")


@cache
def _compile_at_exit(folder: Path) -> None:
    """Compile for the next run after this one has ended, so that it need not share the processor."""
    atexit.register(_start_compiling, folder)


def _start_compiling(folder: Path) -> None:
    """Start a process that fills the cache folder, unless one is running."""
    lock = folder / "compiling"
    try:
        if lock.exists() and time.time() - lock.stat().st_mtime > COMPILING_S:
            lock.unlink()
        lock.touch(exist_ok=False)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), VARIABLE: "compiled"}
        Loaded.compiling = subprocess.Popen(
            [sys.executable, "-m", "perfeds2.timeline.fast.loading"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        pass


def compile_for_others() -> None:
    """Fill the cache folder at low priority, starting with what most runs need."""
    os.nice(10)
    folder = _folder()
    for searching in (False, True):
        if folder is not None and loaded(searching, math.inf) is not None:
            _ready(folder, searching).touch()


if __name__ == "__main__":
    compile_for_others()
