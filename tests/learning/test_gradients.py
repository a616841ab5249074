"""Do the settings that keep personal gradients stable do what their formulas say, and nothing where nothing triggers?"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context
from in_numpy import evaluate_in_numpy
from jax.flatten_util import ravel_pytree
from replay_twin import replay_slowly
from test_replay import TASK, assert_close, only_trace, timeline

from perfeds2.learning import job as module
from perfeds2.learning.factored import loss_for
from perfeds2.learning.job import Known, Program, local_update
from perfeds2.learning.lanes import Lane, group_lanes
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import mean_loss
from perfeds2.learning.objectives import FedAvg, Moreau, PerFed
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import replay
from perfeds2.learning.train import train_together
from perfeds2.learning.trees import clip
from perfeds2.timeline.protocol import Protocol

MODEL = MLP((3, 4, 3))
ALPHA = 0.3
LINE = timeline(Protocol(2, 2))


def loss(params, batch):
    return mean_loss(MODEL, params, *map(jnp.asarray, batch))


@pytest.fixture
def small():
    """A 31-parameter model and three different batches, in float64."""
    random, shapes = np.random.default_rng(1), jax.eval_shape(MODEL.init, jax.random.key(0))
    with jax.enable_x64(True):
        params = {name: random.uniform(-0.5, 0.5, shape.shape) for name, shape in shapes.items()}
        yield params, (random.standard_normal((3, 5, 3)), random.integers(0, 3, (3, 5)))


@jax.jit
def updated(objective, params, batches):
    """An update, compiled once for all numbers of an objective."""
    return objective.gradient(params, params, batches, context(loss))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def at_once(objective, loss, params, batches, version=0):
    """An update, compiled as a whole: its operations one by one would be compiled one by one."""
    return jax.jit(lambda w, batches: objective.gradient(w, w, batches, context(loss, version=version)))(
        params, batches
    )


def parabola(params, batch):
    """½·h·‖w − c‖² summed over coordinates with curvature h = (1, 4); the batch is its centre c."""
    return 0.5 * jnp.sum(jnp.array([1.0, 4.0]) * (params["w"] - batch) ** 2)


# ---- the upload's norm


def test_the_norm_of_an_upload_is_that_of_all_its_arrays():
    gradient = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}  # of norm 5
    shorter = clip(gradient, 2.5)
    np.testing.assert_allclose(shorter["a"], [1.5, 0.0])
    np.testing.assert_allclose(shorter["b"], [[2.0]])
    for most in (5.0, 7.0):  # not too long: as it is, to the last bit
        assert all(np.array_equal(clip(gradient, most)[name], gradient[name]) for name in gradient)
    nothing = {"a": jnp.zeros(2)}
    assert np.array_equal(clip(nothing, 1.0)["a"], [0.0, 0.0])


@pytest.mark.slow
def test_a_whole_job_is_clipped_not_each_of_its_steps():
    params = jax.jit(TASK.model.init)(jax.random.key(0))

    def upload(most):
        learner = Learner(FedAvg(), batch=8, local_steps=3, clip=most)
        known, given = Known.of(TASK, learner, 0), (params, jnp.int32(1), jnp.int32(0))
        return flat(jax.jit(local_update, static_argnums=0)(Program.of(TASK.model, learner), known, *given)[0])

    free = upload(None)
    length = float(np.linalg.norm(free))
    np.testing.assert_allclose(upload(length / 4), free / 4, rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(upload(2 * length), free)


LEARNERS = {
    "inner": Learner(PerFed(0.1, "hf", hessian_batch="inner", inner_clip=0.6), batch=8),
    "anneal": Learner(PerFed(0.1, inner_clip=0.6, anneal=12), batch=8, clip=0.9),
    "Moreau": Learner(Moreau(0.1, 5.0), batch=8, local_steps=2, clip=0.8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_replay_matches_the_twin(name):
    learner = LEARNERS[name]
    ours = replay(TASK, LINE, learner, seed=3)
    assert_close(ours, replay_slowly(TASK, LINE, learner, seed=3), 1e-5)
    plain = replay(TASK, LINE, Learner(PerFed(0.1), batch=8), seed=3)
    assert np.abs(flat(ours) - flat(plain)).max() > 1e-4


# ---- the inner step's norm


@jax.jit
def slope_of_sampled(params, batches, most):
    """The gradient of one sampled F, which the meta-gradient on its two batches must be."""
    x, y = batches

    def personal(params):
        inner = jax.grad(loss)(params, (x[0], y[0]))
        if most is not None:
            scale = jnp.minimum(1.0, most / jnp.linalg.norm(ravel_pytree(inner)[0]))
            inner = jax.tree.map(lambda g: scale * g, inner)
        return loss(jax.tree.map(lambda w, g: w - ALPHA * g, params, inner), (x[1], y[1]))

    return jax.grad(personal)(params)


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 0.05, 100.0])
def test_with_the_inner_batch_the_update_is_the_gradient_of_one_sampled_loss(small, most):
    params, (x, y) = small
    ours = PerFed(ALPHA, hessian_batch="inner", inner_clip=most)
    assert (ours.batches, ours.passes) == (2, 3)
    found = flat(updated(ours, params, (x[:2], y[:2])))
    expected = slope_of_sampled(params, (x, y), most)
    np.testing.assert_allclose(found, flat(expected), rtol=1e-11, atol=1e-14)
    if most == 100.0:  # nothing triggers
        free = updated(PerFed(ALPHA, hessian_batch="inner"), params, (x[:2], y[:2]))
        np.testing.assert_array_equal(found, flat(free))


def test_the_inner_clip_on_a_parabola_by_hand():
    """w = (3, 1), centres 0: g = (3, 4), ‖g‖ = 5, C = 1: c(g) = (0.6, 0.8). α = ½: w' = (2.7, 0.6), v = (2.7, 2.4).

    J·v = (v − ĝ(ĝ·v))/5 with ĝ·v = 3.54: (0.576, −0.432)/5 = (0.1152, −0.0864). H·J·v = (0.1152, −0.3456).
    Update: v − ½·H·J·v = (2.6424, 2.5728).
    """
    params, centres = {"w": jnp.array([3.0, 1.0])}, jnp.zeros((3, 2))
    update = at_once(PerFed(0.5, inner_clip=1.0), parabola, params, centres)
    np.testing.assert_allclose(update["w"], [2.6424, 2.5728], rtol=1e-6)
    first_order = at_once(PerFed(0.5, "fo", inner_clip=1.0), parabola, params, centres)
    np.testing.assert_allclose(first_order["w"], [2.7, 2.4], rtol=1e-6)


@pytest.mark.slow
def test_a_clipped_step_takes_the_hessian_of_its_own_batch_unless_told(small):
    """(I − αH₂J₀)v: J from the inner gradient, H from the third batch."""
    params, (x, y) = small
    unflatten, most = ravel_pytree(params)[1], 0.05

    @jax.jit
    def expected(w):
        f = [lambda w, i=i: loss(unflatten(w), (x[i], y[i])) for i in range(3)]
        g = jax.grad(f[0])(w)
        length = jnp.linalg.norm(g)
        v = jax.grad(f[1])(w - ALPHA * most / length * g)
        jacobian = most / length * (jnp.eye(g.size) - jnp.outer(g, g) / length**2)
        return v - ALPHA * jax.hessian(f[2])(w) @ jacobian @ v

    ours = updated(PerFed(ALPHA, inner_clip=most), params, (x, y))
    np.testing.assert_allclose(flat(ours), expected(flat(params)), rtol=1e-11, atol=1e-14)


# ---- first order to begin with


@pytest.mark.slow
def test_annealing_is_first_order_below_the_version_and_exact_from_it_on(small):
    params, batches = small
    exact, first = PerFed(ALPHA), PerFed(ALPHA, "fo")
    own = PerFed(ALPHA, anneal=7)
    annealed = jax.jit(lambda version, w, batches: own.gradient(w, w, batches, context(loss, version=version)))
    for version, alike in ((0, first), (6, first), (7, exact), (400, exact)):
        expected = flat(updated(alike, params, batches))
        np.testing.assert_allclose(
            flat(annealed(jnp.int32(version), params, batches)), expected, rtol=1e-12, atol=1e-15
        )


@pytest.mark.slow
def test_a_curvature_that_is_no_number_does_no_harm_while_it_is_left_out():
    def kinked(params, batch):  # its second derivative at 0 is infinite
        return jnp.sum(jnp.abs(params["w"]) ** 1.5 * jnp.sign(params["w"])) + 0.0 * batch.sum()

    params = {"w": jnp.array([0.0])}
    early, late = (at_once(PerFed(0.1, anneal=5), kinked, params, jnp.zeros((3, 1)), version) for version in (0, 5))
    assert np.isfinite(np.asarray(early["w"])).all()
    assert not np.isfinite(np.asarray(late["w"])).all()


@pytest.mark.slow
def test_every_job_asks_at_the_version_it_was_handed():
    """Annealed beyond the last version is first order throughout, on the same three batches; up to 0 it is exact."""
    exact, early = (replay(TASK, LINE, Learner(PerFed(0.3, anneal=k), batch=8)) for k in (0, LINE.rounds))
    part = replay(TASK, LINE, Learner(PerFed(0.3, anneal=10), batch=8))
    assert_close(exact, replay(TASK, LINE, Learner(PerFed(0.3), batch=8)))
    prefix, halfway = (
        replay(TASK, LINE.prefix(10), Learner(PerFed(0.3, anneal=k), batch=8)) for k in (LINE.rounds, 10)
    )
    assert_close(prefix, halfway)
    assert min(np.abs(flat(part) - flat(other)).max() for other in (exact, early)) > 1e-5


# ---- Moreau's envelope


def test_moreaus_gradient_on_a_parabola_is_that_of_the_envelope():
    """f = ½h(θ − c)²: the envelope's gradient is λh/(λ + h)·(w − c); after K steps of s it has 1 − (1 − s(λ + h))ᴷ of it."""
    params, centre = {"w": jnp.array([3.0, -1.0])}, jnp.array([[1.0, 1.0]])
    curvature, alpha, strength = np.array([1.0, 4.0]), 0.1, 2.0
    envelope = strength * curvature / (strength + curvature) * np.array([2.0, -2.0])
    many = at_once(Moreau(alpha, strength, moreau_steps=300), parabola, params, centre)
    np.testing.assert_allclose(many["w"], envelope, rtol=1e-5)
    size = alpha / (1 + alpha * strength)
    few = at_once(Moreau(alpha, strength), parabola, params, centre)
    done = 1 - (1 - size * (strength + curvature)) ** 5
    np.testing.assert_allclose(few["w"], done * envelope, rtol=1e-5)


def test_moreau_draws_one_batch_and_computes_five():
    assert (Moreau().batches, Moreau().passes) == (1, 5)
    assert Learner(Moreau(), batch=8, local_steps=2).samples == 2 * 5 * 8


# ---- all of them


def test_the_clock_counts_the_batches_that_are_computed_not_those_drawn():
    own = Learner(PerFed(), batch=40).samples
    for objective in (PerFed(hessian_batch="inner"), PerFed(anneal=5), PerFed(inner_clip=1.0)):
        assert Learner(objective, batch=40).samples == own == 120
    assert Learner(PerFed(hessian="fo", hessian_batch="inner"), batch=40).samples == 80


@pytest.mark.slow
def test_another_number_needs_no_new_compilation(monkeypatch):
    calls = []

    def counted(*arguments, **options):
        calls.append(1)
        return loss_for(*arguments, **options)

    monkeypatch.setattr(module, "loss_for", counted)

    def learner(scale):
        return Learner(PerFed(0.1, inner_clip=scale, anneal=3 * scale), batch=4, clip=scale)

    only_trace(TASK, LINE, learner(1))
    traced = len(calls)
    for scale in (2, 5):
        only_trace(TASK, LINE, learner(scale))
    assert len(calls) == traced > 0


@pytest.mark.slow
def test_trainings_with_other_numbers_go_together_and_get_their_own(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    points = [EvaluationPoint(LINE.rounds, LINE.end_s)]

    def trial(scale, clip):
        learner = Learner(PerFed(0.1, inner_clip=scale, anneal=int(10 * scale)), batch=8, clip=clip)
        return Lane(TASK, LINE, learner, points)

    trials = [trial(0.5, 0.3), trial(2.0, 0.6), trial(0.5, None)]
    assert group_lanes(trials) == [[0, 1], [2]]
    (end,) = train_together(trials[:2])
    for number, one in enumerate(trials[:2]):
        assert_close(end[number].state.params, replay(TASK, LINE, one.learner), 1e-5)
