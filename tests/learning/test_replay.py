"""Does the compiled loop train exactly what the timeline says?"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_numpy import evaluate_in_numpy
from replay_twin import replay_slowly

from perfeds2.learning import job
from perfeds2.learning import replay as module
from perfeds2.learning.datasets import digits, synthetic
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import Mean, Optax
from perfeds2.learning.methods import FedBuff
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.models.model import loss_of, mean_loss
from perfeds2.learning.objectives import FedAvg, FedProx, Objective, PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.replay import Prepared, advance, replay, start
from perfeds2.learning.script import Script
from perfeds2.learning.shelf import shelve
from perfeds2.learning.train import train
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LAYERED = digits(6, 3, 0)
TASK = replace(LAYERED, model=MLP((64, 10)))  # compiles in two thirds of the time
CELL = Cell.draw(6, 0)


def timeline(protocol, rounds=25, cell=CELL):
    return simulate(cell, protocol, payload_bits=1e5, samples=60, rounds=rounds)


def made_line(ues, staleness):
    """Given merges, one second apart."""
    seconds = 1.0 + np.arange(len(ues))
    return replace(
        timeline(Protocol(ues.shape[1]), rounds=0),
        ues=ues,
        staleness=staleness,
        arrival_s=np.repeat(seconds[:, None], ues.shape[1], axis=1),
        time_s=seconds,
    )


def assert_close(ours, theirs, tolerance=2e-6):
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=tolerance, atol=tolerance)


def only_trace(task, line, learner, seed=0):
    """Trace what ``replay`` compiles, which takes a fourth of the time."""
    script = Script.of(line, learner.merge)
    given = Prepared.of(task, script, learner, seed), start(task, script, learner, seed)
    jax.eval_shape(lambda: advance(*given, 0, line.rounds))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [Protocol(6), Protocol(2, 2), Protocol(2, 1, "wait"), Protocol(1)], ids=str)
@pytest.mark.parametrize("objective", [FedAvg(), PerFed(0.1)], ids=lambda o: type(o).__name__)
def test_replay_matches_keeping_every_model(protocol, objective):
    learner, line = Learner(objective, batch=8), timeline(protocol)
    assert_close(replay(TASK, line, learner, seed=3), replay_slowly(TASK, line, learner, seed=3))


@pytest.mark.slow
def test_replay_matches_with_local_steps_and_another_optimiser():
    line = timeline(Protocol(2, 2))
    for learner in (
        Learner(FedProx(0.3), batch=8, local_steps=3),
        Learner(PerFed(0.1, "fo"), batch=8, merge=Optax(optax.adam(0.01))),
    ):
        task = LAYERED if isinstance(learner.merge, Optax) else TASK
        assert_close(replay(task, line, learner, seed=3), replay_slowly(task, line, learner, seed=3), 1e-5)


def test_a_training_that_explodes_is_not_silent():
    line = timeline(Protocol(2, 2), rounds=12)
    with pytest.warns(RuntimeWarning, match="the training diverged: its loss went from 2.33 to 1"):
        replay(LAYERED, line, Learner(FedAvg(), beta=1e5, batch=8))  # the loss stays finite
    with pytest.warns(RuntimeWarning, match="to nan"):
        replay(LAYERED, line, Learner(FedAvg(), beta=1e30, batch=8))


@pytest.mark.slow
@pytest.mark.parametrize("merge", [Mean(), FedBuff()], ids=["mean", "weighted"])
def test_participants_side_by_side_give_the_same_as_one_after_the_other(merge, monkeypatch):
    """The form a GPU runs, on the CPU."""
    learner, line = Learner(PerFed(0.1), batch=8, merge=merge), timeline(Protocol(3, 2))
    expected = replay(TASK, line, learner)
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    assert_close(replay(TASK, line, learner), expected, 1e-5)


@pytest.mark.slow
def test_few_plain_gradients_of_a_wide_network_written_out_are_those_of_the_loop_bitwise(monkeypatch):
    quorum = 3
    learner, line = Learner(FedAvg(), beta=0.1, batch=8), timeline(Protocol(quorum, 2))
    in_a_loop = replay(TASK, line, learner)
    monkeypatch.setattr(job, "WIDE", 1)
    assert job.Program.of(TASK.model, learner, quorum).unrolled
    written_out = replay(TASK, line, learner)
    for name, weights in in_a_loop.items():
        assert np.array_equal(weights, written_out[name])
    assert_close(written_out, replay_slowly(TASK, line, learner), 1e-5)


def test_only_few_plain_gradients_are_written_out():
    plain, wide = Learner(FedAvg()), MLP((784, 100, 10))
    unrolled = [job.Program.of(wide, plain, quorum).unrolled for quorum in (None, 1, 2, 8, 9)]
    assert unrolled == [False, False, True, True, False]
    assert not job.Program.of(wide, plain, 5, one_by_one=False).unrolled
    assert not job.Program.of(MLP((64, 32, 10)), plain, 5).unrolled
    for more in (Learner(PerFed()), Learner(FedAvg(), local_steps=2), Learner(FedAvg(), top_k=0.1)):
        assert not job.Program.of(wide, more, 5).unrolled


@pytest.mark.slow
def test_chunked_equals_unchunked_bitwise():
    learner, line = Learner(PerFed(0.1), batch=8), timeline(Protocol(2, 3), rounds=40)
    script = Script.of(line)
    prepared = Prepared.of(TASK, script, learner, 0)
    whole = advance(prepared, start(TASK, script, learner, 0), 0, 40)
    state = start(TASK, script, learner, 0)
    for first, stop in ((0, 1), (1, 1), (1, 17), (17, 40)):
        state = advance(prepared, state, first, stop)
    for name, weights in whole.params.items():
        assert np.array_equal(weights, state.params[name])


def test_planning_in_chunks_equals_planning_ahead_bitwise():
    """A longer timeline does not change what was trained along its beginning."""
    learner = Learner(FedAvg(), batch=8)
    long = timeline(Protocol(2, 3), rounds=60)
    script = Script.of(long)
    early = advance(Prepared.of(TASK, script, learner, 0), start(TASK, script, learner, 0), 0, 20)
    short = replay(TASK, long.prefix(20), learner)
    for name in short:
        assert np.array_equal(short[name], early.params[name])


def test_a_job_looks_at_every_batch_of_every_step():
    for objective, batches in (
        (FedAvg(), 1),
        (FedProx(), 1),
        (PerFed(), 3),
        (PerFed(hessian="fo"), 2),
        (PerFed(hessian="hf"), 3),
    ):
        assert Learner(objective, batch=40).samples == 40 * batches
        assert Learner(objective, batch=8, local_steps=5).samples == 40 * batches


def test_evaluations_take_the_learners_alpha_else_the_objectives_else_the_papers():
    assert Learner(PerFed(0.2), alpha=0.5).personal_step == 0.5
    assert Learner(PerFed(0.2), alpha=0.0).personal_step == 0.0
    assert Learner(PerFed(0.2)).personal_step == 0.2
    assert Learner(FedProx(0.2)).personal_step == 0.03


@pytest.mark.slow
def test_local_steps_upload_the_sum_of_the_steps_gradients():
    """Two synchronous UEs, one round, m local steps: the mean of the local models, as FedAvg has it."""
    learner = Learner(FedAvg(), beta=0.2, batch=8, local_steps=3)
    merged = replay(TASK, made_line(np.array([[0, 1]]), np.zeros((1, 2), int)), learner)

    @jax.jit
    def trained(ue):
        root = jax.random.key(0)
        w, key = TASK.model.init(jax.random.fold_in(root, 0)), jax.random.fold_in(jax.random.fold_in(root, 1), ue)
        x, y = TASK.data.batches(jax.random.fold_in(key, 0), ue, (3, 1, 8))
        for step in range(3):
            gradient = jax.grad(lambda v, step=step: mean_loss(TASK.model, v, x[step, 0], y[step, 0]))(w)
            w = jax.tree.map(lambda a, g: a - 0.2 * g, w, gradient)
        return w

    models = [jax.tree.map(np.asarray, trained(np.int32(ue))) for ue in range(2)]
    assert_close(merged, jax.tree.map(lambda a, b: (a + b) / 2, *models))


@pytest.mark.slow
def test_job_noise_belongs_to_the_ue_and_the_version_not_to_the_round():
    """Every merge is computed from the batch of its (UE, version), by hand; two merges of the same job draw the same."""
    ues, staleness = np.array([[0], [1], [0], [1], [1]]), np.array([[0], [0], [1], [2], [0]])  # versions 0, 1, 1, 1, 4

    class Remember(Objective):
        """Uploads what was drawn, so that the weights (of step −1) become the sum of it."""

        def gradient(self, params, start, batches, context):  # noqa: ARG002 (the interface)
            return jax.tree.map(lambda w: jnp.zeros_like(w) + batches[0].sum(), params)

    def drawn(line):
        script, learner = Script.of(line), Learner(Remember(), beta=-1.0, batch=8)
        prepared, state, sums = Prepared.of(TASK, script, learner, 7), start(TASK, script, learner, 7), []
        for k in range(line.rounds):
            before = np.asarray(state.params["dense1.bias"])[0]
            state = advance(prepared, state, k, k + 1)
            sums.append(float(np.asarray(state.params["dense1.bias"])[0] - before))
        return sums

    @jax.jit
    def drawn_by(ue, version):
        key = jax.random.fold_in(jax.random.key(7), 1)
        return TASK.data.batches(jax.random.fold_in(jax.random.fold_in(key, ue), version), ue, (1, 1, 8))[0].sum()

    expected = [float(drawn_by(ue, version)) for ue, version in ((0, 0), (1, 1), (0, 1), (1, 1), (1, 4))]
    ours = drawn(made_line(ues, staleness))
    np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert len(set(np.round(expected, 3))) == 4, (
        "another UE or version draws others; the same job, in another round, the same"
    )


@pytest.mark.slow
@given(
    n=st.integers(1, 12),
    seed=st.integers(0, 50),
    bound=st.none() | st.integers(0, 6),
    stale=st.sampled_from(["restart", "wait", "ignore"]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_the_shelf_is_never_too_short_and_never_overwritten_too_soon(n, seed, bound, stale, data):
    """Writing version numbers instead of weights, every merge reads the version it needs."""
    quorum = data.draw(st.integers(1, n))
    line = timeline(Protocol(quorum, bound, stale), rounds=50, cell=Cell.draw(n, seed))
    slots, read, write = shelve(line)
    shelf = np.full(slots, -1)
    shelf[0] = 0
    for k in range(line.rounds):
        np.testing.assert_array_equal(shelf[read[k]], line.versions[k])
        shelf[write[k]] = k + 1
    assert slots <= max(32, 2 * (min(n, line.staleness.max() + 1) + 2))


@pytest.mark.slow
def test_one_compiled_loop_serves_all_modes_seeds_and_step_sizes(monkeypatch):
    """The loss is called only while a loop is traced, so counting its calls counts compilations."""
    calls = []

    def counted(*arguments):
        calls.append(1)
        return loss_of(*arguments)

    monkeypatch.setattr("perfeds2.learning.models.model.loss_of", counted)
    monkeypatch.setattr("perfeds2.learning.factored.loss_of", counted)
    learner = Learner(PerFed(0.1), beta=0.1, batch=5)
    only_trace(TASK, timeline(Protocol(2, 2)), learner)
    traced = len(calls)
    assert traced > 0
    for seed in range(2):
        for protocol in (Protocol(6), Protocol(2, 2), Protocol(1)):
            line, task = timeline(protocol, cell=Cell.draw(6, seed)), replace(TASK, data=digits(6, 3, seed).data)
            only_trace(task, line, Learner(PerFed(0.2), beta=0.2, batch=5), seed)
    assert len(calls) == traced


@pytest.mark.slow
def test_own_objectives_need_no_registration():
    class SignOfGradient(Objective):
        def gradient(self, params, start, batches, context):  # noqa: ARG002 (the interface)
            return jax.tree.map(jnp.sign, jax.grad(context.loss)(params, jax.tree.map(lambda b: b[0], batches)))

    line = timeline(Protocol(2, 2), rounds=5)
    learner = Learner(SignOfGradient(), batch=8)
    assert_close(replay(TASK, line, learner), replay_slowly(TASK, line, learner))


def test_training_resumed_after_any_evaluation_gives_the_same_bits(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    learner, line = Learner(PerFed(0.1), batch=8), timeline(Protocol(2, 3), rounds=20)
    points = evaluation_points(line, about=6)
    whole = list(train(TASK, line, learner, points))
    for stop in range(1, len(points)):
        steps = train(TASK, line, learner, points)
        for _ in range(stop):
            training = next(steps)
        saved = replace(training, state=jax.tree.map(lambda w: jnp.asarray(np.asarray(w)), training.state))
        resumed = list(train(TASK, line, learner, points, resume=saved))
        assert resumed[-1].values == whole[-1].values
        for name, weights in whole[-1].state.params.items():
            assert np.array_equal(weights, resumed[-1].state.params[name])


def test_evaluation_points_are_the_models_in_force_at_those_times():
    line = timeline(Protocol(2, 2), rounds=10)
    points = evaluation_points(line, horizon_s=line.end_s + 1, every_s=line.end_s / 7)
    assert points[0].round == 0
    assert points[-1].round == 10
    for point in points:
        assert point.round == (line.time_s <= point.time_s).sum()


def test_generated_data_cost_no_memory_per_ue():
    task = synthetic(1_000_000, 3, 0)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(task.data)) < 100


@pytest.mark.slow
def test_synthetic_is_learned():
    line = simulate(Cell.draw(6, 0), Protocol(6), payload_bits=1e5, samples=60, rounds=50)
    learner = Learner(FedAvg(), beta=0.5, batch=8)
    task = synthetic(6, 3, 0)

    @jax.jit
    def loss(weights):
        batches = jax.vmap(lambda ue: task.data.batches(jax.random.key(9), ue, (64,)))(jnp.arange(6))
        return jax.vmap(lambda x, y: mean_loss(task.model, weights, x, y))(*batches).mean()

    first, last = module.first_weights(task.model, np.int32(0)), replay(task, line, learner)
    assert loss(last) < 0.7 * loss(first)
