"""Is a plan made, shown, adopted and gone on with? The search itself is in test_plan_search."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import in_numpy
import jax
import numpy as np
import pytest
from command_line import perfeds2, told

from perfeds2 import plan as plan_from_python
from perfeds2.errors import InputError
from perfeds2.learning import train
from perfeds2.learning.datasets import digits
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.task import Task
from perfeds2.network.cell import Cell
from perfeds2.report.on_paper import PAGE_IN, figure_of
from perfeds2.report.plan import (
    ACROSS,
    NUMBERS,
    map_charts,
    maps_of,
    print_plan,
    settings_table,
    write_plan,
)
from perfeds2.report.tables import Span
from perfeds2.runs import pool, trainer
from perfeds2.runs.folder import alone
from perfeds2.runs.store import Store
from perfeds2.runs.training import Training
from perfeds2.spec import build
from perfeds2.spec.resolve import read_toml, resolve, spec_from
from perfeds2.studies import plan as module
from perfeds2.studies.plan_data import Plan, short_s
from perfeds2.studies.plan_space import Space, make_space
from perfeds2.studies.plan_trials import Trials

SMALL: dict[str, Any] = {"ues": 6, "quorum": 3, "batch": 10, "target_accuracy": 0.5, "seeds": [0, 1]}
SEARCH = {
    "quorum": [2, 3],
    "max_staleness": [12],
    "bits": [32],
    "local_steps": [1],
    "stale": ["restart"],
    "bandwidth": ["equal_share"],
    "schedule": ["first"],
}
ASKED: dict[str, Any] = {"search": SEARCH, "horizon_s": 1.0, "check": True}


@pytest.fixture(scope="module", autouse=True)
def few_looks() -> Iterator[None]:
    """Nothing is compiled: a model knows only how many rounds it was trained, and is the better the more they are."""

    def advance(_: object, state: Any, __: int, end: int) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(np.full(leaf.shape, end, leaf.dtype)), state)

    def evaluate(task: Task, params: Any, *_: object) -> dict[str, np.ndarray]:
        done = np.full(task.ues, np.mean([np.mean(leaf) for leaf in jax.tree.leaves(params)]))
        return {name: done / (9 + done) if "accuracy" in name else 1 / (1 + done) for name in METRICS}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Trials", partial(Trials, evaluations=20))
        in_numpy.train_in_numpy(patch.setattr)
        for where in (train, trainer):
            patch.setattr(where, "start", lambda task, script, learner, _: in_numpy.start(task, script, learner, 0))
            patch.setattr(where, "evaluate", evaluate)
        patch.setattr(train, "advance", advance)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planned") / "new"


@pytest.fixture(scope="module")
def plan(out: Path) -> Plan:
    """The one plan that is trained here, by the Python door."""
    made = plan_from_python(out=out, **ASKED, **SMALL)
    write_plan(made, out)
    return made


def test_report_draws_a_plan_again_by_seconds_or_joules_and_refuses_the_rest(plan: Plan, out: Path, tmp_path: Path):
    pages = {}
    for axis in ("seconds", "joules"):
        status, _, error = told("report", out, "--x", axis, "--paper", "--out", tmp_path)
        assert status == 0, error
        pages[axis] = (tmp_path / "report.html").read_text()
    assert "Seconds until the target is kept" in pages["seconds"]
    assert "Joules of all UEs until the target is kept" in pages["joules"]
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "plan.pdf", "plan.png", "plan.tex"}
    assert "the choice: holds" in (tmp_path / "plan.tex").read_text()
    status, _, error = told("report", out, "--x", "bits")
    assert status == 2
    assert "a plan records only seconds and joules to the target." in error
    write_plan(plan, out)


def test_the_page_opens_with_the_choice_in_one_line_and_its_settings_beside_the_specs_own(plan: Plan, out: Path):
    best, asked = plan.best, plan.candidates[plan.asked].choice
    assert best is not None
    said = plan.headline
    level = plan.target.words
    kept = [trial.time_s for trial in best.fresh if trial.time_s is not None]
    if best.promise_s is None:
        assert said.startswith(f"{level} after {short_s(best.seconds)} s (kept by {len(kept)} of 5 fresh seeds): ")
    else:
        low, high = best.promise_s
        shown = f"{short_s(np.median(kept))} s ({short_s(low)} to {short_s(high)} s on fresh seeds)"
        assert said.startswith(f"{level} after {shown}: ")
    assert f"A = {best.quorum}, S = {best.choice.bound}" in said
    assert (f"{best.choice.bits} bits" in said) == (best.choice.bits != asked.bits)
    page = (out / "report.html").read_text()
    assert f"<h1>{said}</h1>" in page.replace("\u00a0", " ")
    rows = {row[0]: row[1:] for row in settings_table(plan).rows}
    quorum, bound = rows["A"][0], rows["S"][0]
    assert isinstance(quorum, Span)
    assert isinstance(bound, Span)
    assert [quorum.text, rows["A"][1]] == [str(best.quorum), str(asked.quorum)]
    assert (bound.kind == "best") == (best.choice.bound != asked.bound)
    assert module.headline(replace(plan, choice=None)).startswith(f"None of {len(plan.candidates)} choices keeps ")
    one_step = replace(best, choice=best.choice.with_(local_steps=1, bits=4, stale="wait"))
    given = replace(best, choice=best.choice.with_(local_steps=2, bits=32, stale="restart"))
    assert module.headline(replace(plan, candidates=(one_step, given), choice=0, asked=1)).endswith(
        f"S = {best.choice.bound}, stale wait, 1 local step, 4 bits"
    )


@pytest.mark.usefixtures("rendered")
def test_a_plan_of_few_choices_without_a_recommendation_is_drawn(plan: Plan, tmp_path: Path):
    few = replace(plan, candidates=plan.candidates[:2], choice=None, asked=0)
    assert len(maps_of(few)) == 1
    write_plan(few, tmp_path)
    assert (tmp_path / "plan.png").stat().st_size > 1000


@pytest.mark.parametrize(("axis", "numbers"), [("seconds", "Seconds until"), ("joules", "Joules of all UEs until")])
def test_the_figure_says_what_its_numbers_are(plan: Plan, axis: str, numbers: str):
    (legend,) = figure_of(map_charts(plan, axis), ACROSS, PAGE_IN, NUMBERS[axis]).legends
    assert legend.get_title().get_text().startswith(numbers)


def test_the_choice_kept_the_target_in_every_seed_and_was_watched_longer(plan: Plan):
    best = plan.best
    assert best is not None
    assert {trial.state for trial in best.trials} == {"kept"}
    assert {trial.state for trial in best.confirmed} == {"kept"}
    assert plan.target.confirm_s == 3 * plan.target.horizon_s
    searched = [each for each in plan.candidates if each.quorum in (2, 3) and each.max_staleness == 12]
    assert best.seconds == min(
        each.seconds for each in searched if each.verdict == "holds" and each.seconds is not None
    )
    assert plan.headline in repr(plan)


def test_the_line_that_adopts_it_is_run_and_gives_the_same_curve(plan: Plan, out: Path, tmp_path: Path):
    assert plan.command is not None
    assert plan.best is not None
    status, said = perfeds2(*shlex.split(plan.command)[1:], "--out", tmp_path / "adopted", "--quiet")
    assert status == 0, said
    run, adopted = (resolve(read_toml(path)) for path in (tmp_path / "adopted" / "spec.toml", out / "planned.toml"))
    assert make_space(run, {}).asked == make_space(adopted, {}).asked == plan.best.choice
    rows = (tmp_path / "adopted" / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("test_accuracy_personal")
    scores = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[1] == "0"]
    assert scores == list(plan.best.trials[0].scores)


def test_a_plan_goes_to_json_and_back_and_its_page_is_drawn_again(plan: Plan, out: Path):
    assert Plan.from_json((out / "plan.json").read_text(encoding="utf-8")) == plan
    names = {path.name for path in out.iterdir()}
    assert names == {
        "spec.toml",
        "plan.toml",
        "planned.toml",
        "plan.json",
        "plan.png",
        "plan.pdf",
        "report.html",
        "trainings",
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    (out / "report.html").unlink()
    assert perfeds2("report", out, "--quiet") == (0, "")
    assert (out / "report.html").read_text(encoding="utf-8") == page
    assert plan.command is not None
    for shown in ("Adopt it", "Every A and S", "Margins", "Take A = "):
        assert shown in page
    assert "http" not in page.split("<script>")[0].replace('http-equiv="', "")


def test_a_plan_is_printed_with_its_sentence_last(plan: Plan, capsys: pytest.CaptureFixture[str]):
    print_plan(plan)
    said = capsys.readouterr().out
    assert said.rstrip().endswith(plan.command or "")
    assert f"{plan.sentence}\n{plan.headline}\n" in said
    assert "The choice in your settings, A = 3, S = 5" in said


def test_nothing_is_trained_twice(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was trained before")

    monkeypatch.setattr(pool, "serve", refuse)
    again = plan_from_python(out=out, **ASKED, **SMALL)
    assert again == plan
    monkeypatch.setattr(module, "make_plan", refuse)
    with pytest.raises(InputError, match="already holds a different plan"):
        plan_from_python(out=out, **ASKED | {"keep": 0.8}, **SMALL)
    question = module.read_question(out)
    space, request = question.space, question.request
    assert (request.check, request.horizon_s, space.axes["quorum"]) == (True, 1.0, (2, 3))
    assert space.spec.run.seeds == (0, 1)


def test_a_second_planner_in_the_same_folder_is_refused_in_one_sentence(tmp_path: Path):
    place = tmp_path / "out"
    place.mkdir()
    with alone(place), pytest.raises(InputError, match=r"^another process is writing into .*choose another folder\.$"):
        plan_from_python(out=place, **SMALL)
    assert not (place / "plan.json").exists()


def test_a_plan_is_made_on_a_users_own_task_and_cell(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    spaces: list[Space] = []
    monkeypatch.setattr(module, "make_plan", lambda space, *_, **__: (spaces.append(space), plan)[1])
    task = digits(6, 2, 7)
    plan_from_python(task=task, cell=lambda seed: Cell.draw(6, seed + 5, layout="uniform"), ues=6, quorum=2, batch=10)
    trials = Trials(spaces[0], 0.9)
    assert not trials.play(spaces[0].asked.with_(max_staleness=None), 0, 0.5).obstacle


@pytest.mark.slow
def test_a_radio_is_planned_by_its_own_clock():
    """The same choice closes rounds later where the radio is real."""
    paces = []
    for radio in ("paper", "umi"):
        space = make_space(spec_from(ues=6, radio=radio, algorithms=["PerFedS2"]), {})
        played = Trials(space, 0.9).play(space.asked.with_(max_staleness=None), 0, 3.0)
        assert not played.obstacle
        paces.append(played.seconds_per_round)
    assert paces[1] > paces[0]


def test_the_beginning_of_a_longer_clock_is_the_shorter_one():
    space = make_space(spec_from(ues=6, algorithms=["PerFedS2"]), {})
    short, cut = Trials(space, 0.9), Trials(space, 0.9)
    cut.play(space.asked, 0, 3.0)
    one, other = short.play(space.asked, 0, 1.0), cut.play(space.asked, 0, 1.0)
    assert one.digest == other.digest != ""
    assert len(cut.timelines) == 1


def test_a_choice_trained_as_far_as_it_was_simulated_is_not_simulated_again(monkeypatch: pytest.MonkeyPatch):
    space = make_space(spec_from(ues=6, batch=10, algorithms=["PerFedS2"]), {})
    trials, simulated, simulate = Trials(space, 0.9, evaluations=4), list[float](), build.simulate
    trials.play(space.asked, 0, 1.0)
    monkeypatch.setattr(build, "simulate", lambda **load: (simulated.append(load["horizon_s"]), simulate(**load))[1])
    (rows,), _ = (trials.run([(space.asked, 0, horizon_s)]) for horizon_s in (1.0, 0.5))
    assert simulated == [0.5]
    one = Training(space.spec_of(space.asked, [0], 1.0, 4))
    assert pool.run_all([one], Store(None))[one].rows == rows


@pytest.mark.slow
def test_the_command_refuses_in_one_sentence(tmp_path: Path):
    for words, expected in (
        (["--keep", "3"], "--keep must be from 0.5 to 1"),
        (["--joules", "1e-4", "--search", "quorum=2,5"], "--joules 0.0001 cannot be met: the first round alone takes"),
        (["--ues", "40", "--least-share", "0.5"], "--least-share 0.5 cannot be met: 40 UEs have at most 0.025"),
        (["--search", "quorum=0"], "--quorum must be"),
        (["--search", "quorum=one"], "--quorum must be"),
        (["--resume", tmp_path], "holds no plan"),
        (["--algorithms", "FedAvg-SYN"], "has rounds of its own"),
    ):
        status, said = (
            perfeds2("plan", *words, "--out", tmp_path / "out") if "--resume" not in words else perfeds2("plan", *words)
        )
        assert (status, said.count("\n")) == (2, 1), said
        assert expected in said
    assert not (tmp_path / "out").exists()


def test_the_help_says_what_can_be_limited():
    _, said, _ = told("plan", "--help")
    for each in ("--within-s", "--joules", "--least-share", "--check", "--seeds", "--radio"):
        assert each in said
