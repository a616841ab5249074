"""Is what the page draws what the clock did?"""

import math

import numpy as np
import pytest

from perfeds2.play import rounds
from perfeds2.play.knobs import read_state, settings_at
from perfeds2.play.rounds import TICKS, play_cells
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.resolve import spec_from

OTHERS = [
    {},
    {"ues": 7, "quorum": 3, "max_staleness": 1, "stale": "wait"},
    {"ues": 12, "quorum": 4, "max_staleness": 0, "stale": "ignore", "seed": 5},
    {"ues": 12, "quorum": 2, "max_staleness": 1, "stale": "restart", "radio": "umi", "bandwidth_hz": 5e6},
    {"ues": 50, "quorum": 12, "bandwidth": "equal_finish", "objective": "FedAvg"},
]


def timelines(state, horizon_s):
    spec = spec_from(**settings_at(state, horizon_s))
    stage = Stage.of(spec, spec.run.seeds[0])
    return list(make_timelines(spec, stage, make_algorithms(spec, stage)))


def state_in(cell, ue, tick):
    """As anybody would read the jobs: the one that goes on then."""
    jobs = cell["jobs"]
    for job in range(len(jobs["ue"])):
        if jobs["ue"][job] == ue and jobs["start"][job] <= tick < jobs["end"][job]:
            if tick < jobs["sending"][job]:
                return "waiting" if tick < jobs["begun"][job] else "computing"
            return "sending" if tick < jobs["arrival"][job] else "waiting"
    return "idle"


@pytest.mark.slow
@pytest.mark.parametrize("moved", OTHERS, ids=str)
def test_the_jobs_say_of_every_moment_what_the_timeline_says(moved):
    """Two ways: the page's jobs in ticks, and the timeline's activity of each UE, of a longer run."""
    state, draw = read_state(moved | {"window_s": 0.2}), np.random.default_rng(1)
    answer, longer = play_cells(state), timelines(state, 1.0)
    tick_s = state["window_s"] / TICKS
    for cell, timeline in zip(answer["cells"], longer, strict=True):
        assert cell["rounds"][0] == [round(t / tick_s) for t in timeline.time_s if t <= state["window_s"]]
        looked = 0
        for _ in range(60):
            ue, tick = int(draw.integers(state["ues"])), int(draw.integers(min(cell["until"], TICKS)))
            intervals = timeline.activity(ue)
            if min(abs(end / tick_s - tick) for _, _, end in intervals) < 2:
                continue  # on a border
            expected = next(what for what, begin, end in intervals if begin / tick_s <= tick < end / tick_s)
            assert state_in(cell, ue, tick) == expected, (cell["name"], ue, tick)
            looked += 1
        assert looked > 20


def test_a_job_begins_when_its_model_has_come():
    for cell in play_cells(read_state({"ues": 4, "quorum": 2, "window_s": 0.2}), {"downlink_s": 0.02}, whole=False)[
        "cells"
    ]:
        assert state_in(cell, 0, TICKS // 20) == "waiting"
        assert state_in(cell, 0, cell["jobs"]["sending"][0] - 1) == "computing"
        waits = {b - s for s, b in zip(cell["jobs"]["start"], cell["jobs"]["begun"], strict=True) if b < TICKS}
        assert waits <= {TICKS // 10 - 1, TICKS // 10, TICKS // 10 + 1}


@pytest.mark.slow
@pytest.mark.parametrize("moved", OTHERS, ids=str)
def test_a_merged_job_has_its_round_and_its_staleness(moved):
    state = read_state(moved | {"window_s": 0.2})
    for cell, timeline in zip(play_cells(state)["cells"], timelines(state, state["window_s"]), strict=True):
        jobs = cell["jobs"]
        ends = [
            (r, jobs["ue"][j], r - jobs["version"][j]) for j, r in enumerate(jobs["round"]) if 0 <= r < timeline.rounds
        ]
        merged = [
            (k, int(ue), int(age))
            for k in range(timeline.rounds)
            for ue, age in zip(timeline.ues[k], timeline.staleness[k], strict=True)
        ]
        assert sorted(ends) == sorted(merged)
        if cell["max_staleness"] is not None:
            assert max((age for *_, age in ends), default=0) <= cell["max_staleness"]


def test_all_three_meet_the_same_ues_and_the_first_round_begins_alike():
    answer = play_cells(read_state({"window_s": 2}))
    begun = [
        sorted(
            (cell["jobs"]["ue"][j], cell["jobs"]["sending"][j])
            for j, version in enumerate(cell["jobs"]["version"])
            if version == 0
        )
        for cell in answer["cells"]
    ]
    assert begun[0] == begun[1] == begun[2]
    assert len(answer["places_m"][0]) == 20


def test_what_has_no_round_yet_is_drawn_all_the_same():
    answer = play_cells(read_state({"bandwidth_hz": 5e4, "ues": 50, "window_s": 0.5}))
    for cell in answer["cells"]:
        assert cell["numbers"]["rounds"] == 0
        assert cell["until"] > TICKS  # the round that closes later is played
        assert set(cell["jobs"]["ue"]) == set(range(50))
        assert cell["numbers"]["seconds_per_round"] is None


@pytest.mark.parametrize("moved", [{}, {"bandwidth": "weighted_rate", "ues": 40, "window_s": 5}])
def test_the_first_answer_is_the_beginning_of_the_whole_one(moved, monkeypatch):
    monkeypatch.setattr(rounds, "FIRST", 8)
    monkeypatch.setattr(rounds, "MOST", 150)
    state = read_state(moved)
    first, whole = play_cells(state, whole=False), play_cells(state)
    assert not all(cell["complete"] for cell in first["cells"])
    for early, late in zip(first["cells"], whole["cells"], strict=True):
        assert early["rounds"][0] == late["rounds"][0][: len(early["rounds"][0])]
        over = {
            (early["jobs"]["ue"][j], early["jobs"]["start"][j], early["jobs"]["end"][j])
            for j, outcome in enumerate(early["jobs"]["outcome"])
            if outcome < 2
        }
        known = set(zip(*(late["jobs"][name] for name in ("ue", "start", "end")), strict=True))
        assert over <= known
        assert len(late["rounds"][0]) <= 150


def test_each_of_several_cells_counts_its_own_rounds_and_models():
    state = read_state({"cells": 3, "ues": 20, "quorum": 9, "window_s": 2})
    assert (state["ues"], state["quorum"]) == (18, 6)
    answer = play_cells(state)
    assert len(answer["stations_m"]) == 3
    assert np.bincount(answer["cell_of"][0]).tolist() == [6, 6, 6]
    for cell in answer["cells"]:
        assert len(cell["rounds"]) == 3
        jobs = cell["jobs"]
        for ue, version, round_, start in zip(
            *(jobs[name] for name in ("ue", "version", "round", "start")), strict=True
        ):
            closed = cell["rounds"][answer["cell_of"][0][ue]]
            assert round_ < 0 or version <= round_  # it is merged by a round of its own cell
            assert start == (0 if version == 0 else closed[version - 1])


def test_ues_of_several_cells_are_drawn_around_their_base_station():
    answer = play_cells(read_state({"cells": 2, "ues": 8, "window_s": 0.5}))
    for place, own in zip(answer["places_m"][0], answer["cell_of"][0], strict=True):
        away = [math.dist(place, station) for station in answer["stations_m"]]
        assert away[own] == min(away)


@pytest.mark.slow
def test_moving_ues_change_their_base_station_on_the_way():
    answer = play_cells(read_state({"cells": 3, "ues": 9, "quorum": 1, "walk_mps": 30, "window_s": 5, "radius_m": 50}))
    assert len(answer["places_m"]) == len(answer["cell_of"]) == rounds.FRAMES
    first, last = answer["places_m"][0], answer["places_m"][-1]
    assert all(math.dist(*both) > 1 for both in zip(first, last, strict=True))
    assert len({tuple(frame) for frame in answer["cell_of"]}) > 1
    assert ["sentence" in cell for cell in answer["cells"]] == [True, False, False]
