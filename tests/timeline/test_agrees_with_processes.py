"""The virtual clock and a process-per-UE model of the same protocol tell the same story."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import STALE, Run, round_robin, runs

from perfeds2.allocation.bandwidth import equal_share
from perfeds2.network.cell import Cell
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.twin import Radio, RoundRules, play_with_processes


def assert_agrees(run: Run, rounds: int) -> None:
    timeline = run.simulate(rounds)
    protocol = run.protocol
    history = play_with_processes(
        Radio(run.cell.signal_hz, run.cell.bandwidth_hz, run.bandwidth),
        RoundRules(
            protocol.quorum, protocol.max_staleness, protocol.stale, run.schedule, protocol.rests, protocol.drafts
        ),
        run.cell.compute_s(run.samples),
        run.payload_bits,
        rounds,
    )
    np.testing.assert_array_equal(timeline.ues, [one.ues for one in history])
    np.testing.assert_array_equal(timeline.staleness, [one.staleness for one in history])
    np.testing.assert_allclose(timeline.time_s, [one.time_s for one in history], rtol=0, atol=1e-9)


@pytest.mark.slow
@given(runs(max_ues=50), st.integers(1, 25))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simulate_agrees_with_processes_on_random_cells(run: Run, rounds: int):
    assert_agrees(run, rounds)


@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("quorum", [1, 4, 17, 50])
def test_simulate_agrees_with_processes_where_the_bound_binds(stale, quorum):
    # 50 UEs of very unequal speed and a bound that the slow ones cannot meet by themselves.
    cell = Cell.draw(50, seed=quorum, cpu_hz=(2e7, 2e9))
    assert_agrees(Run(cell, Protocol(quorum, 2, stale), 1e5, 100.0, equal_share, None), rounds=40)


def test_simulate_agrees_with_processes_on_a_plan():
    cell = Cell.draw(24, seed=3)
    assert_agrees(Run(cell, Protocol(5, 4, "wait"), 1e6, 100.0, equal_share, round_robin(24, 5, 0)), rounds=40)
