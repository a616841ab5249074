"""Schedules: which UEs they merge in each round, how far that strays from what is due, and what the printed algorithm does."""

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.allocation.schedule import (
    achieved_shares,
    as_schedule,
    check_schedule,
    deficit,
    longest_gap,
    period,
    printed,
    printed_fixed,
)
from perfeds2.allocation.shares import equal_shares, nearest_feasible


def off_by(schedule, shares):
    return np.abs(achieved_shares(schedule, shares.size) / shares - 1).max()


def strays(schedule, shares):
    """Merges less what is due, for every UE at the end of every round."""
    merged = np.zeros((schedule.shape[0], shares.size))
    np.put_along_axis(merged, schedule, 1.0, axis=1)
    due = np.arange(1, schedule.shape[0] + 1)[:, None] * shares * schedule.shape[1]
    return merged.cumsum(axis=0) - due


def random_shares(rng, n, quorum):
    kind = rng.integers(3)
    wish = (
        rng.dirichlet(np.full(n, 10 ** rng.uniform(-1, 1))),
        np.exp(-rng.uniform(0, 3) * np.arange(n)),
        rng.integers(1, 6, n).astype(float),
    )[kind]
    return nearest_feasible(wish / wish.sum(), quorum, None)


def test_three_ues_of_which_one_counts_double():
    schedule = deficit(np.array([0.5, 0.25, 0.25]), 1, 8)
    assert schedule.ravel().tolist() == [0, 1, 2, 0, 0, 1, 2, 0]
    assert period(schedule) == 4


@given(st.integers(1, 40), st.data())
def test_equal_shares_give_round_robin(n, data):
    quorum = data.draw(st.integers(1, n))
    turn = n // gcd(n, quorum)
    schedule = deficit(equal_shares(n), quorum, 3 * turn)
    expected = np.sort(np.arange(3 * turn * quorum).reshape(-1, quorum) % n, axis=1)
    np.testing.assert_array_equal(schedule, expected)
    assert period(schedule) == turn


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_deficit_never_strays_two_merges_from_what_is_due(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    quorum = int(rng.integers(1, n + 1))
    shares = random_shares(rng, n, quorum)
    schedule = deficit(shares, quorum, 150)
    check_schedule(schedule, n, None, "wait")
    assert np.abs(strays(schedule, shares)).max() < 2


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_one_at_a_time_the_bound_is_proven(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30))
    harmonic = (1 / np.arange(2, n + 1)).sum()
    shares = random_shares(rng, n, 1)
    stray = strays(deficit(shares, 1, 200), shares)
    assert stray.max() < 1
    assert stray.min() > -harmonic - 1e-6
    left_out = random_shares(rng, n, 1)  # A = n − 1: the mirror image
    shares = (1 - left_out) / (n - 1)
    if n > 2:
        stray = strays(deficit(shares, n - 1, 200), shares)
        assert stray.min() > -1
        assert stray.max() < harmonic + 1e-6


def test_shares_that_cannot_be_met_are_an_error():
    with pytest.raises(ValueError, match=r"UE 0 has 0\.7"):
        deficit(np.array([0.7, 0.2, 0.1]), 2, 10)


def test_erratum_9_printed_never_schedules_some_ues():
    shares = equal_shares(20)
    schedule = printed(shares, 5, 200)
    assert off_by(schedule, shares) == pytest.approx(3.0, abs=0.05)
    assert (achieved_shares(schedule, 20) == 0).sum() == 11


def test_erratum_9_the_first_printed_round_by_hand():
    """UE 0 is picked and the fill-up adds 1, 2, 3; each of those is then struck out, having 1/4, 1/3, 1/2 of all merges;
    UE 4 is picked and the fill-up puts 0, 1, 2 back; UE 5 completes the five."""
    assert printed(equal_shares(20), 5, 1).tolist() == [[0, 1, 2, 4, 5]]


def test_erratum_9_moving_the_fill_up_is_exact_for_equal_shares_and_deficit_is_closer_for_uneven_ones():
    equal = equal_shares(20)
    assert off_by(printed_fixed(equal, 5, 200), equal) == 0
    assert off_by(deficit(equal, 5, 200), equal) == 0
    rng = np.random.default_rng(0)
    uneven = [nearest_feasible(rng.dirichlet(np.full(20, 3.0)), 5, 20) for _ in range(8)]
    fixed = [off_by(printed_fixed(shares, 5, 200), shares) for shares in uneven]
    largest_first = [off_by(deficit(shares, 5, 200), shares) for shares in uneven]
    assert np.median(fixed) == pytest.approx(0.13, abs=0.03)
    assert np.median(largest_first) == pytest.approx(0.02, abs=0.01)
    assert max(largest_first) < 0.05 < min(fixed)
    assert min(off_by(printed(shares, 5, 200), shares) for shares in uneven) > 3


@pytest.mark.parametrize("plan", [deficit, printed, printed_fixed])
def test_every_row_has_a_different_ues(plan):
    rng = np.random.default_rng(1)
    for n, quorum in ((1, 1), (2, 2), (7, 3), (12, 11)):
        schedule = plan(random_shares(rng, n, quorum), quorum, 30)
        check_schedule(schedule, n, None, "wait")
        assert (np.diff(schedule, axis=1) > 0).all()


def test_theorem_3_fractional_shares_recur_with_their_common_denominator():
    shares = np.array([1, 2, 3, 4, 2]) / 12
    schedule = deficit(shares, 3, 40)
    assert period(schedule) == 4  # 12/gcd(12, 3): the first round after which everything due is whole
    np.testing.assert_allclose(achieved_shares(schedule[:4], 5), shares)


def test_the_period_is_the_smallest_and_must_be_seen_twice():
    rows = np.array([[0], [1], [0], [2]])
    assert period(rows) is None
    assert period(np.concatenate([rows, rows])) == 4
    assert period(np.concatenate([rows, rows, rows[:3]])) == 4
    assert period(np.zeros((5, 1), int)) == 1
    assert period(np.empty((0, 2), int)) is None


def test_a_gap_counts_the_rounds_sat_out_from_the_start():
    rows = np.array([[0, 1], [0, 2], [0, 2], [0, 1], [0, 2]])
    assert longest_gap(rows, 4).tolist() == [0, 2, 1, 5]


def test_a_schedule_on_which_the_round_could_wait_for_ever_is_an_error():
    rows = np.array([[0, 1], [0, 2], [0, 2], [0, 1]])
    check_schedule(rows, 3, 2, "wait")
    check_schedule(rows, 3, 1, "restart")
    check_schedule(rows, 3, None, "ignore")
    for stale in ("wait", "ignore"):
        with pytest.raises(ValueError, match=r"UE 1 for round 3 after 2 rounds without it.*Raise max_staleness to 2"):
            check_schedule(rows, 3, 1, stale)
    with pytest.raises(ValueError, match="UE 2 for round 1 after 1 rounds"):
        check_schedule(rows, 3, 0, "wait")
    with pytest.raises(ValueError, match=r"at most 6 UEs have a job.*Raise max_staleness to 4"):
        check_schedule(rows, 9, 2, "wait")


@pytest.mark.parametrize("row", [[0, 0], [0, 3], [-1, 0]])
def test_rows_must_hold_different_ues_of_the_cell(row):
    with pytest.raises(ValueError, match="for round 1; expected 2 different UEs from 0 to 2"):
        check_schedule(np.array([[0, 1], row]), 3, None, "restart")


def test_behind_its_end_a_schedule_goes_on_with_its_period():
    rows = deficit(equal_shares(4), 1, 10)  # two and a half turns
    endless = as_schedule(rows)
    assert [int(endless(k)[0]) for k in range(14)] == [k % 4 for k in range(14)]
    once = as_schedule(np.array([[0], [1], [1]]))
    assert [int(once(k)[0]) for k in range(7)] == [0, 1, 1, 0, 1, 1, 0]
    with pytest.raises(ValueError, match="at least 1 row"):
        as_schedule(np.empty((0, 2), int))
