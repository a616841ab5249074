"""Are FedNova, FedDyn, MOON, q-FFL, SEAFL, FedASMU, REFL, FedALA and those with layers of their own what their papers say?"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from twins import World, fedasync, fedavg, fedper, fedprox
from twins_baselines import TWINS_OF_BASELINES, fedasmu, feddyn, fednova, refl

from perfeds2.learning.datasets import digits
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import MEAN
from perfeds2.learning.methods import (
    METHODS,
    MOON,
    QFFL,
    REFL,
    SEAFL,
    FedALA,
    FedASMU,
    FedBN,
    FedDyn,
    FedNova,
    LGFedAvg,
    parts_of,
)
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script
from perfeds2.network.cell import Cell
from perfeds2.spec.cells import upload_bits
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LAYERED = digits(6, 3, 0)
TASK = replace(LAYERED, model=MLP((64, 10)))  # compiles in two thirds of the time
CELL = Cell.draw(6, 0)
LINE = simulate(CELL, Protocol(2, 3), payload_bits=1e5, samples=60, rounds=12)
WORLD = World(TASK, LINE, 0, 8, 3, 0.07)
NORMALISED = replace(TASK, model=MLP((64, 32, 10), normalised=True))
FRESH = replace(LINE, staleness=np.zeros_like(LINE.staleness))  # all begin with the newest model
THREE = simulate(CELL, Protocol(2, 3), payload_bits=1e5, samples=60, rounds=3)
OF_LAYERS = ("MOON", "FedALA", "LG-FedAvg", "FedBABU")
ONCE = replace(THREE, ues=np.arange(6).reshape(3, 2), staleness=np.zeros_like(THREE.staleness))  # every UE once


def trained(method, line=LINE, task=TASK, **changes):
    """The state at the end of a timeline."""
    objective, merge = parts_of(method)
    learner = replace(Learner(objective, batch=8, local_steps=3, merge=merge), **changes)
    script = Script.of(line)
    return advance(Prepared.of(task, script, learner, 0), start(task, script, learner, 0), 0, line.rounds)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def assert_close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS_OF_BASELINES)
def test_a_baseline_is_its_papers_pseudocode(name):
    task = {"FedBN": NORMALISED, **dict.fromkeys(OF_LAYERS, LAYERED)}.get(name, TASK)
    world, state = replace(WORLD, task=task), trained(METHODS[name](), task=task)
    model, kept = TWINS_OF_BASELINES[name](world)
    assert_close(flat(state.params), model)
    assert np.abs(model - world.first).max() > 1e-3  # it has gone somewhere
    for ue in kept or ():
        assert_close(flat(jax.tree.map(lambda rows, ue=ue: np.asarray(rows)[ue], state.client_state)), kept[ue])


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedNova(1.0), MOON(0.0), QFFL(0.0), FedALA(0.0), FedBN()], ids=repr)
def test_these_settings_are_fedavg(method):
    """All steps, no contrast, q = 0, all of the shared layer taken over, and no normalisation layer to keep."""
    world = WORLD if not isinstance(method, MOON | FedALA) else replace(WORLD, task=LAYERED)
    if isinstance(method, FedALA):
        world = TwoBatches(*(getattr(world, name) for name in FIELDS))
    assert_close(flat(trained(method, task=world.task).params), fedavg(world)[0])


FIELDS = ("task", "line", "seed", "batch", "steps", "step")


class TwoBatches(World):
    """A world whose UEs draw a second batch in every step and leave it."""

    def batches(self, ue, version, count=1):  # noqa: ARG002 (the interface)
        return [own[:1] for own in super().batches(ue, version, 2)]


@pytest.mark.slow
def test_feddyn_without_its_server_is_fedavg_at_mu_zero_and_begins_as_fedprox():
    free = trained(FedDyn(0.0), merge=MEAN)
    assert_close(flat(free.params), fedavg(WORLD)[0])
    once = trained(FedDyn(0.5), ONCE, merge=MEAN)
    assert_close(flat(once.params), fedprox(replace(WORLD, line=ONCE), mu=0.5)[0])


@pytest.mark.slow
def test_lg_fedavg_of_a_network_with_one_layer_is_fedavg():
    state = trained(LGFedAvg())
    assert state.client_state == {}
    assert_close(flat(state.params), fedavg(WORLD)[0])


@pytest.mark.slow
def test_fedbabu_and_fedper_agree_below_the_head_while_every_head_is_new():
    """With one step in the first job of every UE."""
    state = trained(METHODS["FedBABU"](), ONCE, LAYERED, local_steps=1)
    model, _ = fedper(replace(WORLD, task=LAYERED, line=ONCE, steps=1))
    assert_close(flat(state.params), model)


@pytest.mark.slow
def test_seafl_that_trusts_all_alike_is_fedavg_and_that_takes_nothing_stays():
    alike = SEAFL(importance=0.0, mixing=1.0)
    assert_close(flat(trained(alike, FRESH).params), fedavg(replace(WORLD, line=FRESH))[0])
    assert_close(flat(trained(SEAFL(mixing=0.0)).params), WORLD.first)


@pytest.mark.slow
def test_refl_boosts_stale_uploads_that_are_far_from_fresh_ones():
    """Of three uploads, one is fresh and two are stale; without boost, staleness alone counts."""
    line = simulate(CELL, Protocol(3, 3), payload_bits=1e5, samples=60, rounds=8)
    line = replace(line, staleness=np.minimum(np.arange(8)[:, None], [0, 1, 2]))
    world = replace(WORLD, line=line)
    boosted, plain = refl(world, beta=0.9)[0], refl(world, beta=0.0)[0]
    assert np.abs(boosted - plain).max() > 1e-3
    assert_close(flat(trained(REFL(boost=0.9), line).params), boosted)
    assert_close(flat(trained(REFL(boost=0.0), line).params), plain)


@pytest.mark.slow
def test_refl_without_stale_uploads_is_fedavg():
    assert_close(flat(trained(REFL(), FRESH).params), fedavg(replace(WORLD, line=FRESH))[0])


@pytest.mark.slow
def test_fedasmu_with_constant_controls_is_fedasync():
    constant = FedASMU(fading=0.0, constant=1.5, control_step=0.0)
    assert_close(flat(trained(constant).params), fedasync(WORLD, alpha=0.6, s=lambda _: 1.0, rho=0.0)[0])


@pytest.mark.slow
def test_fedasmu_learns_its_controls():
    model, _ = fedasmu(WORLD, step=3.0)
    assert np.abs(model - fedasmu(WORLD, step=0.0)[0]).max() > 1e-3
    assert_close(flat(trained(FedASMU(control_step=3.0)).params), model)


@pytest.mark.slow
def test_numbers_of_steps_differ_and_matter():
    assert np.abs(fednova(WORLD)[0] - fedavg(WORLD)[0]).max() > 1e-3
    assert np.abs(feddyn(WORLD)[0] - fedavg(WORLD)[0]).max() > 1e-3


def test_what_ues_keep_is_not_uploaded():
    params = jax.eval_shape(NORMALISED.model.init, jax.random.key(0))
    kept = {name: set(METHODS[name]().objective.withheld(params)) for name in ("FedBN", "LG-FedAvg", "FedBABU")}
    norm, body = {"norm1.scale", "norm1.shift"}, {"dense1.weight", "dense1.bias"}
    assert kept == {"FedBN": norm, "LG-FedAvg": norm | body, "FedBABU": {"dense2.weight", "dense2.bias"}}
    spec = spec_from(task="digits", model="mlp-norm")  # 64·100 + 100, 100·10 + 10, and 2·100 numbers of the norm
    sent = {name: upload_bits(spec, METHODS[name]().objective) / 32 for name in kept}
    assert sent == {"FedBN": 6500 + 1010, "LG-FedAvg": 1010, "FedBABU": 6500 + 200}


def test_a_job_takes_as_long_as_it_computes():
    """A batch a step; FedALA learns its shares on a second one, and MOON computes features in two more models."""
    samples = {name: Learner(parts_of(METHODS[name]())[0], batch=8).samples for name in TWINS_OF_BASELINES}
    assert samples == dict.fromkeys(TWINS_OF_BASELINES, 8) | {"FedALA": 16, "MOON": 16}


def test_a_normalised_layer_is_what_it_says():
    """Of (1, 3): mean 2, deviation 1."""
    model = MLP((2, 2, 1), activation=lambda x: x, normalised=True)
    params = {
        "dense1.weight": np.eye(2),
        "dense1.bias": np.zeros(2),
        "dense2.weight": np.array([[1.0], [10.0]]),
        "dense2.bias": np.zeros(1),
        "norm1.scale": np.array([2.0, 3.0]),
        "norm1.shift": np.array([0.5, 0.0]),
    }
    assert params.keys() == jax.eval_shape(model.init, jax.random.key(0)).keys()
    assert_close(jax.jit(model)(params, np.array([[1.0, 3.0]])), [[-1.5 + 30.0]], 1e-4)
