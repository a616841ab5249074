"""Is the paper's method the default, and is there a sensible one where rounds cannot be planned?"""

import shlex

import numpy as np
import pytest
from command_line import commands

from perfeds2 import Algorithm, Cell, Learner, PerFed, Protocol, by_distance, equal_share, simulate
from perfeds2.allocation.bandwidth import equal_finish
from perfeds2.commands.common import nested_values, take_settings
from perfeds2.paper.figures import DISTANCE, PAPER
from perfeds2.runs.notes import has_ties
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.line import command_line
from perfeds2.spec.resolve import resolve, spec_from
from perfeds2.studies.compare import simulate_spec
from perfeds2.studies.figure import merged


def rounds_of(spec):
    return str(spec.protocol.schedule), str(spec.protocol.bandwidth), str(spec.protocol.shares)


PAPERS = ("deficit", "equal_finish", "distance")
ARRIVALS = ("first", "equal_share", "equal")


def test_the_default_is_the_papers_method():
    spec = spec_from()
    assert rounds_of(spec) == PAPERS
    of_figure = merged(PAPER, {"protocol": DISTANCE["protocol"]})["protocol"]
    assert {key: str(value) for key, value in of_figure.items()} == {
        key: str(value) for key, value in spec.protocol if key in of_figure
    }


def test_by_default_no_ue_of_perfeds2_waits():
    def waits(**settings):
        spec = spec_from(algorithms=["PerFedS2", "PerFed-SYN"], seeds=[0, 1], horizon_s=3, **settings)
        rows = simulate_spec(spec, "simulate", None).summary["algorithms"]
        return [row["waiting_share"]["mean"] for row in rows]

    assert waits() == pytest.approx([0.0, 0.0], abs=1e-9)
    of_s2, of_syn = waits(schedule="first")
    assert of_s2 > 0.05
    assert of_syn > 0.2


@pytest.mark.parametrize(
    "settings",
    [
        {"cells": 3, "ues": 21},
        {"cells": 3, "ues": 21, "mobility": "waypoint", "speed_mps": 10.0, "algorithms": ["PerFedS2"]},
        {"quorum": 3, "max_staleness": 4},  # 12 UEs at most can be merged within the bound
        {"stale": "wait"},
        {"stale": "ignore"},
        {"rest_rounds": 2},
        {"energy_budget": 1.0},
        {"schedule": "first"},
    ],
    ids=str,
)
def test_rounds_that_cannot_be_planned_close_on_the_first_arrivals(settings):
    spec = spec_from(**{"seeds": [0], "rounds": 3} | settings)
    assert rounds_of(spec) == ARRIVALS
    assert simulate_spec(spec, "simulate", None).summary["algorithms"]


@pytest.mark.parametrize(
    "settings",
    [
        {"cells": 3, "ues": 21, "merge_at": "cloud"},
        {"mobility": "waypoint", "speed_mps": 1.4, "radio": "umi"},
        {"quorum": 1, "max_staleness": "unbounded"},
        {"quorum": 20},
        {"unplanned": "rest"},
        {"clip": 1.0, "dp_noise": 1.0, "algorithms": ["FedAvgS2"]},
        {"ues": 1},
        {"algorithms": ["FedAT", "TiFL", "SAFA", "FedCompass", "FedBuff"]},
    ],
    ids=str,
)
def test_rounds_that_can_be_planned_are(settings):
    spec = spec_from(**{"seeds": [0], "rounds": 3} | settings)
    assert rounds_of(spec) == PAPERS
    assert simulate_spec(spec, "simulate", None).summary["algorithms"]


def test_a_schedule_of_your_own_keeps_the_bandwidth_of_the_plan():
    assert rounds_of(spec_from(schedule="random")) == ("random", "equal_finish", "distance")
    assert rounds_of(spec_from(schedule="random", quorum=1)) == ("random", "equal_finish", "equal")  # none suits A, S


def test_baselines_share_the_band_in_the_same_way_unless_their_rounds_are_a_race():
    names = ["PerFedS2", "FedAvgS2", "PerFed-SYN", "FedAvg-ASY", "SAFA"]
    mine = Algorithm("fixed", Learner(PerFed(0.03)), bandwidth=equal_share)
    race = Algorithm("race", Learner(PerFed(0.03)), Protocol(2))
    spec = spec_from(algorithms=[*names, mine, race, Algorithm("follows", Learner(PerFed(0.03)))], seeds=[0])
    used = [each.bandwidth for each in make_algorithms(spec, Stage.of(spec, 0))]
    assert used == [*[equal_finish] * 3, *[equal_share] * 4, equal_finish]


def test_all_ues_arriving_together_without_a_plan_is_explained():
    trap = spec_from(schedule="first", bandwidth="equal_finish", algorithms=["PerFedS2"], seeds=[0], rounds=3)
    notes = simulate_spec(trap, "simulate", None).summary["notes"]
    assert any("add --schedule deficit" in note for note in notes)
    for fine in (
        spec_from(),
        spec_from(schedule="first"),
        spec_from(schedule="first", bandwidth="equal_finish", quorum=20),
        spec_from(schedule="first", bandwidth="equal_finish", algorithms=["PerFed-SYN", "PerFed-ASY", "SAFA"]),
    ):
        assert not has_ties(fine)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "first", "bandwidth": "equal_finish"},
        {"schedule": "first", "shares": "distance"},
        {"bandwidth": "equal_share"},
        {"rest_rounds": 2, "bandwidth": "equal_finish"},
        {"energy_budget": 5.0},
        {"quorum": 3, "max_staleness": 4, "shares": "distance"},
    ],
    ids=str,
)
def test_the_command_line_of_a_spec_says_what_differs_from_these_defaults(settings):
    spec = spec_from(algorithms=["PerFedS2"], seeds=[0], **settings)
    _, name, *words = shlex.split(command_line("run", spec, {}))
    command = commands()
    context = command.make_context("perfeds2", [name, *words])
    _, command, words = command.resolve_command(context, [name, *words])  # pyright: ignore[reportAttributeAccessIssue] (a group)
    file, assignments, flags = take_settings(command.make_context(name, words, parent=context).params)
    assert resolve(nested_values(file, flags, assignments, {})) == spec


def test_by_distance_is_the_schedule_of_the_default():
    spec = spec_from(algorithms=["PerFedS2"], seeds=[0], rounds=50)
    stage = Stage.of(spec, 0)
    (default,) = make_timelines(spec, stage, make_algorithms(spec, stage))
    cell = Cell.draw(20, seed=0, cycles_per_sample=stage.cell.cycles_per_sample)
    plan = by_distance(cell, 5, 5, payload_bits=77_120, samples=120)
    planned = {"schedule": plan, "bandwidth": equal_finish, "rounds": 50}
    mine = simulate(cell, Protocol(5, 5), payload_bits=77_120, samples=120, **planned)
    np.testing.assert_array_equal(mine.ues, default.ues)
    assert mine.end_s == default.end_s


def test_a_plan_for_a_billion_rounds_is_made_for_a_few_and_repeated(monkeypatch):
    monkeypatch.setattr("perfeds2.allocation.schedule.MAX_ROWS", 64)
    spec = spec_from(algorithms=["PerFedS2"], seeds=[0], rounds=10**9)
    (algorithm,) = make_algorithms(spec, Stage.of(spec, 0))
    assert algorithm.schedule is not None
    np.testing.assert_array_equal(algorithm.schedule(64 + 7), algorithm.schedule(7))
