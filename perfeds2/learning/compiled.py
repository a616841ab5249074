"""Where do compiled loops wait for the next run, and do they give the same bytes in it?"""

import gc
import importlib.util
import os
import tempfile
import warnings
from pathlib import Path

VARIABLE = "PERFEDS2_COMPILE_CACHE"


def keep_compiled(folder: Path | str | None = None) -> Path | None:
    """From now on this process keeps what it compiles in a folder, and finds there what others compiled.

    The folder is the given one, else what $PERFEDS2_COMPILE_CACHE names ("off" for none), else the user's cache. Returns
    it, or None if nothing is kept: because that is off, because JAX has a folder of its own already, or because it
    cannot be written. The numbers of a run do not depend on it. Commands call this; the library never does, since it
    changes JAX's settings for the whole process.

    Processes may share the folder. An entry that is broken, or being written, is compiled again.
    """
    chosen = folder or os.environ.get(VARIABLE) or None
    if str(chosen).lower() == "off":
        return None
    import jax

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # made at run time; the user's own choice
        return None
    path = _default_folder() if chosen is None else Path(chosen).expanduser()
    if not _can_be_written(path):
        return None
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def collect_rarely() -> None:
    """From now on this process looks for garbage less often: importing and tracing make many objects, and leave few behind.

    Commands call this first: a seventh of the time that importing takes.
    """
    gc.set_threshold(100_000, 50, 50)


def deterministic() -> dict[str, str]:
    """The environment in which a GPU gives the same bytes every time: else it chooses among algorithms by the clock."""
    flags, wanted = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops"
    return {} if wanted in flags else {"XLA_FLAGS": f"{flags} {wanted}=true".strip()}


def one_core_each() -> None:
    """From now on every training keeps to one core, as long as JAX has not been asked for anything yet.

    How many cores share a product decides the order in which floats are added up, so a large model's last digits. Where
    there may be a GPU, nothing changes: it needs the cores to compile.
    """
    import jax

    if "NPROC" in os.environ or (may_have_gpu() and not os.environ.get("JAX_PLATFORMS", "").startswith("cpu")):
        return
    os.environ["NPROC"] = "1"  # how many threads XLA makes
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # else they would all wait for that one thread


def may_have_gpu() -> bool:
    return importlib.util.find_spec("jax_plugins") is not None


def _default_folder() -> Path:
    from perfeds2.learning.files.sources import cache_folder

    return cache_folder() / "xla"


def _can_be_written(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
