"""Does the benchmark measure what it says, against rivals that do the same work?"""

import contextlib
import gc
import io
import json
import math
import os
from collections.abc import Mapping
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import train_here

from benchmarks import __main__ as module
from benchmarks.__main__ import main, measure, print_results, scripts, to_json
from benchmarks.speed import clock, products, waiting
from benchmarks.speed.allocation import allocation_group, opening, solver_finish_s
from benchmarks.speed.cells import EDGE_ROUNDS, cells_group
from benchmarks.speed.clock import clock_group
from benchmarks.speed.jobs import jobs_group
from benchmarks.speed.joint import WAYS, joint_group
from benchmarks.speed.methods import LEARNERS, methods_group
from benchmarks.speed.products import THREADS, WORDS, products_group
from benchmarks.speed.replay import (
    bench_timeline,
    initial_weights,
    jax_replay,
    numpy_replay,
    random_tasks,
    replay_group,
)
from benchmarks.speed.start_up import start_up_group
from benchmarks.speed.timing import BATCH, BETA, Measurement, measured, take_turns
from benchmarks.speed.waiting import PARTS, waiting_group
from perfeds2.learning.data import Shards
from perfeds2.learning.gradients import MeanLoss
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import Context, FedAvg, PerFed
from perfeds2.learning.replay import replay

pytestmark = pytest.mark.slow

SMALL = MLP((12, 8, 10))
TINY = {"task": "digits", "ues": 4, "quorum": 2, "batch": 4, "horizon_s": 0.5, "algorithms": ["FedAvgS2"]}


def silent(_: str) -> None:
    pass


def assert_measured(results: list[Measurement], names: set[str]) -> None:
    assert {result.name for result in results} == names
    for result in results:
        assert result.value is not None, result
        assert math.isfinite(result.value)
        assert result.value > 0 or result.name in ("start-up/jax", "jobs/bytes")
        assert result.low is not None
        assert result.high is not None
        assert result.low <= result.value <= result.high
    assert json.loads(to_json(results))["results"][0]["name"] == results[0].name


def start_here(monkeypatch: pytest.MonkeyPatch, where: object) -> None:
    """Run the code of a benchmark's fresh processes here, once, and count its answer each time."""
    answers: list[SimpleNamespace] = []

    def run(command: list[str], env: Mapping[str, str] | None = None, **_: object) -> SimpleNamespace:
        if not answers:
            collecting, said = gc.get_threshold(), io.StringIO()
            with monkeypatch.context() as patch, contextlib.redirect_stdout(said):
                patch.setattr(os, "environ", dict(env or os.environ))
                patch.setattr(jax.config, "update", lambda *_: None)  # settings of a process of its own
                exec(command[2], {})
            gc.set_threshold(*collecting)
            answers.append(SimpleNamespace(stdout=said.getvalue()))
        return answers[0]

    monkeypatch.setattr(where, "subprocess", SimpleNamespace(run=run))


def replays_draws(data: Shards, seed: int):
    """Which samples replay draws for a job: it is made to draw from samples that are their own numbers."""
    numbers = Shards(jnp.arange(len(data.y))[:, None], data.y, data.start, data.train_count, data.test_count)

    def draw(ue, version):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), ue), version)
        return numbers.batches(key, jnp.asarray(ue, jnp.int32), (1, 1, BATCH))[0][0, 0, :, 0]

    return draw


def test_the_bare_loops_do_the_same_work_as_replay():
    """Fed the samples that replay draws, they end with replay's weights."""
    (task,) = random_tasks(SMALL, 600, [20], 0)
    line = bench_timeline(SMALL, 20, 30, 0)
    assert line.staleness.max() > 0  # stale models are used
    assert isinstance(task.data, Shards)
    draw, first = replays_draws(task.data, 3), initial_weights(task, 3)
    ours = replay(task, line, Learner(FedAvg(), BETA, BATCH), seed=3)
    x, y = np.asarray(task.data.x), np.asarray(task.data.y)
    quickly = jax.jit(draw)
    weights = tuple(np.asarray(w) for w in first)
    plain = numpy_replay(weights, x, y, line, lambda ue, version: np.asarray(quickly(ue, version)))
    compiled = jax_replay(task, line, draw, 3)
    for name, start, one, other in zip(sorted(ours, key=order), first, plain, compiled, strict=True):
        np.testing.assert_allclose(one, ours[name], atol=1e-5)
        np.testing.assert_allclose(other, ours[name], atol=1e-5)
        assert np.abs(np.asarray(start) - ours[name]).max() > 1e-3  # something was learned


def order(name: str) -> tuple[str, bool]:
    """Layer after layer, weight before bias."""
    layer, kind = name.split(".")
    return layer, kind == "bias"


def test_replay_is_measured_against_both_bare_loops_and_for_every_hessian():
    results = list(replay_group(2, 0, silent, rounds=10, samples=600, populations=(20, 12), model=SMALL))
    assert_measured(results, {f"replay/{name}" for name in ("plain", "numpy", "jax", "exact", "fo", "hf", "n=12")})


def test_edges_are_measured_against_a_single_cell():
    results = list(cells_group(2, 0, silent, cells=2, rounds=12, objectives=[FedAvg()]))
    names = {f"cells/FedAvg-{each}" for each in EDGE_ROUNDS}
    assert_measured(results, names | {f"{name}-training" for name in names})
    assert {result.target for result in results} == {"≤ 1.3", None}


def test_rounds_are_measured_against_their_matrix_products(monkeypatch):
    start_here(monkeypatch, products)
    results = list(products_group(2, 0, silent, rounds=2, sizes="12-8-10"))
    threads = [number for number in THREADS if number <= (os.cpu_count() or 1)]
    names = {f"products/{what}{name}-{number}" for what in ("", "share-") for name in WORDS for number in threads}
    assert_measured(results, names)


@pytest.mark.parametrize(("objective", "exact"), [(FedAvg(), False), (PerFed(0.03), True)])
def test_the_products_alone_are_as_many_as_the_objective_itself_has(objective, exact, monkeypatch):
    model, x, y = SMALL, jnp.ones((3, BATCH, SMALL.sizes[0])), jnp.zeros((3, BATCH), jnp.int32)

    def job(params, x, y):
        key = jax.random.key(0)
        context = Context(MeanLoss(model), jnp.float32(0.1), jnp.int32(0), jnp.int32(0), key)
        return objective.gradient(params, params, (x, y), context)

    compiled = jax.jit(job).lower(model.init(jax.random.key(0)), x, y).compile().as_text()
    assert compiled is not None
    done: list[int] = []
    monkeypatch.setattr(products.np, "random", Drawing(done))
    products.alone(exact, model.sizes, 1, 0)()
    assert len(done) == products.QUORUM * compiled.count(" dot(")


class Drawing:
    """In the place of NumPy's random numbers: arrays that say when they are multiplied."""

    def __init__(self, done):
        class Telling(np.ndarray):
            def __matmul__(self, other):
                done.append(1)
                return np.ndarray.__matmul__(self, other)

        self.kind = Telling

    def default_rng(self, _):
        return self

    def random(self, shape, dtype):
        return np.ones(shape, dtype).view(self.kind)


def test_methods(monkeypatch):
    for name in ("CA2FL", "Ditto", "FedBuff"):  # measured as SCAFFOLD is
        monkeypatch.delitem(LEARNERS, name)
    results = list(methods_group(2, 0, silent, rounds=5, samples=600, models=[SMALL]))
    names = ("merge", "memory", "SCAFFOLD")
    assert_measured(results, {f"methods/{name}-12-8-10" for name in names})


def test_a_memory_that_does_nothing_changes_no_weight():
    (task,), line = random_tasks(SMALL, 600, [20], 0), bench_timeline(SMALL, 20, 10, 0)
    plain, kept = (replay(task, line, LEARNERS[name]) for name in ("plain", "memory"))
    for name, values in plain.items():
        np.testing.assert_allclose(kept[name], values, atol=1e-6)


def test_the_clock_is_measured_against_its_twin():
    results = list(clock_group(2, 0, silent, ues=8, rounds=50, crowd=100))
    names = [
        "five",
        "quarter",
        "finish",
        "bound",
        "numpy-five",
        "numpy-quarter",
        "simpy-five",
        "simpy-quarter",
        "simpy-everybody",
        "crowd",
    ]
    assert_measured(results, {f"clock/{name}" for name in names})


def test_start_up_loads_no_jax():
    results = {result.name: result for result in start_up_group(1, 0, silent)}
    assert_measured(list(results.values()), {f"start-up/{name}" for name in ("python", "import", "help", "jax")})
    assert results["start-up/jax"].value == 0


def test_where_the_time_goes_and_what_a_core_is_worth(monkeypatch):
    start_here(monkeypatch, waiting)
    parts = {f"waiting/{name}" for name in ("whole", *PARTS, "evaluations")}
    assert_measured(list(waiting_group(1, 0, silent, TINY)), parts)
    monkeypatch.setattr("benchmarks.speed.jobs.count_cores", lambda: 2)
    train_here(monkeypatch)  # tests/runs/test_jobs.py starts processes
    results = {result.name: result for result in jobs_group(1, 0, silent, each=1, settings=TINY)}
    assert_measured(list(results.values()), {"jobs/one", "jobs/2", "jobs/bytes"})
    assert results["jobs/bytes"].value == 0
    assert "NPROC" not in os.environ


def test_allocation_is_measured_against_a_solver():
    results = list(allocation_group(1, 0, silent, many=50, few=8, scheduled=40, rounds=5, quorum=4))
    names = ("many", "few", "cvxpy-at-once", "cvxpy-each", "same", "deficit")
    assert_measured(results, {f"allocation/{name}" for name in names})
    assert next(result.ok for result in results if result.name == "allocation/same")


def test_both_forms_of_the_solvers_problem_have_the_same_answer():
    uplink = opening(6, 1)
    assert solver_finish_s(uplink) == pytest.approx(solver_finish_s(uplink, one_by_one=True), rel=1e-6)


def test_joint_shows_every_plan_and_what_it_saves():
    results = list(joint_group(3, 0, silent, ues=6, horizon_s=0.5, every_s=0.5, target=0.05))
    kinds = [way.name for way in WAYS] + ["saved-equal", "saved-distance"]
    assert [result.name for result in results] == [
        f"joint/{what}-{kind}" for what in ("a-round", "to-5") for kind in kinds
    ]
    for result in results[:3]:
        assert result.value is not None
        assert result.low is not None
        assert result.high is not None
        assert result.low < result.value < result.high


def test_a_target_no_seed_reaches_is_said_to_be_missed_not_averaged():
    results = list(joint_group(1, 0, silent, ues=6, horizon_s=0.5, every_s=0.5, target=1.1))
    late = [result for result in results if result.name.startswith("joint/to-")]
    assert all(result.value is None and "0 of 1 seeds" in result.what for result in late)


def test_what_is_not_installed_leaves_a_note(monkeypatch):
    monkeypatch.setattr(clock, "find_spec", lambda _: None)
    results = list(clock_group(1, 0, silent, ues=4, rounds=3, crowd=20))
    assert [result.value is None for result in results] == 4 * [False] + 5 * [True] + [False]
    assert "numba is not installed" in results[4].what
    assert "simpy is not installed" in results[6].what
    json.loads(to_json(results))


def test_a_missed_target_is_shown_as_missed(capsys):
    missed = measured("a/b", "slow", np.array([2.0, 3.0, 9.0]), "s", at_most=1)
    met = measured("a/c", "fast", np.array([2.0, 3.0, 9.0]), "×", at_least=3)
    assert (missed.value, missed.ok, missed.low, missed.high) == (3.0, False, 2.0, 9.0)
    assert met.ok is True
    print_results([missed, met])
    lines = capsys.readouterr().out.splitlines()
    assert "missed" in next(line for line in lines if "slow" in line)
    assert "missed" not in next(line for line in lines if "fast" in line)


def test_rivals_take_turns_and_warm_up_once():
    calls: list[str] = []
    seconds = take_turns({name: (lambda name=name: calls.append(name)) for name in "ab"}, 2)
    assert calls == list("ababab")
    assert all(values.size == 2 and (values >= 0).all() for values in seconds.values())


def test_an_unknown_group_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["--only", "clock", "--only", "speed"])
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert "'speed'" in told
    assert all(name in told for name in module.GROUPS)


def test_help_lists_the_other_benchmarks(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for path, question in scripts():
        assert "__main__" in path.read_text("utf-8")
        assert question
        assert f"python benchmarks/{path.relative_to(module.FOLDER)}" in told


def test_results_go_to_a_file_and_to_the_terminal(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "GROUPS", {"one": lambda *_: [Measurement("one/x", "seconds", 1.5, "s")]})
    assert main(["--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    kept = (tmp_path / "bench.json").read_text("utf-8")
    assert main(["--out", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == kept
    assert json.loads(kept)["results"][0]["value"] == 1.5


def test_only_the_groups_asked_for_are_run(monkeypatch):
    told: list[str] = []
    result = Measurement("x/y", "", 1.0, "s")
    groups = {name: (lambda *given, name=name: (given[-1](name), [result])[1]) for name in ("one", "two")}
    monkeypatch.setattr(module, "GROUPS", groups)
    assert measure(["two"], announce=told.append) == [result]
    assert told == ["two"]
