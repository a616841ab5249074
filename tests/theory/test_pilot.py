"""The pilot against tasks whose constants are known."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2.theory.pilot import ConstantEstimate, _spectral_norm, _summary, measure

pytestmark = pytest.mark.slow

N, M, D = 4, 6, 5  # UEs, samples each, parameters


def quadratic(params, batch):
    """A sample is a centre t (in x) and a Hessian A (in y): ½(w − t)ᵀA(w − t), averaged. The parameters are a pytree."""
    w = jnp.concatenate([params["bias"], params["weights"].ravel()])
    away = w - batch[0]
    return 0.5 * jnp.einsum("si,sij,sj->s", away, batch[1], away).mean()


def as_params(w):
    return {"bias": jnp.asarray(w[:1], jnp.float32), "weights": jnp.asarray(w[1:], jnp.float32).reshape(2, 2)}


@pytest.fixture(scope="module")
def federation():
    """Random samples: symmetric Hessians, unlike within a UE and between UEs."""
    rng = np.random.default_rng(5)
    tilt = rng.normal(size=(N, M, D, D)) + 2 * rng.normal(size=(N, 1, D, D))
    hessians = 6 * np.eye(D) + 0.3 * (tilt + tilt.swapaxes(2, 3))
    centres = rng.normal(size=(N, M, D)) + 2 * rng.normal(size=(N, 1, D))
    points = [0.5 * rng.normal(size=D) for _ in range(3)]
    return hessians, centres, points


ALPHA = 0.02


@pytest.fixture(scope="module")
def found(federation):
    hessians, centres, points = federation
    x, y = centres.astype(np.float32), hessians.astype(np.float32)
    return measure(
        quadratic,
        [as_params(w) for w in points],
        x,
        y,
        alpha=ALPHA,
        lanczos_steps=12,
        descent_steps=100,
    )


def test_every_constant_of_a_federated_quadratic_is_recovered(federation, found):
    hessians, centres, points = federation
    own = hessians.mean(1)
    shared = own.mean(0)

    def norm(matrices):
        return np.linalg.norm(matrices, 2, axis=(-2, -1))

    def at(w):
        per_sample = np.einsum("nsij,nsj->nsi", hessians, w - centres)
        per_ue = per_sample.mean(1)
        return (
            np.linalg.norm(per_ue, axis=1).max(),
            np.sqrt(((per_sample - per_ue[:, None]) ** 2).sum(2).mean(1).max()),
            np.sqrt(((per_ue - per_ue.mean(0)) ** 2).sum(1).mean()),
        )

    bound, noise, diversity = np.max([at(w) for w in points], axis=0)
    assert found["smoothness"].value == pytest.approx(norm(own).max(), rel=0.05)
    assert found["gradient_bound"].value == pytest.approx(bound, rel=0.05)
    assert found["hessian_lipschitz"].value == pytest.approx(0.0, abs=1e-3)
    assert found["gradient_noise"].value == pytest.approx(noise, rel=0.05)
    assert found["hessian_noise"].value == pytest.approx(
        np.sqrt((norm(hessians - own[:, None]) ** 2).mean(1).max()), rel=0.05
    )
    assert found["gradient_diversity"].value == pytest.approx(diversity, rel=0.05)
    assert found["hessian_diversity"].value == pytest.approx(np.sqrt((norm(own - shared) ** 2).mean()), rel=0.05)


def test_the_gap_lies_between_what_descent_finds_and_what_the_lower_bound_leaves(federation, found):
    """F is quadratic too: F_i(w) = f_i(w − α∇f_i(w)), whose minimum needs one linear solve."""
    hessians, centres, points = federation
    own = hessians.mean(1)
    pulls = np.einsum("nsij,nsj->nsi", hessians, centres).mean(1)  # ∇f_i = H_i w − p_i
    inner = np.eye(D) - ALPHA * own

    def value(w):
        adapted = w - ALPHA * (own @ w - pulls)
        away = adapted[:, None] - centres
        return 0.5 * np.einsum("nsi,nsij,nsj->", away, hessians, away) / (N * M)

    curvature = (inner @ own @ inner).mean(0)
    pull = np.einsum("nij,njk,nk->i", inner, inner, pulls) / N
    best = np.linalg.solve(curvature, pull)
    assert found["gap"].low == pytest.approx(value(points[0]) - value(best), rel=0.05)
    assert found["gap"].value == found["gap"].high == pytest.approx(value(points[0]), rel=0.05)


def test_the_uncertainty_is_zero_where_points_agree_and_brackets_where_they_differ(found):
    assert found["smoothness"].high == pytest.approx(found["smoothness"].low, rel=1e-3)  # the same Hessian everywhere
    assert found["gradient_bound"].low < found["gradient_bound"].value < found["gradient_bound"].high


def test_the_upper_limit_extrapolates_from_the_two_largest():
    assert _summary([1.0, 3.0, 2.5]) == ConstantEstimate(value=3.0, low=1.0, high=5.0)  # 3 + 4·0.5
    with pytest.raises(ValueError, match="not finite"):
        _summary([1.0, float("nan")])


def test_a_cubic_bends_at_its_own_rate():
    """f = r·w³/6 has Hessian r·w, so ρ = r between any two points: 3 for one UE and 1.5 for the other."""

    def cubic(params, batch):
        return (batch[0] * params**3 / 6).mean()

    x = np.array([[[3.0], [3.0]], [[1.5], [1.5]]], np.float32)
    points = [jnp.array([0.4]), jnp.array([-0.7])]
    found = measure(cubic, points, x, np.zeros((2, 2), np.float32), alpha=0.1, descent_steps=1)
    assert found["hessian_lipschitz"].value == pytest.approx(3.0, rel=0.05)
    assert found["smoothness"].value == pytest.approx(2.1, rel=0.05)  # 3·0.7
    assert found["gradient_noise"].value == pytest.approx(0.0, abs=1e-6)


def test_softmax_regression_stays_below_its_analytic_smoothness():
    """The Hessian of a softmax loss is at most ½·mean‖x‖² (a spectral norm of diag(p) − ppᵀ is at most ½)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 20, 4)).astype(np.float32)
    y = rng.integers(0, 3, size=(3, 20))

    def softmax(params, batch):
        scores = jax.nn.log_softmax(batch[0] @ params)
        return -jnp.take_along_axis(scores, batch[1][:, None], axis=1).mean()

    points = [jnp.asarray(rng.normal(size=(4, 3)), jnp.float32) for _ in range(2)]
    found = measure(softmax, points, x, y, alpha=0.1, descent_steps=20)
    assert 0 < found["smoothness"].value <= 0.5 * (x**2).sum(2).mean(1).max()
    assert found["hessian_lipschitz"].value > 0
    assert found["hessian_noise"].value > 0
    assert found["hessian_diversity"].value > 0


@pytest.mark.parametrize(
    "eigenvalues", [[1.0, 2.0, 3.0], [-5.0, 1.0, 4.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], list(range(-30, 61))]
)
def test_lanczos_finds_the_largest_eigenvalue_in_size(eigenvalues):
    values = jnp.asarray(eigenvalues, jnp.float32)
    start = jax.random.normal(jax.random.key(1), values.shape)
    found = float(_spectral_norm(lambda v: values * v, start, 24))
    assert found == pytest.approx(np.abs(eigenvalues).max(), rel=0.01, abs=1e-6)
    assert found <= np.abs(eigenvalues).max() * (1 + 1e-5)


def test_nonsense_is_refused(federation):
    hessians, centres, points = federation
    good = [as_params(w) for w in points]
    with pytest.raises(ValueError, match="at least 2 probe points"):
        measure(quadratic, good[:1], centres, hessians, alpha=0.1)
    with pytest.raises(ValueError, match="start with"):
        measure(quadratic, good, centres, hessians[:2], alpha=0.1)


def test_the_rest_of_the_theory_does_not_import_jax():
    code = "import sys, perfeds2.theory.optimum, perfeds2.theory.bounds; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
