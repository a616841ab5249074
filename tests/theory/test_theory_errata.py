"""Where the printed theory says something that is not so, each by a number."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar, root_scalar

from perfeds2.theory.bounds import (
    Premises,
    corrected_bracket,
    largest_corrected_beta,
    largest_printed_beta,
    merge_error,
    printed,
    printed_bracket,
    proved,
    scheduled,
    share_sums,
    sharpened,
    spread_of_shares,
)
from perfeds2.theory.constants import Constants, diversity, smoothness
from perfeds2.theory.optimum import optimum

# log cosh meets every assumption on the whole line: |f'| ≤ 1, |f''| ≤ 1, |f'''| ≤ 4/(3√3).
BEND = 4 / (3 * math.sqrt(3))


def test_5_at_least_once_in_s_rounds_bounds_the_share_by_a_and_s_not_by_k():
    """20 UEs, A = 5, S = 4, taking turns: each merges once in 4 rounds. η = 0.05 = 1/(A·S), at every K."""
    for rounds in (4, 40, 400):
        ues = np.arange(rounds * 5).reshape(rounds, 5) % 20
        shares = np.bincount(ues.ravel(), minlength=20) / ues.size
        assert shares.tolist() == [1 / (5 * 4)] * 20
    printed_demand = [4 / rounds for rounds in (4, 40, 400)]  # η_i ≥ S/K: 1, then 0.1, then 0.01
    assert [bool(demand <= 0.05) for demand in printed_demand] == [False, False, True]


SMALL = Premises(smoothness=1.0, noise=1.0, diversity=1.0, gap=1.0, beta=0.1, staleness=4)


def test_6_the_printed_a_star_violates_c4_2_and_the_corrected_one_does_not():
    """S = 4, shares 0.4, 0.3, 0.2, 0.1: UE 3 needs A ≥ 1/(0.1·4) = 2.5; printed is 1/(0.4·4) = 0.625."""
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    with pytest.raises(ValueError, match=r"UE 3 .* needs A ≥ 3 .* UE 0 .* needs A ≤ 2"):
        optimum(SMALL, 1.0, shares)
    found = optimum(replace(SMALL, staleness=5), 1e-3, shares)
    assert found.printed_quorum < found.least_quorum == pytest.approx(2.0)
    assert found.quorum == 2
    assert (found.quorum * 5 * shares >= 1 - 1e-12).all()
    assert not (found.printed_quorum * 5 * shares >= 1).all()


def test_6_the_printed_k_star_stops_before_the_target_and_the_corrected_one_does_not():
    """2Δ/(βε) = 2/(0.1·0.01) = 2000 rounds bring the first term to ε; the printed minimum is S/η = 4/0.25 = 16."""
    found = optimum(SMALL, 0.01, np.full(4, 0.25))
    assert found.rounds == 2000
    assert found.printed_rounds == pytest.approx(16)
    assert printed(SMALL, 1).start / found.rounds == pytest.approx(0.01)
    assert printed(SMALL, 1).start / found.printed_rounds == pytest.approx(1.25)


def test_7_a_step_the_printed_condition_admits_never_comes_to_rest():
    """f = 100·log cosh w, one UE, no noise: at β = 0.05 the iterates jump between ±2.45 and ‖∇F‖² stays near 9700."""
    scale, alpha, beta, rounds = 100.0, 1e-5, 0.05, 1000
    constants = Constants(scale, scale, scale * BEND, 0.0, 0.0, 0.0, 0.0, gap=scale * math.log(math.cosh(2.45)))
    setting = Premises(smoothness(constants, alpha), 0.0, 0.0, constants.gap, beta, staleness=0)
    assert printed_bracket(setting) < 0 < corrected_bracket(setting)
    assert largest_corrected_beta(setting.smoothness, 0) < beta < largest_printed_beta(setting.smoothness, 0)

    def run(beta):
        w, total = 2.45, 0.0
        for _ in range(rounds):
            adapted = w - alpha * scale * math.tanh(w)
            gradient = (1 - alpha * scale / math.cosh(w) ** 2) * scale * math.tanh(adapted)
            total += gradient**2
            w -= beta * gradient
        return total / rounds

    assert run(beta) > 9000 > printed(setting, quorum=1).after(rounds)  # the printed theorem promises 7.1
    assert printed(setting, quorum=1).after(rounds) == pytest.approx(2 * constants.gap / (beta * rounds))
    admissible = replace(setting, beta=largest_corrected_beta(setting.smoothness, 0))
    assert run(admissible.beta) <= sharpened(admissible, 0.0).after(rounds)


def test_8_the_root_is_loose_and_the_schedules_own_shares_never_exceed_1():
    ues = np.arange(40).reshape(8, 5) % 20
    sums = share_sums(ues, np.full(20, 0.05))
    assert sums.tolist() == [0.25] * 8
    assert printed(SMALL, 5).floor / scheduled(SMALL, sums).floor == pytest.approx(math.sqrt(5) / 0.25)


def test_15_the_printed_step_makes_the_objective_fall_while_the_model_stands_still():
    """F = w²/2 at w = 1, and the merged noise is −∇F: nothing moves. The second line of (complicated) says F falls."""
    curvature, beta = 1.0, 0.1
    gradient = fresh = 1.0  # ∇F(w_k), and (1/A)Σ∇F(w_{k−τ}) without staleness
    error = -gradient  # X + Y
    merged = fresh + error
    first_line = (
        -beta / 2 * gradient**2
        - beta / 2 * merged**2
        + beta / 2 * (gradient - merged) ** 2
        + curvature * beta**2 / 2 * merged**2
    )
    second_line = (
        -beta / 2 * gradient**2
        + curvature * beta**2 * error**2
        + beta * (gradient - fresh) ** 2
        + (curvature * beta**2 - beta) * fresh**2
    )
    assert first_line == 0.0  # and so is F(w_{k+1}) − F(w_k)
    assert second_line == pytest.approx(-0.13)


@pytest.mark.slow
def test_15_theorem_1_fails_when_participation_is_unequal():
    """Two UEs at ±1, no sampling noise; one is merged three times as often. The model settles near its optimum.

    Every assumption holds on the whole line and β meets the printed and the corrected condition, yet the gradients stay
    at 0.091 where Theorem 1 claims 0.047 and with more rounds and smaller steps would claim 0.
    """
    alpha, beta, rounds, centres, turns = 0.1, 2e-5, 1_000_000, (1.0, -1.0), (0, 0, 0, 1)

    def slope(w, c):
        adapted = w - c - alpha * math.tanh(w - c)
        return (1 - alpha / math.cosh(w - c) ** 2) * math.tanh(adapted)

    def value(w):
        return float(np.mean([math.log(math.cosh(w - c - alpha * math.tanh(w - c))) for c in centres]))

    grid = np.linspace(-10, 10, 20_001)
    gradients = np.stack([np.tanh(grid - c) for c in centres])
    hessians = np.stack([np.cosh(grid - c) ** -2 for c in centres])
    start, found = 0.68, minimize_scalar(value, bounds=(-1, 1), method="bounded")
    least = float(found["fun"])  # type: ignore[index]  # SciPy has no types
    constants = Constants(
        smoothness=1.0,
        gradient_bound=1.0,
        hessian_lipschitz=BEND,
        gradient_noise=0.0,
        hessian_noise=0.0,
        gradient_diversity=float(gradients.std(axis=0).max()),
        hessian_diversity=float(hessians.std(axis=0).max()),
        gap=value(start) - least,
    )
    setting = Premises(smoothness(constants, alpha), 0.0, diversity(constants, alpha), constants.gap, beta, staleness=4)
    assert printed_bracket(setting) < 0
    assert corrected_bracket(setting) < 0
    w, total = start, 0.0
    for k in range(rounds):
        total += ((slope(w, 1.0) + slope(w, -1.0)) / 2) ** 2 if k % 4 == 0 else 0.0  # it moves by 1e-5 in between
        w -= beta * slope(w, centres[turns[k % 4]])
    measured = total / (rounds / 4)
    assert measured == pytest.approx(0.091, abs=0.001)
    assert printed(setting, quorum=1).after(rounds) == pytest.approx(0.047, abs=0.002)
    shares = np.array([0.75, 0.25])
    assert scheduled(setting, np.array([0.75, 0.75, 0.75, 0.25])).after(rounds) < measured
    error = merge_error(setting, spread_of_shares(shares))
    assert measured <= sharpened(setting, error).after(rounds) <= proved(setting, error).after(rounds)


@pytest.mark.parametrize(
    ("shares", "squared_gradient", "squared_error"), [((0.75, 0.25), 0.090, 0.358), ((1.0, 0.0), 0.226, 0.226)]
)
def test_where_small_steps_settle_merges_cancel_on_average_not_one_by_one(shares, squared_gradient, squared_error):
    """Two UEs, log cosh(w ∓ 1), A = 1: ‖∇F‖² is the square of the mean error of a merge, not the mean of its square."""

    def slopes(w):
        gradient = np.tanh(w - np.array([1.0, -1.0]))
        return (1 - 0.1 * (1 - gradient**2)) * np.tanh(w - np.array([1.0, -1.0]) - 0.1 * gradient)

    settled = root_scalar(lambda w: np.dot(shares, slopes(w)), bracket=(0.0, 2.0)).root
    merged, wanted = slopes(settled), slopes(settled).mean()
    errors = merged - wanted
    assert np.dot(shares, merged) == pytest.approx(0, abs=1e-9)
    assert wanted**2 == pytest.approx(np.dot(shares, errors) ** 2)
    assert wanted**2 == pytest.approx(squared_gradient, abs=5e-4)
    assert np.dot(shares, errors**2) == pytest.approx(squared_error, abs=5e-4)


def test_new_the_noise_of_a_merge_does_not_shrink_with_the_shares():
    """n = 20, A = 1: X is one UE's noise, E‖X‖² = σ². The proof's σ²Ση over the round is σ²/20."""
    noise = np.random.default_rng(0).normal(size=100_000)  # σ = 1
    claimed = share_sums(np.array([[3]]), np.full(20, 0.05))[0]
    assert (noise**2).mean() == pytest.approx(1.0, abs=0.02)
    assert claimed == 0.05


def test_new_the_average_over_all_ues_does_not_bound_the_one_that_is_merged():
    """Nine UEs at 0 and one at 1, A = 1: γ² = 0.09, but when the odd one is merged ‖Y‖² = 0.81 = 9γ² ≤ (n/A)γ²."""
    gradients = -np.array([1.0] + [0.0] * 9)
    deviations = (gradients - gradients.mean()) ** 2
    assert deviations.mean() == pytest.approx(0.09)
    assert deviations[0] == pytest.approx(0.81)


def test_new_staleness_s_lets_a_ue_be_merged_once_in_s_plus_1_rounds():
    """n = 2, A = 1, S = 1, taking turns: no update is staler than 1, yet η = 1/2 is below 1/(A·S) = 1."""
    holds, stalest, merges = [0, 0], 0, [0, 0]
    for k in range(100):
        ue = k % 2
        stalest = max(stalest, k - holds[ue])
        holds[ue] = k + 1
        merges[ue] += 1
    assert stalest == 1
    assert merges == [50, 50]
    assert merges[0] / 100 == 1 / (1 * (1 + 1)) < 1 / (1 * 1)


def test_new_the_accuracy_term_bounds_a_from_above():
    """The second term grows with A. Where C4.2 asks for more UEs than ε allows, the target is missed, and we say so."""
    shares = np.full(4, 0.25)
    one = printed(SMALL, 1).floor
    loose = optimum(SMALL, 1.5 * one, shares)
    assert loose.accuracy_quorum == pytest.approx(2.25)
    assert loose.quorum == 2
    assert loose.meets_target
    assert printed(SMALL, 2).floor <= 1.5 * one < printed(SMALL, 3).floor
    tight = optimum(SMALL, 0.5 * one, shares)
    assert tight.quorum == 1
    assert not tight.meets_target
    assert printed(SMALL, 1).floor > 0.5 * one


def test_no_factor_below_1_on_the_error_can_be_proved_so_2_is_within_twice_the_best():
    """One UE of two is always merged and the model sits at its optimum: G = 0, so X + Y = −∇F and mean‖∇F‖² = T1."""
    w, merged_centre, centres = 1.0, 1.0, np.array([1.0, -1.0])  # f_i = ½(w − c_i)²
    gradient = (w - centres).mean()
    error = (w - merged_centre) - gradient
    assert gradient**2 == error**2 == 1.0
    setting = Premises(1.0, 0.0, 1.0, 0.5, 0.5, 0)
    assert sharpened(setting, error**2).after(10**9) == pytest.approx(2 * gradient**2)
