"""perfeds2 --version: the versions and the machine, as a bug report needs them."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from perfeds2 import __version__

BESIDE = ("jax", "jaxlib", "numpy", "numba")  # packages that affect the last digits of a result


def describe() -> str:
    """Return four lines of text without importing JAX, which would take seconds."""
    return "\n".join(
        [
            f"perfeds2 {__version__}",
            f"Python {platform.python_version()} ({sys.executable})",
            ", ".join(f"{name} {_installed(name)}" for name in BESIDE),
            f"{platform.system()} {platform.release()}, {platform.machine()}, {_cores()}; {_accelerator()}",
        ]
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"


def _cores() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} core{'s' if cores > 1 else ''}"


def _accelerator(devices: Path = Path("/dev")) -> str:
    """Return the GPUs of this machine and the plugins of JAX."""
    asked = os.environ.get("JAX_PLATFORMS")
    plugins = sorted(
        {f"{each.dist.name} {each.dist.version}" for each in entry_points(group="jax_plugins") if each.dist}
    )
    gpus = len(list(devices.glob("nvidia[0-9]*")))
    seen = f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''}" if gpus else "no NVIDIA GPU"
    told = f"{seen}, {', '.join(plugins) or 'no JAX GPU plugin'}"
    return f"{told}, JAX_PLATFORMS={asked}" if asked else told
