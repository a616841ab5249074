"""Does ``--model mine.py:Net`` train a PyTorch module, and do the weights go back into it?"""

import sys

import jax
import numpy as np
import pytest
from command_line import perfeds2
from in_numpy import train_in_numpy
from needs import needs
from safetensors.numpy import load_file

from perfeds2 import compare
from perfeds2.errors import InputError
from perfeds2.spec.build import model_of
from perfeds2.spec.resolve import spec_from

SMALL = (
    "--ues",
    "4",
    "--quorum",
    "2",
    "--batch",
    "4",
    "--rounds",
    "3",
    "--algorithms",
    "PerFedS2",
    "--seeds",
    "0,1",
)
MINE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, classes))
        self.eval()  # BatchNorm keeps the statistics it has

    def forward(self, x):
        return self.layers(x)


def made(inputs, classes):
    return Net(inputs, classes)


ready = Net(64, 10)


class Narrow(Net):
    def __init__(self, inputs):
        super().__init__(inputs, 3)


class Asking(Net):
    def __init__(self, width):
        super().__init__(width, 10)


class Counting(Net):
    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layers(x)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@needs("torch")
@pytest.mark.slow
def test_a_module_is_trained_resumed_exported_and_loaded_again(mine, monkeypatch):
    import torch  # type: ignore[import-not-found]

    train_in_numpy(monkeypatch.setattr, traced=True)
    words = ("compare", "--model", "mine.py:Net", "--task", "digits", *SMALL)
    status, said = perfeds2(*words, "--out", "run")
    assert status == 0, said
    assert perfeds2("compare", "--resume", "run")[0] == 0
    assert perfeds2("compare", "--model", "mine.py:made", "--task", "digits", *SMALL, "--out", "made")[0] == 0
    assert (mine / "run" / "metrics.csv").read_bytes() == (mine / "made" / "metrics.csv").read_bytes()

    every = load_file(mine / "run" / "model.safetensors")
    one, other = (every[f"PerFedS2/{seed}/layers.0.weight"] for seed in (0, 1))
    assert not np.array_equal(one, other)  # seeds begin with different weights
    status, said = perfeds2("export", "run", "--algorithm", "PerFedS2", "--seed", "1", "--out", "one.safetensors")
    assert status == 0, said
    weights = {name: torch.from_numpy(array) for name, array in load_file("one.safetensors").items()}

    sys.path.insert(0, str(mine))
    try:
        from mine import Net  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(mine))
    net = Net(64, 10)
    missing, unexpected = net.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert {name.rpartition(".")[2] for name in missing} <= {"running_mean", "running_var", "num_batches_tracked"}
    np.testing.assert_array_equal(net.layers[3].bias.detach(), every["PerFedS2/1/layers.3.bias"])


@needs("torch")
@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_a_module_that_is_ready_starts_every_seed_with_its_weights():
    model = model_of(spec_from(task="digits", model="mine.py:ready"))
    one, other = (model.init(jax.random.key(seed))["layers.0.weight"] for seed in (0, 1))
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@needs("torch")
@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Narrow",
            "--model mine.py:Narrow does not fit --task digits, whose samples have 64 numbers (float32) and 10 classes: it gives 3 logits per sample.",
        ),
        ("Asking", "--model mine.py:Asking has an unknown parameter width; available are inputs, classes, dtype."),
        (
            "Counting",
            "--model mine.py:Counting: the PyTorch model Counting changes its buffer calls while it computes",
        ),
    ],
)
def test_a_module_that_cannot_be_taken_is_refused_in_a_sentence(name, sentence):
    with pytest.raises(InputError) as refused:
        compare(model=f"mine.py:{name}", rounds=1)
    assert sentence in str(refused.value)


def test_where_pytorch_is_missing_the_sentence_says_how_to_get_it(mine, monkeypatch):
    (mine / "other.py").write_text(MINE)  # not one that was loaded before
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError) as refused:
        compare(model="other.py:Net", rounds=1)
    assert "'other.py:Net' needs PyTorch, which is not installed: python -m pip install 'perfeds2[torch]'" in str(
        refused.value
    )
    from perfeds2 import Task

    with pytest.raises(InputError, match="a PyTorch model needs torch, which must be installed"):
        Task.from_torch(lambda: None, np.zeros((8, 2)), np.zeros(8, int), ues=1, labels_per_ue=1, seed=0)


@pytest.mark.slow
def test_no_one_loads_pytorch_or_scipy_who_needs_neither():
    """All that a worker needs, without compiling anything."""
    import subprocess

    code = """
import sys
from perfeds2.runs.trainer import Workbench
from perfeds2.runs.training import trainings_of
from perfeds2.runs.workers import main
from perfeds2.spec.resolve import spec_from

spec = spec_from(task="digits", algorithms=["FedAvgS2"], rounds=1, ues=4, quorum=1, seeds=[0])
Workbench().prepare(trainings_of(spec)[0])
sys.exit(" ".join({"torch", "scipy", "sklearn", "pandas"} & sys.modules.keys()) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
