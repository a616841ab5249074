"""Do processes that share a GPU leave what one process would?

No GPU is needed: ``together`` lets a processor train as a GPU does.
"""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import in_numpy
import jax
import pytest
from in_numpy import train_in_numpy
from recorder import Recorder, same_as_written

from perfeds2 import FedAvg, compare
from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.errors import InputError
from perfeds2.runs import estimate, pool, trainer, workers
from perfeds2.runs.folder import open_folder
from perfeds2.runs.pool import WorkerChoice, run_all
from perfeds2.runs.session import Execution
from perfeds2.runs.store import Store
from perfeds2.runs.training import groups_of, trainings_of
from perfeds2.runs.workers import Event
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import train_spec

SETTINGS = {"ues": 6, "quorum": 2, "horizon_s": 1.5, "batch": 8, "eval_every_s": 0.25, "seeds": (0, 1)}
NAMES = ("FedAvgS2", "FedAvg-SYN", "FedAvg-ASY")
TWO = NAMES[:2]
FILES = ("metrics.csv", "ue_metrics.csv", "timeline.npz", "model.safetensors", "summary.json", "spec.toml")


def same_files(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


# ---- how many


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 4),
        ({"groups": 3}, 3),
        ({"count_cores": 2}, 2),
        ({"free_gpu_bytes": 25}, 2),  # for 10 each
        ({"free_gpu_bytes": 0}, 1),  # JAX took all of it at once
        ({"free_bytes": 3 * estimate.GPU_PROCESS_BYTES}, 3),
        ({"free_bytes": 0}, 1),
        ({"free_gpu_bytes": None, "free_bytes": None}, 4),
    ],
)
def test_there_are_as_many_as_groups_cores_and_memory_allow_and_a_few_at_most(given, count, monkeypatch):
    plenty = {"groups": 6, "count_cores": 16, "free_gpu_bytes": 1000, "free_bytes": 1 << 40} | given
    groups = [made_groups()[0]] * plenty.pop("groups")
    monkeypatch.setattr(estimate, "group_bytes", lambda _: 10)
    for name, value in plenty.items():
        monkeypatch.setattr(estimate, name, lambda value=value: value)
    assert estimate.count_processes(groups, None, together=True) == count


def made_groups(**settings):
    spec = spec_from(**{"task": "synthetic", "ues": 4, "quorum": 2, "algorithms": NAMES, "seeds": (0, 1), **settings})
    return groups_of(trainings_of(spec))


def test_a_group_is_an_algorithm_with_all_its_seeds():
    found = [[(one.algorithm, one.seed) for one in group] for group in made_groups()]
    assert found == [[(name, seed) for seed in (0, 1)] for name in NAMES]


def test_how_many_processes_share_a_gpu(monkeypatch):
    groups = made_groups()
    monkeypatch.setattr(estimate, "count_cores", lambda: 2)
    monkeypatch.setattr(estimate, "free_bytes", lambda: None)
    monkeypatch.setattr(estimate.jax, "default_backend", lambda: "gpu")
    assert [estimate.count_processes(groups, asked, together=True) for asked in (None, 1, 3, 99)] == [2, 1, 3, 3]
    assert (
        estimate.count_processes(groups[:1], None, together=True)
        == estimate.count_processes(groups[:1], 8, together=True)
        == 1
    )
    with pytest.raises(InputError, match="--workers must be at least 1, got 0"):
        WorkerChoice(0).check()

    class Mine(FedAvg):
        pass

    assert (
        estimate.count_processes(made_groups(algorithms=["FedAvgS2", Mine()], quorum=2), 3, together=True) == 1
    )  # there is no one to tell
    with monkeypatch.context() as patch:
        patch.setattr(estimate.jax, "local_device_count", lambda: 2)  # which share the seeds
        assert estimate.count_processes(groups, 3, together=True) == 1
    with monkeypatch.context() as patch:
        patch.setattr(estimate.jax, "default_backend", lambda: "tpu")  # one process's alone
        assert estimate.count_processes(groups, 3, together=True) == 1


def test_what_jax_has_taken_of_a_gpu_is_not_free(monkeypatch):
    for stats, free in ((None, None), ({"bytes_limit": 100, "pool_bytes": 30}, 70), ({"bytes_limit": 100}, 100)):
        device = SimpleNamespace(memory_stats=lambda stats=stats: stats)
        monkeypatch.setattr(estimate.jax, "local_devices", lambda device=device: [device])
        assert estimate.free_gpu_bytes() == free


@pytest.mark.parametrize(("asked", "told"), [(None, "false"), (3, "false"), (1, None)])
def test_a_command_that_may_share_its_gpu_does_not_take_all_of_it(asked, told, monkeypatch):
    for name, value in (("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"), ("NPROC", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "forget me")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    prepare_to_train(6, asked)
    assert os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") == told


# ---- the same bytes


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process leaves; this file's tests train in NumPy from now on."""
    out = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        train_in_numpy(patch.setattr)
        compare(**SETTINGS, algorithms=TWO, together=True, out=out)
        yield out


@pytest.mark.slow
def test_a_kill_and_an_interrupt_of_two_processes_leave_the_bytes_of_one(alone, tmp_path, monkeypatch):
    """One is killed at work, then all are interrupted. What they began goes on in one process."""
    monkeypatch.setenv(in_numpy.PAUSE_S, "0.1")  # so that one is killed at work
    before, killed, crew, out = set(children_of(os.getpid())), [], [], tmp_path / "run"

    def watch(now):
        if not killed and now.rounds:
            killed.append(next(pid for pid in children_of(os.getpid()) if pid not in before))
            os.kill(killed[0], signal.SIGKILL)
        if now.done and now.retried:
            crew.extend(set(children_of(os.getpid())) - before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(**SETTINGS, algorithms=TWO, together=True, jobs=2, watch=watch, out=out)
    assert killed
    assert crew
    assert set(children_of(os.getpid())) <= before
    assert list(out.glob("parts/*.safetensors"))
    assert not (out / "summary.json").exists()
    log = (out / "events.log").read_text()
    assert "seed 0 and 1 more: its process was killed by SIGKILL (out of memory?) (attempt 1 of 3)" in log
    monkeypatch.delenv(in_numpy.PAUSE_S)
    spec, recorder = spec_from(**SETTINGS, algorithms=TWO), Recorder()
    execution = Execution(WorkerChoice(1, together=True), followers=[recorder])
    train_spec(spec, "compare", out, execution)
    same_files(alone, out)
    same_as_written(recorder, out)


def counting(monkeypatch) -> list[int]:
    """How many are trained at once, call by call."""
    trained, train = list[int](), trainer._train_together
    monkeypatch.setattr(trainer, "_train_together", lambda work, ones: trained.append(len(ones)) or train(work, ones))
    return trained


@pytest.mark.slow
def test_what_fails_beside_others_is_trained_by_this_process_when_they_have_ended(alone, tmp_path, monkeypatch):
    """As --jobs 1 would: another GPU's memory may be short, or it may be for one process only."""

    serve = pool.serve

    def no_memory(waiting, place, engine, log):
        if engine.is_alone:
            yield from serve(waiting, place, engine, log)
            return
        while waiting:
            job = waiting.pop(0)
            assert not job.halves
            yield Event(0, job, {"started": True})
            yield Event(0, job, {"error": "JaxRuntimeError: RESOURCE_EXHAUSTED", "again": True})

    monkeypatch.setattr(pool, "serve", no_memory)
    trained = counting(monkeypatch)
    compare(**SETTINGS, algorithms=TWO, together=True, jobs=2, out=tmp_path / "run")
    assert trained == [2, 2]
    same_files(alone, tmp_path / "run")
    assert (
        "RESOURCE_EXHAUSTED; trained again when the others have ended" in (tmp_path / "run" / "events.log").read_text()
    )


@pytest.mark.slow
def test_a_single_group_that_is_missing_needs_no_other_process(alone, tmp_path, monkeypatch):
    spec = spec_from(**SETTINGS, algorithms=TWO)
    folder = open_folder(tmp_path / "run", spec)
    first, _ = groups_of(trainings_of(spec))
    run_all(first, Store(folder.parts, whole=True), WorkerChoice(together=True))
    monkeypatch.setattr(pool, "Process", lambda *_: pytest.fail("sent to a process"))
    trained = counting(monkeypatch)
    train_spec(spec, "compare", folder.path, Execution(WorkerChoice(2, together=True)))
    assert trained == [2]
    same_files(alone, folder.path)


@pytest.mark.slow
@pytest.mark.parametrize("halves", [False, True])
def test_a_process_among_others_makes_no_halves(halves, monkeypatch):
    """Then the bytes would depend on when who needed how much memory."""
    train_in_numpy(monkeypatch.setattr)

    def short_of_memory(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    store, bench = Store(None), trainer.Workbench()
    group = trainings_of(spec_from(**SETTINGS, algorithms=("FedAvgS2",)))
    monkeypatch.setattr(trainer, "_train_together", short_of_memory)
    prepared = [bench.prepare(one) for one in group]
    if halves:
        trainer.train_group(prepared, store, lambda *_: None)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError):
            trainer.train_group(prepared, store, lambda *_: None, halves=False)
    assert [store.get(one.key) is not None for one in group] == [halves, halves]


# ---- their environment


def test_processes_on_a_gpu_take_the_memory_they_need_and_never_a_processor(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert workers.share_gpu() == {"JAX_PLATFORMS": "cpu"}
    monkeypatch.setattr(workers.jax, "default_backend", lambda: "gpu")
    for version, platforms in (("PJRT C API\ncuda 13000", "cuda,cpu"), ("PJRT C API\nrocm 60300", "rocm,cpu")):
        device = SimpleNamespace(client=SimpleNamespace(platform_version=version))
        monkeypatch.setattr(workers.jax, "local_devices", lambda device=device: [device])
        assert workers.share_gpu() == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": platforms}
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert workers.share_gpu() == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def children_of(pid: int) -> list[int]:
    """Those that are alive, of whichever of its threads."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for threads in found for child in threads.read_text().split()]


def test_workers_take_the_gpus_in_turn_and_memory_only_on_demand(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = [workers.one_gpu_each(2, number) for number in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in given] == ["0", "1", "0"]
    assert all(each["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" for each in given)  # two of them share a GPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert workers.one_gpu_each(2, 1)["CUDA_VISIBLE_DEVICES"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in workers.one_gpu_each(0, 1)
