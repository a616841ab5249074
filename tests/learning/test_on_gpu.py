"""Does what is made for a GPU give what a processor gives?

There is no GPU here: the same code is asked for as if there were one, and compiled for the processor.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contexts import context
from in_numpy import evaluate_in_numpy

from perfeds2.learning import factored, losses, on_gpu
from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.models.lstm import LSTM
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import ModelWithLoss, mean_loss
from perfeds2.learning.objectives import FedAvg, FedProx, PerFed
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

pytestmark = pytest.mark.slow


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(on_gpu, "is_there", lambda: True)


def drawn(model, random):
    """Weights in float64."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return {name: random.uniform(-0.5, 0.5, shape.shape) for name, shape in shapes.items()}


def assert_close(ours, theirs, tolerance=1e-10):
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=tolerance, atol=tolerance * np.abs(values).max())


# ---- an MLP's gradient without its first layer's matrices

OBJECTIVES = {
    "exact": PerFed(0.3),
    "on the inner batch": PerFed(0.3, hessian_batch="inner"),
    "first order": PerFed(0.3, "fo"),
}


@partial(jax.jit, static_argnums=(0, 1))
def both_gradients(model, objective, params, batches):
    """By factors, and as the objective has it."""
    theirs = objective.gradient(params, params, batches, context(lambda w, xy: mean_loss(model, w, *xy)))
    in_factors = factored.loss_for(model, 6, one_step=True)
    assert isinstance(in_factors, factored.FactoredLoss)
    return objective.gradient(params, params, batches, context(in_factors)), theirs


@pytest.mark.parametrize(("name", "sizes"), [("exact", (7, 3)), *((name, (7, 5, 4, 3)) for name in OBJECTIVES)])
@pytest.mark.usefixtures("a_gpu")
def test_factors_give_the_objectives_gradient(name, sizes):
    objective = OBJECTIVES[name]
    with jax.enable_x64(True):
        model, random = MLP(sizes, input_scale=255, activation=jnp.tanh), np.random.default_rng(0)
        x, y = random.integers(0, 255, (objective.batches, 6, 7)).astype(np.uint8), random.integers(0, 3, (3, 6))
        ours, theirs = both_gradients(model, objective, drawn(model, random), (x, y[: len(x)]))
        assert_close(ours, theirs)


@pytest.mark.usefixtures("a_gpu")
def test_factors_know_a_model_with_a_loss_of_its_own():
    with jax.enable_x64(True):
        model, objective = ModelWithLoss(MLP((4, 5, 1)), losses.mse, losses.rmse), PerFed(0.2)
        random = np.random.default_rng(0)
        batches = random.normal(size=(3, 6, 4)), random.normal(size=(3, 6, 1))
        ours, theirs = both_gradients(model, objective, drawn(model, random), batches)
        assert_close(ours, theirs)


def is_factored(model, samples, *, one_step=True):
    return isinstance(factored.loss_for(model, samples, one_step=one_step), factored.FactoredLoss)


@pytest.mark.usefixtures("a_gpu")
def test_factors_are_for_what_they_know(monkeypatch):
    model, used, first_layer = MLP((4, 5, 2)), [], factored.FactoredLoss._first_layer
    monkeypatch.setattr(
        factored.FactoredLoss, "_first_layer", lambda loss, *given: used.append(loss) or first_layer(loss, *given)
    )
    params = jax.eval_shape(model.init, jax.random.key(0))
    others = FedAvg(), FedProx(), PerFed(0.1, "hf"), PerFed(0.1, inner_clip=1.0), PerFed(0.1, anneal=9)
    for objective in (*others, *OBJECTIVES.values()):
        used.clear()
        batches = jnp.zeros((objective.batches, 4, 4)), jnp.zeros((objective.batches, 4), int)
        given = context(factored.loss_for(model, 4, one_step=True))
        jax.eval_shape(lambda w, of=objective, b=batches, c=given: of.gradient(w, w, b, c), params)
        assert bool(used) == (objective not in others)
    assert is_factored(model, 4)
    assert not is_factored(model, 4, one_step=False)
    assert not is_factored(LSTM(), 4)


@pytest.mark.parametrize(("samples", "pays"), [(4, True), (5, False)])
def test_a_processor_takes_factors_where_they_are_less_work(samples, pays):
    assert is_factored(MLP((4, 5, 2)), samples) == pays


# ---- rounds in blocks


@pytest.mark.parametrize("block", [3, 4])
def test_blocks_end_where_single_steps_do(block):
    def play(block, most):
        def step(number, state):
            return jnp.where(number < most, state * 3 + number, state)

        return on_gpu.in_blocks(block, most, step, jnp.int32(1))

    single, several = (jax.jit(partial(play, size)) for size in (1, block))
    for most in range(10):
        assert several(most) == single(most)


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_plays_many_rounds_without_a_look():
    assert on_gpu.block_of([[0, 1000, 2000]]) == on_gpu.BLOCK
    assert on_gpu.block_of([[0, 5, 5, 9], [0, 200]]) == 1
    assert on_gpu.block_of([[0]]) == on_gpu.block_of([[0, 0]]) == 1


def test_a_processor_looks_after_every_round():
    assert on_gpu.block_of([[0, 1000]]) == 1


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_a_training_in_blocks_and_factors_is_the_same_training(monkeypatch, together):
    """Blocks of four over points that are no multiples of it."""
    evaluate_in_numpy(monkeypatch.setattr)
    line = simulate(Cell.draw(6, 0), Protocol(2, 2), payload_bits=1e5, samples=24, rounds=19)
    points = [EvaluationPoint(0, 0.0), EvaluationPoint(6, 1.0), EvaluationPoint(19, 2.0)]
    learner = Learner(FedAvg() if together else PerFed(0.1), 0.2, batch=8)
    task, found = digits(6, 3, 0), []
    if together:
        task = replace(task, model=MLP((64, 10)))  # compiles in two thirds of the time
    for there in (False, True):
        monkeypatch.setattr(on_gpu, "is_there", lambda there=there: there)
        monkeypatch.setattr(on_gpu, "block_of", lambda _, there=there: 4 if there else 1)
        if together:
            stand = list(train_together([Lane(task, line, learner, points, seed) for seed in (0, 1)]))[-1][1]
        else:
            stand = list(train(task, line, learner, points, seed=0))[-1]
        found.append(stand)
    assert_close(found[1].state.params, found[0].state.params, 1e-5)
    for ours, theirs in zip(found[1].values, found[0].values, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
