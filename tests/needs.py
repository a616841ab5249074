"""What not every machine has: extras, programs, real data and rights, each by name.

``@needs("torch")`` skips a test where PyTorch is missing. ``pytest -m needs`` runs only these tests, and with ``--all-there`` one
that is skipped fails, unless it needs what cannot be installed. A test that is skipped without this marker always fails.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOWER = ROOT / "build" / "flower" / "bin" / "python"  # make extras
AXE = ROOT / "build" / "axe" / "package" / "axe.min.js"  # make extras
HEADERS = [Path("/usr/include") / name for name in ("mosquitto.h", "openssl/evp.h")]
WITH_SYSTEM = f"{os.environ.get('PATH', '')}:/usr/sbin"
needs = pytest.mark.needs
NAMED = re.compile(r"needs\(|in_chromium|\bbroker[,)]")  # the marker, or what carries it
in_chromium = [
    needs("chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # selenium leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:selenium"),
]


def installed(module: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(module) is not None


def on_path(*programs: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(each, path=WITH_SYSTEM) for each in programs)


def mosquitto() -> bool:
    from perfeds2.deployment.mqtt.broker import find_mosquitto

    return find_mosquitto() is not None


def real(*names: str) -> Callable[[], bool]:
    def found() -> bool:
        from perfeds2.errors import InputError
        from perfeds2.learning.datasets import source_of
        from perfeds2.learning.files.sources import find

        try:
            return all(find(source_of(name)) for name in names)
        except InputError:
            return False

    return found


def namespaces() -> bool:
    """Whether this kernel lets us limit the rates of networks; only root may."""
    from benchmarks import shaped_uplinks as shape

    try:
        with shape.networks([1e6]):
            return True
    except (RuntimeError, OSError, subprocess.CalledProcessError):
        return False


def older_jax() -> bool:
    import jax

    return jax.__version_info__ < (0, 11)


def mounts() -> bool:
    """Whether we may mount a disk in memory; only root may."""
    alone = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(alone, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


PRESENT: dict[str, Callable[[], bool]] = {
    **{name: installed(name) for name in ("torch", "tensorboard", "mlflow")},
    "flower": FLOWER.exists,
    "axe": AXE.exists,
    "chromium": on_path("chromium", "chromedriver"),
    "mosquitto": mosquitto,
    "haproxy": on_path("haproxy"),
    "promtool": on_path("promtool"),
    "systemd": on_path("systemd-analyze"),
    "gcc": lambda: on_path("gcc")() and all(path.exists() for path in HEADERS),
    "linux": lambda: sys.platform == "linux",
    "posix": lambda: os.name == "posix",
    "jax<0.11": older_jax,
    "mount": mounts,
    "namespaces": namespaces,
    **{name: real(name) for name in ("mnist", "cifar100", "shakespeare")},
}
FROM_ELSEWHERE = {
    "mount",
    "namespaces",
    "mnist",
    "cifar100",
    "shakespeare",
}  # rights cannot be installed, and data may be away


@cache
def is_present(name: str) -> bool:
    return name not in PRESENT or bool(PRESENT[name]())


def missing(item: pytest.Item) -> list[str]:
    """What a test needs and this machine has not."""
    named = [name for mark in item.iter_markers("needs") for name in mark.args]
    unknown = set(named) - PRESENT.keys()
    assert not unknown, f"tests/needs.py does not know {', '.join(unknown)}"
    return [name for name in dict.fromkeys(named) if not is_present(name)]


def files() -> list[Path]:
    """Return the test files that may have such tests; to collect all files takes a minute."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in paths if NAMED.search(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    print(*files())
