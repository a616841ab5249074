"""Every test run checks array shapes and types of the whole package (``typecheck.py``).

Compiled programs are kept in pytest's cache, not in the user's; compiling them again would take half of the time. Tests and
the commands they start compile with little optimisation and the compiler's simpler code generator, which takes less time.
Commands from docs/tutorial and notebooks train so much that they are optimised a little. ``make test-real`` runs the tests
without all of this, at night.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import jax
import needs
import pytest
import typecheck
import unrendered
from jaxtyping import install_import_hook
from matplotlib.figure import Figure

QUICK_COMPILING = (
    *(
        ["--xla_cpu_use_fusion_emitters=false"] if jax.__version_info__ < (0, 11) else []
    ),  # an unknown flag ends the process
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_backend_optimization_level=1",  # where a test asks for optimised programs; otherwise it is 0
)  # halves the compile time
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
AS_USERS = "PERFEDS2_AS_USERS" in os.environ  # make test-real: with nothing below replaced
if not AS_USERS:
    os.environ["XLA_FLAGS"] = " ".join(
        [*QUICK_COMPILING, os.environ.get("XLA_FLAGS", "")]
    )  # read when the first function is compiled
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # of the commands that tests start
os.environ["PERFEDS2_COMPILE_CACHE"] = str(COMPILED)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each command would compile the whole package again
sys.dont_write_bytecode = False
jax.config.update("jax_disable_most_optimizations", not AS_USERS)
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many small ones are compiled in each process
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

hypothesis.settings.register_profile("patient", deadline=None)  # a busy machine must not fail a test
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

COMPILER = "PERFEDS2_TEST_COMPILER"  # id of the process that compiles the clock's loops
MOST_BYTES = 2.2e9  # memory above which a process drops compiled programs after a test file

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it

if not AS_USERS:
    os.fsync = lambda _: None  # type: ignore[assignment]  # tests kill processes, not machines; a disk would take milliseconds
    Figure.savefig = unrendered.save_unrendered  # type: ignore[method-assign]  # tests that look at pixels ask for ``rendered``

gc.disable()  # imports make many objects and hardly any garbage; ``pytest_collection_finish`` enables it
typecheck.check_first_calls()
hook = install_import_hook("perfeds2", "typecheck.checked")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-there", action="store_true", help="Fail tests whose extra or program is missing.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = needs.missing(item)
    if item.config.getoption("all_there") and not needs.FROM_ELSEWHERE.issuperset(missing):
        pytest.fail(f"needs {', '.join(missing)}, which should be there", pytrace=False)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that is skipped for any reason but what it is marked to need."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not needs.missing(item):
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped, but nothing it needs() is missing"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """The same for a file that cannot even be imported without something."""
    report = yield
    if report.skipped and needs.is_present(str(report.longrepr[2]).removeprefix("Skipped: needs ")):
        report.outcome, report.longrepr = "failed", f"{collector.nodeid} was skipped, but nothing it needs is missing"
    return report


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache entry")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let one process compile the clock's loops for all workers; each would compile them otherwise."""
    runs_all = session.config.option.markexpr != "needs"  # the few tests that need something play few rounds
    if runs_all and not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None):
        from perfeds2.timeline.fast import loading

        folder = loading._folder()
        if folder is not None and not all(loading._ready(folder, searching).exists() for searching in (True, False)):
            compiler = subprocess.Popen([sys.executable, "-m", "perfeds2", "compile"], stdout=subprocess.DEVNULL)
            session.config.add_cleanup(partial(_end, compiler))
            os.environ[COMPILER] = str(compiler.pid)  # for the workers


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import PyTorch into every worker of the quick tests, which would run none of that file's tests."""
    is_left_out = collection_path.name == "test_torch_models.py" and config.option.markexpr == "not slow"
    return True if is_left_out else None


def pytest_collection_finish() -> None:
    """Check types from now on. Run the garbage collector seldom and skip imported objects, because tracing makes many objects."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)
    typecheck.collecting = False


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    unrendered.render(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def checked_types() -> None:
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
    """Mark tests with expensive fixtures as slow; ``make test-quick`` leaves them out.

    With several processes (``--dist loadfile --no-loadscope-reorder``: each takes whole files, in our order), files with slow
    tests come first, so that no process is left with a long file at the end.
    """
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})  # not fixtures, whatever their names
        wanted = set(getattr(item, "fixturenames", ())) - set(given)
        if wanted & (SHARED | {"commands"}):  # these start processes that compile
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in long)
