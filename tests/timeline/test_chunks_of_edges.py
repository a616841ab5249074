"""Schedules with feedback in many cells: edges are played in chunks, in order of time."""

import math
from typing import Any

import numpy as np
import pytest

from perfeds2.allocation.schedulers import Moment, age
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.mobility import Moves, Waypoints
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import conditions_of_edges, simulate_cells
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.protocol import Protocol

UES, RADIUS_M = 12, 60.0


class Watching:
    """Choose by age, and remember what was seen."""

    feedback = "loss"

    def __init__(self) -> None:
        self.seen: list[Moment] = []

    def __deepcopy__(self, _: dict[int, Any]) -> "Watching":
        return self

    def __call__(self, moment: Moment) -> np.ndarray:
        self.seen.append(moment)
        return age(moment)


def network(kind: str, backhaul_s: float) -> Cells:
    moves: dict[str, Any] = {"coherence_s": 0.05, "moves": Moves(Waypoints, 40.0, RADIUS_M)}
    drawn = Cell.draw(UES, seed=3, radius_m=RADIUS_M, **(moves if kind == "moving" else {}))
    interference = "coupled" if kind == "coupled" else None
    grid, bps = Sites.grid(3, RADIUS_M), 1e8 if backhaul_s else math.inf
    return make_cells(
        drawn, grid, RADIUS_M, backhaul_s=backhaul_s, backhaul_bps=bps, interference=interference, keeps=True
    )


def settings(cells: Cells, edge_rounds: int, cloud_quorum: int, **schedules: Any) -> dict[str, Any]:
    terms = {"cells": cells, "protocol": Protocol(2, 4), "cloud": Protocol(cloud_quorum), "edge_rounds": edge_rounds}
    return terms | {"payload_bits": 77_120.0, "samples": 120.0, "model_bits": 1e5, **schedules}


@pytest.mark.parametrize("until", [{"rounds": 40}, {"horizon_s": 2.0}], ids=str)
@pytest.mark.parametrize(("backhaul_s", "edge_rounds", "cloud_quorum"), [(0.02, 2, 1), (0.0, 3, 3), (0.3, 1, 2)])
@pytest.mark.parametrize("kind", ["separate", "coupled", "moving"])
def test_chunks_are_the_whole_timeline_if_the_reports_are_ignored(kind, backhaul_s, edge_rounds, cloud_quorum, until):
    """Without a backhaul, and with a slow one, many rounds close at the same instant."""
    given = settings(network(kind, backhaul_s), edge_rounds, cloud_quorum, schedules=[age] * 3)
    whole = simulate_cells(**given, **until)
    for chunk in (1, 7):
        play = ChunkedPlay(conditions_of_edges(**given), until.get("rounds"), until.get("horizon_s"), chunk)
        while not play.is_finished:
            part = play.play(np.full(UES, np.nan))
            for name in ("ues", "staleness", "arrival_s", "time_s"):
                np.testing.assert_array_equal(vars(part)[name], vars(whole)[name][: part.rounds])
        for name, column in whole.columns.items():
            np.testing.assert_array_equal(play.timeline.columns[name], column)


@pytest.mark.parametrize("kind", ["separate", "coupled"])
def test_an_edge_sees_the_reports_of_its_own_ues_up_to_the_last_chunk(kind):
    cells = network(kind, 0.02)
    watching = [Watching() for _ in range(3)]
    play = ChunkedPlay(conditions_of_edges(**settings(cells, 2, 1, schedules=watching)), 42, chunk=1)
    while not play.is_finished:
        before, seen = play.timeline, [len(one.seen) for one in watching]
        reported = np.where(before.merges > 0, np.arange(UES) + before.rounds, np.nan)
        play.play(reported)
        for one, first, ues in zip(watching, seen, cells.members, strict=True):
            for moment in one.seen[first:]:
                np.testing.assert_array_equal(moment.feedback, reported[ues])
                assert moment.time_s >= before.end_s
    assert sum(len(one.seen) for one in watching) > 42


def test_edges_share_no_state_of_a_schedule():
    class Counts:
        feedback = "loss"

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, moment: Moment) -> np.ndarray:
            self.calls += 1
            assert self.calls == moment.round + 1
            return age(moment)

    one = Counts()
    simulate_cells(**settings(network("separate", 0.02), 2, 1, schedules=[one] * 3), rounds=20)
    assert one.calls == 0
