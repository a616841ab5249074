"""Does a data file of the user behave as documented: is it learned, described, resumed or rejected?"""

import json
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from command_line import perfeds2, told
from in_numpy import train_in_numpy

from perfeds2 import Task, compare
from perfeds2.errors import InputError
from perfeds2.learning.losses import mse
from perfeds2.learning.models.lenet import LeNet
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import ModelWithLoss, bare
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task, metric_of, model_of

random = np.random.default_rng(0)
X = random.normal(size=(480, 4))
SHORT = ("--seeds", "1", "--algorithms", "FedAvgS2", "--ues", "8", "--horizon-s", "1", "--eval-every-s", "0.5")
SHORT += ("--beta", "0.1", "--quiet")

MINE = """
import jax.numpy as jnp

def huber(outputs, y):
    error = jnp.abs(outputs - y).mean(axis=-1)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)

def within_ten(outputs, y, mask):
    return jnp.where(mask, (jnp.abs(outputs - y) < 10).all(axis=-1), False).sum() / mask.sum()

def scalar(outputs, y):
    return outputs.mean()

def halves(labels, ues):
    return jnp.arange(labels.size) % ues

def dealt(is_test, ues):
    return is_test.argsort().argsort() % ues

def broken(outputs, y):
    return outputs.nothing
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Files as people have them, in the folder we are in."""
    monkeypatch.chdir(tmp_path)
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


@cache
def files():
    table = pd.DataFrame(X, columns=list("abcd"))
    kinds = np.array(["low", "middle", "high"])[np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7])]
    made = {
        "classes.csv": table.assign(label=kinds),
        "price.csv": table.assign(price=100 + 40 * X[:, 0] - 25 * X[:, 1], client=np.arange(480) % 8),
        "two.csv": table.assign(y=(X[:, 0] > X[:, 2]).astype(int)),
    }
    return {name: each.to_csv(index=False) for name, each in made.items()} | {"mine.py": MINE}


def metrics_of(out):
    table = pd.read_csv(f"{out}/metrics.csv")
    return table["test_accuracy_personal"].iloc[0], table["test_accuracy_personal"].iloc[-1]


def said(out):
    return json.loads((out / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "more", "first", "last", "words"),
    [
        (
            "classes.csv",
            ("--split", "dirichlet:0.3"),
            0.75,
            0.85,
            "--split dirichlet:0.3 --loss cross-entropy --metric accuracy",
        ),
        (
            "price.csv",
            ("--target", "price"),
            0.4,
            0.9,
            "column client names the owner of each line (8 UEs); column price is learned as a number; --split natural --loss mse --metric r2",
        ),
        (
            "two.csv",
            ("--split", "iid"),
            0.75,
            0.9,
            "column y is learned as labels 0 to 1, which stand for 0, 1; --split iid --loss binary --metric accuracy",
        ),
    ],
)
def test_a_csv_learns_as_the_page_says(folder, task, more, first, last, words):
    status, error = perfeds2("compare", "--task", task, *more, *SHORT, "--out", "out")
    assert status == 0, error
    before, after = metrics_of("out")
    assert before < first
    assert after > last
    (note,) = (note for note in said(folder / "out")["notes"] if note.startswith(task))
    assert words in note


@pytest.mark.slow
def test_a_report_calls_the_metric_by_its_name(folder, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    status, table, _ = told("compare", "--task", "price.csv", "--target", "price", *SHORT[:-1], "--out", "out")
    assert status == 0
    assert "to R² 0.5" in table
    assert "accuracy" not in table
    page = (folder / "out" / "report.html").read_text()
    visible = re.sub(r"<script.*?</script>|<pre.*?</pre>|<style.*?</style>|<[^>]*>", "", page, flags=re.DOTALL)
    assert "personalised R²" in visible
    assert "R² and loss over simulated time" in visible
    assert "accuracy" not in visible.lower()
    assert "Personalised test R²" in page
    # and a run whose file has changed since is not taken for the same
    text = (folder / "price.csv").read_text()
    (folder / "price.csv").write_text(f"{text}0,0,0,0,100,7\n")
    status, error = perfeds2("compare", "--resume", "out")
    assert (status, error.count("\n")) == (2, 1)
    assert "price.csv has changed since this spec was written" in error


@pytest.mark.slow
def test_a_folder_with_a_file_a_writer_trains(folder):
    """As FEMNIST is: every writer has images of some letters, and a hand of its own."""
    (folder / "writers").mkdir()
    letters = random.integers(0, 2, (4, 16, 16)) * 200
    for writer in range(6):
        y = random.choice(4, 3, replace=False)[random.integers(0, 3, 30)]
        strokes = np.clip(letters[y] + random.normal(20, 20, (30, 16, 16)), 0, 255).astype(np.uint8)
        np.savez(folder / "writers" / f"f{writer:04}.npz", x=strokes, y=y)
    more = ("--seeds", "1", "--algorithms", "FedAvgS2", "--rounds", "60", "--beta", "0.2", "--quiet", "--out", "out")
    status, error = perfeds2("compare", "--task", "writers", *more)
    assert status == 0, error
    assert metrics_of("out")[1] > 0.85
    assert said(folder / "out")["ues"] == 6
    spec = spec_from(task="writers", model="lenet5")
    assert isinstance(model_of(spec), LeNet)
    assert make_task(spec, 0).ues == 6
    assert make_task(spec_from(task="writers", ues=4), 1).ues == 4


@pytest.mark.slow
def test_an_own_loss_and_an_own_metric_are_followed(folder):
    more = ("--loss", "mine.py:huber", "--metric", "mine.py:within_ten", "--target-accuracy", "0.9")
    status, error = perfeds2("compare", "--task", "price.csv", "--target", "price", *more, *SHORT, "--out", "out")
    assert status == 0, error
    found = said(folder / "out")
    assert found["metric"] == "within_ten"
    first, last = metrics_of("out")
    assert 0 <= first < 0.3 < 0.5 < last <= 1  # within ten of the price as it was
    assert "mine.py" in (folder / "out" / "spec.toml").read_text()


# ---- what a spec says


def test_defaults_follow_from_the_file():
    spec = spec_from(task="price.csv", target="price")
    assert (str(spec.task.split), str(spec.task.loss), str(spec.task.metric)) == ("natural", "mse", "r2")
    assert (spec.cell.ues, spec.run.target_accuracy, spec.task.labels_per_ue) == (8, 0.5, None)
    assert spec_from(task="price.csv", target="price", metric="rmse").run.target_accuracy == pytest.approx(
        -23.4, rel=0.1
    )
    classes = spec_from(task="classes.csv", target_accuracy=0.8)
    assert (str(classes.task.split), str(classes.task.loss)) == ("dirichlet:0.5", "cross-entropy")
    assert (classes.cell.ues, classes.run.target_accuracy) == (20, 0.8)
    assert spec_from(task="two.csv", labels_per_ue=2).task.split is None
    assert classes.task.name.label == "classes"
    assert set(classes.own) == {"classes.csv"}


def test_a_split_and_labels_per_ue_go_over_each_other():
    assert spec_from(split="labels:2").task.labels_per_ue is None
    one, other = (make_task(spec_from(ues=5, **how), 3) for how in ({"split": "labels:2"}, {"labels_per_ue": 2}))
    np.testing.assert_array_equal(one.data.x, other.data.x)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(one.data.train_count, other.data.train_count)
    with pytest.raises(InputError, match="--labels-per-ue 2 and --split iid were both given; give one of them"):
        spec_from(split="iid", labels_per_ue=2)


def test_own_functions_and_objects_go_as_well():
    spec = spec_from(task="classes.csv", split="mine.py:halves", ues=6)
    data = make_task(spec, 0).data
    assert np.ptp(np.asarray(data.train_count) + np.asarray(data.test_count)) <= 1  # type: ignore[attr-defined]
    data = make_task(spec_from(task="classes.csv", split="mine.py:dealt", ues=6), 0).data
    assert np.ptp(data.train_count) <= 1
    assert np.ptp(data.test_count) <= 1  # type: ignore[attr-defined]
    x = X.astype(np.float32)
    made = Task.of_arrays("mine", x, x[:, 0], ues=4, seed=0, labels_per_ue=5)
    spec = spec_from(task=made)
    model = make_task(spec, 0).model
    assert isinstance(model, ModelWithLoss)
    assert model.loss is mse
    assert metric_of(spec) == "r2"
    assert metric_of(spec_from(task=made, metric="mae")) == "mae"
    assert bare(model_of(spec_from(task=made, model="mlp"))) == MLP((4, 100, 1))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "nothing.csv"}, "--task 'nothing.csv' was not found: there is no nothing.csv in"),
        (
            {"task": "classes.csv", "target": "lable"},
            "--task classes.csv: has no column lable (--target); did you mean label?",
        ),
        ({"task": "price.csv"}, "--task price.csv: has no column called label or target or y"),
        (
            {"task": "classes.csv", "split": "natural"},
            "--task classes.csv: --split natural needs data that name the owner",
        ),
        (
            {"task": "price.csv", "target": "price", "ues": 9},
            "--task price.csv: its samples belong to 8 UEs, got 9 UEs",
        ),
        ({"task": "classes.csv", "split": "labels:4"}, "--labels-per-ue must be from 1 to the task's 3 labels, got 4"),
        ({"task": "classes.csv", "split": "labels:x"}, "--split 'labels:x' needs a number as in labels:0.5"),
        ({"task": "classes.csv", "split": "dirichlet:0"}, "alpha from 0.001 to 1e6, got 0"),
        (
            {"task": "classes.csv", "loss": "mse"},
            "--task classes.csv: column label holds texts, which --loss mse cannot learn",
        ),
        (
            {"task": "digits", "loss": "mse"},
            "--task digits: --loss mse is for numbers, and the target is one of 10 labels",
        ),
        ({"task": "digits", "target": "label"}, "--target is for a CSV file, and --task is digits"),
        ({"task": "digits", "split": "natural"}, "--split natural needs data that name the owner"),
        (
            {"task": "price.csv", "target": "price", "loss": "mine.py:scalar"},
            "--loss mine.py:scalar gives shape () for 3 samples; expected a number per sample",
        ),
        ({"task": "price.csv", "target": "price", "loss": "mine.py:broken"}, "--loss mine.py:broken: AttributeError"),
        ({"target_accuracy": 90}, "--target-accuracy must be at most 1, got 90"),
        ({"target_accuracy": 0}, "--target-accuracy must be greater than 0, got 0"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(settings, sentence):
    with pytest.raises(InputError) as refused:
        make_task(spec_from(**settings), 0)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_own_task_that_does_not_ask_for_a_split_takes_none():
    made = Task.of_arrays("mine", X, (X[:, 0] > 0).astype(int), ues=4, seed=0, labels_per_ue=2)
    with pytest.raises(InputError, match="has no parameter split, so --split iid has no effect"):
        compare(task=made, split="iid")
