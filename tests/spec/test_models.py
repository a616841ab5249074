"""Can a model be chosen by name or be the user's own, and is a model that does not fit refused before anything runs?"""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import perfeds2, train_here
from in_numpy import train_in_numpy
from trained_by_formula import trained_by, training

from perfeds2 import Task, compare, plan, sweep
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.learning.datasets import TASKS
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.models.lenet import CNN, LENET, LENET_RELU, LeNet
from perfeds2.learning.models.lstm import LSTM, LSTM_LEAF
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.operations import counted_cycles
from perfeds2.learning.task import parameters
from perfeds2.paper.figures import load_figures
from perfeds2.runs.store import Result
from perfeds2.spec.cells import cycles_per_sample, make_cell, upload_bits
from perfeds2.spec.resolve import resolve, spec_from
from perfeds2.spec.tasks import make_task, model_of, sample_of
from perfeds2.studies.grid import make_grid
from perfeds2.studies.reproduce import plan_curves
from perfeds2.studies.sweep import read_sweep
from perfeds2.timeline.record import Timeline

SMALL = {"ues": 4, "quorum": 2, "batch": 4, "rounds": 3, "seeds": [0], "algorithms": ["FedAvgS2"]}
MINE = """
import jax
from dataclasses import dataclass
from perfeds2.learning.models.mlp import MLP


@dataclass(frozen=True)
class Linear:
    inputs: int
    classes: int

    def init(self, key):
        return {"weight": jax.numpy.zeros((self.inputs, self.classes))}

    def __call__(self, params, x):
        return x @ params["weight"]


def deep(inputs, classes):
    return MLP((inputs, 16, 16, classes))


ready = MLP((64, 7, 10))


class Changing(Linear):
    __hash__ = None


of_a_list = Linear(64, [10])


def listed(inputs, classes):
    class Listed(Linear):
        def init(self, key):
            return [jax.numpy.zeros((self.inputs, self.classes))]

        def __call__(self, params, x):
            return x @ params[0]

    return Listed(inputs, classes)


def nothing(classes):
    return None


def asks(width):
    return None


def fails(inputs):
    return [][inputs]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE))
    return path


# ---- by name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "model"),
    [
        ("digits", "mlp", MLP((64, 100, 10))),
        ("digits", "mlp-norm", MLP((64, 100, 10), normalised=True)),
        ("mnist", "mlp", TASKS["mnist"].model),
        ("cifar100", "lenet5", LENET),
        ("cifar100", "lenet5-relu", LENET_RELU),
        ("cifar100", "cnn", CNN),
        ("mnist", "lenet5", LeNet(28, (1, 6, 16), (120, 84, 10), (0.1307,), (0.3081,))),
        ("cifar100", None, LENET),
        ("shakespeare", "lstm", TASKS["shakespeare"].model),
        ("shakespeare", "lstm-leaf", LSTM_LEAF),
        ("shakespeare", None, LSTM()),
        ("digits", None, MLP((64, 32, 10))),
    ],
)
def test_a_name_is_a_model_made_for_the_task_before_its_data_are_read(task, name, model):
    spec = spec_from(task=task, model=name)
    assert model_of(spec) == model
    assert upload_bits(spec) == 32 * parameters(model)
    assert make_cell(spec, 0).cycles_per_sample == counted_cycles(model, sample_of(spec))
    assert cycles_per_sample(spec_from(task=task, model=name, cycles="per-parameter")) == 100 * parameters(model)


@pytest.mark.parametrize(
    ("task", "model", "sentence"),
    [
        (
            "digits",
            "lenet5",
            "whose samples have 64 numbers (float32) and 10 classes: it needs square images with one or three channels",
        ),
        ("mnist", "lstm", "and 10 classes: it gives 80 logits per sample."),
        ("cifar100", "lstm-leaf", "and 100 classes: it gives 80 logits per sample."),
        ("shakespeare", "lenet5", "--model lenet5 does not fit --task shakespeare"),
        ("digits", "lenet", "--model 'lenet' is not known; did you mean lenet5?"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_a_sentence(task, model, sentence):
    with pytest.raises(InputError) as refused:
        model_of(spec_from(task=task, model=model))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["compare"],
        ["run"],
        ["simulate"],
        ["simulate", "--payload-bits", "1e5", "--cycles-per-sample", "1e5"],
        ["plan"],
        ["sweep", "--grid", "quorum=1,2"],
        ["federate", "local"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_it_before_anything_is_run(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said = perfeds2(*words, "--model", "lstm", "--out", tmp_path / "out")
    assert (status, said.count("\n")) == (2, 1), said
    assert "--model lstm does not fit --task digits" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_point_of_a_sweep_that_does_not_fit_is_refused_whichever_it_is(tmp_path):
    grid = {"model": ["mlp", "lstm"], "quorum": [1, 2, 3]}
    with pytest.raises(InputError, match="--model lstm does not fit --task digits"):
        sweep({"task": "digits"}, grid, out=tmp_path / "out", yes=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_chosen_model_is_what_is_trained_and_swept_with(tmp_path, monkeypatch):
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr, traced=True)
    trained = compare(**SMALL, model="mlp", out=tmp_path / "run")
    assert trained.models["FedAvgS2", 0]["dense1.weight"].shape == (64, 100)
    assert 'model = "mlp"' in (tmp_path / "run" / "spec.toml").read_text()
    usual = ("--ues", 4, "--quorum", 2, "--batch", 4, "--rounds", 3, "--seed", 0, "--algorithms", "FedAvgS2")
    assert perfeds2("simulate", *usual, "--quiet", "--out", tmp_path / "usual") == (0, "")
    slower, faster = trained.timelines["FedAvgS2", 0], Timeline.load(tmp_path / "usual" / "timeline.npz")
    assert slower.end_s > 2 * faster.end_s  # the clock follows the model
    swept = sweep(SMALL, {"model": ["mlp"]}, out=tmp_path / "swept", workers=1)
    assert swept.table.test_accuracy.tolist() == trained.metrics.test_accuracy.tolist()
    assert perfeds2("compare", "--resume", tmp_path / "run") == (0, "")


@pytest.mark.slow
def test_a_plan_is_made_with_the_chosen_model():
    def always_good(one):
        which = {"algorithm": one.algorithm, "seed": one.seed, "joules": 1.0, "merged_bits": 8.0}
        times = np.linspace(0, one.spec.run.horizon_s, 20)
        rows = [which | dict.fromkeys(METRICS, 0.9) | {"round": k, "time_s": t} for k, t in enumerate(times)]
        return Result(rows, [], which)

    one = {"bits": [32], "local_steps": [1], "stale": ["restart"], "schedule": ["first"], "bandwidth": ["equal_share"]}
    search, tried = one | {"quorum": [4], "max_staleness": [4]}, []
    with training(trained_by(always_good, tried)):
        plan(model="mlp", ues=4, batch=4, search=search, target_accuracy=0.05, horizon_s=2, seeds=[0])
    assert tried
    assert {str(each.spec.task.model and each.spec.task.model.text) for each in tried} == {"mlp"}


# ---- the user's own


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("name", "shape"),
    [("Linear", (64, 10)), ("deep", (64, 16)), ("ready", (64, 7))],
    ids=["class", "function", "object"],
)
def test_an_own_model_is_a_class_a_function_or_an_object_in_a_file(name, shape):
    spec = spec_from(**SMALL, model=f"mine.py:{name}")
    task = make_task(spec, 0)
    assert shape in [leaf.shape for leaf in jax.eval_shape(task.model.init, jax.random.key(0)).values()]
    assert task.model is make_task(spec, 1).model is model_of(spec)  # one compiled program for all seeds
    assert spec.own.keys() == {"mine.py"}
    assert resolve(spec.values()) == spec


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_an_own_model_is_trained():
    by_file, by_object = compare(**SMALL, model="mine.py:Linear"), compare(**SMALL, model=Flat())
    assert by_file.models["FedAvgS2", 0]["weight"].any()
    assert by_object.metrics.equals(by_file.metrics)
    assert by_object.spec.unwritten == ["python:Flat"]


class Flat:
    def init(self, key):  # noqa: ARG002 (the interface)
        return {"weight": jnp.zeros((64, 10))}

    def __call__(self, params, x):
        return x @ params["weight"]


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Changing",
            "--model mine.py:Changing cannot be compiled (unhashable type: 'Changing'); make it a frozen dataclass",
        ),
        (
            "of_a_list",
            "--model mine.py:of_a_list cannot be compiled (unhashable type: 'list'); make it a frozen dataclass with tuples",
        ),
        (
            "listed",
            "does not fit --task digits, whose samples have 64 numbers (float32) and 10 classes: its init gives a list, not a dict.",
        ),
        ("nothing", "--model mine.py:nothing gave a NoneType; expected a Model."),
        ("asks", "--model mine.py:asks has an unknown parameter width; available are inputs, classes, dtype."),
        ("fails", "--model mine.py:fails: IndexError: list index out of range (mine.py, line "),
        ("MINE", "has no MINE"),
    ],
)
def test_what_is_no_model_is_said_in_a_sentence(name, sentence):
    with pytest.raises(InputError) as refused:
        compare(**SMALL, model=f"mine.py:{name}")
    assert sentence in str(refused.value)


def test_an_own_task_takes_another_model_of_as_many_classes():
    x = np.random.default_rng(0).random((200, 12))
    task = Task.of_arrays("mine", x, (3 * x[:, 0]).astype(int), ues=4, labels_per_ue=2, seed=0)
    assert make_task(spec_from(task=task, model="mlp"), 0).model == MLP((12, 100, 3))
    with pytest.raises(InputError, match="does not fit --task python:Task, whose samples have 12 numbers"):
        make_task(spec_from(task=task, model="lenet5"), 0)


# ---- what a folder says of its model


def test_a_run_on_cifar100_says_its_model():
    now = spec_from(task="cifar100", **SMALL)
    assert 'model = "lenet5"' in now.to_toml()
    assert spec_from(task="cifar100", model=None, **SMALL) == now
    for task in ("digits", "mnist", "shakespeare"):
        assert "model" not in spec_from(task=task).to_toml()


def test_a_reproduction_is_learned_with_the_published_network_unless_told():
    ours, theirs = (
        plan_curves(load_figures(["exp_1"]), (0,), "quick", ["cifar100"], changes)
        for changes in ({}, {"task": {"model": "lenet5-relu"}})
    )
    assert {model_of(run.spec) for run in ours} == {LENET}
    keys = [{one.key for run in runs for one in run.trainings} for runs in (ours, theirs)]
    assert not keys[0] & keys[1]


def test_a_sweep_on_cifar100_says_its_model(tmp_path):
    grid = make_grid({"task": {"name": "cifar100"}}, {"quorum": [1, 2]})
    assert 'model = "lenet5"' in grid.to_toml()
    (tmp_path / "sweep.toml").write_text(grid.to_toml())
    assert read_sweep(tmp_path) == grid
    both = make_grid({"task": {"name": "cifar100"}}, {"model": ["lenet5", "lenet5-relu"]})
    (tmp_path / "sweep.toml").write_text(both.to_toml())
    assert read_sweep(tmp_path) == both


# ---- in a federation


def test_a_federation_knows_its_model_by_name(tmp_path):
    told = Setup.from_texts({"devices": 4, "model": "mlp"})
    assert told.model() == told.task(0).model == MLP((64, 100, 10))
    assert Setup.from_toml(told.to_toml()) == told
    Setup.from_texts({"devices": 4, "task": "cifar100"}).write(tmp_path)
    assert Setup.read(tmp_path).model() == LENET


def test_a_federation_with_its_own_model_takes_no_other(tmp_path):
    status, said = perfeds2("federate", "local", "--model", "mlp", "--app-module", "a.py", "--out", tmp_path / "out")
    assert (status, said.count("\n")) == (2, 1), said
    assert "--model mlp and --app-module were both given; the module defines its own model. Give one of them." in said
