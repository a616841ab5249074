"""The bounds by hand, the steps they admit, and the semi-synchronous iteration on quadratics whose constants are known."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from perfeds2.theory.bounds import (
    Bound,
    Premises,
    corrected_bracket,
    largest_corrected_beta,
    largest_printed_beta,
    merge_error,
    orders,
    printed,
    printed_bracket,
    proved,
    proved_bracket,
    scheduled,
    share_sums,
    sharpened,
    spread_of_any_schedule,
    spread_of_shares,
)
from perfeds2.theory.constants import Constants

KNOWN = Premises(smoothness=10.0, noise=3.0, diversity=5.0, gap=2.0, beta=0.01, staleness=2)  # L_Fβ = 0.1


def test_theorem_1_as_printed_by_hand():
    # 2·2/(0.01·100) + 4(0.1 + 2·0.01·4)(3 + 5)√4
    assert printed(KNOWN, quorum=4).after(rounds=100) == pytest.approx(4 + 4 * 0.18 * 8 * 2)


def test_the_schedules_own_shares_take_the_place_of_the_root():
    sums = share_sums(np.array([[0, 1], [0, 2]]), np.array([0.5, 0.25, 0.25]))
    assert sums.tolist() == [0.75, 0.75]
    assert scheduled(KNOWN, sums).after(100) == pytest.approx(4 + 4 * 0.18 * 8 * 0.75)


def test_the_proved_bounds_by_hand():
    error = merge_error(KNOWN, spread=3.0)
    assert error == 2 * (3 + 15)
    assert proved(KNOWN, error).after(100) == pytest.approx(4 + (3 - 0.1 + 4 * 0.01 * 4) * 36)
    assert sharpened(KNOWN, error).after(100) == pytest.approx(4 + 72)


def test_the_conditions_by_hand():
    assert printed_bracket(KNOWN) == pytest.approx(0.001 - 0.01 + 0.08 - 1)
    assert corrected_bracket(KNOWN) == pytest.approx(0.1 - 1 + 0.08)
    assert proved_bracket(KNOWN) == pytest.approx(0.1 - 1 + 0.32)


def test_what_a_schedule_may_do_to_the_spread():
    assert spread_of_any_schedule(ues=20, quorum=5) == 4
    assert spread_of_shares(np.full(20, 0.05)) == pytest.approx(1)
    assert spread_of_shares(np.array([0.5, 0.25, 0.25])) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="sum to 1"):
        spread_of_shares(np.array([0.5, 0.25]))


def test_rounds_needed_is_the_smallest_that_reaches_the_target():
    bound = Bound(start=4.0, floor=0.5, admissible=True)
    assert bound.rounds_needed(1.0) == 8
    assert bound.after(8) <= 1.0 < bound.after(7)
    assert bound.rounds_needed(0.5) is None
    assert Bound(0.0, 0.0, True).rounds_needed(1.0) == 1


def test_an_inadmissible_step_promises_nothing():
    bold = replace(KNOWN, beta=1.0)
    for bound in (printed(bold, 4), proved(bold, 1.0), sharpened(bold, 1.0)):
        assert not bound.admissible
        assert bound.after(100) == math.inf
        assert bound.rounds_needed(1e9) is None


def test_corollary_1_brings_both_printed_terms_down_with_epsilon():
    assert orders(0.1) == pytest.approx((1000, 0.01, 10, 100))
    ratios = []
    for epsilon in (1e-2, 1e-3):
        rounds, beta, staleness, quorum = orders(epsilon)
        setting = replace(KNOWN, beta=beta, staleness=round(staleness))
        ratios.append(printed(setting, round(quorum)).after(round(rounds)) / epsilon)
    assert ratios[1] == pytest.approx(ratios[0], rel=1e-3)


def test_nonsense_is_refused_by_name():
    with pytest.raises(ValueError, match="beta must be finite and above 0"):
        replace(KNOWN, beta=0.0)
    with pytest.raises(ValueError, match="noise must be finite"):
        replace(KNOWN, noise=float("nan"))
    with pytest.raises(ValueError, match="at least 1 round"):
        printed(KNOWN, 4).after(0)
    with pytest.raises(ValueError, match="epsilon"):
        printed(KNOWN, 4).rounds_needed(0.0)


def test_a_setting_from_constants_uses_the_three_lemmas():
    constants = Constants(2.0, 3.0, 5.0, 4.0, 6.0, 0.5, 2.0, 7.0)
    made = Premises.of(constants, alpha=0.1, beta=0.01, staleness=3, batch_in=4, batch_out=8, batch_hessian=2)
    assert made.smoothness == pytest.approx(9.5)
    assert made.noise == pytest.approx(12 * 11.16 * 1.045 - 108)
    assert made.diversity == pytest.approx(49.08)
    assert (made.gap, made.beta, made.staleness) == (7.0, 0.01, 3)


def largest_proved_beta(smoothness: float, staleness: int) -> float:
    """Return the positive root of 8L_F²S²β² + L_Fβ − 1; 1/L_F without staleness."""
    return 2 / (smoothness * (1 + math.sqrt(1 + 32 * staleness**2)))


@given(smoothness=st.floats(1e-3, 1e4), staleness=st.integers(0, 100))
def test_the_largest_steps_are_the_roots_of_their_conditions(smoothness, staleness):
    for largest, bracket in (
        (largest_printed_beta, printed_bracket),
        (largest_corrected_beta, corrected_bracket),
        (largest_proved_beta, proved_bracket),
    ):

        def at(beta, bracket=bracket):
            return bracket(Premises(smoothness, 0.0, 0.0, 0.0, beta, staleness))

        closed = largest(smoothness, staleness)
        assert closed == pytest.approx(brentq(at, 1e-12, 1e7, xtol=1e-15), rel=1e-9)
        assert at(closed * 1.001) > 0
    assert largest_proved_beta(smoothness, staleness) <= largest_corrected_beta(smoothness, staleness)


@given(smoothness=st.floats(1e-3, 1e3), staleness=st.integers(0, 50), part=st.floats(1e-3, 1))
def test_the_sharpened_bound_is_never_above_the_proved_one(smoothness, staleness, part):
    setting = Premises(smoothness, 1.0, 1.0, 1.0, part * largest_proved_beta(smoothness, staleness), staleness)
    error = merge_error(setting, 1.0)
    assert proved(setting, error).admissible
    assert sharpened(setting, error).after(10) <= proved(setting, error).after(10)


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = ½(w − c_i)ᵀH_i(w − c_i); a sample adds N(0, I) to its gradient. So ρ = 0, σ_H = 0, σ_G² = d, all exact."""

    hessians: np.ndarray  # [n, d, d]
    centres: np.ndarray  # [n, d]
    alpha: float
    batch: int

    @classmethod
    def draw(cls, rng, n, d, *, step, batch, shared_hessian):
        bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(n)]
        hessians = np.stack([q * rng.uniform(0.05, 2.0, size=d) @ q.T for q in bases])
        if shared_hessian:
            hessians[:] = hessians[0]
        centres = rng.normal(size=(n, d))
        return cls(hessians, centres, float(step / np.linalg.norm(hessians, 2, axis=(1, 2)).max()), batch)

    @property
    def inner(self):
        return np.eye(self.centres.shape[1]) - self.alpha * self.hessians

    @property
    def meta_hessians(self):  # of F_i
        return self.inner @ self.hessians @ self.inner

    @property
    def optimum(self):
        pulled = np.einsum("nij,nj->i", self.meta_hessians, self.centres)
        return np.linalg.lstsq(self.meta_hessians.sum(0), pulled)[0]

    def value(self, w):  # F
        away = w - self.centres
        return 0.5 * np.einsum("ni,nij,nj->", away, self.meta_hessians, away) / len(self.centres)

    def gradients(self, w):  # ∇F_i for w[r, d], as [r, n, d]
        return np.einsum("nij,rnj->rni", self.meta_hessians, w[:, None] - self.centres)

    def noise(self, rng, ue, replicas):  # ∇̃F_i − ∇F_i = (I − αH)(ξ_out − αHξ_in)
        inner, outer = rng.normal(size=(2, replicas, self.centres.shape[1])) / np.sqrt(self.batch)
        return (outer - self.alpha * inner @ self.hessians[ue]) @ self.inner[ue]

    @property
    def noise_variance(self):  # the exact σ_F²
        pushed = self.alpha * self.inner @ self.hessians
        return float(((self.inner**2).sum((1, 2)) + (pushed**2).sum((1, 2))).max() / self.batch)


@dataclass(frozen=True)
class Run:
    """One semi-synchronous training, in several replicas that share the schedule."""

    squares: np.ndarray  # ‖∇F(w_k)‖², [K, r]
    errors: np.ndarray  # T1 = ‖X + Y‖², [K, r]
    apart: np.ndarray  # the largest ‖∇F_i(w) − ∇F(w)‖² each UE met, [n]
    spread: float  # the largest (1/n)Σ_i ‖∇F_i(w) − ∇F(w)‖² over the models, as in Lemma 3
    staleness: np.ndarray  # [K, A]


def equal_turns(rng, n, quorum, periods):
    """Every period merges every UE once, in random order."""
    return np.concatenate([rng.permutation(n).reshape(-1, quorum) for _ in range(periods)])


def uneven_turns(rng, n, quorum, rounds):
    """Some UEs are merged far more often than others."""
    weights = rng.dirichlet(np.full(n, 0.3)) + 1e-3
    return np.stack([rng.choice(n, quorum, replace=False, p=weights / weights.sum()) for _ in range(rounds)])


def semi_synchronous(rng, task, start, ues, *, staleness, beta, replicas):
    """Merge the given UEs round by round; a UE works from any version since its last merge that is at most S old."""
    n, quorum = len(task.centres), ues.shape[1]
    models = [np.tile(start, (replicas, 1))]
    free_from = np.zeros(n, int)
    squares, errors, stale, apart, spread = [], [], [], np.zeros(n), 0.0
    for k, merged in enumerate(ues):
        here = task.gradients(models[k])
        squares.append((here.mean(1) ** 2).sum(1))
        spread = max(spread, ((here - here.mean(1, keepdims=True)) ** 2).sum(2).mean(1).max())
        total, error, ages = np.zeros_like(models[k]), np.zeros_like(models[k]), []
        for ue in merged:
            version = rng.integers(max(free_from[ue], k - staleness), k + 1)
            free_from[ue] = k + 1
            exact = task.gradients(models[version])
            deviation = exact[:, ue] - exact.mean(1)
            noise = task.noise(rng, ue, replicas)
            apart[ue] = max(apart[ue], (deviation**2).sum(1).max())
            total += (exact[:, ue] + noise) / quorum
            error += (deviation + noise) / quorum
            ages.append(k - version)
        models.append(models[k] - beta * total)
        errors.append((error**2).sum(1))
        stale.append(ages)
    return Run(np.array(squares), np.array(errors), apart, float(spread), np.array(stale))


SCHEDULES = {
    "seed": st.integers(0, 2**32 - 1),
    "quorum": st.integers(1, 4),
    "per_period": st.integers(1, 4),
    "staleness": st.integers(0, 5),
    "part": st.floats(0.05, 1),
    "step": st.floats(0, 1),
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(even=st.booleans(), **SCHEDULES)
def test_every_single_run_stays_below_the_proved_bounds_with_its_own_error(
    seed, quorum, per_period, staleness, part, step, even
):
    """With the run's own mean T1 for E[T1] the bounds hold run by run, for any schedule: no slack to hide in."""
    rng = np.random.default_rng(seed)
    n = quorum * per_period
    task = Quadratics.draw(rng, n, 3, step=step, batch=4, shared_hessian=False)
    start, curvature, gap = _problem(rng, task)
    ues = equal_turns(rng, n, quorum, 5) if even else uneven_turns(rng, n, quorum, 5 * per_period)
    for bound, largest in ((proved, largest_proved_beta), (sharpened, largest_corrected_beta)):
        setting = Premises(curvature, 0.0, 0.0, gap, part * largest(curvature, staleness), staleness)
        run = semi_synchronous(rng, task, start, ues, staleness=staleness, beta=setting.beta, replicas=4)
        assert run.staleness.max() <= staleness
        for replica in range(4):
            claim = bound(setting, float(run.errors[:, replica].mean())).after(len(run.squares))
            assert run.squares[:, replica].mean() <= claim * (1 + 1e-9) + 1e-12


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(**SCHEDULES)
def test_with_equal_participation_the_spread_is_the_average_over_ues(seed, quorum, per_period, staleness, part, step):
    rng = np.random.default_rng(seed)
    n = quorum * per_period
    task = Quadratics.draw(rng, n, 3, step=step, batch=4, shared_hessian=False)
    start, curvature, gap = _problem(rng, task)
    beta = part * largest_proved_beta(curvature, staleness)
    ues = equal_turns(rng, n, quorum, 8)
    run = semi_synchronous(rng, task, start, ues, staleness=staleness, beta=beta, replicas=64)
    setting = Premises(curvature, task.noise_variance, float(run.apart.mean()), gap, beta, staleness)
    error = merge_error(setting, spread_of_shares(np.bincount(ues.ravel()) / ues.size))
    assert error == pytest.approx(2 * (task.noise_variance + run.apart.mean()))
    assert run.errors.mean() <= error
    for bound in (proved, sharpened):
        assert run.squares.mean() <= bound(setting, error).after(len(run.squares))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(**SCHEDULES)
def test_with_any_participation_n_over_a_makes_up_for_the_average(seed, quorum, per_period, staleness, part, step):
    """Only Lemma 3 is used: the average over all UEs at one model."""
    rng = np.random.default_rng(seed)
    n = quorum * per_period
    task = Quadratics.draw(rng, n, 3, step=step, batch=4, shared_hessian=False)
    start, curvature, gap = _problem(rng, task)
    beta = part * largest_proved_beta(curvature, staleness)
    ues = uneven_turns(rng, n, quorum, 8 * per_period)
    run = semi_synchronous(rng, task, start, ues, staleness=staleness, beta=beta, replicas=64)
    setting = Premises(curvature, task.noise_variance, run.spread, gap, beta, staleness)
    error = merge_error(setting, spread_of_any_schedule(n, quorum))
    assert run.errors.mean() <= error
    for bound in (proved, sharpened):
        assert run.squares.mean() <= bound(setting, error).after(len(run.squares))


@settings(max_examples=25, deadline=None)
@given(**SCHEDULES)
def test_the_mean_stays_below_the_proved_bounds_with_the_papers_constants(
    seed, quorum, per_period, staleness, part, step
):
    """A shared Hessian: γ_H = 0 and γ_G is the same everywhere, so the lemmas apply on the whole space and C drops out."""
    rng = np.random.default_rng(seed)
    d, batch = 3, 4
    task = Quadratics.draw(rng, quorum * per_period, d, step=step, batch=batch, shared_hessian=True)
    start = 5 * rng.normal(size=d)
    pulled = (task.centres - task.centres.mean(0)) @ task.hessians[0]
    constants = Constants(
        smoothness=float(np.linalg.norm(task.hessians[0], 2)),
        gradient_bound=1e6,
        hessian_lipschitz=0.0,
        gradient_noise=math.sqrt(d),
        hessian_noise=0.0,
        gradient_diversity=float(np.sqrt((pulled**2).sum(1).mean())),
        hessian_diversity=0.0,
        gap=float(task.value(start) - task.value(task.optimum)),
    )
    beta = part * largest_proved_beta(4 * constants.smoothness, staleness)
    setting = Premises.of(
        constants,
        alpha=task.alpha,
        beta=beta,
        staleness=staleness,
        batch_in=batch,
        batch_out=batch,
        batch_hessian=batch,
    )
    ues = equal_turns(rng, len(task.centres), quorum, 8)
    run = semi_synchronous(rng, task, start, ues, staleness=staleness, beta=beta, replicas=16)
    error = merge_error(setting, spread=1.0)
    assert run.errors.mean() <= error
    for bound in (proved, sharpened):
        assert run.squares.mean() <= bound(setting, error).after(len(run.squares))


def _problem(rng, task):
    """Where to start, the exact smoothness of F, and F(w_0) − F*."""
    start = 5 * rng.normal(size=task.centres.shape[1])
    curvature = float(np.linalg.norm(task.meta_hessians.mean(0), 2)) + 1e-12
    return start, curvature, float(task.value(start) - task.value(task.optimum))
