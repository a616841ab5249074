"""Are evaluations as frequent as they are cheap?"""

from typing import Any

import numpy as np
import pytest
from command_line import told

from perfeds2 import compare
from perfeds2.learning.operations import multiply_adds
from perfeds2.runs import estimate
from perfeds2.runs.estimate import evaluations_worth
from perfeds2.runs.folder import read_run
from perfeds2.runs.training import trainings_of
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import model_of, sample_of

SMALL: Any = {
    "task": "synthetic",
    "ues": 4,
    "quorum": 2,
    "batch": 8,
    "algorithms": ["FedAvgS2"],
    "seeds": [0],
}


@pytest.mark.parametrize(("times", "count"), [(0.9, 60), (1.1, 30), (2.1, 20), (3.1, 10), (99.0, 10)])
def test_evaluations_take_no_longer_than_training_or_there_are_ten(monkeypatch, times, count):
    """60 evaluations take ``times`` as long as 40 rounds of 2 gradients."""
    spec = spec_from(**SMALL, rounds=40)
    sample_s = 2 * multiply_adds(model_of(spec), sample_of(spec)) / estimate.FLOPS
    training_s = 40 * 2 * (1e-4 + 8 * sample_s)
    monkeypatch.setattr(estimate, "LEAST_EVALUATING_S", 0.0)
    monkeypatch.setattr(estimate, "_evaluation_s", lambda _: times * training_s / 60)
    assert evaluations_worth(trainings_of(spec)) == count


def test_an_evaluation_takes_a_gradient_and_a_loss_of_every_sample():
    """Each of 1,024 UEs is evaluated on 64 generated samples; a UE of the digits on as many as it has."""
    generated = spec_from(**SMALL | {"ues": 3000})
    sample_s = 2 * multiply_adds(model_of(generated), sample_of(generated)) / estimate.FLOPS
    expected = 1024 * (estimate.GRADIENT_S + 4 / 3 * 64 * sample_s)
    assert estimate._evaluation_s(trainings_of(generated)[0]) == pytest.approx(expected)
    digits = spec_from(**SMALL | {"task": "digits", "ues": 20})
    sample_s = 2 * multiply_adds(model_of(digits), sample_of(digits)) / estimate.FLOPS
    trained = 1347 * 4 / 3 * sample_s  # three quarters of 1,797 are for training
    assert estimate._evaluation_s(trainings_of(digits)[0]) == pytest.approx(20 * estimate.GRADIENT_S + trained)


def test_short_evaluations_are_not_thinned_out():
    assert evaluations_worth(trainings_of(spec_from(**SMALL, horizon_s=0.1))) == 60


@pytest.mark.usefixtures("costly")
def test_a_comparison_says_that_it_evaluates_less_often_and_keeps_the_interval(tmp_path):
    words = [
        "compare",
        "--task",
        "synthetic",
        "--ues",
        "4",
        "--quorum",
        "2",
        "--batch",
        "8",
        "--algorithms",
        "FedAvgS2",
        "--seeds",
        "1",
        "--horizon-s",
        "0.6",
    ]
    out = ["--out", tmp_path / "run"]
    status, said, _ = told(*words, *out)
    assert status == 0
    assert "Evaluating every 0.06 s: every 0.01 s, as usual, would take longer than the training" in said
    assert read_run(tmp_path / "run").run.eval_every_s == pytest.approx(0.06)
    status, said, _ = told(*words, *out)
    assert "already holds this finished run" in said
    status, said, _ = told(*words, "--eval-every-s", "0.01", "--out", tmp_path / "given")
    assert "Evaluating every" not in said
    assert read_run(tmp_path / "given").run.eval_every_s == 0.01


@pytest.fixture
def costly(monkeypatch):
    monkeypatch.setattr(estimate, "_evaluation_s", lambda _: 1e3)


@pytest.mark.usefixtures("costly")
def test_python_chooses_the_same_interval(tmp_path):
    found = compare(**SMALL, horizon_s=0.6, out=tmp_path / "run")
    assert sorted({row["time_s"] for row in found.rows}) == pytest.approx(np.linspace(0, 0.6, 11))
    again = compare(**SMALL, horizon_s=0.6, out=tmp_path / "run")  # the interval of the folder
    assert again.spec == found.spec
    given = compare(**SMALL, horizon_s=0.6, run={"eval_every_s": 0.3})
    assert len(given.rows) == 3
