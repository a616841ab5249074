"""How do several processes compute on one GPU at the same time?

By themselves they take turns, and in each the GPU is one process's alone. With NVIDIA's MPS what they compute overlaps.
It is a daemon: where nobody runs one, one is started for a command, and ends with it.
"""

import os
import select
import shutil
import signal
import subprocess  # starts NVIDIA's daemon, and this very Python
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

CONTROL = "nvidia-cuda-mps-control"
FOR_EVERYBODY = Path("/tmp/nvidia-mps")  # noqa: S108 (NVIDIA's choice) where CUDA looks for a daemon unless told otherwise
PATIENCE_S = 20.0  # with a daemon that starts, or ends

# A shell of its own: its input ends when whoever asked does, also by kill -9, which leaves nobody time to clear up.
GUARD = f"""
if {CONTROL} -d < /dev/null > "$1/said" 2>&1; then
    echo started
    cat > /dev/null
    echo quit | {CONTROL} > /dev/null 2>&1
else
    echo failed
    cat > /dev/null
fi
rm -rf "$1"
"""
# Whether CUDA comes up as a client of it. The library alone is asked: JAX takes seconds.
CLIENT = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
raise SystemExit(f"CUDA's error {failed}" if failed else 0)
"""


@contextmanager
def sharing(say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """The environment of processes that share this one's GPU; ``say`` hears how. At the end they must be gone."""
    if jax.default_backend() == "cpu":
        yield {"JAX_PLATFORMS": "cpu"}
        return
    environment = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false"
    }  # each takes what it needs; all see the limit one alone sees
    if not os.environ.get("JAX_PLATFORMS"):  # whoever finds no GPU must say so, and not train on a processor
        version = jax.local_devices()[0].client.platform_version
        environment["JAX_PLATFORMS"] = "rocm,cpu" if "rocm" in version.lower() else "cuda,cpu"
    with overlapping(say) as more:
        yield environment | more


@contextmanager
def overlapping(say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """With an MPS daemon of our own, if nobody else runs one and it can be started: the environment of its clients."""
    if shutil.which(CONTROL) is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ or _is_running(FOR_EVERYBODY):
        yield {}
        return
    try:
        place = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    except OSError as error:
        say(f"without NVIDIA's MPS: {error}")
        yield {}
        return
    folders = {f"CUDA_MPS_{what.upper()}_DIRECTORY": str(place / what) for what in ("pipe", "log")}
    for folder in folders.values():
        Path(folder).mkdir()
    guard = subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", GUARD, "sh", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | folders,
        start_new_session=True,  # an interrupt from the keyboard is for the one who asked
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        clients = dict(folders)
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            clients["CUDA_VISIBLE_DEVICES"] = "0"  # the only one the daemon sees, so its clients' first
        why = _why_not(guard, place, clients)
        say(f"without NVIDIA's MPS: {why}" if why else "several processes on one GPU, through NVIDIA's MPS")
        yield {} if why else clients
    finally:
        guard.stdin.close()
        try:
            guard.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()
        guard.stdout.close()


def _is_running(folder: Path) -> bool:
    """Whether a daemon has its pipes there."""
    try:
        return Path(f"/proc/{int((folder / f'{CONTROL}.pid').read_text(encoding='ascii'))}").exists()
    except (OSError, ValueError):
        return False


def _why_not(guard: "subprocess.Popen[bytes]", place: Path, clients: dict[str, str]) -> str:
    """What is wrong with the daemon; nothing, if it has clients."""
    assert guard.stdout is not None
    if not select.select([guard.stdout], [], [], PATIENCE_S)[0]:
        return "it does not start"
    if guard.stdout.readline() != b"started\n":
        return " ".join((place / "said").read_text(encoding="utf-8", errors="replace").split()) or "it did not start"
    return _why_no_client(clients)


def _why_no_client(environment: dict[str, str]) -> str:
    try:
        asked = subprocess.run(  # noqa: S603
            [sys.executable, "-c", CLIENT],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it does not answer"
    return "" if asked.returncode == 0 else f"it has no clients ({' '.join(asked.stderr.split()) or asked.returncode})"
