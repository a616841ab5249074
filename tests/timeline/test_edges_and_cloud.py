"""Do edges and cloud play as their description says? By hand, against single cells, and against a slow twin."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from network_twin import assert_agrees, play_network
from random_runs import STALE, assert_same, only, uneven_share
from twin_inputs import Inputs, Levels, Place, Round, RoundRules, Site

from perfeds2.allocation.bandwidth import equal_finish, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.fleet import Fleet
from perfeds2.network.handover import Attached, Handover
from perfeds2.network.link import Downlink
from perfeds2.network.mobility import GaussMarkov, Moves, Waypoints
from perfeds2.network.sites import Sites
from perfeds2.runs.trainer import stalls_until
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.clock import Clock
from perfeds2.timeline.fast import play as compiled
from perfeds2.timeline.jobs import LOST, MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate
from perfeds2.timeline.state import Budget

LOAD: dict[str, Any] = {"payload_bits": 1e5, "samples": 100.0}


def cells_of(ues: int, count: int, seed: int = 0, backhaul_s: float = 0.0, **rest) -> Cells:
    return make_cells(Cell.draw(ues, seed, **rest), Sites.grid(count, 200.0), 200.0, backhaul_s=backhaul_s)


def rounds_of(timeline: Timeline, edge: int, ues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times of an edge's rounds, and the UEs they merged in the edge's own numbers."""
    assert timeline.cloud is not None
    rows = timeline.cloud.cell == edge
    return timeline.time_s[rows], np.searchsorted(ues, timeline.ues[rows])


@pytest.mark.parametrize("clock", ["numpy", "compiled"])
def test_one_cell_with_a_free_backhaul_is_a_single_cell(clock):
    cells, protocol = cells_of(12, 1, seed=3), Protocol(3, 4)
    with only(clock):
        many = simulate_cells(cells, protocol, Protocol(1), **LOAD, edge_rounds=2, rounds=30)
        alone = simulate(cells.cells[0], protocol, **LOAD, rounds=30)
    assert many.cloud is not None
    np.testing.assert_array_equal(many.cloud.time_s, alone.time_s[1::2])
    assert not many.log.model_s.any()
    assert_same(replace(many, cloud=None), alone)


def test_edges_are_independent_until_the_cloud_merges_them():
    """κ₂ = 5: the first five rounds of each edge are those of its cell alone, whatever the others are like."""
    one, other = cells_of(12, 2, seed=1), cells_of(12, 2, seed=1)
    other = replace(other, cells=[one.cells[0], replace(other.cells[1], bandwidth_hz=1e5)])
    for cells in (one, other):
        timeline = simulate_cells(cells, Protocol(2, 3), Protocol(2), **LOAD, edge_rounds=5, rounds=10)
        for edge, cell in enumerate(cells.cells):
            alone = simulate(cell, Protocol(2, 3), **LOAD, rounds=5)
            times_s, merged = rounds_of(timeline, edge, cells.ues[edge])
            np.testing.assert_array_equal(times_s, alone.time_s)
            np.testing.assert_array_equal(merged, alone.ues)


def test_two_synchronous_edges_by_hand():
    """Jobs of 1 s and 2 s in two edges, no time to send, 0.25 s of backhaul each way, κ₂ = 2.

    Edge 0 closes at 1 and 2 s, edge 1 at 2 and 4 s. The cloud has both at 4.25 s and its model is there at 4.5 s. So
    edge 0 closes at 5.5 and 6.5 s, edge 1 at 6.5 and 8.5 s.
    """
    cells = cells_of(4, 2, backhaul_s=0.25)
    cells = replace(
        cells,
        cells=[replace(c, cpu_hz=np.full(2, 1e8 / (e + 1)), bandwidth_hz=1e15) for e, c in enumerate(cells.cells)],
    )
    load: dict[str, Any] = {"payload_bits": 1e-6, "samples": 1e8 / cells.cells[0].cycles_per_sample}
    timeline = simulate_cells(cells, Protocol(2), Protocol(2), **load, edge_rounds=2, rounds=8)
    cloud = timeline.cloud
    assert cloud is not None
    np.testing.assert_allclose(timeline.time_s, [1, 2, 2, 4, 5.5, 6.5, 6.5, 8.5], atol=1e-9)
    np.testing.assert_array_equal(cloud.cell, [0, 0, 1, 1, 0, 0, 1, 1])
    np.testing.assert_allclose(cloud.time_s[0], 4.25, atol=1e-9)
    np.testing.assert_allclose(cloud.arrival_s[0], [2.25, 4.25], atol=1e-9)
    assert cloud.rows[0] == 4
    model_s = timeline.rows(MERGED).model_s[::2]
    np.testing.assert_allclose(model_s, [0, 0, 0, 0, 2.5, 0, 0.5, 0], atol=1e-9)
    np.testing.assert_array_equal(timeline.staleness[:, 0], [0, 0, 2, 0, 2, 0, 2, 0])  # in rows of all edges
    seconds = timeline.seconds()
    assert seconds["computing"] == pytest.approx(2 * 4 * 1 + 2 * 4 * 2, abs=1e-6)  # four jobs of each UE
    assert seconds["waiting"] == pytest.approx(2 * (8.5 - 4) + 2 * (8.5 - 8), abs=1e-6)
    assert [state for state, *_ in timeline.activity(0)] == ["computing", "computing", "waiting"] * 2
    held = simulate_cells(cells, Protocol(2), Protocol(2), **load, edge_rounds=2, horizon_s=8.9)
    assert held.rounds == 8
    assert stalls_until(held, 8.9) == 8.9  # the next model comes at 9 s
    longer = simulate_cells(cells, Protocol(2), Protocol(2), **load, edge_rounds=2, horizon_s=9.5)
    assert stalls_until(longer, 9.5) == longer.end_s == pytest.approx(8.5)  # UEs compute again


def test_a_fixed_delay_of_the_model_is_waiting():
    """Two UEs compute for 2 s, after 1 s in which they have no model; sending takes no time."""
    cell = Cell.draw(2, seed=0, bandwidth_hz=1e15, downlink_s=1.0)
    cell = replace(cell, cpu_hz=np.full(2, 1e8))
    load: dict[str, Any] = {"payload_bits": 1e-6, "samples": 2e8 / cell.cycles_per_sample}
    timeline = simulate(cell, Protocol(2), **load, rounds=3)
    assert timeline.seconds() == pytest.approx({"computing": 12, "sending": 0, "waiting": 6, "idle": 0}, abs=1e-6)
    assert timeline.waiting_share == pytest.approx(1 / 3)
    first = [(state, round(start_s, 6), round(end_s, 6)) for state, start_s, end_s in timeline.activity(0)[:2]]
    assert first == [("waiting", 0, 1), ("computing", 1, 3)]
    assert timeline.prefix(2).seconds() == pytest.approx(simulate(cell, Protocol(2), **load, rounds=2).seconds())


def test_what_a_base_station_sends_waits_for_the_cloud():
    """With a downlink, the next model goes on air when it has come from the cloud, not when the round closes."""
    cells = cells_of(4, 2, backhaul_s=0.5, downlink=Downlink("multicast", 25.0, 1e6))
    timeline = simulate_cells(cells, Protocol(2), Protocol(2), **LOAD, rounds=6)
    cloud = timeline.cloud
    assert cloud is not None
    opened_s = cloud.time_s[0] + 0.5
    for row in (2, 3):
        cell = cells.cells[cloud.cell[row]]
        closed_s = timeline.time_s[:2][cloud.cell[:2] == cloud.cell[row]]
        expected_s = opened_s - closed_s + cell.model_s(2) - cell.downlink_s
        model_s = timeline.rows(MERGED).model_s[2 * row : 2 * row + 2]
        np.testing.assert_allclose(model_s, np.broadcast_to(expected_s, 2)[[0, 1]])


def test_a_longer_simulation_begins_with_a_shorter_one():
    cells = cells_of(21, 7, seed=2, backhaul_s=0.01)
    more = simulate_cells(cells, Protocol(2, 3), Protocol(3, 3, "wait"), **LOAD, edge_rounds=2, rounds=90)
    less = simulate_cells(cells, Protocol(2, 3), Protocol(3, 3, "wait"), **LOAD, edge_rounds=2, rounds=40)
    cut = simulate_cells(cells, Protocol(2, 3), Protocol(3, 3, "wait"), **LOAD, edge_rounds=2, horizon_s=less.end_s)
    for shorter in (less, cut):
        assert shorter.rounds == 40
        np.testing.assert_array_equal(shorter.ues, more.ues[:40])
        np.testing.assert_array_equal(shorter.time_s, more.time_s[:40])
        np.testing.assert_array_equal(shorter.staleness, more.staleness[:40])


def on_both_clocks(cells: Cells, protocol: Protocol, cloud: Protocol, **limits) -> Timeline:
    """Play on both clocks, assert that the timelines are the same, and that the compiled one played all rounds."""
    with only("numpy"):
        slow = simulate_cells(cells, protocol, cloud, **LOAD, **limits)
    by_numpy = []
    with only("compiled"), patch.object(Clock, "_close", lambda *given: by_numpy.append(given)):
        fast = simulate_cells(cells, protocol, cloud, **LOAD, **limits)
    assert slow.cloud is not None
    assert slow.cloud.rows.size > 5
    for name, column in slow.columns.items():
        np.testing.assert_array_equal(column, fast.columns[name], err_msg=name)
    assert by_numpy == []
    return fast


@pytest.mark.slow
@pytest.mark.parametrize("policy", [equal_share, equal_finish], ids=lambda policy: policy.__name__)
def test_the_compiled_clock_plays_the_same(policy):
    cells = cells_of(40, 4, seed=2, backhaul_s=0.05)
    for protocol in (Protocol(3, 2), Protocol(3, 4, "wait"), Protocol(3, 1, "ignore"), Protocol(10), Protocol(1)):
        on_both_clocks(cells, protocol, Protocol(2, 2, "wait"), edge_rounds=3, rounds=100, bandwidth=policy)


@pytest.mark.slow
@pytest.mark.parametrize("cloud", [Protocol(1), Protocol(7), Protocol(2, 3, "wait"), Protocol(3, 5, "wait")])
@pytest.mark.parametrize("limits", [{"horizon_s": 4.0}, {"rounds": 90, "horizon_s": 3.0}, {"rounds": 90}])
def test_the_compiled_clock_plays_unequal_edges(cloud, limits, monkeypatch):
    """Edges of different speed run out of signals at different times, and room for lost jobs grows from one row."""
    cells = cells_of(21, 7, seed=2, backhaul_s=0.05)
    unequal = [replace(cell, bandwidth_hz=1e6 * 0.7**e) for e, cell in enumerate(cells.cells)]
    monkeypatch.setattr(compiled, "AT_A_TIME", 21 * 5)
    monkeypatch.setattr(compiled, "LOST_ROWS", 1)
    timeline = on_both_clocks(replace(cells, cells=unequal), Protocol(1, 1), cloud, **limits)
    assert timeline.rows(LOST).ue.size > 5


def test_the_compiled_clock_takes_over_and_hands_back(monkeypatch):
    """It is loaded after three exchanges, and leaves a round between two exchanges to the NumPy clock."""
    cells, protocol = cells_of(12, 3, seed=1, backhaul_s=0.05), Protocol(2, 3)
    whole = on_both_clocks(cells, protocol, Protocol(1), edge_rounds=3, horizon_s=6.0)
    kernel, asked, ended = compiled.loading.Loaded.kernels[False], [], []
    loops = kernel.names.play_rounds

    def play_rounds(*given):
        why, *played = loops(*given)
        ended.append(why)
        return kernel.names.ASK if len(ended) == 3 else why, *played

    def loaded(*given, **_):
        asked.append(given)
        return kernel if len(asked) > 3 else None

    monkeypatch.setattr(compiled.loading, "loaded", loaded)
    monkeypatch.setattr(compiled, "AT_A_TIME", 12 * 4)
    monkeypatch.setattr(kernel.names, "play_rounds", play_rounds)
    with only("compiled"):
        turned = simulate_cells(cells, protocol, Protocol(1), **LOAD, edge_rounds=3, horizon_s=6.0)
    assert ended[2] == kernel.names.DRAW
    assert len(asked) == 3 + 2
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(column, turned.columns[name], err_msg=name)


def test_one_compiled_loop_serves_single_cells_and_edges():
    cells = cells_of(12, 3)
    with only("compiled"):
        simulate(cells.cells[0], Protocol(1), **LOAD, rounds=3)
        simulate_cells(cells, Protocol(1), Protocol(1), **LOAD, rounds=9)
        play_rounds = compiled.loading.Loaded.kernels[False].names.play_rounds
    assert len({str(signature) for signature in play_rounds.signatures}) <= 2  # with and without equal_finish


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_edges_and_cloud_agree_with_processes(seed):
    """40 random settings: cells, protocols at both levels, κ₂, backhauls, radios that change within rounds."""
    random = np.random.default_rng([seed, 32])
    count, per_cell = int(random.integers(1, 5)), int(random.integers(1, 6))
    coherence_s = None if seed % 3 else float(random.uniform(0.02, 0.2))
    drawn = Cell.draw(count * per_cell, seed, cpu_hz=(2e7, 2e9), coherence_s=coherence_s)
    backhaul: dict[str, Any] = {
        "backhaul_bps": float(10 ** random.uniform(5, 8)),
        "backhaul_s": float(random.uniform(0, 0.3)),
    }
    backhaul = backhaul if seed % 4 else {}
    cells = make_cells(drawn, Sites.grid(count, 200.0), 200.0, interference="full" if seed % 2 else None, **backhaul)
    quorum, bound = int(random.integers(1, per_cell + 1)), [None, int(random.integers(0, 5))][seed % 2]
    protocol = Protocol(quorum, bound, STALE[seed % 3])
    cloud_quorum = int(random.integers(1, count + 1))
    least = -(-count // cloud_quorum) - 1
    cloud = Protocol(cloud_quorum, None if seed % 5 < 2 else least + int(random.integers(0, 3)), "wait")
    edge_rounds, policy = int(random.integers(1, 4)), [equal_share, uneven_share(seed)][seed % 2]
    until_s = 3.0
    timeline = simulate_cells(
        cells, protocol, cloud, **LOAD, model_bits=1e5, edge_rounds=edge_rounds, horizon_s=until_s, bandwidth=policy
    )
    assert_agrees(timeline, *twin_of(cells, protocol, cloud, edge_rounds, until_s, policy))


def twin_of(
    cells: Cells,
    protocol: Protocol,
    cloud: Protocol,
    edge_rounds: int,
    until_s: float,
    policy,
    level_db: Levels | None = None,
    co_channel: Sequence[Sequence[bool]] = (),
) -> tuple[list[list[Round]], list[Round]]:
    """Play edges and cloud on the twin."""
    transfer_s, trips_s = cells.transfer_s(1e5), cells.transfer_s(LOAD["payload_bits"])
    compute_s = np.empty(cells.population)
    sites, places = [], []
    for edge, (cell, own) in enumerate(zip(cells.cells, cells.ues, strict=True)):
        signal_hz = cell.signal_hz if cell.coherence_s is None else cell.channel.signal_in
        limits = (cell.cap_bits_per_s_hz, cell.coherence_s or math.inf)
        sites.append(Site(own.tolist(), signal_hz, cell.bandwidth_hz, policy, *limits))
        places.append(Place([edge], own.tolist(), None, np.zeros(own.size), float(transfer_s[edge])))
        compute_s[own] = cell.compute_s(LOAD["samples"])
    inputs = Inputs(
        sites,
        places,
        RoundRules(protocol.quorum, protocol.max_staleness, protocol.stale),
        compute_s.tolist(),
        LOAD["payload_bits"],
        cells.places()[2].tolist(),
        np.where(np.eye(len(sites)), 0.0, trips_s[:, None] + trips_s).tolist(),
        level_db=level_db,
        keeps=cells.keeps or level_db is None,
        co_channel=co_channel,
        cloud=RoundRules(cloud.quorum, cloud.max_staleness, "wait"),
        edge_rounds=edge_rounds,
    )
    return play_network(inputs, until_s)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_edges_and_cloud_agree_with_processes_where_ues_are_handed_over(seed, keeps):
    """Small cells and fast UEs: in 4 s there are dozens of handovers, and jobs are lost or follow their UEs."""
    random = np.random.default_rng([seed, 33])
    count, ues = int(random.integers(2, 5)), int(random.integers(2, 4))
    moves = Moves([Waypoints, GaussMarkov][seed % 2], 40.0, 1.0)
    drawn = Cell.draw(count * ues, seed, cpu_hz=(2e7, 2e9), coherence_s=0.16 / 1.3, moves=moves)
    backhaul_s = float(random.uniform(0, 0.3)) * (seed % 4 > 0)
    cells = make_cells(drawn, Sites.grid(count, 20.0), 20.0, backhaul_s=backhaul_s, keeps=keeps)
    if keeps:
        cells = replace(cells, backhaul_s=backhaul_s * np.linspace(0.2, 1.0, count))
    quorum, stale = (1 + seed // 4 % 2, STALE[seed // 2 % 3]) if keeps else (1, STALE[seed % 2])
    protocol = Protocol(quorum, [None, 6, 9][seed % 3] if keeps else [None, 2, 4][seed % 3], stale)
    cloud = Protocol(int(random.integers(1, count + 1)), None if seed % 5 < 2 else count - 1, "wait")
    until_s, edge_rounds = 4.0, int(random.integers(1, 4))
    timeline = simulate_cells(
        cells, protocol, cloud, **LOAD, model_bits=1e5, edge_rounds=edge_rounds, horizon_s=until_s
    )

    def level_db(time_s: float) -> list[list[float]]:
        seen = [np.maximum(cell.at(time_s).where.distance_m, 1.0) for cell in cells.cells]
        return (-38 * np.log10(np.transpose(seen))).tolist()

    assert_agrees(timeline, *twin_of(cells, protocol, cloud, edge_rounds, until_s, equal_share, level_db))
    there = np.array([[cell.present(time_s) for cell in cells.cells] for time_s in np.arange(0, until_s, 0.08)], float)
    np.testing.assert_array_equal(np.sum(there, axis=1), 1)  # every UE is in one cell
    assert np.abs(np.diff(there, axis=0)).sum() >= 2 * 5  # and goes to others
    assert timeline.cloud is not None
    assert bool(timeline.cloud.followed_bits.any()) == keeps  # some in the middle of a job


@pytest.mark.slow
def test_a_longer_simulation_with_jobs_that_follow_begins_with_a_shorter_one():
    drawn = Cell.draw(9, 1, cpu_hz=(2e7, 2e9), coherence_s=0.05, moves=Moves(Waypoints, 40.0, 1.0))
    cells = make_cells(drawn, Sites.grid(3, 20.0), 20.0, backhaul_s=0.1, keeps=True)
    play = partial(simulate_cells, cells, Protocol(1, 3), Protocol(2), **LOAD, model_bits=1e5, edge_rounds=2)
    longer = play(horizon_s=3.0)
    longer = longer.prefix(longer.until(float(longer.time_s[29])))  # all rounds of this time
    for shorter in (play(rounds=longer.rounds), play(horizon_s=longer.end_s)):
        for name, column in shorter.columns.items():
            np.testing.assert_allclose(column, longer.columns[name], rtol=0, atol=1e-9, err_msg=name)


def test_a_job_that_follows_its_ue_by_hand():
    """Two UEs with jobs of 1 s and no time to send. UE 0 goes from cell 0 to cell 1 after 0.32 s, and stays.

    Its update is sent after 1 s and crosses two backhauls of 0.25 s, so edge 0 closes its only round at 1.5 s. Edge 1
    has UE 1 for its first round, at 1 s, and then both UEs, at 2 s: UE 0 has worked for it since 1 s.
    """
    handover = Handover(lambda time_s: np.array([[10.0, 0.0 if time_s < 0.1 else 20.0], [0.0, 10.0]]))
    made, unknown = cells_of(4, 2, backhaul_s=0.25), np.full(2, np.nan)
    fleets = [Fleet(unknown, unknown, presence=Attached(handover, site, keeps=True)) for site in (0, 1)]
    edges = [
        replace(cell, cpu_hz=np.full(2, 1e8), bandwidth_hz=1e15, fleet=fleet)
        for cell, fleet in zip(made.cells, fleets, strict=True)
    ]
    cells = replace(made, cells=edges, ues=[np.arange(2)] * 2)
    load: dict[str, Any] = {"payload_bits": 1e-6, "samples": 1e8 / edges[0].cycles_per_sample}
    timeline = simulate_cells(cells, Protocol(1), Protocol(2), **load, model_bits=8.0, edge_rounds=3, horizon_s=2.5)
    cloud, log = timeline.cloud, timeline.log
    assert cloud is not None
    np.testing.assert_allclose(timeline.time_s, [1, 1.5, 2, 2], atol=1e-9)
    np.testing.assert_array_equal(cloud.cell, [1, 0, 1, 1])
    np.testing.assert_array_equal(timeline.ues[:, 0], [1, 0, 0, 1])
    np.testing.assert_array_equal(cloud.followed_bits, [0, 2e-6, 0, 0])
    assert cloud.total_bits == pytest.approx(2e-6)  # the cloud has merged nothing yet
    assert timeline.prefix(1).cloud.total_bits == 0  # type: ignore[union-attr]  # it has a cloud
    followed = log.take((log.ue == 0) & (log.version == 0) & (log.round == 1))
    times_s = followed.start_s, followed.sending_s, followed.arrival_s, followed.end_s
    np.testing.assert_allclose(np.concatenate(times_s), [0, 1, 1, 1.5], atol=1e-9)  # on the backhaul it draws no power
    lost = [Fleet(unknown, unknown, presence=Attached(handover, site)) for site in (0, 1)]
    cells = replace(cells, cells=[replace(cell, fleet=fleet) for cell, fleet in zip(edges, lost, strict=True)])
    timeline = simulate_cells(cells, Protocol(1), Protocol(2), **load, edge_rounds=3, horizon_s=2.5)
    np.testing.assert_allclose(timeline.time_s, [1, 1.32, 2], atol=1e-9)  # edge 0 never closes a round


def test_the_cloud_waits_for_an_edge_until_its_energy_is_spent():
    """Edge 0 closes a round every second, and edge 1 its first at 10 s, when its UEs have no energy for a second one.

    κ₂ = 2 and S_c = 1: the cloud merges edge 0 at 2 s. At 4 s it has the next model of edge 0, but edge 1 may only be
    merged in this round, so it waits until edge 1 stops.
    """
    cells = cells_of(4, 2)
    seconds = [np.array([1.0, 1.0]), np.array([1.0, 10.0])]
    edges = [replace(c, cpu_hz=1e8 / s, bandwidth_hz=1e15) for c, s in zip(cells.cells, seconds, strict=True)]
    load: dict[str, Any] = {"payload_bits": 1e-6, "samples": 1e8 / edges[0].cycles_per_sample}
    budgets = [
        Budget(joules, np.ones(2), np.ones(2), 0.0, s) for joules, s in zip([math.inf, 1.0], seconds, strict=True)
    ]
    timeline = simulate_cells(
        replace(cells, cells=edges),
        Protocol(2),
        Protocol(1, 1, "wait"),
        **load,
        edge_rounds=2,
        horizon_s=15,
        budgets=budgets,
    )
    assert timeline.cloud is not None
    np.testing.assert_allclose(timeline.cloud.time_s, [2, 10, 12, 14], atol=1e-9)


def test_what_edges_and_cloud_cannot_do_is_refused():
    cells = cells_of(8, 4)
    for protocol, cloud, more, told in [
        (Protocol(1), Protocol(2, 0, "wait"), {}, "at least 4, the number of cells"),
        (Protocol(1), Protocol(2, 4), {}, "needs stale='wait'"),
        (Protocol(1), Protocol(5), {}, "quorum must be at most the number of UEs"),
        (Protocol(1, rests=True), Protocol(2), {}, "needs a schedule"),
        (Protocol(1), Protocol(2, rests=True), {}, "first arrivals"),
        (Protocol(1), Protocol(2), {"edge_rounds": 0}, "edge_rounds must be at least 1"),
        (Protocol(3), Protocol(2), {}, "quorum must be at most"),
    ]:
        with pytest.raises(ValueError, match=told):
            simulate_cells(cells, protocol, cloud, **LOAD, rounds=3, **more)
