"""Are the paper's figures run once, shared, resumed, and written down tidily?"""

import csv
import dataclasses

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.paper import reproduce as module
from perfeds2.paper.figures import figure as tables
from perfeds2.paper.figures.figure import EQUAL, SIX, Figure, Panel, algorithms, merged, varied
from perfeds2.paper.reproduce import FIGURES, load_curves, load_figures, open_set, plan_runs, reproduce
from perfeds2.runs import execute as compare_module

SMALL = merged(EQUAL, {"cell": {"ues": 6}, "protocol": {"quorum": 2}, "learning": {"batch": 8}})
ALGORITHMS = Figure(
    "exp_1", "Two algorithms.", (Panel("Digits", "digits", algorithms(("PerFedS2", "FedAvgS2")), SMALL),)
)
QUORUMS = Figure("exp_4", "Two A.", (Panel("Digits", "digits", varied("A", "protocol", "quorum", (2, 3)), SMALL),))
COLUMNS = ["figure", "panel", "task", "line", "algorithm", "seed", "round", "time_s"]
METRICS = ["train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal"]


@pytest.fixture(autouse=True)
def tiny_tasks(monkeypatch):
    """Figures of tasks that need no data set, for a second."""
    for task in ("digits", "synthetic"):
        monkeypatch.setitem(tables.TASK, task, {"task": {"name": task}})
        monkeypatch.setitem(tables.HORIZON_S["quick"], task, 1.0)
        monkeypatch.setitem(tables.TARGET, task, 0.5)


def runs_of(*figures, seeds=(0, 1), tasks=None):
    return plan_runs(figures, seeds, "quick", tasks)


def everything_in(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_curve_that_two_figures_show_is_one_run():
    first, second, third = runs_of(ALGORITHMS, QUORUMS)
    assert [(figure, line.label) for figure, _, line in first.curves] == [
        ("exp_1", "PerFedS2"),
        ("exp_4", "A = 2"),  # the same cell, quorum and data
    ]
    assert [run.spec.run.algorithms for run in (first, second, third)] == [("PerFedS2",), ("FedAvgS2",), ("PerFedS2",)]
    assert (second.spec.protocol.quorum, third.spec.protocol.quorum) == (2, 3)
    assert len({first.name, second.name, third.name}) == 3


def test_a_figure_run_before_costs_nothing_in_a_larger_set(tmp_path, monkeypatch):
    list(reproduce([ALGORITHMS], runs_of(ALGORITHMS), tmp_path))
    trained = []
    execute = module.execute
    monkeypatch.setattr(
        module,
        "execute",
        lambda spec, *rest, **more: (trained.append(spec.protocol.quorum), execute(spec, *rest, **more)),
    )
    list(reproduce([ALGORITHMS, QUORUMS], runs_of(ALGORITHMS, QUORUMS), tmp_path))
    assert trained == [3]


def test_where_the_data_lie_does_not_name_a_run(tmp_path):
    runs = runs_of(ALGORITHMS)
    list(reproduce([ALGORITHMS], runs, tmp_path, data_dir=tmp_path / "here"))
    before = everything_in(tmp_path / "runs")
    list(reproduce([ALGORITHMS], runs, tmp_path, data_dir=tmp_path / "there"))
    assert everything_in(tmp_path / "runs") == before


def test_a_changed_setting_reaches_every_run_and_its_figures_are_kept_apart(tmp_path):
    runs = plan_runs([ALGORITHMS, QUORUMS], (0,), "quick", changes={"learning": {"beta": 0.01}})
    assert {run.spec.learning.beta for run in runs} == {0.01}
    open_set(tmp_path, "quick", {"learning": {"beta": 0.01}})
    open_set(tmp_path, "quick", {"learning": {"beta": 0.01}})
    with pytest.raises(InputError, match="other settings"):
        open_set(tmp_path, "quick", {})
    with pytest.raises(InputError, match="another scale"):
        open_set(tmp_path, "paper", {"learning": {"beta": 0.01}})


def test_figures_come_out_tidy_and_a_second_call_does_nothing_new(tmp_path, monkeypatch):
    figures = [ALGORITHMS, QUORUMS]
    runs = runs_of(*figures)
    written = {figure.name: path for figure, path in reproduce(figures, runs, tmp_path)}
    assert written == {"exp_1": tmp_path / "exp_1.csv", "exp_4": tmp_path / "exp_4.csv"}
    curves = load_curves(tmp_path)
    assert [*curves.columns] == COLUMNS + METRICS
    lines = curves.groupby(["figure", "line"]).seed.unique().map(list).to_dict()
    both = [0, 1]
    assert lines == {
        ("exp_1", "PerFedS2"): both,
        ("exp_1", "FedAvgS2"): both,
        ("exp_4", "A = 2"): both,
        ("exp_4", "A = 3"): both,
    }
    shared = [
        curves[(curves.figure == f) & (curves.line == line)] for f, line in (("exp_1", "PerFedS2"), ("exp_4", "A = 2"))
    ]
    np.testing.assert_array_equal(shared[0][METRICS], shared[1][METRICS])
    assert curves.groupby(["figure", "line", "seed"]).time_s.max().eq(1.0).all()

    def never(*_, **__):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(module, "execute", never)
    monkeypatch.setattr(module, "check", never)
    before, numbers = everything_in(tmp_path / "runs"), (tmp_path / "exp_1.csv").read_bytes()
    assert [figure for figure, _ in reproduce(figures, runs, tmp_path)] == figures
    assert {k: v for k, v in everything_in(tmp_path / "runs").items() if k.name != "spec.toml"} == {
        k: v for k, v in before.items() if k.name != "spec.toml"
    }
    assert (tmp_path / "exp_1.csv").read_bytes() == numbers


def test_the_numbers_are_those_of_the_run(tmp_path):
    run, _ = runs_of(ALGORITHMS, seeds=(0,))
    list(reproduce([ALGORITHMS], [run], tmp_path))
    numbers = []
    for path in (tmp_path / "runs" / run.name / "metrics.csv", tmp_path / "exp_1.csv"):
        with path.open() as file:
            numbers.append([[float(row[name]) for name in METRICS] for row in csv.DictReader(file)])
    assert numbers[0] == numbers[1]  # to the last digit


class StoppedError(Exception):
    pass


def test_an_interrupted_reproduction_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_module, "CHECKPOINT_EVERY_S", 0.0)
    figures = [ALGORITHMS, QUORUMS]
    runs = runs_of(*figures, seeds=(0,))
    list(reproduce(figures, runs, tmp_path / "whole"))

    def stop_in_the_second_run(progress):
        if progress.share > 0.7:
            raise StoppedError

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    going_on = reproduce(figures, runs, stopped, stop_in_the_second_run)
    assert next(going_on)[0] == ALGORITHMS  # a figure is there as soon as its runs are
    with pytest.raises(StoppedError):
        next(going_on)
    assert (stopped / "exp_1.csv").exists()
    assert not (stopped / "exp_4.csv").exists()
    trained = []
    list(reproduce(figures, runs, stopped, lambda progress: trained.append(progress.share)))
    assert min(trained) > 0.5  # the first run was not repeated
    for name in ("exp_1.csv", "exp_4.csv"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_doing_one_task_after_the_other_keeps_both_in_the_papers_order(tmp_path):
    panels = tuple(Panel(title, title, algorithms(("PerFedS2",)), SMALL) for title in ("digits", "synthetic"))
    figure = Figure("exp_1", "", panels)
    for task in ("synthetic", "digits"):
        list(reproduce([figure], runs_of(figure, seeds=(0,), tasks=[task]), tmp_path))
    assert list(load_curves(tmp_path).panel.unique()) == ["digits", "synthetic"]


def test_what_cannot_work_is_found_before_anything_is_written(tmp_path):
    panel = dataclasses.replace(ALGORITHMS.panels[0], settings=merged(SMALL, {"task": {"labels_per_ue": 11}}))
    figures = [ALGORITHMS, Figure("exp_2", "", (panel,))]
    with pytest.raises(InputError, match="labels-per-ue"):
        list(reproduce(figures, runs_of(*figures, seeds=(0,)), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_task_that_no_figure_or_none_of_these_has_is_refused():
    with pytest.raises(InputError, match="--task cifar is in no figure; expected one of mnist, cifar100, shakespeare"):
        runs_of(ALGORITHMS, tasks=["cifar"])
    with pytest.raises(InputError, match="no panel of exp_1, exp_4 is on mnist"):
        runs_of(ALGORITHMS, QUORUMS, tasks=["mnist"])


def test_a_folder_without_figures_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no reproduced figures"):
        load_curves(tmp_path)


def test_figures_are_found_by_name_once_each_and_all():
    assert [figure.name for figure in load_figures(["exp_3", "exp_1", "exp_3"])] == ["exp_3", "exp_1"]
    assert [figure.name for figure in load_figures(["all"])] == list(FIGURES)
    with pytest.raises(InputError, match="exp_9"):
        load_figures(["exp_9"])


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_every_figure_of_the_paper_is_a_valid_spec(scale):
    runs = plan_runs(load_figures(["all"]), (0, 1, 2, 3, 4), scale)
    assert len({run.name for run in runs}) == len(runs)
    assert {run.spec.task.name for run in runs} == {"mnist", "cifar100", "shakespeare"}
    assert {figure for run in runs for figure, _, _ in run.curves} == set(FIGURES)
    for run in runs:
        spec = run.spec
        ues = {"paper": 188, "quick": 10}[scale] if spec.task.name == "shakespeare" else 20
        assert (spec.cell.ues, spec.cell.power_w, spec.cell.bandwidth_hz) == (ues, 0.01, 1e6)
        assert (spec.learning.alpha, spec.learning.beta) == (
            (0.02, 0.06) if spec.task.name == "cifar100" else (0.03, 0.07)
        )
        assert spec.run.horizon_s == tables.HORIZON_S[scale][spec.task.name]
        assert all(line.algorithm in spec.run.algorithms for _, _, line in run.curves)


def test_the_varied_settings_are_the_papers():
    """l = 2, 4, 6, 8 and 3, 5, 7, 9; A = 5, 10, 15; S = 1 to 5; six algorithms; three of them semi-synchronous."""
    labels = {(f.name, p.title): [line.label for line in p.lines] for f in load_figures(["all"]) for p in f.panels}
    assert labels["exp_1", "MNIST"] == labels["exp_2", "CIFAR-100"] == list(SIX)
    assert labels["exp_3", "MNIST"] == ["l = 2", "l = 4", "l = 6", "l = 8"]
    assert labels["exp_3", "CIFAR-100"] == ["l = 3", "l = 5", "l = 7", "l = 9"]
    assert labels["exp_4", "MNIST"] == labels["exp_5", "CIFAR-100"] == ["A = 5", "A = 10", "A = 15"]
    assert labels["exp_6", "CIFAR-100"] == [f"S = {s}" for s in range(1, 6)]
    assert len([key for key in labels if key[0] == "exp_8"]) == 4
