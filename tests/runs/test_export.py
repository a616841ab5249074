"""Does a model leave a run as it was trained, and is the choice of a model said clearly?"""

import numpy as np
import pytest
from command_line import told
from in_numpy import train_in_numpy
from safetensors.numpy import load_file

from perfeds2.runs.export import choose


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    settings = "--task digits --ues 4 --quorum 2 --rounds 2 --seeds 0,1 --algorithms PerFedS2,FedAvgS2 --quiet"
    with pytest.MonkeyPatch.context() as patch:
        train_in_numpy(patch.setattr)
        assert told("compare", *settings.split(), "--out", folder)[0] == 0
    return folder


@pytest.mark.slow
def test_the_command_writes_the_model_that_was_asked_for(trained, tmp_path):
    every = load_file(trained / "model.safetensors")
    for name in ("FedAvgS2", "PerFedS2"):
        out = tmp_path / f"{name}.safetensors"
        status, said, _ = told("export", trained, "--algorithm", name, "--seed", 1, "--out", out)
        assert status == 0
        assert f"{name}, seed 1: 2,410 numbers" in said
        arrays = load_file(out)
        for key in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"):
            np.testing.assert_array_equal(arrays[key], every[f"{name}/1/{key}"])


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        ("--seed 0", "the run has 4 models; choose one by --algorithm, of PerFedS2, FedAvgS2."),
        ("--algorithm PerFedS2", "choose one by --seed, of 0, 1."),
        ("--algorithm PerFed", "--algorithm PerFed is not in this run; did you mean PerFedS2?"),
        ("--seed 7", "--seed 7 is not in this run; expected one of 0, 1."),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_sentence(trained, tmp_path, ask, sentence):
    status, _, said = told("export", trained, *ask.split(), "--out", tmp_path / "model")
    assert status == 2
    assert sentence in said
    assert not (tmp_path / "model").exists()


def test_a_folder_without_a_model_is_refused(tmp_path):
    status, _, said = told("export", tmp_path, "--out", tmp_path / "model")
    assert status == 2
    assert "holds no finished run with a model" in said


def test_a_run_with_one_model_needs_no_choice():
    assert choose([("PerFedS2", 3)], None, None) == ("PerFedS2", 3)
    assert choose([("A", 0), ("A", 1), ("B", 0), ("B", 1)], "B", 1) == ("B", 1)
