"""Are ε and its assumptions shown wherever results are: simulate, tables, curves, the front of a sweep, and a plan?"""

import json
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import told, train_here
from in_numpy import train_in_numpy

from perfeds2 import Cell, Protocol, simulate, spec_from
from perfeds2 import plan as plan_from_python
from perfeds2.errors import InputError
from perfeds2.privacy.accounting import ASSUMPTIONS, privacy_loss, worst_losses
from perfeds2.report.plan import candidates_table, write_plan
from perfeds2.studies import plan as module
from perfeds2.studies.plan_data import PlanRequest, PlanTarget
from perfeds2.studies.plan_search import PlanSearch
from perfeds2.studies.plan_space import make_space, map_of, variants
from perfeds2.studies.plan_trials import Trials

PRIVATE = ("--task", "synthetic", "--ues", "6", "--algorithms", "FedAvgS2", "--rounds", "12", "--clip", "1")


@pytest.fixture(autouse=True)
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Privacy loss does not depend on what is learned."""
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr)


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
    assert "worst ε of a UE" in shown
    assert ASSUMPTIONS[:30] in shown
    assert "too large for this fleet" in shown


def test_noise_on_the_digits_is_ten_times_as_long_as_an_upload(tmp_path):
    more = ("--algorithms", "FedAvgS2", "--rounds", "3", "--clip", "1", "--dp-noise", "1", "--quorum", "5")
    assert told("simulate", *more, "--out", str(tmp_path / "a"))[0] == 0
    found = json.loads((tmp_path / "a" / "summary.json").read_text())["algorithms"][0]
    assert found["noise_to_clip"]["mean"] == pytest.approx(9.8, abs=0.05)  # √2410 / 5


@pytest.mark.slow
def test_a_sweep_over_noise_has_a_front_of_time_and_privacy(tmp_path):
    folder = tmp_path / "s"
    more = ("--grid", "dp-noise=0.5,2", "--target-accuracy", "0.01", "--seeds", "1", "--workers", "1")
    status, _, wrong = told("sweep", *PRIVATE, *more, "--out", str(folder))
    assert status == 0, wrong
    front = pd.read_csv(folder / "sweep_front.csv")
    assert "epsilon_to_target_median" in front
    shown = (folder / "report.html").read_text("utf-8")
    assert "Time and privacy to the target" in shown
    assert escape(ASSUMPTIONS) in shown
    assert told("report", str(folder), "--x", "epsilon")[0] == 0


@pytest.mark.slow
def test_curves_are_drawn_over_epsilon(tmp_path: Path):
    folder = str(tmp_path / "r")
    assert told("compare", *PRIVATE, "--seeds", "1", "--dp-noise", "4", "--out", folder)[0] == 0
    assert told("report", folder, "--x", "epsilon")[0] == 0
    shown = (tmp_path / "r" / "report.html").read_text("utf-8")
    assert "over privacy loss" in shown
    assert escape(ASSUMPTIONS) in shown


@pytest.mark.slow
def test_the_page_of_a_run_states_the_assumptions(tmp_path: Path):
    assert told("run", *PRIVATE, "--dp-noise", "4", "--out", str(tmp_path))[0] == 0
    shown = (tmp_path / "report.html").read_text("utf-8")
    assert "worst ε of a UE" in shown
    assert escape(ASSUMPTIONS) in shown


PLANNED: dict[str, Any] = {"task": "synthetic", "ues": 6, "quorum": 2, "clip": 0.5, "epsilon": 4.0, "seeds": [0, 1]}


@pytest.mark.slow
def test_a_plan_shows_noise_and_loss_of_every_choice_and_lets_ues_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is trained: noise and losses follow from the clock."""
    space = make_space(spec_from(**PLANNED, algorithms=["PerFedS2"]), {"bandwidth": ["equal_share"]})
    asked = space.asked
    resting = next(each for each in variants(space, asked) if each.rest_rounds == 2)
    assert {each.bits for each in variants(space, asked)} == {32}  # fewer may lengthen a clipped upload
    every = [each for each in map_of(space, asked.with_(rest_rounds=4)) if each.schedule == "first"]
    longest = {each.quorum: each.rest_rounds for each in every if each.stale == "restart"}
    assert longest == {1: 4, 2: 2, 3: 2, 4: 1, 6: 1}
    trials, target = Trials(space, 0.9), PlanTarget(0.9, "accuracy", 2.0, 6.0, "given")
    searched = PlanSearch(space, trials, PlanRequest(), target, 1 / 3, listed={asked: None, resting: None})
    monkeypatch.setattr(module, "search_at_horizons", lambda *_: (searched, None))
    made = module.make_plan(space, PlanRequest(), trials)
    usual, rested = made.candidates
    assert [usual.epsilon_worst, rested.epsilon_worst] == pytest.approx([4.0, 4.0])
    assert 0 < (rested.noise or 0) < (usual.noise or 0)
    impossible = trials.play(asked.with_(rest_rounds=4), 0, 2.0)
    assert "must be at most the number of UEs" in impossible.obstacle
    table = candidates_table(made)
    assert {"rest", "σ", "ε"} <= {column.head for column in table.columns}
    assert {len(row) for row in table.rows} == {len(table.columns)}
    write_plan(replace(made, choice=1), tmp_path)
    shown = (tmp_path / "report.html").read_text("utf-8")
    for said in (escape(ASSUMPTIONS), "clipped to norm 0.5", "ε, worst UE", "the model is too large for this fleet"):
        assert said in shown
    assert str(resting).endswith("2 rest rounds")


@pytest.mark.slow
def test_a_plan_that_noise_makes_impossible_says_so_in_numbers():
    with pytest.raises(InputError, match=r"too large for this fleet. .* σ = [\d.]+, A = 2"):
        plan_from_python(**PLANNED, target_accuracy=0.99, horizon_s=1.0)


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
