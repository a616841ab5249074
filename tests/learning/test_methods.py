"""Is every method of the field what its paper says, and what it must be where it equals another?"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_numpy import evaluate_in_numpy
from twins import TWINS, World, ditto, fedprox, hinge
from twins_baselines import TWINS_OF_BASELINES
from twins_tiers import TWINS_OF_ROUNDS

from perfeds2.learning import replay as module
from perfeds2.learning import train as train_module
from perfeds2.learning.datasets import digits
from perfeds2.learning.job import Program
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.merges import MEAN, Arrived, Mean, discounted
from perfeds2.learning.methods import (
    APFL,
    CA2FL,
    METHODS,
    AsyncFedED,
    Ditto,
    FedAsync,
    FedAvgM,
    FedBuff,
    FedPer,
    PFedMe,
)
from perfeds2.learning.methods.feddyn import DynamicMean
from perfeds2.learning.methods.fedrep import head_of
from perfeds2.learning.methods.scaffold import ControlVariates
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg, FedProx, Moreau, PerFed
from perfeds2.learning.points import EvaluationPoint
from perfeds2.learning.replay import Prepared, advance, start
from perfeds2.learning.script import Script
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.runs.store import Store
from perfeds2.runs.trainer import load_checkpoint, save_checkpoint
from perfeds2.spec.learners import make_learner
from perfeds2.spec.methods import ALGORITHMS
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LAYERED = digits(6, 3, 0)
TASK = replace(LAYERED, model=MLP((64, 10)))  # compiles in two thirds of the time
CELL = Cell.draw(6, 0)
ROUNDS = 12
LINE = simulate(CELL, Protocol(2, 3), payload_bits=1e5, samples=60, rounds=ROUNDS)
WORLD = World(TASK, LINE, 0, 8, 3, 0.07)
OF_LAYERS = ("FedRep", "FedPer")
FEDAVG = Learner(FedAvg(), batch=8, local_steps=3)
WITH_A_MEMORY = ("SCAFFOLD", "Ditto")  # at the UEs and at the server, and a model of the UE's own


def learner_of(name):
    """As ``--algorithms NAME`` makes it."""
    spec = spec_from(task="digits", ues=6, batch=8, local_steps=3, algorithms=[name])
    return make_learner(spec, name, ALGORITHMS[name])


def final(learner, line=LINE, task=TASK):
    """The state at the end of a timeline."""
    script = Script.of(line)
    return advance(Prepared.of(task, script, learner, 0), start(task, script, learner, 0), 0, line.rounds)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def assert_close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_every_name_has_a_twin():
    assert METHODS.keys() == TWINS.keys() | TWINS_OF_BASELINES.keys() | TWINS_OF_ROUNDS.keys()


AT_ONCE = ("FedBuff",)  # of the others each compiles a loop, which takes seconds
NAMES = [pytest.param(name, marks=[] if name in AT_ONCE else pytest.mark.slow) for name in TWINS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_its_papers_pseudocode(name):
    task = LAYERED if name in OF_LAYERS else TASK
    state, world = final(learner_of(name), task=task), replace(WORLD, task=task)
    model, kept = TWINS[name](world)
    assert_close(flat(state.params), model)
    assert np.abs(model - world.first).max() > 1e-3  # it has gone somewhere
    if kept is not None:
        for ue in range(TASK.ues):
            assert_close(flat(jax.tree.map(lambda rows, ue=ue: np.asarray(rows)[ue], state.client_state)), kept[ue])


def test_staleness_has_three_rules():
    tau = np.array([0, 1, 2, 5])  # beyond b from 2 on
    assert_close(FedBuff("hinge", discount_b=1.0).weights(tau), [hinge(each, b=1.0) for each in tau])
    assert_close(FedBuff("constant").weights(tau), np.ones(4))


def arrived(staleness):
    """Two uploads, and the models that their UEs were handed."""
    uploads, handed = (
        {"w": np.array(rows, np.float32)} for rows in ([[3.0, 4.0], [1.0, -2.0]], [[1.0, 2.0], [3.0, 4.0]])
    )
    return Arrived(np.float32(0.1), None, uploads, handed, None, np.array(staleness), np.arange(2))


def test_fedbuff_that_trusts_all_alike_is_fedavg():
    """Both are the mean (2, 1) of the uploads, however stale."""
    merge = FedBuff("constant")
    new, _ = module.merge_now(merge, {"w": np.ones(2, np.float32)}, arrived([0, 5]).needed_by(merge), None)
    assert_close(new["w"], [0.8, 0.9])


class Relative(Mean):
    """An upload weighs by its share of the round's staleness."""

    def weights(self, staleness):
        late = jnp.asarray(staleness) + 1.0
        return len(late) * late / late.sum()


class Looking(Relative):
    """The same, from single uploads."""

    needs = frozenset({"uploads"})

    def step(self, params, arrived, state):
        shares = self.weights(arrived.staleness) / arrived.staleness.shape[0]
        return {
            name: w - arrived.beta * jnp.tensordot(shares, arrived.uploads[name], 1) for name, w in params.items()
        }, state


@pytest.mark.slow
def test_the_weights_are_those_of_the_whole_round():
    assert len(set(LINE.staleness.ravel().tolist())) > 1
    models = [flat(final(replace(FEDAVG, merge=merge)).params) for merge in (Relative(), Looking(), Mean())]
    assert_close(models[0], models[1], 1e-6)
    assert np.abs(models[0] - models[2]).max() > 1e-3


def test_the_discounts_by_hand():
    tau = jnp.array([0, 3, 4, 6])
    assert_close(discounted("poly", tau), [1, 0.5, 5**-0.5, 7**-0.5])
    assert_close(discounted("hinge", tau), [1, 1, 1, 1 / 21])
    assert_close(discounted("constant", tau), np.ones(4))


def test_fedasync_with_the_hinge():
    """Of τ = 1, all of α = 0.6; of τ = 4, a 31st of it."""
    mine, w = [np.array([0.7, 1.6]), np.array([2.9, 4.2])], np.ones(2)
    for tau, model in zip((1, 4), mine, strict=True):
        alpha = 0.6 * hinge(tau, b=1.0)
        w = (1 - alpha) * w + alpha * model
    merge = FedAsync("hinge", discount_b=1.0)
    assert_close(module.merge_now(merge, {"w": np.ones(2, np.float32)}, arrived([0, 3]), None)[0]["w"], w)


def test_methods_that_differ_only_in_their_class_are_not_taken_for_each_other():
    """``register_dataclass`` would make the structures of FedAvg() and DynamicMean() equal, and those of two merges with one number."""
    assert jax.tree.structure(FedAvg()) != jax.tree.structure(DynamicMean())
    assert jax.tree.structure(CA2FL(1.0)) != jax.tree.structure(ControlVariates(1.0))
    assert jax.tree.structure(CA2FL(1.0)) == jax.tree.structure(CA2FL(2.0))


# ---- where one equals another


@pytest.mark.slow
def test_pfedme_with_a_huge_lambda_is_fedavg():
    stiff = Learner(PFedMe(alpha=1.0, moreau=3000.0), batch=8, local_steps=3)
    state, expected = final(stiff), flat(final(FEDAVG).params)
    moved = np.abs(expected - WORLD.first).max()
    assert np.abs(flat(state.params) - expected).max() < 0.005 * moved  # it falls as 1/λ


@pytest.mark.slow
def test_ditto_with_lambda_zero_trains_alone():
    """No one else's data and no model of the server have a say in a UE's own model."""
    alone = final(Learner(Ditto(0.0), batch=8, local_steps=3)).client_state
    (_, free), (_, pulled) = (ditto(WORLD, lam=lam) for lam in (0.0, 1.0))
    for ue in range(6):
        assert_close(flat(jax.tree.map(lambda rows, ue=ue: np.asarray(rows)[ue], alone)), free[ue])
    assert np.abs(pulled[0] - free[0]).max() > 1e-3


@pytest.mark.slow
def test_fedprox_with_several_steps_is_its_papers_and_with_mu_zero_fedavg():
    held, free = (Learner(FedProx(mu), batch=8, local_steps=3) for mu in (0.5, 0.0))
    assert_close(flat(final(held).params), fedprox(WORLD, mu=0.5)[0])
    plain = final(FEDAVG)
    assert_close(flat(final(free).params), flat(plain.params), 1e-6)
    assert np.abs(flat(final(held).params) - flat(plain.params)).max() > 1e-3


@pytest.mark.slow
def test_apfl_that_takes_nothing_of_its_own_is_fedavg():
    """With a constant α = 0 a UE's own model is the global one, as in FedAvg, and v never changes."""
    state, plain = final(Learner(APFL(0.0, adapts=False), batch=8, local_steps=3)), final(FEDAVG)
    assert_close(flat(state.params), flat(plain.params), 1e-6)
    for ue in range(6):
        v, share = row = jax.tree.map(lambda rows, ue=ue: np.asarray(rows)[ue], state.client_state)
        assert share == 0
        assert_close(flat(v), WORLD.first, 1e-6)
        assert_close(flat(jax.jit(APFL.personal)(state.params, row)), flat(state.params), 0)


@pytest.mark.slow
def test_apfl_moves_its_share_within_0_and_1():
    shares = np.asarray(final(learner_of("APFL")).client_state[1])
    assert (shares != 0.5).all()
    wild = np.asarray(final(Learner(APFL(0.9), beta=3.0, batch=8, local_steps=3)).client_state[1])
    assert ((wild >= 0) & (wild <= 1)).all()
    assert {0.0, 1.0} & set(wild.tolist())


def test_persa_fl_is_perfed_and_moreau_with_no_one_waited_for():
    for name, objective in (("PersA-FL", PerFed(0.03)), ("PersA-FL-ME", Moreau(0.03))):
        assert learner_of(name) == Learner(objective, batch=8, local_steps=3, alpha=0.03, merge=FedBuff("constant"))
        assert METHODS[name].mode == "ASY"


@pytest.mark.slow
def test_a_server_without_momentum_is_fedavg():
    assert_close(flat(final(replace(FEDAVG, merge=FedAvgM(momentum=0.0))).params), flat(final(FEDAVG).params), 1e-6)


def test_asyncfeded_takes_a_fresh_upload_whole_and_one_that_moved_nothing_moves_nothing():
    moved, nothing = {"w": jnp.array([[3.0, 4.0]])}, {"w": jnp.zeros((1, 2))}
    w, tau = {"w": jnp.array([1.0, 1.0])}, jnp.zeros(1, int)
    for handed, uploads, expected in (
        ([[1.0, 1.0]], moved, [-2.0, -3.0]),  # γ = 0
        ([[1.0, 16.0]], moved, [1 - 3 / 4, 0.0]),  # γ = 15/5
        ([[1.0, 1.0]], nothing, [1.0, 1.0]),
    ):
        came = Arrived(1.0, None, uploads, {"w": jnp.array(handed)}, None, tau, tau)
        assert_close(AsyncFedED().step(w, came, None)[0]["w"], expected)


# ---- memory


@pytest.mark.slow
def test_a_ue_that_was_never_merged_keeps_what_it_had():
    line = replace(LINE, ues=np.tile([[0, 1]], (ROUNDS, 1)), staleness=np.zeros_like(LINE.staleness))
    memory = final(learner_of("Ditto"), line).client_state
    rows = [flat(jax.tree.map(lambda row, ue=ue: np.asarray(row)[ue], memory)) for ue in range(6)]
    assert all((row == WORLD.first.astype(np.float32)).all() for row in rows[2:])
    assert not any((row == WORLD.first.astype(np.float32)).all() for row in rows[:2])


def test_the_mean_keeps_nothing_so_that_older_checkpoints_fit():
    state = start(TASK, Script.of(LINE), Learner(FedAvg()), 0)
    assert state.merge is state.client_state is None
    assert len(jax.tree.leaves(state)) == 2 * len(state.params)


def test_only_the_plain_mean_is_compiled_for_any_quorum():
    for learner, quorum in ((Learner(FedAvg()), None), (learner_of("FedAdam"), None), (learner_of("FedBuff"), 2)):
        program = Program.of(TASK.model, learner, 2)
        assert (program.quorum, program.looks) == (quorum, False)
    assert learner_of("Ditto").keeps(TASK.model)
    program = Program.of(TASK.model, learner_of("Ditto"), 2)
    assert (program.quorum, program.looks) == (2, True)
    assert learner_of("Ditto").merge == MEAN


def test_the_head_is_the_last_dense_layer_and_a_model_without_one_is_refused():
    sizes = {"dense1.weight": 3, "dense2.weight": 2, "dense2.bias": 1, "letters": 9}
    params = {name: jnp.ones(size) for name, size in sizes.items()}
    assert head_of(params).keys() == {"dense2.weight", "dense2.bias"}
    with pytest.raises(ValueError, match="no layer whose name begins with dense"):
        head_of({"w": jnp.ones(2)})


def test_the_head_of_eleven_layers_is_the_eleventh():
    params = jax.eval_shape(MLP((4, *[3] * 10, 2)).init, jax.random.key(0))
    assert head_of(params).keys() == {"dense11.weight", "dense11.bias"}


@pytest.mark.slow
def test_a_head_is_no_other_ues():
    """The server's stays where it began; a UE's own model has its own."""
    state = final(learner_of("FedPer"), task=LAYERED)
    params, first = (
        jax.tree.map(np.asarray, each) for each in (state.params, module.first_weights(LAYERED.model, np.int32(0)))
    )
    np.testing.assert_array_equal(params["dense2.bias"], first["dense2.bias"])
    own = FedPer.personal(params, jax.tree.map(lambda rows: np.asarray(rows)[2], state.client_state))
    np.testing.assert_array_equal(own["dense1.weight"], params["dense1.weight"])
    assert not np.equal(own["dense2.bias"], first["dense2.bias"]).any()


@pytest.mark.slow
def test_side_by_side_is_the_same_as_one_after_the_other(monkeypatch):
    """The form a GPU runs, on the CPU."""
    learner = learner_of("SCAFFOLD")
    expected = final(learner)
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    state = final(learner)
    assert_close(flat((state.params, state.client_state)), flat((expected.params, expected.client_state)))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_MEMORY)
def test_together_is_the_same_as_alone_also_where_one_waits_for_another(name, monkeypatch):
    learner = learner_of(name)
    if name == "SCAFFOLD":  # it has no models of UEs to evaluate
        evaluate_in_numpy(monkeypatch.setattr)
    points = [[EvaluationPoint(k, float(k)) for k in rounds] for rounds in ((0, 5, ROUNDS), (0, 9, 10))]
    trials = [Lane(TASK, LINE, learner, own, seed) for seed, own in enumerate(points)]
    *_, stand = train_together(trials)
    for number, trial in enumerate(trials):
        *_, alone = train(TASK, LINE, learner, trial.points, seed=trial.seed)
        ours, theirs = stand[number].state, alone.state
        assert_close(
            flat((ours.params, ours.client_state, ours.merge)), flat((theirs.params, theirs.client_state, theirs.merge))
        )
        for mine, expected in zip(stand[number].values, alone.values, strict=True):
            assert mine == pytest.approx(expected, abs=2e-3, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WITH_A_MEMORY, "CA2FL"])
def test_a_checkpoint_carries_all_a_method_keeps(name, tmp_path):
    learner, points = learner_of(name), [EvaluationPoint(k, float(k)) for k in (0, 7, ROUNDS)]
    trial, folder = Lane(TASK, LINE, learner, points), Store(tmp_path / "run")
    *_, whole = train(TASK, LINE, learner, points)
    for training in train(TASK, LINE, learner, points):
        if len(training.values) == 2:
            save_checkpoint(folder, name, training)
            break
    resumed = load_checkpoint(folder, name, trial)
    assert resumed is not None
    *_, again = train(TASK, LINE, learner, points, resume=resumed)
    assert again.values == whole.values
    for ours, theirs in zip(jax.tree.leaves(again.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_an_evaluation_looks_at_the_ues_own_models():
    """Ditto's own models are better on their UEs' data than the global one after one step, and no one else has their accuracy."""
    points = [EvaluationPoint(0, 0.0), EvaluationPoint(ROUNDS, 1.0)]
    *_, own = train(TASK, LINE, learner_of("Ditto"), points)
    *_, plain = train(TASK, LINE, replace(learner_of("Ditto"), objective=FedAvg()), points)
    assert own.values[0]["train_loss_personal"] == pytest.approx(own.values[0]["train_loss"])  # w_0 is their own
    assert own.values[1]["train_loss_personal"] < own.values[1]["train_loss"]
    assert own.values[1]["train_loss_personal"] != pytest.approx(plain.values[1]["train_loss_personal"])


@pytest.mark.slow
def test_fine_tuning_is_for_all_whose_ues_keep_no_model(monkeypatch):
    """More personal steps fit a UE's training part better; alone and together they are the same, and no weight hears of them."""
    monkeypatch.setattr(train_module, "_rounds_together", lambda state, *_, **__: state)  # evaluations are looked at
    points = [EvaluationPoint(0, 0.0), EvaluationPoint(4, 1.0)]
    tuned = replace(learner_of("FedBuff"), personal_steps=5)
    *_, once = train(TASK, LINE, learner_of("FedBuff"), points)
    *_, often = train(TASK, LINE, tuned, points)
    *_, stand = train_together([Lane(TASK, LINE, tuned, points[:1], seed) for seed in (0, 1)])
    assert often.values[1]["train_loss_personal"] < once.values[1]["train_loss_personal"]
    assert often.values[1]["train_loss"] == once.values[1]["train_loss"]
    assert stand[0].values[0] == pytest.approx(often.values[0], abs=1e-4)
    assert often.values[0]["train_loss_personal"] < once.values[0]["train_loss_personal"]
    *_, own = train(TASK, LINE, learner_of("Ditto"), points)
    *_, same = train(TASK, LINE, replace(learner_of("Ditto"), personal_steps=5), points)
    assert own.values == same.values


def test_trainings_with_another_number_of_personal_steps_do_not_go_together():
    trials = [Lane(TASK, LINE, replace(learner_of("FedBuff"), personal_steps=k), []) for k in (1, 2)]
    assert trials[0].shape != trials[1].shape
