"""Does interference follow the uploads of other cells? By hand, against its limits, and against a slow twin."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from network_twin import assert_agrees
from random_runs import STALE, uneven_share
from test_edges_and_cloud import LOAD, twin_of

from benchmarks import interference
from perfeds2.allocation.bandwidth import Uplink, equal_share
from perfeds2.network.cell import Cell
from perfeds2.network.cells import Cells, make_cells
from perfeds2.network.fleet import Fleet
from perfeds2.network.handover import Settled
from perfeds2.network.mobility import GaussMarkov, Moves, Waypoints
from perfeds2.network.radios import RADIOS, Radio
from perfeds2.network.sites import Sites
from perfeds2.timeline.cells import simulate_cells
from perfeds2.timeline.protocol import Protocol

UMI = cast("Radio", RADIOS["umi"])
CONTROLLED = replace(UMI, power_control=(-85.0, 0.8))


@pytest.mark.slow
@pytest.mark.parametrize("moves", [False, True], ids=["static", "moving"])
@pytest.mark.parametrize("seed", range(12))
def test_coupled_cells_agree_with_processes(seed, moves):
    """24 random settings: 2 to 4 cells, reuse 1 and 3, with and without fading, protocols at both levels."""
    random = np.random.default_rng([seed, 34])
    count, ues, radius_m = 2 + seed % 3, int(random.integers(2, 4)), 20.0 if moves else 200.0
    drawn = Cell.draw(count * ues, seed, cpu_hz=(2e7, 2e9), rician_k=[0.0, math.inf][seed // 2 % 2])
    if moves:
        drawn = replace(drawn, coherence_s=0.16 / 3.3, moves=Moves([Waypoints, GaussMarkov][seed % 2], 40.0, 1.0))
    elif seed % 4 == 0:
        drawn = replace(drawn, coherence_s=0.03)
    reuse, backhaul_s = [1, 3][seed // 3 % 2], float(random.uniform(0, 0.3)) * (seed % 4 > 0)
    options: dict[str, Any] = {"reuse": reuse, "backhaul_s": backhaul_s, "keeps": moves}
    cells = make_cells(drawn, Sites.grid(count, radius_m), radius_m, interference="coupled", **options)
    cells = replace(cells, cells=[replace(c, bandwidth_hz=c.bandwidth_hz * 0.8**e) for e, c in enumerate(cells.cells)])
    bound, stale = [None, 6, 9][seed % 3], STALE[seed // 2 % 3]
    protocol, edge_rounds = Protocol(1 + seed // 4 % 2, bound, stale), int(random.integers(1, 4))
    cloud = Protocol(int(random.integers(1, count + 1)), None if seed % 5 < 2 else count - 1, "wait")
    policy, until_s = [equal_share, uneven_share(seed)][seed % 2], 3.0
    timeline = simulate_cells(
        cells, protocol, cloud, **LOAD, model_bits=1e5, edge_rounds=edge_rounds, horizon_s=until_s, bandwidth=policy
    )

    def level_db(time_s: float) -> list[list[float]]:
        if not moves:
            return (10 * np.array([cell.present(0.0) for cell in cells.cells], float).T).tolist()
        seen = [np.maximum(cell.at(time_s).where.distance_m, 1.0) for cell in cells.cells]
        return (-38 * np.log10(np.transpose(seen))).tolist()

    apart_m = np.hypot(np.subtract.outer(cells.x_m, cells.x_m), np.subtract.outer(cells.y_m, cells.y_m))
    co_channel = apart_m > (1.0 if reuse == 1 else 2.0 * radius_m)  # neighbours are 1.7 radii apart, the next 3
    play = twin_of(
        cells, protocol, cloud, edge_rounds, until_s, policy, level_db if moves else None, co_channel.tolist()
    )
    assert_agrees(timeline, *play)


def test_an_upload_is_slower_exactly_while_another_cell_sends():
    """Two cells with a UE each: 4 bits, at 2 bit/s alone and at 1 bit/s while the other sends. Jobs of 1 s and of 2 s.

    UE 0 sends from 1 s and UE 1 from 2 s. UE 0 has 2 bits left then, until 4 s. UE 1 has 2 bits left at 4 s, until 5 s.
    UE 0 sends again from 5 s to 7 s, alone. UE 1 sends from 7 s, and both from 8 s: until 10 s and until 11 s.
    """
    made, numbers, zeros = [hand_cell([3, 2], 0), hand_cell([2, 3], 1)], [np.arange(2)] * 2, np.zeros(2)
    cells = Cells(made, numbers, zeros, zeros, np.full(2, np.inf), zeros, ~np.eye(2, dtype=bool))
    load: dict[str, Any] = {"payload_bits": 4.0, "samples": 1.0}
    timeline = simulate_cells(cells, Protocol(1), Protocol(2), **load, edge_rounds=9, horizon_s=11.5)
    np.testing.assert_allclose(timeline.time_s, [4, 5, 7, 10, 11], atol=1e-12)
    np.testing.assert_array_equal(timeline.ues[:, 0], [0, 1, 0, 1, 0])
    alone = simulate_cells(
        replace(cells, co_channel=None), Protocol(1), Protocol(2), **load, edge_rounds=9, horizon_s=8
    )
    np.testing.assert_allclose(alone.time_s, [3, 4, 6, 8], atol=1e-12)

    def only_ue_0(uplink: Uplink) -> np.ndarray:
        return np.where(np.arange(2) == 0, uplink.bandwidth_hz * (uplink.bits > 0), 0.0)

    silent = simulate_cells(cells, Protocol(1), Protocol(2), **load, edge_rounds=9, horizon_s=7, bandwidth=only_ue_0)
    np.testing.assert_allclose(silent.time_s, [3, 6], atol=1e-12)  # UE 1 has no band, so it is not heard


def test_a_round_may_see_more_fades_than_events(monkeypatch):
    monkeypatch.setattr("perfeds2.timeline.clock.MAX_CHANGES", 10)
    made, numbers, zeros = [hand_cell([3, 2], 0), hand_cell([2, 3], 1)], [np.arange(2)] * 2, np.zeros(2)
    cells = Cells([replace(cell, coherence_s=0.1) for cell in made], numbers, zeros, zeros, np.full(2, np.inf), zeros)
    cells = replace(cells, co_channel=~np.eye(2, dtype=bool))
    line = simulate_cells(cells, Protocol(1), Protocol(2), payload_bits=4.0, samples=1.0, edge_rounds=9, horizon_s=11.5)
    np.testing.assert_allclose(
        line.time_s, [4, 5, 7, 10, 11], atol=1e-9
    )  # as without the 115 fades, which change nothing
    with pytest.raises(ValueError, match="use a smaller quorum"):
        simulate_cells(cells, Protocol(2), Protocol(2), payload_bits=4.0, samples=1.0, edge_rounds=9, rounds=2)


def hand_cell(signal_hz: list[float], own: int) -> Cell:
    """A base station with 1 Hz of band and a noise of 1 W/Hz, without fading, that serves one of two UEs."""
    fleet = Fleet(10 * np.log10(signal_hz), np.full(2, np.nan), presence=Settled(np.arange(2) == own))
    cell = Cell(np.ones(2), 1 / np.arange(1.0, 3.0), 1.0, power_w=1.0, bandwidth_hz=1.0, noise_dbm_per_hz=30.0)
    return replace(cell, rician_k=math.inf, fleet=fleet)


def test_cells_on_different_bands_do_not_hear_each_other():
    """Three cells with reuse 3. Before the cloud's first round, each plays as a cell of its own."""
    drawn, grid = Cell.draw(12, 3, cpu_hz=(2e7, 2e9)), Sites.grid(3, 200.0)
    cells = make_cells(drawn, grid, 200.0, reuse=3, interference="coupled")
    for protocol, edge_rounds in ((Protocol(2, 3), 10), (Protocol(4), 2)):
        both = [
            simulate_cells(each, protocol, Protocol(3), **LOAD, edge_rounds=edge_rounds, rounds=24)
            for each in (cells, replace(cells, co_channel=None))
        ]
        np.testing.assert_allclose(both[0].time_s, both[1].time_s, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(both[0].ues, both[1].ues)
    assert both[0].cloud is not None
    assert both[0].cloud.rows.size > 2
    assert both[0].cloud.sizes.tolist() == [4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("radio", [None, UMI, CONTROLLED])
def test_ues_that_always_send_interfere_fully(radio):
    """Jobs without computing, each UE merged at once: all of them send all the time, as ``full`` assumes."""
    drawn = Cell.draw(12, 5, radio=radio, rician_k=math.inf)
    load: dict[str, Any] = {"payload_bits": 1e5, "samples": 0.0}
    coupled, full, none = (
        simulate_cells(
            make_cells(drawn, Sites.grid(4, 200.0), 200.0, interference=how),
            *(Protocol(1), Protocol(4)),
            **load,
            edge_rounds=30,
            rounds=60,
        )
        for how in ("coupled", "full", None)
    )
    np.testing.assert_allclose(coupled.time_s, full.time_s, rtol=1e-9)
    np.testing.assert_array_equal(coupled.ues, full.ues)
    assert full.time_s[-1] > 1.2 * none.time_s[-1]


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [1, 3])
def test_coupled_and_full_count_the_same_cells(reuse):
    radio = None if reuse == 1 else CONTROLLED
    drawn, grid = Cell.draw(91, 2, radio=radio, rician_k=math.inf), Sites.grid(91, 200.0)
    quiet, full, coupled = (
        make_cells(drawn, grid, 200.0, reuse=reuse, interference=how) for how in (None, "full", "coupled")
    )
    assert coupled.co_channel is not None
    cell_of, band_hz = np.empty(91, int), coupled.cells[0].bandwidth_hz
    for number, own in enumerate(quiet.ues):
        cell_of[own] = number
    for number, cell in enumerate(coupled.cells):
        heard = coupled.co_channel[number, cell_of]
        assert np.count_nonzero(heard) == 18
        rise = (cell.signal_hz(0)[heard] / band_hz).sum()
        np.testing.assert_allclose(10 * np.log10(1 + rise), full.cells[number].noise_dbm_per_hz + 174, rtol=1e-9)
    np.testing.assert_allclose(coupled.whole.mean_signal_hz, quiet.whole.mean_signal_hz, rtol=1e-9)


def test_a_quorum_that_no_coupled_cell_reaches_is_refused():
    cells = make_cells(Cell.draw(6), Sites.grid(3, 200.0), 200.0, interference="coupled")
    ends: list[dict[str, Any]] = [{"rounds": 3}, {"horizon_s": 1.0}]
    for end in ends:
        with pytest.raises(ValueError, match="use a smaller quorum"):  # a cell has two UEs
            simulate_cells(cells, Protocol(3), Protocol(1), **LOAD, **end)


def test_the_benchmark_changes_only_the_noise():
    """With all noise equal, the constant networks play as cells apart until the cloud's first round."""
    made = interference.networks(2, "paper", 0)
    end_s = {name: interference.end_s(cells, 1)[0] for name, cells in made.items()}
    assert end_s["none"] == pytest.approx(interference.end_s(replace(made["none"], co_channel=None), 1)[0], abs=1e-9)
    assert end_s["none"] < end_s["3 dB"] < end_s["full"]
    assert end_s["none"] < end_s["coupled"]
    assert interference.ratio(np.array([1.0, 4.0]))[0] == 2.0
