"""Do UEs that never train leave training alone, and are their accuracies those after 0, 1, 5 and 10 steps?"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from command_line import train_here

from perfeds2 import InputError, compare
from perfeds2.learning.data import Chosen, Shards
from perfeds2.learning.datasets import digits, synthetic
from perfeds2.learning.evaluate import evaluate_new
from perfeds2.learning.lanes import Lane
from perfeds2.learning.learner import Learner
from perfeds2.learning.metrics import NEW_UES_METRICS
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.replay import replay
from perfeds2.learning.train import train, train_together
from perfeds2.network.cell import Cell
from perfeds2.report.arena import write_arena
from perfeds2.report.run import print_summary, write_report
from perfeds2.report.tuning import write_tuning
from perfeds2.spec.resolve import spec_from
from perfeds2.spec.tasks import make_task
from perfeds2.studies.arena import arena
from perfeds2.studies.tune import tune
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

LINEAR = MLP((64, 10))
RUN = {"task": "digits", "model": "mlp:hidden=8", "ues": 4, "new_ues": 0.34, "horizon_s": 0.4, "seeds": [0, 1, 2]}


def line_of(ues, rounds=12):
    return simulate(Cell.draw(ues, 0), Protocol(2, 3), payload_bits=1e5, samples=24, rounds=rounds)


def numbers_of(chosen):
    """Return which UEs of other data these are."""
    assert isinstance(chosen, Chosen)
    return np.asarray(chosen.numbers)


def only(data, numbers):
    """Return data of some UEs alone, written out without the class that is tested."""
    at = [np.asarray(column)[numbers] for column in (data.start, data.train_count, data.test_count)]
    return Shards(data.x, data.y, *map(jnp.asarray, at))


@pytest.mark.parametrize("seed", [0, 3])
def test_training_is_the_same_as_on_a_task_without_the_new_ues(seed):
    whole = digits(6, 3, seed)
    held = whole.with_new_ues(2, seed)
    others = np.sort(np.setdiff1d(np.arange(6), numbers_of(held.new)))
    without = replace(whole, data=only(whole.data, others))
    learner = Learner(PerFed(0.03), batch=8)
    ours, theirs = (replay(task, line_of(4), learner, seed) for task in (held, without))
    for name, weights in theirs.items():
        assert np.asarray(ours[name]).tobytes() == np.asarray(weights).tobytes()


def test_new_ues_are_drawn_from_the_seed_and_keep_their_samples():
    whole = digits(8, 3, 0)
    drawn = [numbers_of(whole.with_new_ues(3, seed).new).tolist() for seed in range(4)]
    assert drawn[0] == numbers_of(whole.with_new_ues(3, 0).new).tolist()
    assert len(set(map(tuple, drawn))) > 1
    held = whole.with_new_ues(3, 0)
    assert sorted([*numbers_of(held.data).tolist(), *drawn[0]]) == list(range(8))
    for place, number in enumerate(numbers_of(held.data)):
        assert (held.ue(place).train_x == whole.ue(int(number)).train_x).all()
    assert synthetic(5, labels_per_ue=2, seed=0).with_new_ues(2, 0).ues == 3
    with pytest.raises(ValueError, match=r"of 8 UEs, 1 to 7 can be split off, got 8\."):
        whole.with_new_ues(8, 0)


def softmax_steps(params, x, y, alpha, steps):
    """Return a linear classifier after some gradient steps, in NumPy."""
    weight, bias = (np.asarray(params[f"dense1.{name}"], float) for name in ("weight", "bias"))
    for _ in range(steps):
        scores = np.exp(x @ weight + bias)
        slope = (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]) / len(y)
        weight, bias = weight - alpha * x.T @ slope, bias - alpha * slope.sum(axis=0)
    return weight, bias


def test_accuracies_are_those_after_0_1_5_and_10_steps_by_hand():
    whole = replace(digits(6, 3, 1), model=LINEAR)
    held, params = whole.with_new_ues(2, 1), LINEAR.init(jax.random.key(4))
    found = np.asarray(evaluate_new(held, params, 0.5))
    for row, number in enumerate(numbers_of(held.new)):
        samples = whole.ue(int(number))
        for column, steps in enumerate((0, 1, 5, 10)):
            weight, bias = softmax_steps(params, samples.train_x[:256], samples.train_y[:256], 0.5, steps)
            right = (samples.test_x @ weight + bias).argmax(axis=1) == samples.test_y
            assert found[row, column] == pytest.approx(right.mean(), abs=1e-6)
    assert len(set(found.mean(axis=0).tolist())) == 4  # the steps do differ here


def test_a_diverged_model_has_no_accuracy():
    held = replace(digits(6, 3, 1), model=LINEAR).with_new_ues(2, 1)
    found = np.asarray(evaluate_new(held, LINEAR.init(jax.random.key(0)), 1e38))
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[:, 3]).all()


def test_trainings_side_by_side_see_the_same_new_ues_as_alone():
    lanes = []
    for seed in range(2):
        task = replace(digits(6, 3, seed), model=LINEAR).with_new_ues(2, seed)
        timeline = line_of(4)
        lanes.append(Lane(task, timeline, Learner(PerFed(0.03), batch=8), evaluation_points(timeline, about=3), seed))
    *_, together = train_together(lanes)
    for number, lane in enumerate(lanes):
        *_, alone = train(lane.task, lane.timeline, lane.learner, lane.points, seed=lane.seed)
        for mine, other in zip(together.values[number], alone.values, strict=True):
            assert [mine[name] for name in NEW_UES_METRICS] == pytest.approx([other[name] for name in NEW_UES_METRICS])


@pytest.mark.parametrize(("ues", "share", "new"), [(20, 0.2, 5), (4, 0.34, 2), (20, 0.5, 20), (20, 0.01, 1)])
def test_the_share_counts_all_ues_and_those_of_the_cell_all_train(ues, share, new):
    task = make_task(spec_from(task="synthetic", ues=ues, new_ues=share), 0)
    assert (task.ues, numbers_of(task.new).size) == (ues, new)


def test_validation_data_of_new_ues_are_held_out_too():
    tested, tuned = (
        make_task(spec_from(task="digits", ues=4, new_ues=0.2, held_out=held), 0).new for held in (None, True)
    )
    assert (numbers_of(tuned) == numbers_of(tested)).all()
    assert tested is not None
    assert tuned is not None
    assert (np.asarray(tuned.train_count) < np.asarray(tested.train_count)).all()


@pytest.mark.parametrize("share", [0.0, 0.95, "half"])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(InputError, match="--new-ues"):
        spec_from(task="digits", new_ues=share)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "run"
    found = compare(**RUN, algorithms=["PerFedS2", "Ditto"], out=folder)
    write_report(folder)
    return folder, found


def test_a_comparison_shows_their_accuracy_with_intervals(run, capsys):
    folder, found = run
    table = pd.read_csv(folder / "metrics.csv")
    for row in found.summary["algorithms"]:
        ends = table[table["algorithm"] == row["algorithm"]].groupby("seed").last()
        for name in NEW_UES_METRICS:
            assert row[name]["mean"] == pytest.approx(ends[name].mean())
            assert row[name]["low"] <= row[name]["mean"] <= row[name]["high"]
    page = (folder / "report.html").read_text()
    assert "New UEs, 5 steps (%)" in page  # the table
    assert "Test accuracy (%) of new UEs after 10 personal steps" in page  # the curves
    print_summary(folder)
    assert "new UEs" in capsys.readouterr().out
    assert "new_ues" not in "".join(pd.read_csv(folder / "ue_metrics.csv"))


def test_an_arena_and_a_tuning_show_it(tmp_path, monkeypatch):
    train_here(monkeypatch)
    base = {key: value for key, value in RUN.items() if key != "seeds"}
    met = arena(base | {"seeds": [0, 1, 2]}, methods=["PerFedS2", "FedBuff"], tries=0, out=tmp_path / "arena")
    assert set(NEW_UES_METRICS) <= set(met.table)
    method = met.summary["bouts"][0]["methods"][0]
    assert method["new_ues_accuracy_5"]["low"] is not None
    write_arena(tmp_path / "arena")
    assert "New UEs, 1 step (%)" in (tmp_path / "arena" / "report.html").read_text()
    found = tune(base | {"algorithms": ["FedAvgS2"]}, {"beta": [0.05, 0.2]}, rungs=1, out=tmp_path / "tuned")
    assert set(NEW_UES_METRICS) <= set(found.table)
    assert found.best[0].new_ues["new_ues_accuracy_1"]["mean"] is not None
    write_tuning(found)
    assert "New UEs, 1 step" in (tmp_path / "tuned" / "report.html").read_text()
