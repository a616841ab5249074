"""The lemmas, by hand and against sampled meta-gradients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfeds2.theory.constants import Constants, bias, diversity, noise, smoothness

KNOWN = Constants(
    smoothness=2.0,
    gradient_bound=3.0,
    hessian_lipschitz=5.0,
    gradient_noise=4.0,
    hessian_noise=6.0,
    gradient_diversity=0.5,
    hessian_diversity=2.0,
    gap=7.0,
)


def test_lemma_1_by_hand():
    assert smoothness(KNOWN, 0.1) == pytest.approx(4 * 2 + 0.1 * 5 * 3)


def test_lemma_2_by_hand():
    # g = 16·(1/8 + 0.04/4) = 2.16, h = 0.01·36/(4·2) = 0.045: 12(9 + 2.16)(1.045) − 108
    assert noise(KNOWN, 0.1, batch_in=4, batch_out=8, batch_hessian=2) == pytest.approx(12 * 11.16 * 1.045 - 108)
    assert bias(KNOWN, 0.1, batch_in=4) == pytest.approx(2 * 0.1 * 2 * 4 / 2)


def test_lemma_3_by_hand():
    assert diversity(KNOWN, 0.1) == pytest.approx(3 * 9 * 0.01 * 4 + 192 * 0.25)


def test_noise_keeps_its_digits_beside_a_large_gradient_bound():
    steep = replace(KNOWN, gradient_bound=1e9, hessian_noise=0.0)
    assert noise(steep, 0.1, 4, 8, 2) == pytest.approx(12 * 2.16)


def test_the_noise_bound_takes_the_smallest_batch_and_the_printed_one_is_below_the_truth():
    """Erratum 14: UEs with 1 and 100 samples a batch, α = 0: the first one's variance is σ_G² = 16 itself."""
    quiet = replace(KNOWN, hessian_noise=0.0)
    true_variance_of_the_first = quiet.gradient_noise**2 / 1
    corrected = noise(quiet, 0.0, [1, 100], [1, 100], [1, 100])
    printed = noise(quiet, 0.0, [1, 100], [1, 100], [1, 100], pick=max)
    assert corrected == pytest.approx(12 * 16)
    assert printed == pytest.approx(1.92)
    assert printed < true_variance_of_the_first <= corrected


@pytest.mark.parametrize("alpha", [-0.1, 0.51])
def test_an_inner_step_above_one_over_l_is_refused(alpha):
    for lemma in (
        lambda: smoothness(KNOWN, alpha),
        lambda: noise(KNOWN, alpha, 1, 1, 1),
        lambda: bias(KNOWN, alpha, 1),
        lambda: diversity(KNOWN, alpha),
    ):
        with pytest.raises(ValueError, match=r"1/L = 0\.5"):
            lemma()


def test_constants_must_be_finite_and_not_negative():
    with pytest.raises(ValueError, match="gradient_noise"):
        replace(KNOWN, gradient_noise=-1.0)
    with pytest.raises(ValueError, match="gap"):
        replace(KNOWN, gap=float("inf"))
    with pytest.raises(ValueError, match="smoothness"):
        replace(KNOWN, smoothness=0.0)
    with pytest.raises(ValueError, match="batch_out"):
        noise(KNOWN, 0.1, 1, [3, 0], 1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step=st.floats(0, 1), batches=st.tuples(*[st.integers(1, 5)] * 3))
def test_lemma_2_covers_sampled_meta_gradients_and_a_third_of_it_would_do(seed, step, batches):
    """A quadratic whose samples shift the gradient and tilt the Hessian; C and σ_G over the points that are met."""
    rng = np.random.default_rng(seed)
    d, draws = 3, 2000
    size_in, size_out, size_hessian = batches
    hessian = _random_hessian(rng, d)
    tilt = rng.normal(size=(d, d))
    tilt = 0.3 * (tilt + tilt.T)
    largest = np.linalg.norm(hessian, 2)
    alpha = step / largest
    w = rng.normal(size=d)

    def sampled_gradient(points, size):  # one sample: (H ± tilt)w + shift
        sign = rng.choice([-1.0, 1.0], size=(draws, size)).mean(1)
        shift = rng.normal(size=(draws, size, d)).mean(1)
        return points @ hessian + sign[:, None] * (points @ tilt) + shift

    adapted = w - alpha * sampled_gradient(np.tile(w, (draws, 1)), size_in)
    outer = sampled_gradient(adapted, size_out)
    sign = rng.choice([-1.0, 1.0], size=(draws, size_hessian)).mean(1)
    meta = outer - alpha * (outer @ hessian) - alpha * sign[:, None] * (outer @ tilt)
    inner = np.eye(d) - alpha * hessian
    exact = inner @ hessian @ inner @ w
    met = np.vstack([w, adapted, inner @ w])
    constants = Constants(
        smoothness=float(largest),
        gradient_bound=float(np.linalg.norm(met @ hessian, axis=1).max()),
        hessian_lipschitz=0.0,
        gradient_noise=float(np.sqrt((np.linalg.norm(met @ tilt, axis=1) ** 2).max() + d)),
        hessian_noise=float(np.linalg.norm(tilt, 2)),
        gradient_diversity=0.0,
        hessian_diversity=0.0,
        gap=0.0,
    )
    assert ((meta - exact) ** 2).sum(1).mean() <= noise(constants, alpha, *batches) / 3


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step=st.floats(0, 1), n=st.integers(1, 6))
def test_lemma_3_covers_unequal_quadratics_and_24_would_do_for_192(seed, step, n):
    rng = np.random.default_rng(seed)
    d = 3
    hessians = np.stack([_random_hessian(rng, d) for _ in range(n)])
    centres = rng.normal(size=(n, d))
    largest = max(np.linalg.norm(h, 2) for h in hessians)
    alpha = step / largest

    def gradients(w):
        return np.stack([h @ (w - c) for h, c in zip(hessians, centres, strict=True)])

    w = rng.normal(size=d)
    at_w = gradients(w)
    adapted = [w - alpha * g for g in at_w]
    meta = np.stack([(np.eye(d) - alpha * h) @ h @ (u - c) for h, u, c in zip(hessians, adapted, centres, strict=True)])
    everywhere = [at_w, gradients(w - alpha * at_w.mean(0)), *(gradients(u) for u in adapted)]
    spread = max(((g - g.mean(0)) ** 2).sum(1).mean() for g in everywhere)
    constants = Constants(
        smoothness=float(largest),
        gradient_bound=float(max(np.linalg.norm(g, axis=1).max() for g in everywhere)),
        hessian_lipschitz=0.0,
        gradient_noise=0.0,
        hessian_noise=0.0,
        gradient_diversity=float(np.sqrt(spread)),
        hessian_diversity=float(np.sqrt(np.mean([np.linalg.norm(h - hessians.mean(0), 2) ** 2 for h in hessians]))),
        gap=0.0,
    )
    measured = ((meta - meta.mean(0)) ** 2).sum(1).mean()
    assert measured <= diversity(constants, alpha) - 168 * spread + 1e-9


def _random_hessian(rng, d):
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return basis * rng.uniform(0.1, 2.0, size=d) @ basis.T
