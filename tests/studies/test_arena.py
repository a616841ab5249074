"""Do methods meet on equal terms, are they judged by what their runs say, and is nothing lost on the way?"""

import csv
import itertools
import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import pytest
from arena_by_formula import THREE, fixed, plan_of, played, run
from command_line import told, train_here
from in_numpy import train_in_numpy
from scipy.stats import ttest_rel

from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.merges import Mean, Merge
from perfeds2.learning.methods import BASELINES, CA2FL, Ditto
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.task import parameters
from perfeds2.report.arena import write_arena
from perfeds2.runs.store import Result, Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec.build import Algorithm, Stage, make_algorithms
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.resolve import resolve, spec_from
from perfeds2.spec.values import ALGORITHM
from perfeds2.studies.arena import BETTER, score
from perfeds2.studies.arena_plan import MOST_TRIES, USUAL, make_arena, parse_cells, read_plan, tried_values
from perfeds2.studies.tune_space import FIRST_SEED

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN = ("arena.csv", "arena_metrics.csv", "arena.json")


def rows_of(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


# One method and seed, by hand

FACTS = {"algorithm": "PerFedS2", "seed": 0, "rounds": 40, "merges": 200, "staleness_mean": 1.5, "mode": "S2"}
ROWS: list[dict[str, Any]] = [
    {"round": 0, "time_s": 0.0, "test_accuracy_personal": 0.1, "test_accuracy": 0.1, "train_loss": 2.0},
    {"round": 10, "time_s": 1.0, "test_accuracy_personal": 0.8, "test_accuracy": 0.3, "train_loss": 1.0},
    {"round": 40, "time_s": 4.0, "test_accuracy_personal": 0.75, "test_accuracy": 0.6, "train_loss": 0.5},
]
COSTS = [{"joules": 7.0 * row["time_s"], "merged_bits": 5000.0 * row["round"]} for row in ROWS]
RUN = Result(
    [row | cost for row, cost in zip(ROWS, COSTS, strict=True)],
    [{"test_accuracy_personal": each} for each in (1.0, 0.5, 0.75, 0.75)],
    FACTS,
)


def test_a_runs_scores_by_hand():
    found = score(RUN, 0.8)
    assert (found["seconds_to_target"], found["rounds_to_target"]) == (1.0, 10)
    assert (found["bits_to_target"], found["joules_to_target"]) == (50_000, 7.0)
    assert (found["accuracy"], found["accuracy_global"]) == (0.75, 0.6)
    assert found["accuracy_over_time"] == pytest.approx((0.1 * 1 + 0.8 * 3) / 4)
    assert found["worst_decile"] == 0.5
    assert found["jain"] == pytest.approx(3.0**2 / (4 * (1 + 0.25 + 2 * 0.5625)))
    assert (found["rounds"], found["merges"], found["diverged"]) == (40, 200, 0)


def test_who_never_meets_the_target_has_no_seconds_rounds_or_bits():
    found = score(RUN, 0.81)
    assert [found[f"{what}_to_target"] for what in ("seconds", "rounds", "bits", "joules")] == [None] * 4


def test_what_diverged_is_worth_nothing():
    nan = float("nan")
    last = {"round": 40, "time_s": 4.0, "test_accuracy_personal": nan, "test_accuracy": nan, "train_loss": nan}
    found = score(replace(RUN, rows=[*RUN.rows[:2], last], ue_rows=[{"test_accuracy_personal": nan}] * 4), 0.8)
    assert (found["accuracy"], found["accuracy_global"], found["worst_decile"], found["diverged"]) == (0, 0, 0, 1)
    assert found["seconds_to_target"] == 1.0  # it had been there


# The plan


@pytest.mark.slow
def test_twelve_methods_and_the_baselines_meet_unless_others_are_named():
    plan = make_arena({})
    assert len(USUAL) == 12 + len(BASELINES)
    assert set(USUAL) <= set(ALGORITHMS)
    *most, last = USUAL
    assert f"{', '.join(most)} and {last}" in (DOCS / "how-to/arena.md").read_text()  # which the help refers to
    assert list(plan.bouts[0].methods) == list(USUAL)
    assert list(make_arena({}, methods=["all"]).bouts[0].methods) == list(ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("tries", [7, 12])
def test_every_method_is_tuned_with_the_same_number_of_settings(tries):
    search = make_arena({}, methods=["all"], tries=tries).bouts[0].search
    assert search is not None
    assert {len(search.candidates(name)) for name in search.axes} == {tries}
    assert set(search.axes) == set(ALGORITHMS) - {"MostFrequentLabel"}  # which has nothing to tune


def test_what_is_tried_lies_around_what_a_method_has():
    spec = spec_from(beta=0.07, alpha=0.03, **{"FedBuff.beta": 0.1})
    tried = {name: tried_values(spec, ALGORITHM.find(name), 60) for name in ("FedBuff", "FedAdam", "Ditto", "FedRep")}
    betas, alphas = (0.0111, 0.0333, 0.1, 0.3, 0.9, 2.7), (0.01, 0.03, 0.09, 0.27, 0.81)
    assert tried["FedBuff"] == {"beta": betas, "alpha": alphas, "local_steps": (1, 5)}
    assert tried["FedAdam"]["server_step"] == (0.00111, 0.00333, 0.01, 0.03, 0.09, 0.27)
    assert tried["Ditto"]["pull"] == (0.0333, 0.1, 0.3, 0.9, 2.7)
    assert list(tried["FedRep"]) == ["beta", "local_steps"]  # its UEs keep their heads: no personal step is evaluated
    assert 0.07 in tried["FedRep"]["beta"]
    assert len(set(tried["FedRep"]["beta"])) == 30
    fewer = tried_values(spec_from(local_steps=2, **{"FedBuff.beta": 0.1}), ALGORITHM.find("FedBuff"), 40)
    assert fewer == {"beta": (0.0333, 0.1, 0.3, 0.9, 2.7), "alpha": (0.03, 0.09, 0.27, 0.81), "local_steps": (2, 10)}
    assert tried_values(spec, ALGORITHM.find("FedRep"), 3)["local_steps"] == (1,)
    three = {"beta": (0.0233, 0.07, 0.21, 0.63, 1.89), "alpha": (0.03, 0.09), "pull": (0.1, 0.3), "local_steps": (1, 5)}
    assert tried_values(spec, ALGORITHM.find("FedDyn"), 40) == three


def test_tuning_seeds_and_data_are_none_of_the_evaluations():
    bout = plan_of(tries=4).bouts[0]
    assert bout.search is not None
    tuned, fresh = bout.search.spec_of("FedBuff", {"beta": 0.1}, 1.0), bout.spec_of("FedBuff", {"beta": 0.1})
    assert tuned.run.seeds == (FIRST_SEED, FIRST_SEED + 1)
    assert fresh.run.seeds == (0, 1, 2)
    assert (tuned.task.held_out, fresh.task.held_out) == (True, None)
    assert fresh.learning_of("FedBuff").beta == 0.1
    assert [named.text for named in fresh.algorithms] == ["FedBuff"]


def test_in_a_bout_only_the_method_and_its_settings_differ():
    bout = plan_of({"local_steps": 2}, tries=4).bouts[0]
    one, other = bout.spec_of("PerFedS2", {"alpha": 0.2}), bout.spec_of("Ditto", {"pull": 2.0})
    for section in ("task", "cell", "protocol", "learning"):
        assert getattr(one, section) == getattr(other, section)
    assert one.run.model_copy(update={"algorithms": None}) == other.run.model_copy(update={"algorithms": None})


def test_methods_of_one_mode_and_one_load_have_one_timeline():
    """FedAvgS2, FedBuff and CA2FL compute the same for as long, so their rounds are the same; Ditto computes longer."""
    bout = plan_of({"ues": 6, "seeds": 1}, methods=["FedAvgS2", "FedBuff", "CA2FL", "Ditto"], tries=0).bouts[0]
    jobs = {}
    for name in bout.methods:
        spec = bout.spec_of(name, {"beta": 0.5})
        (made,) = make_algorithms(spec, Stage.of(spec, 0))
        jobs[name] = (made.protocol, made.learner.samples, made.bandwidth)
    assert jobs["FedAvgS2"] == jobs["FedBuff"] == jobs["CA2FL"]
    assert jobs["Ditto"][1] == 2 * jobs["FedBuff"][1]


def test_cells_are_settings_files_or_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("far.toml").write_text("[cell]\nradius_m = 500.0\n[protocol]\nquorum = 2\n")
    cells = parse_cells(["paper", "quorum=10+max-staleness=unbounded", "far.toml"])
    assert cells == {
        "paper": {"cell": {"kind": "paper"}},
        "quorum=10+max-staleness=unbounded": {"protocol": {"quorum": "10", "max_staleness": "unbounded"}},
        "far": {"cell": {"radius_m": 500.0}, "protocol": {"quorum": 2}},
    }
    plan = plan_of(tasks=["digits", "synthetic"], cells=["paper", "quorum=10", "far.toml"], tries=0)
    assert [(bout.task, bout.cell) for bout in plan.bouts] == list(
        itertools.product(["digits", "synthetic"], ["paper", "quorum=10", "far"])
    )
    assert [bout.spec.protocol.quorum for bout in plan.bouts[:3]] == [5, 10, 2]
    assert [bout.spec.cell.radius_m for bout in plan.bouts[:3]] == [200.0, 200.0, 500.0]
    assert [bout.spec.run.target_accuracy for bout in plan.bouts[::3]] == [0.95, 0.7]  # each task's own


def test_a_resumed_arena_has_the_cells_it_began_with(tmp_path):
    plan = make_arena({"cell": {"ues": 10}}, cells=["ues=20", "paper"], methods=["PerFedS2"], tries=0)
    (tmp_path / "arena.toml").write_text(plan.to_toml())
    assert [bout.spec.cell.ues for bout in read_plan(tmp_path).bouts] == [20, 10]


def test_without_cells_the_given_one_is_the_arenas():
    plan = plan_of({"radius_m": 300.0}, tries=0)
    assert [bout.cell for bout in plan.bouts] == ["paper"]
    assert plan.bouts[0].spec.cell.radius_m == 300.0


def test_settings_that_were_tuned_before_are_taken_as_they_are():
    tuned = {"FedBuff.beta": 0.2}
    assert plan_of(tuned).tries == 0
    assert plan_of(tuned).bouts[0].spec_of("FedBuff", {}).learning_of("FedBuff").beta == 0.2
    assert plan_of(tuned, tries=4).tries == 4
    assert plan_of().tries == 40
    listed = make_arena({"run": {"algorithms": ["FedBuff", "Ditto"]}, "methods": {"FedBuff": {"beta": 0.2}}})
    assert list(listed.bouts[0].methods) == ["FedBuff", "Ditto"]  # as a tuned.toml names them


@pytest.mark.parametrize(
    ("base", "asked", "sentence"),
    [
        ({}, {"methods": ["FedBuf"]}, "--methods 'FedBuf' is not known; did you mean FedBuff"),
        ({}, {"mine": ["gone.py:Mine"]}, "--mine 'gone.py:Mine' was not found"),
        ({}, {"methods": ["nowhere.py:mine"]}, "was not found"),
        ({}, {"tries": -1}, "--tune must be from 0"),
        ({}, {"tries": MOST_TRIES + 1}, "--tune must be from 0"),
        ({}, {"tries": 0, "search": {"FedBuff.beta": [0.1]}}, "--search has no effect without tuning"),
        ({}, {"search": {"beta": [0.1]}}, "--search beta must name a method, such as PerFedS2.beta"),
        ({}, {"search": {"FedAdam.beta": [0.1]}}, "--search is for FedAdam, which does not take part"),
        ({"task": "digits"}, {"tasks": ["mnist"]}, "--task digits and --tasks were both given"),
        ({}, {"tasks": ["digits", "digits"]}, "give digits on paper twice"),
        ({}, {"cells": ["quorum=3", "quorum=3"]}, "--cells has quorum=3 twice"),
        ({}, {"cells": ["quorum"]}, "--cells 'quorum' is not known"),
        ({}, {"cells": ["quorum="]}, "--quorum must be a whole number, got ''"),
        ({}, {"cells": ["seeds=3"]}, r"has \[run\]; a cell has only cell, cells, radio, energy, protocol, learning"),
        ({}, {"cells": ["quorum=900"]}, "--quorum must be from 1"),
        ({"horizon_s": None, "rounds": 5}, {}, "an arena compares over simulated time"),
        ({}, {"rungs": 9}, "--rungs must be from 1 to 6"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_in_a_sentence(base, asked, sentence):
    with pytest.raises(InputError, match=sentence):
        plan_of({"horizon_s": 9.0} | base, **asked)


def test_what_is_written_down_is_the_same_plan(tmp_path):
    plan = plan_of(
        {"task": "synthetic", "ues": "6", "beta": "0.1"},
        cells=["paper", "quorum=3"],
        tries=4,
        search={"Ditto.pull": [0.1, 1.0, 2.0, 3.0]},
    )
    (tmp_path / "arena.toml").write_text(plan.to_toml())
    again = read_plan(tmp_path)
    assert again.to_toml() == plan.to_toml()
    assert [bout.spec for bout in again.bouts] == [bout.spec for bout in plan.bouts]
    ours, theirs = again.bouts[1].search, plan.bouts[1].search
    assert ours is not None
    assert theirs is not None
    assert tomllib.loads(ours.to_toml()) == tomllib.loads(theirs.to_toml())
    assert ours.axes["Ditto"] == {"pull": (0.1, 1.0, 2.0, 3.0)}


# The user's own methods and tasks


@dataclass(frozen=True)
class Half(Objective):
    """FedAvg with half of the gradient."""

    def gradient(self, params, start, batches, context):
        return jax.tree.map(lambda each: each / 2, FedAvg().gradient(params, start, batches, context))


@dataclass(frozen=True)
class Slower(Merge):
    """The mean, half as far."""

    share: float = 0.5

    def step(self, params, arrived, state):
        return Mean().step(params, replace(arrived, beta=self.share * arrived.beta), state)


def test_mine_may_be_an_objective_a_merge_both_or_an_algorithm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(
        "from perfeds2 import Method\nfrom perfeds2.learning.methods import CA2FL, Ditto\n\n\nclass Both(Method):\n"
        "    mode = 'SYN'\n    objective = Ditto()\n    merge = CA2FL()\n"
    )
    spec = spec_from(ues=4)
    (made,) = make_algorithms(resolve(spec.values() | {"run": {"algorithms": ["PerFedS2"]}}), Stage.of(spec, 0))
    whole = Algorithm("Whole", made.learner, made.protocol)
    plan = plan_of({"ues": 4}, methods=["FedBuff"], mine=[Half, Slower, "two.py:Both", whole])
    assert list(plan.bouts[0].methods) == ["FedBuff", "HalfS2", "SlowerS2", "Both-SYN", "Whole"]
    search = plan.bouts[0].search
    assert search is not None
    assert list(search.axes) == ["FedBuff", "HalfS2", "SlowerS2", "Both-SYN"]  # Whole brings its settings
    made = {}
    for name in plan.bouts[0].methods:
        of_it = plan.bouts[0].spec_of(name, {"beta": 0.5} if name in search.axes else {})
        (made[name],) = make_algorithms(of_it, Stage.of(of_it, 0))
    assert {name: one.name for name, one in made.items()} == {name: name for name in made}
    learners = {name: one.learner for name, one in made.items()}
    assert isinstance(learners["HalfS2"].objective, Half)
    assert (learners["SlowerS2"].objective, learners["SlowerS2"].merge) == (FedAvg(), Slower())
    assert (type(learners["Both-SYN"].objective), type(learners["Both-SYN"].merge)) == (Ditto, CA2FL)
    assert (made["Both-SYN"].mode, made["Both-SYN"].protocol.quorum, learners["Both-SYN"].beta) == ("SYN", 4, 0.5)


# Played by workers that train by a formula


def test_the_tables_by_hand(tmp_path):
    plan = plan_of({"target_accuracy": 0.77}, tries=4, tuning_seeds=1, rungs=1)
    met = run(tmp_path / "a", plan)
    rows = rows_of(tmp_path / "a/arena.csv")
    assert [(row["method"], row["seed"]) for row in rows] == list(itertools.product(THREE, "012"))
    assert [row["seconds_to_target"] for row in rows] == ["4.5"] * 3 + ["", "", ""] + [""] * 3
    assert {row["bits_to_target"] for row in rows} == {"500.0", ""}  # 10 rounds × 5 × 10 bits
    (bout,) = met.summary["bouts"]
    methods = {each["method"]: each for each in bout["methods"]}
    assert [methods[name]["reached"] for name in THREE] == [3, 0, 0]
    assert methods["PerFedS2"]["seconds_to_target"]["median"] == 4.5
    assert methods["FedBuff"]["accuracy"]["values"] == pytest.approx([0.76, 0.764, 0.768])
    assert methods["Ditto"]["worst_decile"]["mean"] == pytest.approx(0.718 - 0.1)
    assert {each["tried"] for each in bout["methods"]} == {4}
    metrics = rows_of(tmp_path / "a/arena_metrics.csv")
    assert len(metrics) == 9 * 3
    assert len(met.table) == 9


def test_who_is_better_is_what_scipy_says_with_holm(tmp_path):
    met = run(tmp_path / "a", plan_of(tries=0))
    values = {each["method"]: each["accuracy"]["values"] for each in met.summary["bouts"][0]["methods"]}
    found = {(v["better"], v["worse"]): v for v in met.summary["bouts"][0]["compared"]["accuracy"]}
    raw = sorted(
        (float(ttest_rel(values[one], values[other]).pvalue), (one, other))
        for one, other in [("PerFedS2", "FedBuff"), ("PerFedS2", "Ditto"), ("FedBuff", "Ditto")]
    )
    before = 0.0
    for times, (p, pair) in zip((3, 2, 1), raw, strict=True):
        before = max(before, min(1.0, times * p))
        assert found[pair]["p"] == pytest.approx(before)
        assert found[pair]["difference"] == pytest.approx(sum(values[pair[0]]) / 3 - sum(values[pair[1]]) / 3)


def test_less_time_is_better_and_never_counts_as_the_horizon(tmp_path):
    met = run(tmp_path / "a", plan_of({"target_accuracy": 0.77}, tries=0))
    verdicts = met.summary["bouts"][0]["compared"]["seconds_to_target"]
    assert {(v["better"], v["worse"]): v["difference"] for v in verdicts if v["p"] < 1} == {
        ("PerFedS2", "FedBuff"): 4.5,
        ("PerFedS2", "Ditto"): 4.5,
    }
    assert BETTER["seconds_to_target"] is min


def test_each_is_evaluated_in_the_settings_that_tuning_found_for_it(tmp_path):
    used: dict[tuple[str, int], Any] = {}

    def accuracy(name, learning, seed):
        used[name, seed] = learning
        return 0.5 - abs(learning.beta - (0.21 if name == "FedBuff" else 0.07))

    met = run(tmp_path / "a", plan_of({"seeds": 2}, tries=4, tuning_seeds=1), on=played(accuracy))
    assert {name: used[name, 1].beta for name in THREE} == {"PerFedS2": 0.07, "FedBuff": 0.21, "Ditto": 0.07}
    found = {each["method"]: each["settings"]["beta"] for each in met.summary["bouts"][0]["methods"]}
    assert found == {"PerFedS2": 0.07, "FedBuff": 0.21, "Ditto": 0.07}


@pytest.mark.slow
def test_an_arena_that_is_interrupted_anywhere_goes_on_to_the_same_bytes(tmp_path):
    plan = plan_of(tries=4, tuning_seeds=1, rungs=2, cells=["paper", "quorum=3"])
    done: list[Any] = []
    run(tmp_path / "whole", plan, on=played(fixed, done))
    whole = {name: (tmp_path / "whole" / name).read_bytes() for name in WRITTEN}
    for stop in (1, len(done) // 3, len(done) - 2):
        left, path = [stop], tmp_path / f"broken-{stop}"

        def fails(_, left=left):
            left[0] -= 1
            return KeyboardInterrupt() if left[0] < 0 else None

        with pytest.raises(KeyboardInterrupt):
            run(path, plan, on=played(fixed, fails=fails))
        again: list[Any] = []
        run(path, read_plan(path), on=played(fixed, again))
        assert len(again) == len(done) - stop  # nothing is done twice
        assert {name: (path / name).read_bytes() for name in WRITTEN} == whole


def test_a_damaged_result_is_made_again(tmp_path):
    done: list[Any] = []
    run(tmp_path / "a", plan_of(tries=0), on=played(fixed, done))
    one = next(one for one in done if (one.algorithm, one.seed) == ("Ditto", 2))
    file = tmp_path / "a/trainings" / f"{one.key}.safetensors"
    kept = file.read_bytes()
    for damage in (b"", b"[]", kept[:-3]):
        file.write_bytes(damage)
        done.clear()
        run(tmp_path / "a", plan_of(tries=0), on=played(fixed, done))
        assert done == [one]
        assert file.read_bytes() == kept


def test_another_arena_is_refused_the_folder(tmp_path):
    run(tmp_path / "a", plan_of(tries=0))
    with pytest.raises(InputError, match="already holds a different arena"):
        run(tmp_path / "a", plan_of({"beta": 0.01}, tries=0))


def test_a_method_that_fails_is_named_and_the_others_are_judged(tmp_path):
    met = run(
        tmp_path / "a", plan_of(tries=0), on=played(fixed, fails=lambda one: "broke" * (one.algorithm == "Ditto"))
    )
    assert [failure.error for failure in met.failures] == ["broke"] * 3
    assert met.summary["bouts"][0]["missing"] == ["Ditto"]
    assert sorted({row["method"] for row in rows_of(tmp_path / "a/arena.csv")}) == [
        "FedBuff",
        "PerFedS2",
    ]
    write_arena(tmp_path / "a")
    assert "Failed, and not shown: Ditto." in (tmp_path / "a/report.html").read_text()


def test_the_progress_is_that_of_the_whole(tmp_path):
    plan, told_ = plan_of(tries=4, tuning_seeds=1, rungs=2, cells=["paper", "quorum=3"]), []
    run(tmp_path / "a", plan, watch=told_.append)
    assert {now.total for now in told_} == {2 * (3 * (4 + 2) + 9)}
    assert plan.bouts[0].search is not None
    assert plan.bouts[0].search.trainings == 3 * (4 + 2)
    assert [now.done for now in told_] == sorted(now.done for now in told_)
    assert (told_[-1].done, told_[-1].found) == (54, 0)
    told_.clear()
    methods = json.loads((tmp_path / "a/arena.json").read_text())["bouts"][1]["methods"]
    tuned = next(each["settings"] for each in methods if each["method"] == "PerFedS2")
    one = trainings_of(plan.bouts[1].spec_of("PerFedS2", tuned))[2]
    (tmp_path / "a/trainings" / f"{one.key}.safetensors").unlink()
    run(tmp_path / "a", plan, watch=told_.append)
    assert [(now.done, now.found) for now in told_] == [(53, 53), (54, 53)]


# The command line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "FedBuf"], "did you mean FedBuff"),
        (
            ["--methods", "PerFedS2", "--set", "Ditto.beta=0.1"],
            "Ditto, which does not take part; leave it out, or add Ditto to --methods",
        ),
        (["--resume", "nowhere"], "holds no arena"),
        (["--mine", "nowhere.py:x"], "was not found"),
        (["--cells", "seeds=3"], "a cell has only"),
        (["--workers", 0, "--tune", 0], "value for '--workers' / '--jobs'"),
    ],
)
def test_the_command_refuses_in_one_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    status, shown, said = told("arena", *arguments)
    assert (status, shown) == (2, "")
    assert said.count("\n") == 1
    assert re.search(sentence, said)
    assert not list(tmp_path.iterdir())


MINE = '''
from dataclasses import dataclass, replace
import jax
from perfeds2 import Merge

@dataclass(frozen=True)
class Halved(Merge):
    """A merge that goes half as far."""

    def step(self, params, arrived, state):
        return jax.tree.map(lambda w, g: w - 0.5 * arrived.beta * g, params, arrived.mean), state
'''
WHOLE = [
    *("arena", "--task", "digits", "--ues", 4, "--batch", 4, "--horizon-s", 0.9, "--seeds", 2, "--methods"),
    *("FedRep,FedBuff", "--mine", "mine.py:Halved", "--tune", 2, "--tuning-seeds", 1, "--rungs", 1, "--workers", 1),
]


@pytest.mark.slow
def test_the_command_as_a_user_types_it_with_a_merge_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr, traced=True)
    Path("mine.py").write_text(MINE)
    status, shown, said = told(*WHOLE, "--out", "whole")
    assert status == 0, said
    assert "HalvedS2 is" in shown
    assert all(f"Wrote: whole/{name}" in shown for name in WRITTEN)
    rows = rows_of("whole/arena.csv")
    assert [(row["method"], row["seed"]) for row in rows] == list(
        itertools.product(["FedRep", "FedBuff", "HalvedS2"], "01")
    )
    assert {row["rounds"] for row in rows if row["method"] == "FedBuff" and row["seed"] == "0"} == {
        row["rounds"] for row in rows if row["method"] == "HalvedS2" and row["seed"] == "0"
    }  # one timeline
    results = [Store(Path("whole/trainings")).get(path.stem) for path in Path("whole/trainings").iterdir()]
    kept = {one.facts["algorithm"]: one for one in results if one is not None and one.facts["seed"] == 0}
    bits = {name: one.facts["upload_bits"] for name, one in kept.items()}
    assert bits["FedBuff"] == 32 * parameters(digits.model)
    assert bits["FedRep"] < bits["FedBuff"]  # its UEs keep their heads
    ends = [row["test_accuracy_personal"] for row in kept["FedBuff"].ue_rows]
    assert sum(ends) / 4 == pytest.approx(kept["FedBuff"].rows[-1]["test_accuracy_personal"])
    written = (*WRITTEN, "report.html", "arena.tex", "arena.toml")
    whole = {name: Path("whole", name).read_bytes() for name in written}
    assert b"mine.py" in whole["arena.toml"]
    status, shown, said = told("arena", "--resume", "whole", "--quiet")
    assert (status, shown) == (0, ""), said
    assert {name: Path("whole", name).read_bytes() for name in written} == whole
    Path("mine.py").write_text(MINE.replace("0.5", "0.25"))
    status, _, said = told("arena", "--resume", "whole", "--quiet")
    assert status == 2
    assert "has changed since" in said
    assert json.loads(whole["arena.json"])["mine"] == ["HalvedS2"]
