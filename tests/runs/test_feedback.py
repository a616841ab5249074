"""Schedules that look at losses: the timeline is played in chunks while it trains."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfeds2 import compare
from perfeds2.allocation.schedulers import age
from perfeds2.errors import InputError
from perfeds2.learning import script
from perfeds2.learning.datasets import digits
from perfeds2.learning.job import Known, Program, reported_update
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods.ditto import Ditto
from perfeds2.learning.methods.fedbuff import FedBuff
from perfeds2.learning.models.model import loss_of, mean_loss
from perfeds2.learning.objectives import FedAvg, PerFed
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.replay import first_weights, play_round, start
from perfeds2.learning.script import Script
from perfeds2.learning.shelf import shelve
from perfeds2.learning.train import train, train_in_chunks
from perfeds2.network.cell import Cell
from perfeds2.network.cells import make_cells
from perfeds2.network.sites import Sites
from perfeds2.runs import trainer
from perfeds2.runs.store import Store
from perfeds2.runs.training import trainings_of
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec
from perfeds2.timeline.cells import conditions_of_edges, simulate_cells
from perfeds2.timeline.chunks import ChunkedPlay
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import conditions_of, simulate

TASK = digits(6, 3, 0)
CELL = Cell.draw(6, 0)
LOAD: dict[str, Any] = {"payload_bits": 1e5, "samples": 60}
SMALL: dict[str, Any] = {"ues": 6, "quorum": 2, "horizon_s": 2.0, "eval_every_s": 0.25, "batch": 8, "seeds": (0,)}
SMALL |= {"algorithms": ("PerFedS2",), "labels_per_ue": 3}  # the shapes of TASK, and a program of LEARNERS


class Watching:
    """Choose by age, ignore the reports, and remember them."""

    feedback = "loss"

    def __init__(self) -> None:
        self.seen: list[np.ndarray | None] = []

    def __call__(self, moment):
        self.seen.append(moment.feedback)
        return age(moment)


class Worst:
    """The UEs with the highest losses, unknown ones first; one less often the more it was chosen."""

    feedback = "loss"

    def __init__(self, cell) -> None:
        self.chosen = np.zeros(cell.ues)

    def __call__(self, moment):
        losses = np.full(6, np.nan) if moment.feedback is None else moment.feedback
        order = np.argsort(-np.where(np.isnan(losses), 1e9, losses) + 0.05 * self.chosen, kind="stable")
        self.chosen[order[: moment.quorum]] += 1
        return order[: moment.quorum]


def in_chunks(learner, chunk, *, schedule=None, rounds=15, **options):
    conditions = conditions_of(CELL, Protocol(2, 4), **LOAD, schedule=schedule or Watching())
    play = ChunkedPlay(conditions, rounds, chunk=chunk)
    return list(train_in_chunks(TASK, play, replace(learner, feedback="loss"), **options))


def assert_same(tree, other):
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True))


LEARNERS = [
    Learner(PerFed(0.1), batch=8),
    Learner(FedAvg(), batch=8, merge=FedBuff()),
    Learner(Ditto(), batch=8, local_steps=2, top_k=0.1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "asked"), [*zip(LEARNERS, (None, None, "loss"), strict=True)], ids=["sum", "each", "kept"]
)
def test_in_chunks_is_bitwise_the_whole_run_if_the_reports_are_ignored(learner, asked):
    line = simulate(CELL, Protocol(2, 4), **LOAD, rounds=15, schedule=age)
    points = evaluation_points(line)
    *_, whole = train(TASK, line, replace(learner, feedback=asked), points, seed=3)
    for chunk in (1, 4, 20):
        *_, (timeline, then, end) = in_chunks(learner, chunk, seed=3)
        assert np.array_equal(timeline.time_s, line.time_s)
        assert np.array_equal(timeline.ues, line.ues)
        assert np.array_equal(timeline.open_version, line.open_version)
        assert then == points
        assert end.values == whole.values
        assert_same((end.state.params, end.state.client_state), (whole.state.params, whole.state.client_state))


@pytest.mark.slow
@pytest.mark.parametrize(("backhaul_s", "cloud_quorum"), [(0.0, 2), (0.3, 1)])
def test_so_it_is_at_edges_where_the_cloud_merges_between_two_chunks(backhaul_s, cloud_quorum):
    cells = make_cells(CELL, Sites.grid(3, 60.0), 60.0, backhaul_s=backhaul_s)
    edges = {"cells": cells, "protocol": Protocol(1, 4), "cloud": Protocol(cloud_quorum), "schedules": [age] * 3}
    line = simulate_cells(**edges, **LOAD, rounds=31, edge_rounds=2)
    assert line.cloud is not None
    points, learner = evaluation_points(line), replace(LEARNERS[0], feedback="loss")
    *_, whole = train(TASK, line, learner, points, seed=3)
    for chunk in (1, 4):
        play = ChunkedPlay(conditions_of_edges(**edges, **LOAD, edge_rounds=2), 31, chunk=chunk)
        *_, (timeline, then, end) = train_in_chunks(TASK, play, learner, seed=3)
        assert np.array_equal(timeline.ues, line.ues)
        assert then == points
        assert end.values == whole.values
        assert_same((end.state.params, end.state.edges), (whole.state.params, whole.state.edges))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"mobility": "waypoint", "speed_mps": 20.0, "on_leave": "keep"}], ids=["still", "moving"]
)
@pytest.mark.parametrize("schedule", ["oort", "power_of_choice:4"])
def test_edges_with_feedback_are_compared_by_name(schedule, more):
    given = {name: value for name, value in SMALL.items() if name not in ("horizon_s", "eval_every_s")}
    given |= {"ues": 12, "cells": 3, "rounds": 24, "schedule": schedule, "edge_rounds": 2} | more
    often, rarely = (compare(**given, feedback_rounds=chunk) for chunk in (2, 24))
    assert often.rows != rarely.rows
    timeline = often.timelines["PerFedS2", 0]
    assert timeline.rounds == 24
    assert timeline.cloud is not None


@pytest.mark.slow
def test_a_shelf_that_grows_on_the_way_loses_no_model(monkeypatch):
    """One UE is never chosen until round 12, so the others hold ever older models."""
    monkeypatch.setattr(script, "shelve", lambda line, written=None, slots=4: shelve(line, written, slots))

    class InTurn(Watching):
        def __call__(self, moment):
            return np.array([moment.round % 5 if moment.round < 12 else 5])

    learner = Learner(FedAvg(), batch=8, beta=0.5, feedback="loss")
    line = simulate(CELL, Protocol(1), **LOAD, rounds=14, schedule=InTurn())
    *_, whole = train(TASK, line, learner, evaluation_points(line, about=2))
    play = ChunkedPlay(conditions_of(CELL, Protocol(1), **LOAD, schedule=InTurn()), 14, chunk=1)
    (_, _, begin), *_, (_, _, end) = train_in_chunks(TASK, play, learner)
    assert [slots_of(state) for state in (begin, end)] == [4, 8]
    assert_same(end.state.params, whole.state.params)


def slots_of(training):
    return jax.tree.leaves(training.state.shelf)[0].shape[0]


@pytest.mark.slow
def test_what_a_schedule_sees_is_at_most_a_chunk_old():
    class Shown(Watching):
        seen_by_all: ClassVar[list] = []

        def __call__(self, moment):
            self.seen_by_all.append(moment)
            return age(moment)

    *_, (timeline, _, _) = in_chunks(LEARNERS[1], 5, schedule=Shown())
    for moment in Shown.seen_by_all:
        chunk = moment.round // 5 * 5
        known = np.isin(np.arange(6), timeline.ues[:chunk])
        assert np.array_equal(np.isfinite(moment.feedback), known)


def test_a_report_uses_the_batch_that_was_drawn_for_the_upload(monkeypatch):
    drawn, kind = [], type(TASK.data)
    batches = kind.batches
    monkeypatch.setattr(kind, "batches", lambda *given: drawn.append(1) or batches(*given))

    def draws(feedback):
        drawn.clear()
        learner = replace(LEARNERS[1], feedback=feedback)
        script = Script.of(simulate(CELL, Protocol(2, 4), **LOAD, rounds=1), learner.merge)
        given = Known.of(TASK, learner, 0), script, start(TASK, script, learner, 0), jnp.int32(0)
        jax.make_jaxpr(partial(play_round, Program.of(TASK.model, learner, 2)))(*given)
        return len(drawn)

    assert draws("loss") == draws(None) > 0


@cache
def computed_by_hand():
    """Of every UE's first job: the losses of its samples, of the first of three batches, and the length of its gradient."""
    weights = first_weights(TASK.model, np.int32(5))
    key = Known.of(TASK, Learner(FedAvg(), batch=8), 5).key

    @jax.jit
    def of(ue):
        own = jax.random.fold_in(jax.random.fold_in(key, ue), 0)
        (x, y), (first_x, first_y) = (
            jax.tree.map(lambda rows: rows[0, 0], TASK.data.batches(own, ue, (1, count, 8))) for count in (1, 3)
        )
        slope = jax.grad(lambda w: mean_loss(TASK.model, w, x, y))(weights)
        losses = (loss_of(TASK.model)(TASK.model(weights, each), label) for each, label in ((x, y), (first_x, first_y)))
        return *losses, jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slope)))

    return [jax.tree.map(np.asarray, of(np.int32(ue))) for ue in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "batch"), [(LEARNERS[0], 1), (LEARNERS[1], 0)], ids=["sum", "each"])
def test_a_report_is_what_a_ue_would_compute_itself(learner, batch):
    """PerFed draws three batches and reports the loss on the first."""

    class Pair(Watching):
        def __call__(self, _):
            return pair

    for pair in np.arange(6).reshape(3, 2):
        *_, (_, _, end) = in_chunks(learner, 1, schedule=Pair(), rounds=1, seed=5)
        assert end.state.reported is not None
        expected = [computed_by_hand()[ue][batch].mean() for ue in pair]
        np.testing.assert_allclose(np.asarray(end.state.reported)[pair], expected, rtol=1e-5)


@pytest.mark.slow
def test_so_is_a_report_of_another_kind():
    learner, kinds = Learner(FedAvg(), batch=8), ("rms_loss", "gradient_norm", "update_norm")
    programs = [Program.of(TASK.model, replace(learner, feedback=kind), 6) for kind in kinds]

    @jax.jit
    def reports(weights, known, ue):
        jobs = (reported_update(program, known, weights, ue, jnp.int32(0), None, (None, None)) for program in programs)
        return [told for _, _, told in jobs]

    for ue, (each, _, length) in enumerate(computed_by_hand()):
        told = reports(first_weights(TASK.model, np.int32(5)), Known.of(TASK, learner, 5), np.int32(ue))
        np.testing.assert_allclose(told, [np.sqrt((each**2).mean()), length, length], rtol=1e-5)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY_S", 0.0)
    expected = _finished(tmp_path / "whole", dies_at=None)
    for dies_at in (1, 6):
        again = _finished(tmp_path / str(dies_at), dies_at)
        assert again.rows == expected.rows
        assert again.ue_rows == expected.ue_rows
        assert again.timeline is not None
        assert expected.timeline is not None
        assert np.array_equal(again.timeline.ues, expected.timeline.ues)
        assert_same(again.weights, expected.weights)


def _finished(folder, dies_at):
    """Train, in a second attempt if the first one dies at an evaluation."""
    (one,) = trainings_of(spec_from(**SMALL, schedule=Worst, feedback_rounds=3))
    store, evaluations = Store(folder, whole=True), []

    def evaluated(_, values):
        evaluations.append(len(values))
        if len(evaluations) == dies_at:
            raise KeyboardInterrupt

    if dies_at is not None:
        with pytest.raises(KeyboardInterrupt):
            trainer.train_group([trainer.Workbench().prepare(one)], store, evaluated)
    trainer.train_group([trainer.Workbench().prepare(one)], store, evaluated)
    assert evaluations == list(range(1, 10))  # no evaluation was made twice
    found = store.get(one.key)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_comparison_trains_with_feedback_and_the_chunk_matters():
    often, rarely = (compare(**SMALL, schedule=Worst, feedback_rounds=chunk) for chunk in (1, 50))
    assert often.rows != rarely.rows
    for result in (often, rarely):
        assert [row["time_s"] for row in result.rows] == [0.25 * number for number in range(9)]


@pytest.mark.slow
def test_a_diverged_run_with_feedback_ends_like_another():
    result = compare(**SMALL, beta=1e30, schedule=Worst, stop_when_diverged=True)
    assert len(result.rows) == 9
    assert np.isnan(result.rows[-1]["train_loss"])
    assert result.timelines["PerFedS2", 0].end_s > 1.5


def test_noise_that_would_not_hide_the_reports_is_refused():
    spec = spec_from(**SMALL, schedule=Worst, dp_noise=1.0, clip=1.0)
    with pytest.raises(InputError, match="noise on uploads does not hide"):
        trainer.Workbench().prepare(trainings_of(spec)[0])


def test_a_schedule_that_asks_for_something_else_is_refused():
    class Asks(Watching):
        feedback = "mood"

    with pytest.raises(InputError, match="'mood'; use loss, rms_loss, gradient_norm, update_norm"):
        trainer.Workbench().prepare(trainings_of(spec_from(**SMALL, schedule=Asks))[0])


def test_without_training_there_is_no_feedback():
    with pytest.raises(InputError, match="which only training measures"):
        simulate_spec(spec_from(**SMALL, schedule=Worst), "simulate", None)
