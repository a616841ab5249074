"""Configure this process for JAX: compilation cache, garbage collection and reproducible results."""

import atexit
import gc
import importlib.util
import os
import tempfile
import warnings
from pathlib import Path

VARIABLE = "PERFEDS2_COMPILE_CACHE"


def keep_compiled() -> Path | None:
    """Keep compiled programs in a cache folder that later runs and other processes reuse.

    The results of a run do not depend on the cache. Commands call this; the library never does, because it changes
    JAX's settings for the whole process. Processes may share the folder: an entry that is broken or still being
    written is compiled again.

    Returns:
        The folder: $PERFEDS2_COMPILE_CACHE ("off" disables the cache), else one in the user's cache. None if there is no
        cache: it is off, JAX already has one, or the folder is not writable.
    """
    chosen = os.environ.get(VARIABLE) or None
    if str(chosen).lower() == "off":
        return None
    import jax

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # made at run time; the user's own choice
        return None
    from perfeds2.learning.files.sources import cache_folder

    path = cache_folder() / "xla" if chosen is None else Path(chosen).expanduser()
    if not _can_be_written(path):
        return None
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def collect_rarely() -> None:
    """Run the garbage collector less often, because imports and tracing create many objects but little garbage.

    Commands call this first. It saves a seventh of the import time, and a fifth of a second when the process ends.
    """
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)  # otherwise Python's last collection walks through every imported module


def deterministic() -> dict[str, str]:
    """Return the environment variables that make a GPU give the same bytes every time.

    Without them XLA chooses among algorithms by timing them.
    """
    flags, wanted = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops"
    return {} if wanted in flags else {"XLA_FLAGS": f"{flags} {wanted}=true".strip()}


def one_core_each() -> None:
    """Limit this process to one CPU thread. Call it before JAX is first used.

    The number of threads that share a matrix product decides the order of summation, and so a large model's last
    digits. Where there may be a GPU nothing changes: compiling for it needs the cores.
    """
    import jax

    if "NPROC" in os.environ or (may_have_gpu() and not os.environ.get("JAX_PLATFORMS", "").startswith("cpu")):
        return
    os.environ["NPROC"] = "1"  # number of XLA threads
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # otherwise dispatched work waits for that one thread


def may_have_gpu() -> bool:
    return importlib.util.find_spec("jax_plugins") is not None


def _can_be_written(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
