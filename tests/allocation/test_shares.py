"""Participation shares: what can be met, and what is nearest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from perfeds2.allocation.shares import (
    check_shares,
    distance_shares,
    equal_shares,
    expected_sending_s,
    nearest_feasible,
    share_bounds,
)
from perfeds2.network.cell import Cell
from perfeds2.network.link import rate_bps
from perfeds2.network.radios import RADIOS


def test_equal_shares_sum_to_one():
    np.testing.assert_array_equal(equal_shares(4), [0.25] * 4)


def test_nearer_and_faster_ues_get_larger_shares():
    cell = Cell(np.array([20.0, 150.0, 20.0, 150.0]), np.array([1e9, 1e9, 3e8, 3e8]))
    shares = distance_shares(cell, 1e6, 40.0)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1] > shares[3]
    assert shares[0] > shares[2] > shares[3]


def test_shares_are_inverse_to_the_mean_cycle_time_over_the_fading():
    cell = Cell(np.array([10.0, 200.0]), np.array([1e9, 1e9]))

    def sending_s(ue, fading):
        return 1e6 / rate_bps(cell.bandwidth_hz / 2, cell.mean_signal_hz[ue] * cell.fading_scale * fading)

    cycle = [
        cell.compute_s(40.0)[ue]
        + quad(lambda h, ue=ue: h * np.exp(-h * h / 2) * float(sending_s(ue, h)), 0, 9, points=[1e-4, 1e-2], limit=500)[
            0
        ]
        for ue in (0, 1)
    ]
    assert distance_shares(cell, 1e6, 40.0)[0] == pytest.approx(cycle[1] / (cycle[0] + cycle[1]), rel=1e-5)


@pytest.mark.parametrize("radio", list(RADIOS))
@pytest.mark.parametrize("rician_k", [0.0, 6.0, 1e6, np.inf])
def test_expected_sending_seconds_are_those_of_the_cells_draws(radio, rician_k):
    cell = Cell.draw(4, 1, radio=RADIOS[radio], rician_k=rician_k, bandwidth_hz=14e6)
    bps = np.array([rate_bps(14e6 / 4, cell.signal_hz(k), cell.cap_bits_per_s_hz) for k in range(4_000)])
    drawn_s = (1e6 / bps).mean(axis=0) if radio == "paper" else 1e6 / bps.mean(axis=0)
    np.testing.assert_allclose(expected_sending_s(cell, 1e6), drawn_s, rtol=0.02)


def test_erratum_5_a_share_the_printed_bound_allows_is_merged_far_less_than_once_in_s_rounds():
    quorum, max_staleness, rounds = 5, 4, 200
    printed_bound = max_staleness / rounds  # η ≥ S/K
    merged_every = 1 / (quorum * printed_bound)  # rounds from one merge to the next at that share
    assert merged_every == 10 > max_staleness
    low, high = share_bounds(quorum, max_staleness)
    assert (low, high) == (1 / 20, 1 / 5)
    assert 1 / (quorum * low) == max_staleness
    shares = np.full(20, 0.05)
    shares[3], shares[4] = 0.02, 0.08
    with pytest.raises(ValueError, match=r"from 0.05 to 0.2.*UE 3 has 0.02 \(nearest: 0.05\)"):
        check_shares(shares, quorum, max_staleness)


def test_a_share_above_one_merge_a_round_is_an_error_with_a_way_out():
    with pytest.raises(ValueError, match=r"from 0 to 0.5.*UE 0 has 0.7 \(nearest: 0.5\)"):
        check_shares(np.array([0.7, 0.2, 0.1]), 2, None)
    check_shares(nearest_feasible(np.array([0.7, 0.2, 0.1]), 2, None), 2, None)


def test_shares_that_do_not_sum_to_one_or_are_no_numbers_are_errors():
    with pytest.raises(ValueError, match=r"sum to 1; got a sum of 1.2.*nearest: 0.25"):
        check_shares(np.full(4, 0.3), 2, None)
    with pytest.raises(ValueError, match="UE 1 has nan"):
        check_shares(np.array([0.5, np.nan]), 1, None)


def test_too_many_ues_for_the_bound_is_an_error_that_says_what_would_do():
    with pytest.raises(ValueError, match="raise max_staleness to 5 or the quorum to 4"):
        nearest_feasible(equal_shares(10), 2, 3)
    with pytest.raises(ValueError, match="quorum 3 is more than the 2 UEs"):
        nearest_feasible(equal_shares(2), 3, None)


def test_no_staleness_at_all_needs_everybody_in_every_round():
    check_shares(equal_shares(4), 4, 0)
    with pytest.raises(ValueError, match="no shares are feasible"):
        check_shares(equal_shares(4), 3, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_nearest_feasible_is_the_projection_a_solver_finds(seed):
    import cvxpy as cp  # two seconds

    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    quorum = int(rng.integers(1, n + 1))
    max_staleness = None if rng.random() < 0.3 else int(rng.integers(-(-n // quorum), 3 * n))
    wish = rng.dirichlet(np.full(n, 0.5)) + rng.normal(0, 0.1, n)
    low, high = share_bounds(quorum, max_staleness)
    nearest = nearest_feasible(wish, quorum, max_staleness)
    check_shares(nearest, quorum, max_staleness)
    point = cp.Variable(n)
    limits = [cp.sum(point) == 1, point >= low, point <= high]
    best = cp.Problem(cp.Minimize(cp.sum_squares(point - wish)), limits)
    best.solve(solver=cp.CLARABEL)
    assert isinstance(best.value, float)
    assert ((nearest - wish) ** 2).sum() <= best.value + 1e-7
    np.testing.assert_allclose(nearest_feasible(nearest, quorum, max_staleness), nearest, atol=1e-12)
