"""Theorems 2 and 4: the policies are optimal for what they claim, checked against solvers that know nothing of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import root_scalar
from scipy.special import lambertw

from perfeds2.allocation.bandwidth import (
    Uplink,
    allocate,
    between,
    equal_finish,
    equal_share,
    max_throughput,
    proportional_fair,
    weighted_rate,
)
from perfeds2.network.cell import Cell
from perfeds2.network.link import bandwidth_for_rate, nats_per_hz, rate_bps

LN2 = np.log(2)
POLICIES = [
    equal_share,
    equal_finish,
    weighted_rate,
    between(0.0),
    between(0.5),
    between(1.0),
    max_throughput,
    proportional_fair,
]


def uplink_of(seed, n=None, planned=True, computing=True):
    """A round of a random cell of the paper's size, in the middle of things: some UEs computing, some sent half their bits."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 41)) if n is None else n
    cell = Cell.draw(n, seed=seed)
    plan = rng.random(n) < 0.5
    plan[rng.integers(n)] = True
    return Uplink(
        round=seed,
        bandwidth_hz=cell.bandwidth_hz,
        signal_hz=cell.signal_hz(seed),
        compute_s=cell.compute_s(40.0) * (rng.random(n) < 0.5) * computing,
        bits=2.5e6 * rng.random(n) + 1e3,
        shares=rng.dirichlet(np.full(n, 3.0)),
        planned=plan if planned else None,
    )


def finish_s(uplink, bandwidth):
    serve = uplink.bits > 0 if uplink.planned is None else uplink.planned & (uplink.bits > 0)
    rate = rate_bps(bandwidth[serve], uplink.signal_hz[serve])
    return uplink.compute_s[serve] + uplink.bits[serve] / rate


def nats(part, signal):
    """b·ln(1 + g/b), concave in b, as the solver takes it: the perspective of a logarithm, with g scaled out of it."""
    import cvxpy as cp  # two seconds

    return cp.multiply(part, np.log(signal)) - cp.rel_entr(part, cp.multiply(part, 1 / signal) + 1)


def fastest_by_solver(uplink):
    """min T, bits/(T − compute) ≤ rate(b), Σb ≤ B, in units of the band and of about the time it takes."""
    import cvxpy as cp  # two seconds

    serve = np.ones(uplink.bits.size, bool) if uplink.planned is None else uplink.planned
    signal = uplink.signal_hz[serve] / uplink.bandwidth_hz
    part, end = cp.Variable(signal.size, nonneg=True), cp.Variable()
    work = uplink.bits[serve] * LN2 / uplink.bandwidth_hz
    unit = work.sum() / 10 + uplink.compute_s[serve].max()
    arrives = cp.multiply(work / unit, cp.inv_pos(end - uplink.compute_s[serve] / unit)) <= nats(part, signal)
    return best(cp.Minimize(end), [arrives, cp.sum(part) <= 1]) * unit


def best(aim, limits):
    import cvxpy as cp  # two seconds

    problem = cp.Problem(aim, limits)
    problem.solve(solver=cp.CLARABEL)
    assert isinstance(problem.value, float)
    return problem.value


def lambert_bandwidth(rate, signal):
    """The closed form of erratum 1, literally, in scipy's complex Lambert W."""
    load = rate * LN2 / signal
    return -rate * LN2 / (np.real(lambertw(-load * np.exp(-load), -1)) + load)


def test_two_equal_ues_with_equal_work_halve_the_band():
    even = Uplink(0, 1e6, np.full(2, 1e8), np.zeros(2), np.full(2, 1e6), np.full(2, 0.5), None)
    for policy in POLICIES:
        np.testing.assert_allclose(policy(even), [5e5, 5e5], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_equal_finish_is_as_fast_as_a_convex_solver_can_make_it(seed):
    uplink = uplink_of(seed, planned=seed % 2 == 0, computing=seed % 3 > 0)
    assert finish_s(uplink, equal_finish(uplink)).max() == pytest.approx(fastest_by_solver(uplink), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_under_equal_finish_the_planned_ues_end_together_and_use_the_whole_band(seed, planned):
    uplink = uplink_of(seed, planned=planned)
    bandwidth = equal_finish(uplink)
    end_s = finish_s(uplink, bandwidth)
    assert np.ptp(end_s) <= 1e-9 * end_s.max()
    assert bandwidth.sum() == pytest.approx(uplink.bandwidth_hz, rel=1e-12)
    if uplink.planned is not None:
        assert not bandwidth[~uplink.planned].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_finish_holds_over_twelve_decades_of_signal_work_and_band(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    signal, bits = 10 ** rng.uniform(0, 14, n), 10 ** rng.uniform(-3, 9, n)
    compute = 10 ** rng.uniform(-6, 4, n) * (rng.random(n) < 0.7)
    uplink = Uplink(0, 10 ** rng.uniform(2, 9), signal, compute, bits, np.full(n, 1 / n), None)
    bandwidth = equal_finish(uplink)
    end_s = finish_s(uplink, bandwidth)
    assert np.ptp(end_s) <= 1e-9 * end_s.max()
    assert bandwidth.sum() == pytest.approx(uplink.bandwidth_hz, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.01, 100.0))
def test_the_round_ends_earlier_with_more_band_power_or_gain(seed, factor):
    uplink = uplink_of(seed)
    before = finish_s(uplink, equal_finish(uplink)).max()
    wider = replace(uplink, bandwidth_hz=uplink.bandwidth_hz * factor)
    louder = replace(uplink, signal_hz=uplink.signal_hz * factor)  # p and h enter as a product
    one = uplink.signal_hz.copy()
    one[equal_finish(uplink).argmax()] *= factor
    for better in (wider, louder, replace(uplink, signal_hz=one)):
        assert finish_s(better, equal_finish(better)).max() < before


def test_a_ue_that_has_sent_all_gets_nothing_and_holds_no_ue_up():
    uplink = Uplink(
        0, 1e6, np.full(3, 1e8), np.array([0.0, 9.0, 0.0]), np.array([1e6, 0.0, 1e6]), np.full(3, 1 / 3), None
    )
    for policy in POLICIES:
        np.testing.assert_allclose(policy(uplink), [5e5, 0, 5e5], rtol=1e-12)
    done = replace(uplink, bits=np.zeros(3))
    for policy in POLICIES:
        assert not policy(done).any()


def test_the_crumbs_that_rounding_leaves_still_get_some_band():
    crumb = np.finfo(float).tiny
    uplink = Uplink(0, 1e6, np.full(2, 1e10), np.zeros(2), np.array([crumb, 1e6]), np.full(2, 0.5), None)
    bandwidth = equal_finish(uplink)
    assert bandwidth[0] > 0
    assert rate_bps(bandwidth, uplink.signal_hz)[0] > 0
    assert bandwidth[1] == pytest.approx(1e6)


def test_a_ue_without_signal_is_an_error_that_names_it():
    uplink = replace(uplink_of(3, n=5, planned=False), signal_hz=np.array([1e8, 1e8, 0.0, 1e8, 1e8]))
    for policy in (equal_finish, weighted_rate, proportional_fair):
        with pytest.raises(ValueError, match=r"UE 2 has a signal of 0\.0 Hz in round 3"):
            policy(uplink)


@settings(max_examples=200, deadline=None)
@given(st.floats(-12, 0), st.floats(-6, 12))
def test_the_closed_form_is_the_root_a_bracketing_search_finds(log_load, log_signal):
    signal = 10**log_signal
    rate = 10**log_load * (1 - 1e-6) * signal / LN2
    bandwidth = float(bandwidth_for_rate(rate, signal))
    search = root_scalar(
        lambda log_b: float(rate_bps(np.exp(log_b), signal)) / rate - 1,
        bracket=(np.log(signal) - 40, np.log(signal) + 20),
        method="brentq",
        xtol=1e-15,
    )
    near_saturation = 1 / (1 - 10**log_load * (1 - 1e-6))  # there a digit of the rate is many of the bandwidth
    assert bandwidth == pytest.approx(np.exp(search.root), rel=1e-11 * (1 + near_saturation))


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-15, 600.0))
def test_efficiency_solves_its_equation_at_any_headroom(headroom):
    u = float(nats_per_hz(np.array([headroom]))[0])
    # headroom = ln((e^u − 1)/u) = u/2 + ln(sinh(u/2)/(u/2)), written so that no digits cancel
    half = u / 2
    shape = np.log(-np.expm1(-u) / u) + half if u > 1e-2 else half**2 / 6 - half**4 / 180
    assert half + shape == pytest.approx(headroom, rel=1e-13)


def test_erratum_1_the_printed_bandwidth_is_infinite_and_the_corrected_one_ends_on_time():
    signal, bits, compute, end = 3e8, 2e6, 0.2, 1.1
    rate = bits / (end - compute)
    load = rate * LN2 / signal
    printed_denominator = np.real(lambertw(-load * np.exp(-load))) + load  # principal branch: W(−Γe^−Γ) = −Γ
    assert abs(printed_denominator) < 1e-15
    bandwidth = bandwidth_for_rate(rate, signal)
    assert bandwidth == pytest.approx(lambert_bandwidth(rate, signal), rel=1e-9)
    assert compute + bits / rate_bps(bandwidth, signal) == pytest.approx(end, rel=1e-14)
    assert bandwidth_for_rate(signal / LN2, signal) == np.inf


def test_erratum_2_sharing_the_band_all_the_time_beats_taking_turns():
    gains = []
    for distance in (10.0, 200.0):
        cell = Cell(np.full(4, distance), np.full(4, 1e9))
        signal = cell.mean_signal_hz * cell.fading_scale
        first_two = np.array([True, True, False, False])
        turn = Uplink(0, cell.bandwidth_hz, signal, np.zeros(4), np.full(4, 1e6), np.full(4, 0.25), first_two)
        taking_turns_s = 2 * finish_s(turn, equal_finish(turn)).max()
        always = replace(turn, planned=None)
        sharing_s = finish_s(always, weighted_rate(always)).max()
        gains.append(taking_turns_s / sharing_s - 1)
    assert gains[0] == pytest.approx(0.028, abs=0.001)
    assert gains[1] == pytest.approx(0.053, abs=0.002)


def test_erratum_12_without_a_plan_who_arrives_first_is_rounding_noise():
    uplink = uplink_of(7, n=20, planned=False)
    end_s = finish_s(uplink, equal_finish(uplink))
    assert np.ptp(end_s) <= 1e-12 * end_s.max()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_weighted_rate_gives_rates_in_proportion_to_shares(seed):
    uplink = uplink_of(seed)
    bandwidth = weighted_rate(uplink)
    ratio = rate_bps(bandwidth, uplink.signal_hz) / uplink.shares
    assert np.ptp(ratio) <= 1e-9 * ratio.max()
    assert bandwidth.sum() == pytest.approx(uplink.bandwidth_hz, rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_theorem_4_every_point_between_gives_the_planned_ues_at_least_their_weighted_rate(seed, theta):
    uplink = uplink_of(seed)
    least, bandwidth = weighted_rate(uplink), between(theta)(uplink)
    planned = uplink.planned
    assert planned is not None
    assert (bandwidth[planned] >= least[planned] * (1 - 1e-12)).all()
    np.testing.assert_allclose(bandwidth[~planned], (1 - theta) * least[~planned], rtol=1e-12, atol=0)
    assert bandwidth.sum() == pytest.approx(uplink.bandwidth_hz, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_giving_the_plan_more_never_ends_the_round_later(seed, one, other):
    uplink = uplink_of(seed)
    ends = [finish_s(uplink, between(theta)(uplink)).max() for theta in (0.0, min(one, other), max(one, other), 1.0)]
    assert (np.diff(ends) <= 1e-9 * ends[0]).all()
    assert finish_s(uplink, equal_finish(uplink)).max() <= ends[-1] * (1 + 1e-9)


def test_the_ends_between_are_the_extremes():
    fresh = replace(uplink_of(5, n=12), compute_s=np.zeros(12), bits=np.full(12, 1e6), shares=np.full(12, 1 / 12))
    np.testing.assert_array_equal(between(0.0)(fresh), weighted_rate(fresh))
    np.testing.assert_allclose(between(1.0)(fresh), equal_finish(fresh), rtol=1e-9)  # equal jobs, equal shares
    unplanned = uplink_of(6, n=12, planned=False)
    np.testing.assert_allclose(between(0.0)(unplanned), weighted_rate(unplanned), rtol=1e-9)
    np.testing.assert_allclose(between(1.0)(unplanned), equal_finish(unplanned), rtol=1e-9)


def test_equal_finish_itself_does_not_keep_theorem_4s_lower_bounds():
    """Two planned UEs, one of which has nearly sent all: equal_finish gives it less than its weighted rate, between does not."""
    planned = np.array([True, True, False, False])
    uplink = Uplink(0, 1e6, np.full(4, 1e8), np.zeros(4), np.array([1e2, 1e6, 1e6, 1e6]), np.full(4, 0.25), planned)
    assert equal_finish(uplink)[0] < 0.01 * weighted_rate(uplink)[0]
    np.testing.assert_allclose(between(1.0)(uplink), [2.5e5, 7.5e5, 0, 0], rtol=1e-9)


@pytest.mark.parametrize("theta", [-0.1, 1.1, float("nan")])
def test_theta_outside_zero_to_one_is_an_error(theta):
    with pytest.raises(ValueError, match="theta must be from 0"):
        between(theta)


@pytest.mark.parametrize("seed", range(6))
def test_max_throughput_sends_as_many_bits_a_second_as_a_convex_solver_can(seed):
    import cvxpy as cp  # two seconds

    uplink = uplink_of(seed, n=8)
    signal = uplink.signal_hz / uplink.bandwidth_hz
    part = cp.Variable(8, nonneg=True)
    largest = best(cp.Maximize(cp.sum(nats(part, signal))), [cp.sum(part) <= 1])
    mine = rate_bps(max_throughput(uplink), uplink.signal_hz) * LN2 / uplink.bandwidth_hz
    assert mine.sum() == pytest.approx(largest, rel=1e-6)
    bandwidth = max_throughput(uplink)
    snr = uplink.signal_hz / bandwidth
    assert np.ptp(snr) <= 1e-9 * snr.max()


@pytest.mark.parametrize("seed", range(6))
def test_proportional_fair_reaches_the_largest_sum_of_log_rates(seed):
    import cvxpy as cp  # two seconds

    uplink = uplink_of(seed, n=10)
    signal = uplink.signal_hz / uplink.bandwidth_hz
    part = cp.Variable(10, nonneg=True)
    largest = best(cp.Maximize(cp.sum(cp.log(nats(part, signal)))), [cp.sum(part) <= 1])
    mine = rate_bps(proportional_fair(uplink), uplink.signal_hz) * LN2 / uplink.bandwidth_hz
    assert np.log(mine).sum() == pytest.approx(largest, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_proportional_fair_has_equal_relative_marginal_rates_over_twelve_decades(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    band = 10 ** rng.uniform(2, 9)
    signal = band * 10 ** rng.uniform(-2, 10, n)
    uplink = Uplink(0, band, signal, np.zeros(n), np.ones(n), np.full(n, 1 / n), None)
    bandwidth = proportional_fair(uplink)
    x = signal / bandwidth
    marginal = (1 - x / ((1 + x) * np.log1p(x))) / bandwidth
    assert np.ptp(marginal) <= 1e-9 * marginal.max()
    assert bandwidth.sum() == pytest.approx(band, rel=1e-12)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_every_policy_stays_within_the_band(policy):
    for seed in range(20):
        uplink = uplink_of(seed, planned=seed % 2 == 0)
        bandwidth = allocate(policy, uplink)
        assert isinstance(bandwidth, np.ndarray)
        assert bandwidth.sum() == pytest.approx(uplink.bandwidth_hz, rel=1e-9)


def test_a_policy_that_gives_too_much_or_nonsense_is_an_error_that_names_it_the_round_and_the_ue():
    uplink = replace(uplink_of(4, n=3), round=17)

    def greedy(_):
        return np.array([1.0, 2e6, 1.0])

    def broken(_):
        return np.array([1.0, 1.0, np.nan])

    def negative(_):
        return np.array([-1.0, 1.0, 1.0])

    def short(_):
        return np.ones(2)

    for policy, words in (
        (greedy, r"greedy gave \[.*\] Hz in round 17; expected .* that sum to at most"),
        (broken, r"broken gave \[.* nan.*\] Hz in round 17; expected .* finite"),
        (negative, r"negative gave \[-1\..*\] Hz in round 17; expected .* ≥ 0"),
        (short, r"short gave \[1\. 1\.\] Hz in round 17; expected 3 "),
    ):
        with pytest.raises(ValueError, match=words):
            allocate(policy, uplink)


@pytest.mark.slow
def test_a_million_ues_are_shared_out_exactly_too():
    n = 1_000_000
    cell = Cell.draw(n)
    uplink = Uplink(0, 1e6, cell.signal_hz(0), cell.compute_s(40.0), np.full(n, 1e6), np.full(n, 1 / n), None)
    bandwidth = equal_finish(uplink)
    end_s = finish_s(uplink, bandwidth)
    assert np.ptp(end_s) <= 1e-9 * end_s.max()
    assert bandwidth.sum() == pytest.approx(1e6, rel=1e-11)


@given(st.integers(0, 10_000), st.floats(0.5, 12))
@settings(max_examples=60, deadline=None)
def test_finishing_together_knows_what_modulation_carries(seed, cap):
    """With rates capped, all still end at one time, on the whole band; and no cap at all is a high one."""
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 30))
    parts = (10 ** random.uniform(4, 10, n), random.uniform(0, 1, n), 10 ** random.uniform(3, 6, n))
    capped, free = (Uplink(0, 1e6, *parts, np.full(n, 1 / n), None, most) for most in (cap, None))
    bandwidth = equal_finish(capped)
    ends_s = capped.compute_s + capped.bits / rate_bps(bandwidth, capped.signal_hz, cap)
    assert bandwidth.sum() == pytest.approx(1e6)
    np.testing.assert_allclose(ends_s, ends_s.max(), rtol=1e-9)
    unlimited = Uplink(0, 1e6, *parts, np.full(n, 1 / n), None, 1e3)
    np.testing.assert_allclose(equal_finish(unlimited), equal_finish(free), rtol=1e-9)
