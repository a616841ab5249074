"""Does a tuning find what suits each algorithm, without the test part, and whatever happens on the way?"""

import math
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import told, train_here
from in_numpy import train_in_numpy
from trained_by_formula import trained_by, training

from perfeds2.commands.tune import _of_figure
from perfeds2.errors import InputError
from perfeds2.learning.data import Shards
from perfeds2.learning.datasets import digits
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.task import Task
from perfeds2.paper.figures import FIGURES
from perfeds2.report.tuning import edge_notes, headline, landscapes, numeric, print_tuning, write_tuning
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.session import Execution
from perfeds2.runs.store import Result
from perfeds2.runs.training import trainings_of
from perfeds2.spec.build import Algorithm, Stage, make_algorithms
from perfeds2.spec.resolve import nested, read_toml, resolve, spec_from
from perfeds2.spec.tasks import make_task
from perfeds2.studies.tune import SeedScore, Tuning, _score, load_tuning, mean_score, tune
from perfeds2.studies.tune import run_search as run_trainings
from perfeds2.studies.tune_space import FIRST_SEED, Search, make_search, read_search

WRITTEN = ("tune.csv", "tuned.toml")
ONE = {"algorithms": ["PerFedS2"], "horizon_s": 9.0}
TWO = {"algorithms": ["PerFedS2", "FedAvg-SYN"], "horizon_s": 9.0, "FedAvg-SYN.beta": 0.5}
BETAS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
TINY = {"ues": 4, "batch": 4, "horizon_s": 0.3}


def search_of(base: dict[str, Any], search: dict[str, Any], **more: Any) -> Search:
    return make_search(nested(base), search, **more)


def files_of(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in WRITTEN]


# Rung by rung, trained by a formula


def played(accuracy, tried=None, *, fails=lambda _: None):
    """Algorithms that have this personalised accuracy all the time; ``tried`` gets every (algorithm, horizon, β) of the first seed."""
    tried = [] if tried is None else tried

    def result(one):
        learning, horizon_s = one.spec.learning_of(one.algorithm), one.spec.run.horizon_s
        if one.seed == FIRST_SEED:
            tried.append((one.algorithm, horizon_s, learning.beta))
        share = accuracy(one.algorithm, learning, horizon_s, one.seed)
        rows = [{"time_s": time_s, "test_accuracy_personal": share} for time_s in (0.0, horizon_s / 2, horizon_s)]
        return Result(rows, [], {"algorithm": one.algorithm, "seed": one.seed})

    return trained_by(result, fails=fails)


def run_search(search: Search, path: Path, on: Any, *, yes: bool = True, **more: Any) -> Tuning:
    with training(on):
        return run_trainings(search, path, Execution(yes=yes, **more))  # a formula needs no estimate of its time


def near(best: float):
    """Better the nearer β is to this one, for every algorithm and horizon."""
    return lambda _, learning, __, ___: 1 - abs(math.log(learning.beta / best)) / 10


def test_the_better_third_goes_on_three_times_as_long(tmp_path):
    tried: list[Any] = []

    def accuracy(_, learning, horizon_s, __):
        """0.9, 0.8 and 0.3 are ahead after 1 s, 0.3 after 3 s."""
        early = {0.9: 0.6, 0.8: 0.5, 0.3: 0.4}.get(learning.beta, 0.1)
        return early if horizon_s < 2 else {0.9: 0.5, 0.8: 0.6, 0.3: 0.7}[learning.beta]

    tuning = run_search(search_of(ONE, {"beta": BETAS}), tmp_path, on=played(accuracy, tried))
    on_rung = {at: [beta for _, horizon_s, beta in tried if horizon_s == at] for at in (1.0, 3.0, 9.0)}
    assert on_rung == {1.0: BETAS, 3.0: [0.3, 0.8, 0.9], 9.0: [0.3]}
    (best,) = tuning.best
    assert (best.settings, best.score["mean"], best.before, best.edges) == ({"beta": 0.3}, 0.7, None, ())
    table: Any = tuning.table
    assert len(table) == 2 * (9 + 3 + 1)  # seeds
    last = table[table.rung == 3]
    assert (
        last[["algorithm", "number", "horizon_s", "beta", "accuracy_mean", "accuracy_end"]].to_numpy().tolist()
        == [["PerFedS2", 2, 9.0, 0.3, 0.7, 0.7]] * 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rungs", "on_each"), [(4, 3, [4, 2, 1]), (1, 2, [1, 1]), (5, 1, [5]), (7, 2, [7, 3])]
)
def test_a_third_is_rounded_up(tmp_path, count, rungs, on_each):
    tried: list[Any] = []
    search = search_of(ONE, {"beta": BETAS[:count]}, rungs=rungs)
    run_search(search, tmp_path, on=played(near(0.3), tried))
    assert [sum(at == horizon_s for _, at, _ in tried) for horizon_s in search.horizons_s] == on_each
    assert search.horizons_s[-1] == 9.0


def test_of_equals_who_was_listed_first_goes_on_and_wins(tmp_path):
    tried: list[Any] = []
    found = run_search(search_of(ONE, {"beta": BETAS}), tmp_path, on=played(lambda *_: 0.5, tried))
    assert [beta for _, horizon_s, beta in tried if horizon_s == 3.0] == [0.1, 0.2, 0.3]
    assert found.best[0].settings == {"beta": 0.1}


def test_seeds_count_alike(tmp_path):
    """β = 0.2 is best on one seed; 0.4 is better in the mean."""
    shares = {0.2: (0.9, 0.1), 0.4: (0.6, 0.6)}

    def accuracy(_, learning, __, seed):
        return shares.get(learning.beta, (0.2, 0.2))[seed - FIRST_SEED]

    found = run_search(search_of(ONE, {"beta": BETAS}, rungs=2), tmp_path, on=played(accuracy)).best[0]
    assert found.settings == {"beta": 0.4}
    assert found.score["values"] == [0.6, 0.6]


def test_what_diverged_counts_nothing(tmp_path):
    def accuracy(_, learning, __, ___):
        return math.nan if learning.beta > 0.5 else 0.01

    tuning = run_search(search_of(ONE, {"beta": BETAS}), tmp_path, on=played(accuracy))
    assert tuning.best[0].settings == {"beta": 0.1}
    diverged = tuning.table[tuning.table.beta > 0.5]
    assert set(diverged.accuracy_mean) == set(diverged.accuracy_end) == {0.0}
    assert set(diverged.rung) == {1}


def test_the_best_is_one_that_came_to_the_end_even_if_all_diverge_there(tmp_path):
    def accuracy(_, learning, horizon_s, __):
        return math.nan if horizon_s > 8 else learning.beta

    (best,) = run_search(search_of(ONE, {"beta": BETAS}), tmp_path, on=played(accuracy)).best
    assert (best.settings, best.score["mean"]) == ({"beta": 0.9}, 0.0)


def test_every_algorithm_climbs_alone_and_finds_its_own(tmp_path):
    suits = {"PerFedS2": 0.2, "FedAvg-SYN": 0.7}

    def accuracy(name, learning, __, ___):
        return 1 - abs(learning.beta - suits[name])

    found = run_search(search_of(TWO, {"beta": BETAS}), tmp_path, on=played(accuracy))
    assert {best.algorithm: best.settings for best in found.best} == {
        "PerFedS2": {"beta": 0.2},
        "FedAvg-SYN": {"beta": 0.7},
    }
    tuned = read_toml(tmp_path / "tuned.toml")
    assert tuned["methods"] == {"PerFedS2": {"beta": 0.2}, "FedAvg-SYN": {"beta": 0.7}}
    assert resolve(tuned).learning_of("FedAvg-SYN").beta == 0.7


def test_before_is_what_the_algorithm_had_where_it_came_as_far(tmp_path):
    first = run_search(search_of(TWO, {"beta": BETAS}, rungs=1), tmp_path / "all", on=played(near(0.3))).best[1]
    assert first.before is not None
    assert first.before["mean"] == pytest.approx(1 - math.log(5 / 3) / 10)
    fewer = run_search(search_of(TWO, {"beta": BETAS}), tmp_path / "some", on=played(near(0.1))).best[1]
    assert fewer.before is None


def test_all_combinations_are_tried_and_one_algorithm_may_have_its_own():
    search = search_of(
        TWO, {"beta": [0.2, 0.1], "local-steps": ["2", 1], "PerFedS2.beta": (0.3,), "PerFedS2.clip": [5]}
    )
    assert search.axes == {
        "PerFedS2": {"beta": (0.3,), "local_steps": (1, 2), "clip": (5.0,)},
        "FedAvg-SYN": {"beta": (0.1, 0.2), "local_steps": (1, 2)},
    }
    assert search.candidates("FedAvg-SYN")[1] == {"beta": 0.1, "local_steps": 2}
    spec = search.spec_of("FedAvg-SYN", {"beta": 0.1, "local_steps": 2}, 3.0)
    assert [named.text for named in spec.algorithms] == ["FedAvg-SYN"]
    assert (spec.learning_of("FedAvg-SYN").beta, spec.learning_of("FedAvg-SYN").local_steps) == (0.1, 2)
    assert (spec.run.horizon_s, spec.run.eval_every_s, spec.run.stop_when_diverged) == (3.0, 0.15, True)
    assert spec.task.held_out is True


def test_without_a_search_it_is_around_what_each_has():
    axes = search_of(TWO | {"alpha": 0.02}, {}).axes
    assert axes["PerFedS2"] == {
        "alpha": (0.0067, 0.02, 0.06, 0.18, 0.54),
        "beta": (0.0078, 0.023, 0.07, 0.21, 0.63, 1.9),
    }
    assert axes["FedAvg-SYN"]["beta"] == (0.056, 0.17, 0.5, 1.5, 4.5, 14.0)


def test_tuning_seeds_are_none_of_an_evaluations():
    for count in (1, 2, 50):
        search = search_of(ONE | {"seeds": [0, 1]}, {"beta": [0.1]}, seeds=count)
        spec = search.spec_of("PerFedS2", {"beta": 0.1}, 9.0)
        assert len(spec.run.seeds) == count
        assert not set(spec.run.seeds) & set(range(1_000_000))


# Files


def test_tuned_is_what_was_given_with_what_was_found(tmp_path):
    base = ONE | {
        "ues": "4",
        "seeds": [7],
        "eval_every_s": 1,
        "task": {"name": "synthetic", "held_out": True},
        "alpha": 0.02,
    }
    run_search(search_of(base, {"beta": BETAS}), tmp_path, on=played(near(0.4)))
    said = (tmp_path / "tuned.toml").read_text()
    assert said.endswith("\n[methods.PerFedS2]\nbeta = 0.4\n")
    assert tomllib.loads(said) == {
        "cell": {"ues": 4},
        "task": {"name": "synthetic"},
        "learning": {"alpha": 0.02},
        "run": {"algorithms": ["PerFedS2"], "horizon_s": 9.0},
        "methods": {"PerFedS2": {"beta": 0.4}},
    }
    spec = resolve(read_toml(tmp_path / "tuned.toml"))
    assert spec == spec_from(task="synthetic", ues=4, alpha=0.02, **{"PerFedS2.beta": 0.4}, **ONE)
    assert spec.run.seeds == (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a search leaves that was not disturbed."""
    path = tmp_path_factory.mktemp("whole")
    run_search(search_of(TWO, {"beta": BETAS}), path, on=played(near(0.3)))
    return files_of(path)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 40, 50])  # on each rung
def test_a_search_that_was_stopped_goes_on_and_ends_with_the_same_bytes(tmp_path, whole, stop):
    search, left, before, after = search_of(TWO, {"beta": BETAS}), [stop], list[Any](), list[Any]()

    def fails(_):
        left[0] -= 1
        return KeyboardInterrupt() if left[0] == 0 else None

    with pytest.raises(KeyboardInterrupt):
        run_search(search, tmp_path / "again", on=played(near(0.3), before, fails=fails))
    run_search(read_search(tmp_path / "again"), tmp_path / "again", on=played(near(0.3), after))
    assert files_of(tmp_path / "again") == whole
    assert len(before) + len(after) == 2 * (9 + 3 + 1)
    assert not set(before) & set(after)


def test_a_finished_search_is_read_and_not_done_again(tmp_path):
    search = search_of(TWO, {"beta": BETAS})
    first = run_search(search, tmp_path, on=played(near(0.3)))
    tried: list[Any] = []
    again = run_search(search, tmp_path, on=played(near(0.9), tried))
    assert (again.best, tried) == (first.best, [])


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["", "[" * 100_000])
def test_a_damaged_result_is_trained_again(tmp_path, damage):
    search = search_of(ONE, {"beta": BETAS})
    run_search(search, tmp_path, on=played(near(0.3)))
    whole = files_of(tmp_path)
    damaged = trainings_of(search.spec_of("PerFedS2", {"beta": 0.2}, 3.0))[0]
    (tmp_path / "trainings" / f"{damaged.key}.safetensors").write_text(damage, encoding="latin-1")
    tried: list[Any] = []
    run_search(search, tmp_path, on=played(near(0.3), tried))
    assert tried == [("PerFedS2", 3.0, 0.2)]
    assert files_of(tmp_path) == whole


def test_a_training_that_is_given_up_ends_the_search_in_a_sentence_and_the_others_are_kept(tmp_path, whole):
    search, after = search_of(TWO, {"beta": BETAS}), list[Any]()
    never = played(near(0.3), fails=lambda one: "ValueError: no luck." if one.algorithm == "PerFedS2" else None)
    with pytest.raises(
        InputError, match=r"beta=0.1, 1 s, PerFedS2 seed 1000000 failed: ValueError: no luck; run the same command"
    ):
        run_search(search, tmp_path / "none", on=never)
    run_search(search, tmp_path / "none", on=played(near(0.3), after))
    assert not [each for each in after if each[0] == "FedAvg-SYN" and each[1] == 1.0]
    assert files_of(tmp_path / "none") == whole


def test_progress_counts_what_was_there_before_and_ends_with_all(tmp_path):
    search, told_of = search_of(TWO, {"beta": BETAS}), list[Any]()
    run_search(search, tmp_path, on=played(near(0.3)), watch=told_of.append)
    assert {now.total for now in told_of} == {2 * 2 * (9 + 3 + 1)} == {search.trainings}
    assert (told_of[-1].done, told_of[0].found) == (52, 0)
    for one in trainings_of(search.spec_of("PerFedS2", {"beta": 0.3}, 9.0)):
        (tmp_path / "trainings" / f"{one.key}.safetensors").unlink()
    told_of.clear()
    run_search(search, tmp_path, on=played(near(0.3)), watch=told_of.append)
    assert (told_of[0].found, told_of[-1].done) == (50, 52)


def test_the_same_search_in_other_words_is_the_same_folder(tmp_path):
    run_search(search_of(ONE | {"ues": "4"}, {"beta": ["0.10", "0.2"]}), tmp_path, on=played(near(0.3)))
    again = search_of(ONE | {"ues": 4}, {"PerFedS2.beta": np.array([0.2, 0.1, 0.1])})
    run_search(again, tmp_path, on=played(near(0.3)))
    assert read_search(tmp_path).to_toml() == again.to_toml() == (tmp_path / "tune.toml").read_text()
    with pytest.raises(InputError, match="already holds a different tuning"):
        run_search(search_of(ONE | {"ues": 5}, {"beta": [0.1, 0.2]}), tmp_path, on=played(near(0.3)))
    with pytest.raises(InputError, match="already holds a different tuning"):
        run_search(search_of(ONE | {"ues": 4}, {"beta": [0.1, 0.2]}, seeds=3), tmp_path, on=played(near(0.3)))


@pytest.mark.parametrize(
    "text", ["", "search = 3\nbase = 1\nseeds = 2\nrungs = 1\n", 'rungs = "x"\nseeds = [1]\n[search]\n[base]\n']
)
def test_a_folder_of_something_else_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="holds no tuning"):
        read_search(tmp_path)
    (tmp_path / "tune.toml").write_text(text)
    with pytest.raises(InputError, match="is not a valid request for tune"):
        read_search(tmp_path)


# Edges, pictures and words


def tuned_at(path, best, search=None, **more):
    def accuracy(_, learning, __, ___):
        return 1 - abs(learning.beta - best) / 10

    return run_search(search_of(ONE | more, search or {"beta": BETAS}), path, on=played(accuracy))


def test_the_edge_of_what_was_searched_is_said(tmp_path):
    low, middle, high = (tuned_at(tmp_path / str(best), best) for best in (0.1, 0.5, 0.9))
    assert [tuning.best[0].edges for tuning in (low, middle, high)] == [("beta",), (), ("beta",)]
    assert edge_notes(middle) == []
    assert edge_notes(low) == [
        "PerFedS2: beta = 0.1 is at the edge of what was tried; the best may lie beyond it. "
        "Search further with --search PerFedS2.beta=VALUES."
    ]
    assert "beta = 0.9 is at the edge" in edge_notes(high)[0]


def test_the_better_of_two_is_at_the_edge(tmp_path):
    assert tuned_at(tmp_path, 0.5, {"beta": [0.3, 0.5]}).best[0].edges == ("beta",)


def test_one_local_step_and_no_personal_step_are_no_edges(tmp_path):
    """Nothing lies beyond them; of 2, 4, 8 steps, fewer than 2 could be better."""
    found = tuned_at(tmp_path / "a", 0.5, {"local_steps": [1, 2, 4], "alpha": [0, 0.1, 0.2]})
    assert found.best[0].settings == {"local_steps": 1, "alpha": 0.0}
    assert found.best[0].edges == ()
    found = tuned_at(tmp_path / "b", 0.5, {"local_steps": [2, 4, 8]})
    assert "local_steps = 2 is at the edge" in edge_notes(found)[0]


SEARCHES: list[dict[str, Any]] = [
    {"beta": [0.1, 0.2], "alpha": [0.0, 0.0037, 0.1], "local_steps": [1, 2]},
    {"PerFedS2.beta": [0.1, 0.2]},  # and around what the other has
    {"beta": [0.1, 0.2], "PerFedS2.clip": [1, 2.5], "PerFedS2.hessian": ["exact", "fo"]},
]


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_whatever_was_searched_is_drawn_and_told(tmp_path, capsys, search):
    found = run_search(search_of(TWO, search), tmp_path, on=played(near(0.2)))
    assert [path.name for path in write_tuning(found)] == ["report.html", "tune.pdf", "tune.png"]
    print_tuning(found)
    shown = capsys.readouterr().out
    assert "PerFedS2" in shown
    assert "2 tuning seeds, up to 9 simulated seconds" in " ".join(shown.split())
    assert load_tuning(tmp_path) == found
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="chart"') == sum(bool(numeric(axes)) for axes in found.search.axes.values())
    assert page.count("PerFedS2</th>") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_a_tuning_drawn_again_has_the_same_bytes_and_a_table_for_a_paper(tmp_path):
    found = run_search(search_of(ONE, SEARCHES[0]), tmp_path, on=played(near(0.2)))
    write_tuning(found)
    assert r"\begin{tabular}" in write_tuning(found, tmp_path / "paper")[-1].read_text()
    for name in ("tune.png", "tune.pdf"):
        assert (tmp_path / "paper" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_report_draws_a_tuning_again(tmp_path):
    one = tuned_at(tmp_path / "one", 0.1)
    status, _, error = told("report", one.path, "--paper", "--out", tmp_path / "paper")
    assert status == 0, error
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"report.html", "tune.pdf", "tune.png", "tune.tex"}
    status, _, error = told("report", one.path, "--x", "joules")
    assert status == 2
    assert "a tuning stores one number per training" in error
    next((one.path / "trainings").iterdir()).unlink()
    status, _, error = told("report", one.path)
    assert status == 2
    assert f"holds an unfinished tuning; continue with perfeds2 tune --resume {one.path}." in error


def test_without_numbers_there_is_no_picture(tmp_path):
    found = run_search(
        search_of(ONE, {"PerFedS2.hessian": ["exact", "fo"], "beta": [0.1]}), tmp_path, on=played(near(0.2))
    )
    assert landscapes(found) == []
    assert [path.name for path in write_tuning(found)] == ["report.html"]


# Refusals


@pytest.mark.parametrize(
    ("base", "search", "more", "sentence"),
    [
        ({"rounds": 5}, {}, {}, "--rounds 5: tune compares in simulated time; give --horizon-s instead"),
        (ONE, {"betta": [1]}, {}, "betta is not a setting that can be tuned; did you mean beta"),
        (ONE, {"quorum": [1, 2]}, {}, "--search quorum cannot be tuned; expected one of alpha, beta"),
        (ONE, {"seed": [1, 2]}, {}, "--search seed cannot be tuned"),
        (ONE, {"FedAvgS2.beta": [1, 2]}, {}, "FedAvgS2.beta cannot be tuned; expected .* or such as PerFedS2.beta"),
        (ONE, {"beta": []}, {}, "--search beta is empty"),
        (ONE, {"clip": [None, 1]}, {}, "--search clip is empty or has an empty value"),
        (ONE, {"beta": [0.1, "x"]}, {}, "--beta must be a finite number, got 'x'"),
        (ONE, {"beta": [0.1, 0]}, {}, "--beta must be greater than 0"),
        (ONE, {"local_steps": [1.5]}, {}, "--local-steps must be a whole number"),
        (ONE, {"beta": [1], "learning.beta": [2]}, {}, "--search learning.beta is given twice"),
        (ONE, {}, {"rungs": 0}, "--rungs must be from 1 to 6, got 0"),
        (ONE, {}, {"rungs": 7}, "--rungs must be from 1 to 6, got 7"),
        (ONE, {}, {"seeds": 0}, "--tuning-seeds must be at least 1, got 0"),
        (ONE, {"beta": np.linspace(0.1, 1, 10_001)}, {}, "20,002 trainings in its first rung; at most 20,000"),
        ({"algorithms": ["PerFedS2", "PerFedS2"]}, {}, {}, "--algorithms has PerFedS2 twice"),
    ],
    ids=str,
)
def test_what_cannot_be_tuned_is_refused_in_a_sentence(base, search, more, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        search_of(base, search, **more)
    assert "\n" not in str(refused.value)


def test_a_single_value_is_a_list_of_it():
    assert search_of(ONE, {"beta": "0.5", "PerFedS2.hessian": "fo"}).axes["PerFedS2"] == {
        "beta": (0.5,),
        "hessian": ("fo",),
    }


@pytest.mark.parametrize(
    ("more", "sentence"), [({"retries": -1}, "--retries must be"), ({"count": 0}, "--workers must be")]
)
def test_what_no_one_can_do_leaves_no_folder(tmp_path, more, sentence):
    with pytest.raises(InputError, match=sentence):
        run_trainings(search_of(ONE, {"beta": [0.1]}), tmp_path / "new", Execution(WorkerChoice(**more)))
    with pytest.raises(InputError, match="days of this machine"):
        run_search(
            search_of(ONE | {"horizon_s": 1e9}, {"beta": [0.1]}), tmp_path / "new", on=played(near(0.1)), yes=False
        )
    assert not (tmp_path / "new").exists()


# The user's own algorithms and tasks


@dataclass(frozen=True)
class Half(Objective):
    """FedAvg with half of the gradient; its class is given from Python."""

    def gradient(self, params, start, batches, context):
        return jax.tree.map(lambda each: each / 2, FedAvg().gradient(params, start, batches, context))


def test_an_objective_of_ones_own_is_tuned_under_its_name(tmp_path):
    search = search_of(
        {"algorithms": ["PerFedS2", Half], "horizon_s": 9.0}, {"HalfS2.beta": [0.1, 0.2], "PerFedS2.beta": [0.3]}
    )
    assert search.axes == {"PerFedS2": {"beta": (0.3,)}, "HalfS2": {"beta": (0.1, 0.2)}}
    spec = search.spec_of("HalfS2", {"beta": 0.2}, 1.0)
    (made,) = make_algorithms(spec, Stage.of(spec, 0))
    assert (made.name, made.learner.beta, type(made.learner.objective).__name__) == ("HalfS2", 0.2, "Half")
    assert resolve(spec.values()).learning_of("HalfS2").beta == 0.2  # as a worker gets it
    found = run_search(search, tmp_path, on=played(near(0.2)))
    assert [best.algorithm for best in found.best] == ["PerFedS2", "HalfS2"]
    assert resolve(read_toml(tmp_path / "tuned.toml")).learning_of("HalfS2").beta == 0.2
    assert run_search(read_search(tmp_path), tmp_path, on=played(near(0.1))).best == found.best


def test_an_algorithm_that_brings_its_settings_cannot_be_tuned():
    spec = spec_from(algorithms=["PerFedS2"], ues=4)
    (made,) = make_algorithms(spec, Stage.of(spec, 0))
    own = Algorithm("Mine", made.learner, made.protocol)
    with pytest.raises(InputError, match="brings its own settings, so nothing of it can be tuned; leave it out"):
        search_of({"algorithms": ["PerFedS2", own]}, {})


@pytest.mark.slow
def test_what_is_in_no_file_is_tuned_in_this_process(tmp_path, monkeypatch):
    """A worker process could not find it. Its tuned numbers are told, and only Python can use them."""
    train_in_numpy(monkeypatch.setattr, traced=True)

    @dataclass(frozen=True)
    class Nowhere(Half):
        pass

    base = TINY | {"task": "synthetic", "algorithms": [Nowhere]}
    found = tune(base, {"beta": [0.05, 0.2]}, out=tmp_path / "a", rungs=1, seeds=1)
    assert found.best[0].algorithm == "NowhereS2"
    assert len(found.table) == 2
    with pytest.raises(InputError, match="run it again from Python"):
        resolve(read_toml(tmp_path / "a/tuned.toml"))
    with pytest.raises(InputError, match="cannot be saved"):
        tune(base, {"beta": [0.05, 0.2]}, out=tmp_path / "a", rungs=1, seeds=1)


# The test part


def poisoned(ues, labels_per_ue, seed):
    """Digits whose test samples are no numbers, and whose test labels are all one."""
    task = digits(ues, labels_per_ue, seed)
    data = task.data
    assert isinstance(data, Shards)
    at = np.concatenate(
        [np.arange(s + t, s + t + n) for s, t, n in zip(data.start, data.train_count, data.test_count, strict=True)]
    )
    x, y = np.array(data.x), np.array(data.y)
    x[at], y[at] = np.nan, 0
    return replace(task, data=replace(data, x=jnp.asarray(x), y=jnp.asarray(y)))


@pytest.mark.slow
def test_the_test_part_is_never_looked_at(tmp_path):
    def scores(task: Any, name: str):
        base = TINY | {"task": task, "algorithms": ["FedAvgS2"], "horizon_s": 0.5, "labels_per_ue": 10}
        search = make_search(nested(base), {"beta": [0.05, 0.2]}, rungs=1, seeds=2)
        return run_trainings(search, tmp_path / name, Execution(WorkerChoice())).table

    clean, other = (
        scores("digits", "clean"),
        scores(lambda ues, labels_per_ue, seed: poisoned(ues, labels_per_ue, seed), "poisoned"),
    )
    assert clean.accuracy_mean.min() > 0.05
    assert clean.accuracy_mean.nunique() > 2
    assert clean.to_csv() == other.to_csv()
    spec = spec_from(task="digits", ues=4, labels_per_ue=3)
    tested, held = make_task(spec, 0), make_task(spec_from(task="digits", ues=4, labels_per_ue=3, held_out=True), 0)
    assert np.asarray(tested.data.train_count).sum() > np.asarray(held.data.train_count).sum()


def test_data_that_cannot_be_divided_are_refused():
    class Whole:
        def __init__(self, data):
            self.data = data

        def __getattr__(self, name):
            if name == "held_out":
                raise AttributeError(name)
            return getattr(self.data, name)

    def mine(ues, labels_per_ue, seed):
        task = digits(ues, labels_per_ue, seed)
        return Task("mine", task.model, Whole(task.data))  # type: ignore[arg-type]

    make_task(spec_from(task=mine, ues=4), 0)
    with pytest.raises(InputError, match=r"has data without held_out\(\), which validation needs"):
        make_task(spec_from(task=mine, ues=4, held_out=True), 0)


# The command line


@pytest.mark.slow
def test_the_command_as_a_user_types_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr)
    begin = [
        "tune",
        "--task",
        "synthetic",
        "--ues",
        4,
        "--batch",
        4,
        "--horizon-s",
        0.9,
        "--algorithms",
        "PerFedS2,FedAvg-SYN",
    ]
    search = [
        "--set",
        "FedAvg-SYN.beta=0.5",
        "--search",
        "beta=0.02,0.1,0.5",
        "--tuning-seeds",
        1,
        "--rungs",
        2,
        "--workers",
        1,
    ]
    status, shown, said = told(*begin, *search, "--out", "mine")
    assert status == 0, said
    words = " ".join(shown.split())
    assert "synthetic: 6 settings of 2 algorithms, 1 tuning seed, up to 0.9 simulated seconds" in words
    assert "FedAvg-SYN" in shown
    assert "held out of the UEs' training part" in words
    best = tomllib.loads(Path("mine/tuned.toml").read_text())["methods"]
    for name in ("PerFedS2", "FedAvg-SYN"):
        edge = best[name]["beta"] != 0.1
        assert (f"Note: {name}: beta = {best[name]['beta']:g} is at the edge" in words) == edge
    files = ["tune.csv", "tune.pdf", "tune.png", "report.html", "tune.toml", "tuned.toml", "trainings"]
    assert sorted(path.name for path in Path("mine").iterdir()) == sorted(files)
    for name in files[:4]:
        assert f"Wrote: mine/{name}" in shown
    kept = files_of(Path("mine"))
    status, shown, said = told("tune", "--resume", "mine", "--quiet")
    assert (status, shown, said) == (0, "", "")
    assert files_of(Path("mine")) == kept
    for more in (("--search", "beta=1"), ("--rungs", "2"), ("--tuning-seeds", "3")):
        status, _, said = told("tune", "--resume", "mine", *more)
        assert status == 2
        assert "--resume takes everything from the folder" in said
    status, shown, said = told("compare", "--spec", "mine/tuned.toml", "--seeds", 1, "--out", "run")
    assert status == 0, said
    spec = resolve(read_toml(Path("run/spec.toml")))
    assert {name: own["beta"] for name, own in spec.methods.items()} == {
        name: own["beta"] for name, own in best.items()
    }
    assert (spec.task.held_out, spec.run.seeds, spec.run.horizon_s) == (None, (0,), 0.9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "run.rounds=5"], "--rounds 5: tune compares in simulated time"),
        (["--search", "quorum=1,2"], "--search quorum cannot be tuned"),
        (["--search", "beta="], "--search beta has an empty value"),
        (["--search", "beta"], "--search takes NAME=VALUES"),
        (["--search", "beta=1", "--search", "beta=2"], "--search beta is given twice"),
        (["--rungs", 0], "--rungs must be from 1 to 6"),
        (["--tuning-seeds", 0], "--tuning-seeds must be at least 1, got 0"),
        (["--figure", "exp_9"], "'exp_9' is not a figure"),
        (["--figure", "exp_1", "--task", "digits"], "--figure exp_1 has no panel on digits; expected --task mnist"),
        (["--resume", "nowhere"], "holds no tuning"),
    ],
)
def test_the_command_refuses_in_one_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    status, shown, said = told("tune", *arguments)
    assert (status, shown) == (2, "")
    assert said.count("\n") == 1
    assert re.search(sentence, said)
    assert not list(tmp_path.iterdir())


# A figure's settings


@pytest.mark.parametrize(
    ("figure", "task"), sorted({(name, panel.task) for name in FIGURES for panel in FIGURES[name].panels})
)
def test_a_figures_settings_are_those_of_its_curves(figure, task):
    spec = resolve(_of_figure(figure, {"task": {"name": task}}))
    panel = next(panel for panel in FIGURES[figure].panels if panel.task == task)
    assert [named.text for named in spec.algorithms] == list(dict.fromkeys(line.algorithm for line in panel.lines))
    curve = panel.spec_of(replace(panel.lines[0], settings={}), (0,), "paper", {}, {})
    for section in ("task", "cell", "protocol", "learning"):
        assert getattr(spec, section) == getattr(curve, section)
    assert (spec.run.horizon_s, spec.run.target_accuracy) == (curve.run.horizon_s, curve.run.target_accuracy)


def test_what_is_given_goes_over_the_figures_settings():
    base = _of_figure(
        "exp_1", nested({"horizon_s": "60", "quorum": 7, "PerFedS2.beta": 0.2, "algorithms": ["PerFedS2"]})
    )
    with pytest.raises(InputError, match=r"task must be a section, \[task\], got 3"):
        _of_figure("exp_1", {"task": 3})
    search = make_search(base, {"beta": [0.1]})
    assert (search.spec.run.horizon_s, search.spec.protocol.quorum) == (60.0, 7)
    assert search.spec.learning_of("PerFedS2").beta == 0.2
    assert search.spec.task.name.text == "mnist"  # its first panel's
    assert list(search.axes) == ["PerFedS2"]
    assert make_search(tomllib.loads(search.to_toml())["base"], {"beta": [0.1]}).to_toml() == search.to_toml()


def test_a_setting_is_scored_by_its_mean_over_time_not_by_its_end():
    """0.2 for 9 s and 0.9 at the end, against 0.5 all the time."""
    late, steady = (
        Result([{"time_s": at, "test_accuracy_personal": score} for at, score in rows], [], {})
        for rows in (((0.0, 0.2), (9.0, 0.9)), ((0.0, 0.5), (9.0, 0.5)))
    )
    assert (_score(late), _score(steady)) == (SeedScore(0.2, 0.9, {}), SeedScore(0.5, 0.5, {}))
    assert mean_score([SeedScore(0.2, 0.9, {}), SeedScore(0.4, 0.1, {})]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ((0.5, 0.6), "Tuning helps 2 of 2 algorithms, a most: from 50.0 % to 70.0 %."),
        ((0.7, 0.9), "Nothing better than before was found for a and b."),
        ((None, None), "With the settings found, b scores highest: 75.0 %."),  # the old settings left an early rung
    ],
)
def test_the_headline_says_what_tuning_brought(before, said):
    best = [
        SimpleNamespace(algorithm=name, score={"mean": now}, before=None if was is None else {"mean": was})
        for name, now, was in zip("ab", (0.7, 0.75), before, strict=True)
    ]
    tuning: Any = SimpleNamespace(search=SimpleNamespace(metric="accuracy"), best=best)
    assert headline(tuning) == said
