"""Are the paper's figures run once, shared, resumed, and written down tidily?"""

import csv
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import perfeds2
from in_numpy import train_in_numpy

from perfeds2.errors import InputError
from perfeds2.paper import figures as tables
from perfeds2.paper.figures import EQUAL, FIGURES, PAPER, SIX, algorithms, command_of, load_curves, load_figures, varied
from perfeds2.runs import trainer, workers
from perfeds2.runs.pool import WorkerChoice
from perfeds2.runs.session import Execution
from perfeds2.runs.store import Store
from perfeds2.runs.training import Training
from perfeds2.spec.resolve import read_toml
from perfeds2.studies import reproduce as module
from perfeds2.studies.figure import Figure, Panel, merged
from perfeds2.studies.reproduce import open_set, plan_curves, read_tuned, reproduce

SMALL = {
    "cell": {"ues": 6},
    "protocol": {"quorum": 2},
    "learning": {"batch": 8},
    "run": {"horizon_s": 1.0, "eval_every_s": 0.1},
}


def small(title, task, lines, **more):
    """A panel that needs no data set, for a second."""
    return Panel(title, task, lines, {"quick": merged(PAPER, EQUAL, SMALL, {"task": {"name": task, **more}})})


ALGORITHMS = Figure("exp_1", "Two algorithms.", (small("Digits", "digits", algorithms(("PerFedS2", "FedAvgS2"))),))
QUORUMS = Figure("exp_4", "Two A.", (small("Digits", "digits", varied("A", "protocol", "quorum", (2, 3))),))
BOTH = [ALGORITHMS, QUORUMS]
TASKS = ("digits", "synthetic")
COLUMNS = ["figure", "panel", "task", "line", "algorithm", "seed", "round", "time_s"]
METRICS = ["train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal"]


@pytest.fixture(scope="module", autouse=True)
def in_numpy() -> Iterator[None]:
    """Which trainings are run and what is written does not depend on what is learned."""
    with pytest.MonkeyPatch.context() as patch:
        train_in_numpy(patch.setattr)
        yield


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Two figures, reproduced. Not to be written into: ``copied`` is."""
    out = tmp_path_factory.mktemp("set")
    written = {figure.name: path for figure, path in reproduce(BOTH, curves_of(*BOTH), out)}
    assert written == {"exp_1": out / "exp_1.csv", "exp_4": out / "exp_4.csv"}
    return out


@pytest.fixture
def copied(reproduced, tmp_path):
    return shutil.copytree(reproduced, tmp_path / "copied")


@pytest.fixture
def trained(monkeypatch):
    """The trainings that are done from now on."""
    done, train = list[Training](), workers.train_job

    def watched(job, *rest):
        done.extend(job.trainings)
        train(job, *rest)

    monkeypatch.setattr(workers, "train_job", watched)
    return done


def curves_of(*figures, seeds=(0, 1), tasks=None, data_dir=None):
    changes = {} if data_dir is None else {"task": {"data_dir": str(data_dir)}}
    return plan_curves(figures, seeds, "quick", tasks, changes)


def everything_in(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_curve_that_two_figures_show_is_trained_once():
    curves = curves_of(ALGORITHMS, QUORUMS)
    assert [(curve.figure, curve.line.label) for curve in curves] == [
        ("exp_1", "PerFedS2"),
        ("exp_1", "FedAvgS2"),
        ("exp_4", "A = 2"),
        ("exp_4", "A = 3"),
    ]
    keys = [[one.key for one in curve.trainings] for curve in curves]
    assert keys[0] == keys[2]  # the same cell, quorum and data
    assert len({key for own in keys for key in own}) == 3 * 2
    elsewhere = curves_of(ALGORITHMS, data_dir="/elsewhere")
    assert [one.key for one in elsewhere[0].trainings] == keys[0]


def test_a_figure_run_before_costs_nothing_in_a_larger_set_wherever_the_data_are(copied, trained):
    curves = curves_of(*BOTH)
    for one in curves[3].trainings:
        (copied / "trainings" / f"{one.key}.safetensors").unlink()
    (copied / "exp_4.csv").unlink()
    list(reproduce(BOTH, curves_of(*BOTH, data_dir=copied / "here"), copied))
    assert [(one.spec.protocol.quorum, one.seed) for one in trained] == [(3, 0), (3, 1)]
    assert trained[0].spec.task.data_dir == str(copied / "here")
    before = everything_in(copied / "trainings")
    list(reproduce(BOTH, curves_of(*BOTH, data_dir=copied / "there"), copied))
    assert everything_in(copied / "trainings") == before


def test_a_changed_setting_reaches_every_run_and_its_figures_are_kept_apart(tmp_path):
    runs = plan_curves([ALGORITHMS, QUORUMS], (0,), "quick", changes={"learning": {"beta": 0.01}})
    assert {run.spec.learning.beta for run in runs} == {0.01}
    open_set(tmp_path, "quick", {"learning": {"beta": 0.01}})
    open_set(tmp_path, "quick", {"learning": {"beta": 0.01}})
    with pytest.raises(InputError, match="other settings"):
        open_set(tmp_path, "quick", {})
    with pytest.raises(InputError, match="another scale"):
        open_set(tmp_path, "paper", {"learning": {"beta": 0.01}})


def test_figures_come_out_tidy_and_a_second_call_does_nothing_new(copied, monkeypatch):
    curves = load_curves(copied)
    assert [*curves.columns] == [*COLUMNS, *METRICS, "joules", "merged_bits"]
    lines = curves.groupby(["figure", "line"]).seed.unique().map(list).to_dict()
    names = [("exp_1", "PerFedS2"), ("exp_1", "FedAvgS2"), ("exp_4", "A = 2"), ("exp_4", "A = 3")]
    assert lines == {name: [0, 1] for name in names}
    shared = [curves[(curves.figure == figure) & (curves.line == line)] for figure, line in (names[0], names[2])]
    np.testing.assert_array_equal(shared[0][METRICS], shared[1][METRICS])
    assert curves.groupby(["figure", "line", "seed"]).time_s.max().eq(1.0).all()

    def never(*_, **__):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(workers, "train_job", never)
    monkeypatch.setattr(module, "check", never)
    before, numbers = everything_in(copied / "trainings"), (copied / "exp_1.csv").read_bytes()
    assert [figure for figure, _ in reproduce(BOTH, curves_of(*BOTH), copied)] == BOTH
    assert everything_in(copied / "trainings") == before
    assert (copied / "exp_1.csv").read_bytes() == numbers


def test_the_numbers_are_those_of_the_training(reproduced):
    store, (curve,) = Store(reproduced / "trainings"), [each for each in curves_of(*BOTH) if each.line.label == "A = 3"]
    kept = [store.get(one.key) for one in curve.trainings]
    rows = [[row[name] for name in METRICS] for result in kept if result is not None for row in result.rows]
    with (reproduced / "exp_4.csv").open() as file:
        written = [[float(row[name]) for name in METRICS] for row in csv.DictReader(file) if row["line"] == "A = 3"]
    assert written == rows  # to the last digit


class StoppedError(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_reproduction_goes_on_and_ends_with_the_same_bytes(reproduced, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY_S", 0.0)

    def stop_in_the_second_figure(progress):
        if progress.share > 0.7:
            raise StoppedError

    execution = Execution(WorkerChoice(), watch=stop_in_the_second_figure)
    going_on = reproduce(BOTH, curves_of(*BOTH), tmp_path, execution)
    assert next(going_on)[0] == ALGORITHMS  # a figure is there as soon as its trainings are
    with pytest.raises(StoppedError):
        next(going_on)
    assert (tmp_path / "exp_1.csv").exists()
    assert not (tmp_path / "exp_4.csv").exists()
    trained.clear()
    list(reproduce(BOTH, curves_of(*BOTH), tmp_path))
    assert {one.spec.protocol.quorum for one in trained} == {3}  # the first figure was not repeated
    for name in ("exp_1.csv", "exp_4.csv"):
        assert (tmp_path / name).read_bytes() == (reproduced / name).read_bytes()


@pytest.mark.slow
def test_doing_one_task_after_the_other_keeps_both_in_the_papers_order(tmp_path):
    panels = tuple(small(title, title, algorithms(("PerFedS2",))) for title in ("digits", "synthetic"))
    figure = Figure("exp_1", "", panels)
    for task in ("synthetic", "digits"):
        list(reproduce([figure], curves_of(figure, seeds=(0,), tasks=[task]), tmp_path))
    assert list(load_curves(tmp_path).panel.unique()) == ["digits", "synthetic"]


def test_what_cannot_work_is_found_before_anything_is_written(tmp_path):
    panel = small("Digits", "digits", algorithms(("PerFedS2",)), labels_per_ue=11)
    figures = [ALGORITHMS, Figure("exp_2", "", (panel,))]
    with pytest.raises(InputError, match="labels-per-ue"):
        list(reproduce(figures, curves_of(*figures, seeds=(0,)), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_task_that_none_of_the_figures_has_is_refused():
    with pytest.raises(InputError, match="--task mnist: no panel of exp_1, exp_4 is on it; expected digits"):
        curves_of(ALGORITHMS, QUORUMS, tasks=["mnist"])


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
    runs = plan_curves(load_figures(["all"]), (0, 1, 2, 3, 4), scale)
    assert {str(run.spec.task.name) for run in runs} == {"mnist", "cifar100", "shakespeare"}
    assert {run.figure for run in runs} == set(FIGURES)
    for run in runs:
        spec, task = run.spec, str(run.spec.task.name)
        ues = {"paper": 188, "quick": 10}[scale] if task == "shakespeare" else 20
        assert (spec.cell.ues, spec.cell.power_w, spec.cell.bandwidth_hz) == (ues, 0.01, 1e6)
        assert (spec.learning.alpha, spec.learning.beta) == ((0.02, 0.06) if task == "cifar100" else (0.03, 0.07))
        assert spec.run.horizon_s == tables.HORIZON_S[scale][task]
        assert [run.line.algorithm] == list(map(str, spec.algorithms))


def test_the_varied_settings_are_the_papers():
    """l = 2, 4, 6, 8 and 3, 5, 7, 9; A = 5, 10, 15; S = 1 to 5; six algorithms; three of them semi-synchronous."""
    labels = {(f.name, p.title): [line.label for line in p.lines] for f in load_figures(["all"]) for p in f.panels}
    assert labels["exp_1", "MNIST"] == labels["exp_2", "CIFAR-100"] == list(SIX)
    assert labels["exp_3", "MNIST"] == ["l = 2", "l = 4", "l = 6", "l = 8"]
    assert labels["exp_3", "CIFAR-100"] == ["l = 3", "l = 5", "l = 7", "l = 9"]
    assert labels["exp_4", "MNIST"] == labels["exp_5", "CIFAR-100"] == ["A = 5", "A = 10", "A = 15"]
    assert labels["exp_6", "CIFAR-100"] == [f"S = {s}" for s in range(1, 6)]
    assert len([key for key in labels if key[0] == "exp_8"]) == 4


# With step sizes that were tuned


TUNED = """
[task]
name = "digits"
[learning]
batch = 4
beta = "0.3"
[run]
algorithms = ["PerFedS2", "FedAvgS2"]
[methods.PerFedS2]
beta = 0.2
alpha = 0.01
"""


@pytest.fixture
def tuned(tmp_path):
    """A file as tune writes it."""
    (tmp_path / "tuned.toml").write_text(TUNED)
    return tmp_path / "tuned.toml"


def test_what_was_tuned_is_each_ones_own_over_what_all_have(tuned):
    found = read_tuned([tuned], TASKS)
    assert set(found) == {"digits"}
    assert found["digits"]["PerFedS2"] == {"batch": 4, "beta": 0.2, "alpha": 0.01}
    assert found["digits"]["FedAvgS2"] == found["digits"]["PerFed-ASY"] == {"batch": 4, "beta": 0.3}
    assert read_tuned([], TASKS) == {}


def test_a_second_file_for_a_task_and_one_for_no_figure_are_refused(tuned, tmp_path):
    with pytest.raises(InputError, match=r"tuned\.toml is for digits, and so is another one; give one for each task"):
        read_tuned([tuned, tuned], TASKS)
    (tmp_path / "own.toml").write_text('[task]\nname = "synthetic"\n')
    assert set(read_tuned([tuned, tmp_path / "own.toml"], TASKS)) == {"digits", "synthetic"}
    with pytest.raises(InputError, match="is for digits, which is in no figure"):
        read_tuned([tuned], ["mnist"])
    with pytest.raises(InputError, match="does not exist"):
        read_tuned([tmp_path / "none.toml"], TASKS)


def test_the_spec_of_a_run_has_the_tuned_numbers_where_any_spec_has_them(tuned):
    """In [learning]: a curve is of one algorithm, and its folder looks like any other."""
    runs = plan_curves([ALGORITHMS, QUORUMS], (0,), "quick", tuned=read_tuned([tuned], TASKS))
    learning = {(str(run.spec.algorithms[0]), run.spec.protocol.quorum): run.spec.learning for run in runs}
    for quorum in (2, 3):
        assert (learning["PerFedS2", quorum].alpha, learning["PerFedS2", quorum].beta) == (0.01, 0.2)
    assert (learning["FedAvgS2", 2].alpha, learning["FedAvgS2", 2].beta) == (0.03, 0.3)
    assert {each.batch for each in learning.values()} == {4}
    assert all("methods" not in run.spec.to_toml() for run in runs)
    (changed, *_) = plan_curves(
        [ALGORITHMS], (0,), "quick", changes={"learning": {"beta": 1.0}}, tuned=read_tuned([tuned], TASKS)
    )
    assert (changed.spec.learning.beta, changed.spec.learning.alpha) == (1.0, 0.01)  # what is asked for comes last
    other = Figure("exp_1", "", (small("S", "synthetic", algorithms(("PerFedS2",))),))
    (untuned,) = plan_curves([other], (0,), "quick", tuned=read_tuned([tuned], TASKS))
    assert (untuned.spec.learning.beta, untuned.spec.learning.batch) == (0.07, 8)


def test_a_folder_takes_one_tuning_a_task_and_no_other(tuned, tmp_path):
    out, (first, second) = (
        tmp_path / "out",
        (read_tuned([tuned], TASKS), {"synthetic": {"PerFedS2": {"beta": 0.5}, "FedAvgS2": {}}}),
    )
    open_set(out, "quick", {}, first)
    before = (out / "reproduce.toml").read_bytes()
    open_set(out, "quick", {}, first)
    assert (out / "reproduce.toml").read_bytes() == before
    assert read_tuned([out / "tuned-digits.toml"], TASKS) == first
    open_set(out, "quick", {}, second)
    assert set(read_toml(out / "reproduce.toml")["tuned"]) == {"digits", "synthetic"}
    assert read_tuned([out / "tuned-synthetic.toml"], TASKS)["synthetic"]["PerFedS2"] == {"beta": 0.5}
    open_set(out, "quick", {}, first | second)
    kept = everything_in(out)
    for refused in ({}, None, {"digits": {"PerFedS2": {"beta": 0.9}}}, second | {"digits": {}}):
        with pytest.raises(InputError, match="another scale or other settings"):
            open_set(out, "quick", {}, refused)
    assert everything_in(out) == kept
    plain = tmp_path / "plain"
    open_set(plain, "quick", {})
    with pytest.raises(InputError, match="another scale or other settings"):
        open_set(plain, "quick", {}, first)
    assert not (plain / "tuned-digits.toml").exists()


@pytest.mark.slow
def test_the_command_of_a_tuned_folder_finds_its_trainings(tuned, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(FIGURES, "exp_1", ALGORITHMS)
    monkeypatch.setitem(tables.TASK, "digits", {})
    monkeypatch.chdir(tmp_path)
    begin = [
        "exp_1",
        "--seeds",
        "1",
        "--set",
        "methods.FedAvgS2.clip=2.5",
        "--set",
        "learning.alpha=0.02",
        "--out",
        "my out",
    ]
    status, said = perfeds2("reproduce", *begin, "--spec", tuned, "--quiet")
    assert status == 0, said
    found = {one.algorithm: one.spec.learning_of(one.algorithm) for one in trained}
    assert (found["PerFedS2"].alpha, found["PerFedS2"].beta, found["PerFedS2"].clip) == (0.02, 0.2, None)
    assert (found["FedAvgS2"].alpha, found["FedAvgS2"].beta, found["FedAvgS2"].clip) == (0.02, 0.3, 2.5)
    tuned.unlink()  # the folder has its own
    words = shlex.split(command_of(Path("my out")))
    assert words[:2] == ["perfeds2", "reproduce"]
    assert words[words.index("--spec") :][:2] == ["--spec", "my out/tuned-digits.toml"]
    before = everything_in(tmp_path / "my out/trainings")
    status, said = perfeds2(*words[1:], "--quiet")
    assert status == 0, said
    assert everything_in(tmp_path / "my out/trainings") == before
