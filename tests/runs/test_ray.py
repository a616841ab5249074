"""Does a sweep on a Ray cluster give the same bytes as processes, even if a node dies?"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from needs import needs

from perfeds2.errors import InputError
from perfeds2.runs.pool import HERE, WorkerChoice
from perfeds2.runs.ray_workers import Ray
from perfeds2.runs.session import Execution
from perfeds2.spec.resolve import nested
from perfeds2.studies.grid import make_grid
from perfeds2.studies.sweep import run_sweep

CLUSTER = Path(__file__).parents[1] / "ray_cluster.py"
TABLES = ("sweep.csv", "sweep_summary.csv")
BASE = {"ues": 4, "labels_per_ue": 10, "batch": 4, "horizon_s": 0.3, "eval_every_s": 0.1, "algorithms": ["FedAvgS2"]}
GRID = {"quorum": [1, 2], "seed": [0, 1, 2]}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Linux, too, then keeps to 127.0.0.1
ENVIRONMENT = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "JAX_PLATFORMS": "cpu"}
SWEEPS = """
import json, sys
from pathlib import Path
from perfeds2 import sweep
from perfeds2.runs.progress import Reporter

def failed(reporter, worker, error, *, again, known=Reporter.failed):
    print("FAILED", error, flush=True)
    known(reporter, worker, error, again=again)

Reporter.failed = failed
base, grid = json.loads(sys.argv[1])
for line in sys.stdin:
    on, workers, out = json.loads(line)
    sweep(base, grid, out=Path(out), on=on, workers=workers)
    print("DONE", flush=True)
"""
SLOW_HEAD = """Initialization failure from server:
Traceback (most recent call last):
  File "/site-packages/ray/util/client/server/proxier.py", line 779, in Datapath
    raise RuntimeError(
RuntimeError: Proxy failed to Connect to backend! Check `ray_client_server.err` on the head node.
"""


@dataclass(frozen=True)
class Sweeps:
    """A process that sweeps where it is told to. What Ray says is on its standard error."""

    process: "subprocess.Popen[str]"

    def begin(self, on: str, workers: int, out: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([on, workers, str(out)]) + "\n")
        self.process.stdin.flush()

    def finish(self) -> str:
        """Return what it said until it was done."""
        assert self.process.stdout is not None
        said = list[str]()
        for line in self.process.stdout:
            if line == "DONE\n":
                return "".join(said)
            said.append(line)
        raise AssertionError("".join(said))


@pytest.fixture(scope="module")
def sweeps() -> Iterator[Sweeps]:
    command = [sys.executable, "-c", SWEEPS, json.dumps([BASE, GRID])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT) as process:
        yield Sweeps(process)
        process.kill()


def tables(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in TABLES]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What this process leaves; test_jobs.py compares it with several."""
    out = tmp_path_factory.mktemp("here") / "out"
    run_sweep(make_grid(nested(BASE), GRID), out, Execution(WorkerChoice(on=HERE)))
    return tables(out)


@dataclass(frozen=True)
class Cluster:
    process: "subprocess.Popen[str]"
    address: str

    def kill_second_node(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one core. All their processes are in one session, so none survives the test."""
    folder = tempfile.mkdtemp(prefix="ray")  # short, because Ray makes sockets in it
    process = subprocess.Popen(
        [sys.executable, str(CLUSTER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | ON_LOOPBACK | {"RAY_TMPDIR": folder},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("ray://127.0.0.1:"), "the cluster did not start"
        yield Cluster(process, address)
        process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@needs("ray")
def test_ray_on_this_machine_gives_the_same_bytes(expected, sweeps, tmp_path):
    sweeps.begin("ray", 1, tmp_path / "out")
    assert sweeps.finish() == ""
    assert tables(tmp_path / "out") == expected


@pytest.mark.slow
@needs("ray")
def test_a_cluster_of_two_nodes_gives_the_same_bytes_also_if_one_is_killed_half_way(
    expected, sweeps, cluster, tmp_path
):
    out = tmp_path / "out"
    sweeps.begin(cluster.address, 2, out)
    while not list(out.glob("trainings/*")) and sweeps.process.poll() is None:
        time.sleep(0.01)
    cluster.kill_second_node()
    assert re.search(r"FAILED .*: \w+(Died|Crashed)Error", sweeps.finish())
    assert tables(out) == expected


# ---- what Ray says


def ray_that(monkeypatch, *outcomes):
    """Replace Ray by one whose init has these outcomes; return the addresses it was given."""
    left, asked = list(outcomes), []

    def init(address, **_):
        asked.append(address)
        if (outcome := left.pop(0)) is not None:
            raise outcome

    def remote(**_):
        return lambda function: SimpleNamespace(remote=function)

    fake = SimpleNamespace(
        __spec__="installed",
        is_initialized=lambda: False,
        init=init,
        remote=remote,
        cluster_resources=lambda: {"CPU": 2.0},
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    return asked


def test_a_head_that_is_slow_to_start_its_server_is_asked_again(monkeypatch):
    slow = ConnectionAbortedError(SLOW_HEAD)
    asked = ray_that(monkeypatch, slow, slow, None)
    assert Ray.open("ray://head:10001", None).count == 2
    assert asked == ["ray://head:10001"] * 3


def test_the_error_has_the_whole_reason_and_no_traceback(monkeypatch):
    asked = ray_that(monkeypatch, *[ConnectionAbortedError(SLOW_HEAD)] * 3)
    reason = "Proxy failed to Connect to backend! Check `ray_client_server.err` on the head node."
    expected = (
        f"--on ray://head:10001: Ray cannot be reached: Initialization failure from server: RuntimeError: {reason}"
    )
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        Ray.open("ray://head:10001", None)
    assert len(asked) == 3


def test_a_head_that_does_not_answer_is_asked_once(monkeypatch):
    """Ray itself has then waited for half a minute."""
    asked = ray_that(monkeypatch, ConnectionError("ray client connection timeout"))
    with pytest.raises(InputError, match=r"Ray cannot be reached: ray client connection timeout$"):
        Ray.open("ray://head:10001", None)
    assert len(asked) == 1


def test_what_ray_says_about_versions_is_kept(monkeypatch):
    mismatch = "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\nThis process was started with:\n    Ray: 2.55.1\n"
    ray_that(monkeypatch, RuntimeError(mismatch))
    with pytest.raises(InputError, match=r"started with: Ray: 2.50.0 This process was started with: Ray: 2.55.1$"):
        Ray.open("ray://head:10001", None)
