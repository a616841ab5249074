"""Every test run checks array shapes and types of the whole package (``typecheck.py``).

What tests compile, Python's bytecode too, they keep in pytest's cache, not in the user's: half of their time would be compiling the same again.
They compile with little optimisation, which is sooner done; the commands they start are users', and compile as theirs do.
"""

import os
import signal
import sys
from pathlib import Path

import hypothesis
import jax
import pytest
import typecheck
from jaxtyping import install_import_hook

CACHE = Path(__file__).parents[1] / ".pytest_cache"
COMPILED = CACHE / "compiled"
os.environ["PERFEDS2_COMPILE_CACHE"] = str(COMPILED)  # of the commands that tests start
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(CACHE / "bytecode")
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

signal.signal(signal.SIGINT, signal.default_int_handler)  # to which a background job of a shell would be deaf

typecheck.check_first_calls()
hook = install_import_hook("perfeds2", "typecheck.checked")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache entry")


def pytest_runtest_setup() -> None:
    typecheck.calls.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share something expensive go to one process; ``make test-quick`` leaves them out."""
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})  # not fixtures, whatever their names
        wanted = set(getattr(item, "fixturenames", ())) - set(given)
        if wanted & SHARED:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if wanted & (SHARED | {"commands"}):  # these start processes that compile
            item.add_marker(pytest.mark.slow)
