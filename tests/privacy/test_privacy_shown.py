"""Are ε and its assumptions shown wherever results are: simulate, tables, curves, and the front of a sweep?"""

from pathlib import Path

import pandas as pd
import pytest
from command_line import told

from perfeds2 import Cell, Protocol, simulate
from perfeds2.privacy.accounting import ASSUMPTIONS, privacy_loss, worst_losses

PRIVATE = ("--task", "synthetic", "--ues", "6", "--algorithms", "FedAvgS2", "--rounds", "12", "--clip", "1")


@pytest.mark.parametrize("bands", [1, 3])
def test_the_worst_loss_after_some_rounds_is_that_of_the_timeline_so_far(bands):
    timeline = simulate(Cell.draw(6, seed=2), Protocol(2, 3), payload_bits=1e4, samples=10, rounds=9)
    found = worst_losses(timeline, [0, 1, 5, 9], 2.0, bands=bands)
    expected = [0.0, *(privacy_loss(timeline.prefix(k), 2.0, bands=bands).max() for k in (1, 5, 9))]
    assert found.tolist() == pytest.approx(expected)


def test_simulate_prints_the_loss_of_the_worst_and_the_median_ue_without_training(tmp_path):
    status, out, _ = told("simulate", *PRIVATE, "--epsilon", "2", "--out", str(tmp_path / "a"))
    assert status == 0
    assert "worst UE" in out
    assert "zeros" in " ".join(out.split())
    assert not (tmp_path / "a" / "metrics.csv").exists()
    shown = (tmp_path / "a" / "report.html").read_text("utf-8")
    assert "ε, worst UE" in shown
    assert ASSUMPTIONS[:30] in shown
    assert "drowns" in shown


def test_a_sweep_over_noise_has_a_front_of_time_and_privacy(tmp_path):
    folder = tmp_path / "s"
    more = ("--grid", "dp-noise=0.5,2", "--target-accuracy", "0.01", "--seeds", "1", "--workers", "1")
    status, _, wrong = told("sweep", *PRIVATE, *more, "--out", str(folder))
    assert status == 0, wrong
    front = pd.read_csv(folder / "sweep_front.csv")
    assert "epsilon_to_target_median" in front
    shown = (folder / "report.html").read_text("utf-8")
    assert "Time and privacy to the target" in shown
    assert "zeros" in shown
    assert told("report", str(folder), "--x", "epsilon")[0] == 0


def test_curves_are_drawn_over_epsilon(tmp_path: Path):
    folder = str(tmp_path / "r")
    assert told("compare", *PRIVATE, "--seeds", "1", "--dp-noise", "4", "--out", folder)[0] == 0
    assert told("report", folder, "--x", "epsilon")[0] == 0
    assert "over privacy loss" in (tmp_path / "r" / "report.html").read_text("utf-8")


def test_resting_bounds_the_loss_of_fast_ues():
    """The same rounds with the same noise; the fastest UEs take part at most every third round."""
    cell, load = Cell.draw(12, seed=4, cpu_hz=(1e7, 2e9)), {"payload_bits": 1e4, "samples": 100, "rounds": 30}
    usual, resting = (simulate(cell, Protocol(2, 3, rest_rounds=rest), **load) for rest in (1, 3))
    assert resting.merges.max() <= 10 < usual.merges.max()
    assert privacy_loss(resting, 2.0).max() < privacy_loss(usual, 2.0).max()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--quorum", "3", "--rest-rounds", "3"), "times --rest-rounds 3 must be at most the number of UEs, 6"),
        (("--quorum", "2", "--rest-rounds", "2", "--stale", "ignore"), "might wait for UEs that rest"),
    ],
)
def test_resting_that_cannot_work_is_refused(more, said):
    status, _, wrong = told("simulate", *PRIVATE, *more)
    assert status == 2
    assert said in " ".join(wrong.split())
