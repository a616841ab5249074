"""Do processes that train side by side leave what one process would, whichever of them is killed?"""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue

import in_numpy
import pytest
from command_line import told
from in_numpy import train_in_numpy
from recorder import Recorder, same_as_written

from perfeds2 import FedAvg, compare
from perfeds2.errors import InputError
from perfeds2.runs import estimate, trainer, workers
from perfeds2.runs.folder import open_folder
from perfeds2.runs.pool import PROCESSES, WorkerChoice, find_workers, run_all
from perfeds2.runs.session import Execution
from perfeds2.runs.store import Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec import build
from perfeds2.studies.compare import train_spec

TINY = {"task": "synthetic", "ues": 4, "quorum": 2, "batch": 4, "horizon_s": 0.5, "eval_every_s": 0.1}
FILES = ("metrics.csv", "ue_metrics.csv", "timeline.npz", "model.safetensors", "summary.json", "spec.toml")
OWN = """
def half_each(uplink):
    sends = uplink.bits > 0
    return sends * uplink.bandwidth_hz / max(sends.sum(), 1)
"""


def spec_of(**settings):
    from perfeds2.spec.resolve import spec_from

    return spec_from(**{**TINY, **settings})


def same_files(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def children() -> list[int]:
    """The processes this one has started, and that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_two_processes_leave_the_bytes_of_one_even_if_one_is_killed(tmp_path, monkeypatch):
    """With a policy from a file, and a process that dies at work. Those who follow see everything once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    own = {
        "task": "digits",
        "labels_per_ue": 10,
        "bandwidth": "own.py:half_each",
        "algorithms": ("FedAvgS2", "FedAvg-SYN"),
    }
    spec, recorder = spec_of(**own, seeds=(0, 1)), Recorder()
    before, killed, shares = set(children()), [], []  # a pytest worker may have others

    def watch(now):
        shares.append(now.share)
        if not killed:
            killed.append(next(pid for pid in children() if pid not in before))
            os.kill(killed[0], signal.SIGKILL)

    in_one = train_spec(spec, "compare", tmp_path / "one")
    execution = Execution(WorkerChoice(2), watch=watch, followers=[recorder])
    in_two = train_spec(spec, "compare", tmp_path / "two", execution)
    same_files(tmp_path / "one", tmp_path / "two")
    same_as_written(recorder, tmp_path / "two")
    assert (recorder.ends, recorder.board.share) == (1, 1.0)
    assert in_two.rows == in_one.rows
    assert killed
    assert "killed by SIGKILL (out of memory?) (attempt 1 of 3)" in (tmp_path / "two" / "events.log").read_text()
    assert shares[-1] == pytest.approx(1.0)
    assert set(children()) <= before
    assert not (tmp_path / "two" / "parts").exists()


def test_algorithms_that_differ_only_in_what_they_learn_share_a_timeline(monkeypatch):
    played, simulate = [], build.simulate
    monkeypatch.setattr(build, "simulate", lambda *given, **more: played.append(given) or simulate(*given, **more))
    bench = trainer.Workbench()
    made = [
        bench.prepare(one)
        for one in trainings_of(spec_of(algorithms=("FedAvgS2", "FedProxS2", "FedAvg-SYN"), seeds=(0,)))
    ]
    assert len(played) == 2
    assert made[0].timeline is made[1].timeline


@pytest.mark.slow
def test_what_is_in_the_store_is_not_trained_again(tmp_path, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    spec = spec_of(algorithms=("FedAvgS2", "FedAvg-SYN"), seeds=(0, 1))
    folder = open_folder(tmp_path / "run", spec)
    run_all(trainings_of(spec), Store(folder.parts, whole=True))
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train", lambda *_, **__: pytest.fail("trained again"))
        patch.setattr("perfeds2.spec.build.simulate", lambda *_, **__: pytest.fail("played again"))
        train_spec(spec, "compare", folder.path, Execution(WorkerChoice(2)))
    train_spec(spec, "compare", tmp_path / "whole")
    same_files(folder.path, tmp_path / "whole")


def test_the_first_training_of_a_program_compiles_it_for_the_others(monkeypatch):
    """Also if it fails. Another program is compiled meanwhile."""
    compiling, met, other = Counter[str](), list[str](), threading.Event()

    def train_job(job, prepared, place, tell):  # noqa: ARG001 (the signature of what it replaces)
        compiling[job.program] += 1
        if compiling[job.program] > 1:
            met.append(job.title)
        if job.title.startswith("PerFed"):
            other.set()
        assert other.wait(60)
        time.sleep(0.1)
        compiling[job.program] -= 1
        if job.number == 0:
            raise ValueError("no luck")
        tell({"share": 1.0})

    monkeypatch.setattr(workers, "train_job", train_job)
    inbox: workers.Inbox = SimpleQueue()
    here = workers.ThisProcess(inbox, workers.Place(Store(None), None), 3, takes_all=True)
    for number, one in enumerate(
        [
            *trainings_of(spec_of(algorithms=("FedAvgS2",), seeds=(0, 1))),
            *trainings_of(spec_of(algorithms=("PerFedS2",), seeds=1)),
        ]
    ):
        here.give(workers.Job(number, (one,)))
    ended = []
    while len(ended) < 3:
        _, event = inbox.get(timeout=60)
        assert event is not None
        if event.reply.keys() & {"done", "error"}:
            ended.append((event.job.number, "done" in event.reply))
    here.end()
    assert sorted(ended) == [(0, False), (1, True), (2, True)]
    assert not met


def test_how_many_processes_there_are(monkeypatch):
    many = [[one] for one in trainings_of(spec_of(algorithms=("FedAvgS2", "PerFedS2"), seeds=range(5)))]
    monkeypatch.setattr(estimate, "count_cores", lambda: 4)
    monkeypatch.setattr(estimate, "free_bytes", lambda: None)
    assert estimate.count_processes(many, None) == 1  # half a simulated second: less than a process takes to start
    assert estimate.count_processes(many, 3) == 3
    assert estimate.count_processes(many, 99) == 10
    assert estimate.count_processes(many, 1) == 1
    assert estimate.count_processes(many[:1], 8) == 1
    long = trainings_of(spec_of(algorithms=("FedAvgS2", "PerFedS2"), seeds=range(5), horizon_s=1e4))
    each = [[one] for one in long]
    assert estimate.count_processes(each, None) == 4
    monkeypatch.setattr(estimate, "free_bytes", lambda: int(2.5 * estimate.bytes_needed(long)))
    assert estimate.count_processes(each, None) == 2
    monkeypatch.setattr(estimate, "free_bytes", lambda: 0)
    assert estimate.count_processes(each, None) == 1
    with pytest.raises(InputError, match="--workers must be at least 1, got 0"):
        WorkerChoice(0).check()


def test_processes_of_one_core_are_limited_by_memory_too(monkeypatch):
    """As the processes of ``compare`` are; a number that is asked for stands."""
    many = trainings_of(spec_of(algorithms=("FedAvgS2",), seeds=range(9)))
    monkeypatch.setattr(estimate, "count_cores", lambda: 4)
    monkeypatch.setattr(estimate, "count_gpus", lambda: 0)
    for free, count in ((None, 4), (99 * estimate.bytes_needed(many), 4), (3 * estimate.bytes_needed(many), 3), (0, 1)):
        monkeypatch.setattr(estimate, "free_bytes", lambda free=free: free)
        assert find_workers(many, WorkerChoice(None, PROCESSES)).count == count
        assert find_workers(many, WorkerChoice(8, PROCESSES)).count == 8


@pytest.mark.parametrize("command", ["compare", "run", "reproduce", "sweep", "tune", "arena"])
def test_jobs_and_workers_are_one_flag(command):
    for name in ("--jobs", "--workers"):
        status, _, err = told(command, name, "0")
        assert status == 2
        assert "Invalid value for '--workers' / '--jobs'" in " ".join(err.split())


def test_a_large_task_takes_more_memory_than_a_small_one():
    small, large = trainings_of(spec_of(seeds=1)), trainings_of(spec_of(ues=50_000, quorum=2, seeds=1))
    assert estimate.bytes_needed(small) < estimate.bytes_needed(large)
    assert estimate.PROCESS_BYTES < estimate.bytes_needed(small) < 2 * estimate.PROCESS_BYTES


@pytest.mark.slow
def test_what_is_written_nowhere_is_trained_in_this_process(monkeypatch):
    train_in_numpy(monkeypatch.setattr, traced=True)
    monkeypatch.setattr("perfeds2.runs.pool.Process", lambda *_: pytest.fail("sent to a process"))

    class Mine(FedAvg):
        pass

    found = compare(**TINY, algorithms=["FedAvgS2", Mine()], seeds=(0,), jobs=2)
    assert [row["algorithm"] for row in found.summary["algorithms"]] == ["FedAvgS2", "MineS2"]


@pytest.mark.slow
def test_what_a_user_did_wrong_is_said_as_in_one_process(tmp_path):
    (tmp_path / "own.py").write_text("def serves_none(uplink):\n    return 0 * uplink.bits\n")
    settings = {**TINY, "bandwidth": f"{tmp_path / 'own.py'}:serves_none", "algorithms": ("FedAvgS2",), "seeds": (0, 1)}
    said = []
    for count in (1, 2):
        with pytest.raises(InputError) as error:
            compare(**settings, jobs=count)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.slow
def test_an_interrupt_and_a_kill_leave_no_process_and_lose_nothing(tmp_path, monkeypatch):
    """Ctrl-C, then kill -9 of the one who asked, then to the end: the bytes of a run that no one disturbed."""
    train_in_numpy(monkeypatch.setattr)
    flags = "--task synthetic --ues 4 --quorum 2 --batch 4 --horizon-s 0.5 --eval-every-s 0.1 --seeds 3 --quiet"
    start = [*flags.split(), "--algorithms", "FedAvgS2,FedAvg-ASY"]
    perfeds2 = [sys.executable, in_numpy.__file__, "compare"]
    slowly = os.environ | {in_numpy.PAUSE_S: "0.1"}
    assert told("compare", *start, "--jobs", "1", "--out", tmp_path / "whole")[0] == 0
    out, go_on = tmp_path / "out", ["--resume", tmp_path / "out", "--quiet"]
    for arguments, sent in (([*start, "--out", out], signal.SIGINT), (go_on, signal.SIGKILL)):
        asked = subprocess.Popen([*perfeds2, *arguments, "--jobs", "2"], stderr=subprocess.PIPE, text=True, env=slowly)
        before, crew = len(list(out.glob("parts/*.safetensors"))), []
        while len(list(out.glob("parts/*.safetensors"))) == before and asked.poll() is None:
            time.sleep(0.02)
        crew = children_of(asked.pid)
        assert crew
        asked.send_signal(sent)
        _, said = asked.communicate(timeout=60)
        if sent == signal.SIGINT:
            assert asked.returncode == 130
            assert f"continue with: perfeds2 compare --resume {out}" in said
        ends_s = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in crew):
            assert time.monotonic() < ends_s, "a process was left over"
            time.sleep(0.05)
    assert told("compare", *go_on, "--jobs", "1")[0] == 0  # what processes began goes on in one
    same_files(tmp_path / "whole", out)
    assert not list(out.rglob(".*"))  # nothing half-written is left


def test_a_worker_ends_when_its_command_is_gone(monkeypatch):
    ended, lines = list[int](), SimpleQueue[str]()
    monkeypatch.setattr(sys, "stdin", io.StringIO("a job\n"))
    monkeypatch.setattr(workers.os, "_exit", ended.append)
    workers._read_lines(lines)
    assert (lines.get(), ended) == ("a job\n", [0])


def children_of(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
