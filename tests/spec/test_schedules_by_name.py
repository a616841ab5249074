"""Built-in schedules by name and the user's own, through a spec."""

from typing import Any

import numpy as np
import pytest
from in_numpy import train_in_numpy

from perfeds2 import compare
from perfeds2.allocation.schedule import SCHEDULES
from perfeds2.errors import InputError
from perfeds2.spec.build import Stage
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec

SMALL: dict[str, Any] = {"task": "synthetic", "ues": 8, "quorum": 3, "seeds": 1, "rounds": 12, "algorithms": "FedAvgS2"}
ASKING = ["oort", "power_of_choice:5", "tifl_adaptive"]
NAMES = [name for name in SCHEDULES if ":" not in name and name not in ("first", *ASKING)] + ["chen:0.2"]


def timeline(**settings):
    (line,) = simulate_spec(spec_from(**SMALL, **settings), "simulate", None).timelines.values()
    return line


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unplanned", ["work", "rest"])
def test_every_schedule_closes_its_rounds(name, unplanned):
    line = timeline(schedule=name, unplanned=unplanned)
    assert line.ues.shape == (12, 3)
    assert all(len(set(row)) == 3 for row in line.ues.tolist())
    if unplanned == "rest":
        assert not line.staleness.any()
        assert line.wasted_share == 0


@pytest.mark.parametrize(("name", "unplanned"), [("oort", "work"), *((name, "rest") for name in ASKING)])
@pytest.mark.slow
def test_every_schedule_that_asks_for_losses_trains(name, unplanned, monkeypatch):
    """One of them with real losses; any other numbers do for the rest."""
    if unplanned == "rest":
        train_in_numpy(monkeypatch.setattr, traced=True)
    longer: dict[str, Any] = SMALL | {"rounds": 24, "task": "digits", "ues": 6, "quorum": 2, "batch": 8}
    result = compare(**longer, schedule=name, unplanned=unplanned, feedback_rounds=4)
    (line,) = result.timelines.values()
    assert line.ues.shape == (24, 2)
    assert line.merges.min() > 0
    assert np.isfinite(result.rows[-1]["train_loss"])


def test_by_lot_every_seed_draws_its_own():
    spec = spec_from(**SMALL | {"seeds": 2}, schedule="random", unplanned="rest")
    first, second = simulate_spec(spec, "simulate", None).timelines.values()
    assert (first.ues != second.ues).any()


OWN = '''
import numpy as np


def nearest_of_the_oldest(moment):
    """Half by age, half by the channel."""
    oldest = np.argsort(moment.merged_in, kind="stable")[: moment.quorum + 2]
    return oldest[np.argsort(-moment.signal_hz[oldest])][: moment.quorum]


def by_the_cell(cell, quorum):
    def choose(moment):
        return np.argsort(cell.distance_m * (1 + (moment.merged_in == moment.round - 1)))[:quorum]

    return choose


def too_few(moment):
    return np.array([0])


def stumbles(moment):
    return moment.speed
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own")
def test_ones_own_looks_at_the_moment_too():
    line = timeline(schedule="mine.py:nearest_of_the_oldest", unplanned="rest")
    assert line.merges.min() >= 2  # 36 merges of 8 UEs, the oldest first
    line = timeline(schedule="mine.py:by_the_cell")
    spec = spec_from(**SMALL, schedule="mine.py:by_the_cell")
    assert set(line.ues[0]) == set(np.argsort(Stage.of(spec, 0).cell.distance_m)[:3])
    assert set(line.ues[1]) != set(line.ues[0])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("too_few", r"FedAvgS2: the schedule plans \[0\] for round 0; expected 3 different UEs from 0 to 7"),
        ("stumbles", r"FedAvgS2: AttributeError: .*speed.* \(mine.py, line 23\)"),
    ],
)
def test_what_ones_own_does_wrong_is_a_sentence(name, sentence):
    with pytest.raises(InputError, match=sentence):
        timeline(schedule=f"mine.py:{name}")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"unplanned": "rest", "schedule": "first"},
            "--unplanned rest needs a plan; choose a --schedule other than first",
        ),
        (
            {"schedule": "age", "stale": "wait"},
            "--schedule age may leave out a UE for more than 5 rounds, and with --stale wait",
        ),
        ({"schedule": "chen"}, "needs a number as in chen:0.5"),
        ({"schedule": "chen:-1"}, "the deadline must be a number of seconds above 0"),
        ({"schedule": "best_chanel"}, "did you mean best_channel"),
    ],
)
def test_what_cannot_be_planned_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        timeline(**settings)
