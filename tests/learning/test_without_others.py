"""Are the baselines what they say: each UE alone, one step on w_0, and the most frequent label?"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from twins import World

from perfeds2 import InputError, compare
from perfeds2.learning.datasets import digits
from perfeds2.learning.evaluate import evaluate
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import Local, MostFrequentLabel
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.replay import Prepared, advance, first_weights, start
from perfeds2.learning.script import Script
from perfeds2.network.cell import Cell
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

TASK = replace(digits(4, 3, 0), model=MLP((64, 10)))
RUN = {"task": "digits", "model": "mlp:hidden=8", "ues": 4, "horizon_s": 0.4, "eval_every_s": 0.1, "labels_per_ue": 3}


def test_local_is_gradient_descent_of_every_ue_alone():
    line = simulate(Cell.draw(4, 0), Protocol(1, None), payload_bits=1.0, samples=24, rounds=12)
    learner, script = Learner(Local(), beta=0.1, batch=8, local_steps=3), Script.of(line)
    state = advance(Prepared.of(TASK, script, learner, 0), start(TASK, script, learner, 0), 0, 12)
    world = World(TASK, line, 0, 8, 3, 0.1)
    kept = {ue: world.first.copy() for ue in range(4)}
    for _, jobs in world.rounds():
        for ue, version in jobs:
            for (batch,) in world.batches(ue, version):
                kept[ue] = kept[ue] - world.step * world.gradient(kept[ue], batch)
    for ue in range(4):
        ours = np.concatenate([np.ravel(np.asarray(rows)[ue]) for rows in jax.tree.leaves(state.client_state)])
        np.testing.assert_allclose(ours, kept[ue], atol=1e-5)
    ours = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])
    assert (ours == world.first).all()  # nothing was uploaded


@pytest.mark.parametrize("more", [{}, {"radio": "umi"}, {"downlink": "unicast"}, {"payload_bits": 1e9}])
def test_the_clock_of_local_only_computes(more):
    """The median UE computes a job in about as long as it sends an upload, so sending would be seen."""
    spec = spec_from(task="digits", ues=6, algorithms=["Local"], horizon_s=2.0, seeds=[0], **more)
    stage = Stage.of(spec, 0)
    (algorithm,) = make_algorithms(spec, stage)
    (timeline,) = make_timelines(spec, stage, [algorithm])
    job_s = stage.cell.compute_s(algorithm.learner.samples)
    assert np.abs(timeline.merges - np.floor(2.0 / job_s)).max() <= 1 + 0.01 * timeline.merges.max()


@pytest.fixture(scope="module")
def run():
    return compare(**RUN, algorithms=["FedAvgS2", "NoTraining", "MostFrequentLabel"], seeds=[0, 1])


def test_no_training_stays_at_one_personal_step_on_the_first_weights_and_costs_nothing(run):
    for seed in (0, 1):
        rows, trained = (
            [row for row in run.rows if (row["algorithm"], row["seed"]) == (name, seed)]
            for name in ("NoTraining", "FedAvgS2")
        )
        assert [row["time_s"] for row in rows] == [row["time_s"] for row in trained]
        for row in rows:
            assert row["test_accuracy_personal"] == trained[0]["test_accuracy_personal"]
            assert row["test_accuracy"] == trained[0]["test_accuracy"]
            assert (row["joules"], row["merged_bits"], row["round"]) == (0, 0, 0)
    assert not any("NoTraining" in note or "MostFrequentLabel" in note for note in run.summary["notes"])


def test_the_most_frequent_label_is_counted_by_hand(run):
    for seed in (0, 1):
        task, found = digits(4, 3, seed), []
        for ue in range(4):
            samples = task.ue(ue)
            common = np.bincount(samples.train_y[:256]).argmax()
            found.append((samples.test_y[:256] == common).mean())
        own = [row for row in run.ue_rows if (row["algorithm"], row["seed"]) == ("MostFrequentLabel", seed)]
        assert [row["test_accuracy_personal"] for row in own] == pytest.approx(found, abs=1e-6)


def test_the_most_frequent_label_needs_no_certain_step_or_model():
    task = digits(4, 3, 0)
    model = MostFrequentLabel().replacing(task.model, lambda: (10, 1))
    params = first_weights(model, np.int32(0))
    for alpha in (1e-3, 0.03, 3.0):
        table = evaluate(replace(task, model=model), params, alpha)
        assert np.asarray(table["test_accuracy_personal"]).min() > 0.2


@pytest.mark.parametrize("name", ["Local", "NoTraining", "MostFrequentLabel"])
def test_baselines_have_nothing_to_hide(name):
    spec = spec_from(task="digits", ues=6, algorithms=[name], clip=1.0, dp_noise=1.0)
    with pytest.raises(InputError, match=f"{name} uploads nothing that noise or masks could hide"):
        make_algorithms(spec, Stage.of(spec, 0))
