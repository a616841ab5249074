"""Load the compiled loops when that saves time. ``perfeds2 compile`` compiles them ahead.

``$PERFEDS2_CLOCK`` may be ``numpy`` (never use them) or ``compiled`` (use them at once, compiling them first if
needed).
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

VARIABLE, FOLDER = "PERFEDS2_CLOCK", "PERFEDS2_COMPILE_CACHE"
LOAD_S = 1.0  # time to load; for less work the NumPy clock is faster
COMPILE_S = {False: 20.0, True: 40.0}  # time to compile, by whether the policy needs a search
LOOK_S = 0.1  # work between two looks whether another process has compiled them


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
    next_look_s: ClassVar[dict[bool, float]] = {}  # spent time at which the cache folder is looked into again


def allowed() -> bool:
    return os.environ.get(VARIABLE) != "numpy" and _installed()


@cache
def _installed() -> bool:
    """Return whether there is Numba; looking for it takes as long as a round."""
    return find_spec("numba") is not None


def loaded(searching: bool, work_s: float) -> Kernel | None:
    """Return the compiled loops if they are loaded, or worth loading for ``work_s`` seconds of the NumPy clock."""
    if searching in Loaded.kernels or Loaded.broken:
        return Loaded.kernels.get(searching)
    total_s = work_s + Loaded.spent_s
    compiles = os.environ.get(VARIABLE) == "compiled" or total_s > COMPILE_S[searching]
    if not compiles and (total_s < LOAD_S or Loaded.spent_s < Loaded.next_look_s.get(searching, 0.0)):
        return None
    Loaded.next_look_s[searching] = Loaded.spent_s + LOOK_S
    folder = _folder()
    if compiles or (folder is not None and _ready(folder, searching).exists()):
        _load(searching, folder)
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
        if folder is not None:
            _ready(folder, searching).touch()
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
    code = Path(__file__).parent
    what = hashlib.sha256(f"{sys.version} {platform.machine()} {version('numba')} {version('llvmlite')}".encode())
    for source in (code / name for name in ("buffers.py", "closing.py", "kernel.py", "numbers.py", "search.py")):
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


def compile_ahead() -> Path | None:
    """Compile all loops into the cache folder, starting with what most runs need, and return it; None if it fails."""
    folder = _folder() if _installed() else None
    for searching in (True, False):
        if folder is not None and searching not in Loaded.kernels:
            _load(searching, folder)
    return None if Loaded.broken else folder
