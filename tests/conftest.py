"""Every test run checks array shapes and types of the whole package (``typecheck.py``).

What tests compile they keep in pytest's cache, not in the user's: half of their time would be compiling the same again.
They compile with little optimisation and by the simpler of the compiler's two ways, which is sooner done, and so do the commands they
start; but what is typed from docs/tutorial and notebooks is optimised as a reader's is.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest
import typecheck
from jaxtyping import install_import_hook

SOONER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")  # half of compiling's time
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
os.environ["XLA_FLAGS"] = " ".join(
    [*SOONER, os.environ.get("XLA_FLAGS", "")]
)  # read when the first function is compiled
os.environ |= {
    "PERFEDS2_COMPILE_CACHE": str(COMPILED),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}  # of the commands that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of them would compile all of the package anew
sys.dont_write_bytecode = False
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

hypothesis.settings.register_profile("patient", deadline=None)  # a busy machine is no bug
hypothesis.settings.load_profile("patient")

SHARED = {
    "plan",
    "nine",
    "real",
    "reproduced",
    "browser",
    "earlier",
    "usual",
    "site",
}  # fixtures that take many seconds

MOST_BYTES = 1.5e9  # that a process may hold after a file of tests before it drops what it has compiled

signal.signal(signal.SIGINT, signal.default_int_handler)  # to which a background job of a shell would be deaf

typecheck.check_first_calls()
hook = install_import_hook("perfeds2", "typecheck.checked")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache entry")


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what was imported: tracing makes many objects."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup() -> None:
    typecheck.calls.clear()


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Keep processes small: compiled programs stay in memory for good, and later files rarely need them."""
    yield
    held = Path("/proc/self/statm")
    if held.exists() and int(held.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_BYTES:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is expensive is slow, too; ``make test-quick`` leaves it out.

    With several processes (``--dist loadfile --no-loadscope-reorder``: one of them does a whole file, in our order) the files with
    something slow in them come first, so that none of them does a long one in the end while the others have nothing left.
    """
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})  # not fixtures, whatever their names
        wanted = set(getattr(item, "fixturenames", ())) - set(given)
        if wanted & (SHARED | {"commands"}):  # these start processes that compile
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in long)
