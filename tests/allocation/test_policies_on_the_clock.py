"""Every bandwidth policy and every schedule plays on random small cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.allocation.bandwidth import (
    between,
    equal_finish,
    equal_share,
    max_throughput,
    proportional_fair,
    weighted_rate,
)
from perfeds2.allocation.schedule import as_schedule, check_schedule, deficit, longest_gap, printed, printed_fixed
from perfeds2.allocation.shares import distance_shares, equal_shares, nearest_feasible
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

POLICIES = [equal_share, equal_finish, weighted_rate, between(0.5), between(1.0), max_throughput, proportional_fair]


def play(cell, protocol, **rest):
    return simulate(cell, protocol, payload_bits=1e6, samples=40.0, **rest)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**4))
def test_every_policy_plays_with_first_arrivals_and_with_a_plan(policy, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    quorum = int(rng.integers(1, n + 1))
    cell = Cell.draw(n, seed=seed)
    shares = nearest_feasible(distance_shares(cell, 1e6, 40.0), quorum, None)
    first = play(cell, Protocol(quorum), rounds=15, bandwidth=policy, shares=shares)
    assert first.rounds == 15
    rows = deficit(shares, quorum, 15)
    planned = play(cell, Protocol(quorum), rounds=15, bandwidth=policy, shares=shares, schedule=as_schedule(rows))
    np.testing.assert_array_equal(np.sort(planned.ues, axis=1), rows)


@pytest.mark.parametrize("plan", [deficit, printed, printed_fixed])
def test_every_schedule_plays_and_closes_on_its_rows(plan):
    cell = Cell.draw(20, seed=3)
    rows = plan(equal_shares(20), 5, 12)
    timeline = play(cell, Protocol(5), rounds=12, bandwidth=equal_finish, schedule=as_schedule(rows))
    np.testing.assert_array_equal(np.sort(timeline.ues, axis=1), rows)
    merged = timeline.merges > 0
    stalest = np.zeros(20, int)
    np.maximum.at(stalest, timeline.ues, timeline.staleness)
    np.testing.assert_array_equal(stalest[merged], longest_gap(rows, 20)[merged])


@pytest.mark.parametrize("stale", ["restart", "wait", "ignore"])
def test_a_schedule_that_passes_its_check_never_waits_for_ever(stale):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n, quorum = 8, int(rng.integers(1, 5))
        shares = nearest_feasible(rng.dirichlet(np.full(n, 5.0)), quorum, None)
        rows = deficit(shares, quorum, 30)
        bound = int(longest_gap(rows, n).max())
        check_schedule(rows, n, bound, stale)
        cell = Cell.draw(n, seed=seed)
        timeline = play(
            cell, Protocol(quorum, bound, stale), rounds=30, bandwidth=equal_finish, schedule=as_schedule(rows)
        )
        np.testing.assert_array_equal(np.sort(timeline.ues, axis=1), rows)


@pytest.mark.parametrize("stale", ["wait", "ignore"])
def test_a_schedule_that_fails_its_check_does_wait_for_ever(stale):
    rows = np.array([[0], [0], [0], [1]])
    with pytest.raises(ValueError, match="UE 1 for round 3 after 3 rounds"):
        check_schedule(rows, 2, 1, stale)
    with pytest.raises(ValueError, match="round 3 never closes"):
        play(Cell.draw(2), Protocol(1, 1, stale), rounds=4, bandwidth=equal_finish, schedule=as_schedule(rows))


def test_the_planned_ues_of_a_round_arrive_together_under_equal_finish():
    cell = Cell.draw(12, seed=1)
    rows = deficit(equal_shares(12), 4, 15)
    timeline = play(cell, Protocol(4), rounds=15, bandwidth=equal_finish, schedule=as_schedule(rows))
    assert (np.ptp(timeline.arrival_s, axis=1) <= 1e-9 * timeline.time_s).all()
    assert timeline.seconds()["waiting"] < 1e-6 * timeline.end_s


def test_a_plan_served_by_equal_finish_is_faster_than_by_equal_shares():
    cell = Cell.draw(20, seed=2)
    schedule = as_schedule(deficit(equal_shares(20), 5, 40))
    fast = play(cell, Protocol(5), rounds=40, bandwidth=equal_finish, schedule=schedule)
    slow = play(cell, Protocol(5), rounds=40, bandwidth=equal_share, schedule=schedule)
    assert fast.end_s < slow.end_s


def test_a_policy_that_gives_away_too_much_stops_the_clock_by_name():
    def twice(uplink):
        return 2 * equal_share(uplink)

    with pytest.raises(ValueError, match=r"twice gave \[.*\] Hz in round 0; expected .* that sum to at most"):
        play(Cell.draw(3), Protocol(1), rounds=2, bandwidth=twice)
