"""What becomes of a run whose weights leave the numbers?"""

import math

import pytest

from perfeds2 import compare
from perfeds2.report.run import print_summary, write_paper_figures, write_report

SETTINGS = {"ues": 6, "quorum": 2, "horizon_s": 1.5, "batch": 8, "eval_every_s": 0.25, "algorithms": ("FedAvgS2",)}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_a_diverged_run_is_marked_everywhere_and_breaks_nothing(tmp_path, capsys, stop):
    comparison = compare(**SETTINGS, seeds=(0, 1), beta=1e30, stop_when_diverged=stop, out=tmp_path / "run")
    metrics = comparison.metrics
    assert metrics.groupby("seed").size().tolist() == [7, 7]
    assert math.isfinite(metrics.train_loss[0])
    for _, rows in metrics.groupby("seed"):
        assert rows.iloc[-1][["train_loss", "test_accuracy", "test_accuracy_personal"]].isna().all()
    (row,) = comparison.summary["algorithms"]
    assert row["diverged"] == 2
    assert row["time_to_target_s"]["reached"] == 0
    (note,) = (each for each in comparison.summary["notes"] if "diverged" in each)
    assert note.startswith("FedAvgS2: training diverged in 2 of 2 seeds")
    assert "--set FedAvgS2.beta=3.3e+29" in note
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert "NaN" not in summary
    print_summary(tmp_path / "run")
    assert "diverged in 2 of 2 seeds" in capsys.readouterr().out
    assert "diverged in 2 of 2 seeds" in write_report(tmp_path / "run").read_text()
    if stop:
        assert write_paper_figures(tmp_path / "run")


@pytest.mark.slow
def test_a_step_a_million_times_too_large_breaks_nothing(tmp_path):
    """The units die, so the loss is huge and stays a number."""
    compare(**SETTINGS, seeds=(0, 1), beta=1e6, out=tmp_path / "run")
    assert write_report(tmp_path / "run").exists()


@pytest.mark.slow
def test_stopped_when_diverged_is_not_trained_on():
    told = []
    compare(**SETTINGS, seeds=(0,), beta=1e30, stop_when_diverged=True, watch=told.append)
    assert len([each for each in told if each.rounds]) < 7  # on a slow machine the clock tells more often
    assert told[-1].share == 1


@pytest.mark.slow
def test_a_healthy_run_does_not_notice_the_switch():
    plain, watched = (compare(**SETTINGS, seeds=(0,), stop_when_diverged=stop) for stop in (None, True))
    assert plain.rows == watched.rows
    assert plain.summary["algorithms"][0]["diverged"] == 0
