"""Uploads of few bits: what the server reads, in the mean and at most, and what the clock makes of it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_twin import replay_slowly, sent_in_few_bits

from perfeds2.api import compare
from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.learner import Learner
from perfeds2.learning.methods import FedPer
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.objectives import FedAvg
from perfeds2.learning.replay import replay
from perfeds2.learning.transforms import quantised
from perfeds2.network.cell import Cell
from perfeds2.runs.notes import notes_of
from perfeds2.spec.build import Stage, check, make_algorithms, make_timelines
from perfeds2.spec.cells import model_bits, upload_bits
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.simulate import simulate

KEY = jax.random.key(3)


@pytest.mark.slow
def test_four_bits_by_hand():
    # 15 levels from −7 to 7: with 14 as the largest number a step is 2, and what lies on one stays.
    upload = np.full(2005, 0.5, np.float32)
    upload[:5] = [14.0, -14.0, 2.0, 0.0, -6.0]
    read = np.asarray(jax.jit(lambda upload: quantised(KEY, upload, 4))({"a": upload})["a"])
    np.testing.assert_allclose(read[:5], [14, -14, 2, 0, -6], rtol=1e-6)
    between = read[5:]
    assert set(np.unique(between)) == {0.0, 2.0}
    assert np.mean(between) == pytest.approx(0.5, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 16])
def test_nothing_is_wrong_in_the_mean_and_by_at_most_a_step(bits):
    draw = np.random.default_rng(3).standard_normal
    upload = {"a": draw(40, np.float32), "b": draw((3, 5), np.float32) * np.float32(1e-3)}
    read = jax.jit(jax.vmap(lambda key: quantised(key, upload, bits)))(jax.random.split(jax.random.key(5), 2000))
    for name, array in upload.items():
        step, found = float(np.abs(array).max()) / (2 ** (bits - 1) - 1), np.asarray(read[name])
        assert np.abs(found - array).max() <= step * (1 + 1e-3)
        np.testing.assert_allclose(found.mean(axis=0, dtype=float), array, atol=step * 0.06)


def test_nothing_is_nothing():
    assert np.array_equal(quantised(KEY, {"a": jnp.zeros(4)}, 8)["a"], np.zeros(4))


@pytest.mark.slow
def test_the_twin_sends_the_same():
    draw = np.random.default_rng(3).standard_normal
    upload = {"b": draw((30, 7), np.float32), "a": draw(11, np.float32)}
    one, two = jax.jit(lambda upload: (quantised(KEY, upload, 8), sent_in_few_bits(upload, KEY, 8)))(upload)
    for name in upload:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_replay_agrees_with_its_twin_but_for_coins_on_the_edge():
    """A gradient that differs in its last digit may fall on the other side of a coin: that moves one number by a step."""
    task = replace(digits(6, 3, 0), model=MLP((64, 10)))  # compiles in two thirds of the time
    line = simulate(Cell.draw(6, 0), Protocol(2, 3), payload_bits=1e4, samples=8, rounds=12)
    learner = Learner(FedAvg(), batch=8, bits=4)
    fast, slow = replay(task, line, learner, seed=3), replay_slowly(task, line, learner, seed=3)
    plain = replay(task, line, Learner(FedAvg(), batch=8), seed=3)
    off = np.concatenate([np.ravel(np.abs(fast[name] - slow[name])) for name in fast])
    moved = np.concatenate([np.ravel(np.abs(fast[name] - plain[name])) for name in fast])
    assert np.mean(off > 1e-5) < 0.01
    assert np.mean(moved > 1e-5) > 0.5


def test_fewer_bits_make_shorter_uploads():
    spec, plain = spec_from(bits=8), spec_from()
    # The digits' model: 2,410 numbers in 4 arrays.
    assert upload_bits(plain) == model_bits(spec) == 77_120
    assert upload_bits(spec) == 77_120 / 4 + 4 * 32
    assert upload_bits(spec_from(bits=32)) == 77_120
    given = spec_from(bits=4, payload_bits=500)
    assert upload_bits(given) == 500  # who says so knows
    assert notes_of(given, {}, None) == [
        "--payload-bits 500 is the size of every upload; --bits and --top-k change only its values."
    ]
    with pytest.raises(InputError, match="--bits must be 32, 16, 8 or 4, got 7"):
        spec_from(bits=7)


def test_fewer_bits_of_less_than_the_model():
    """FedPer keeps the last layer, 330 of the 2,410 numbers and 2 of the 4 arrays; models come whole and with all bits."""
    spec = spec_from(bits=8)
    assert upload_bits(spec, FedPer()) == 8 * 2080 + 2 * 32
    assert model_bits(spec) == 77_120
    assert upload_bits(spec_from(bits=8, payload_bits=500), FedPer()) == 500


def test_fewer_bits_that_control_variates_would_not_hear_of_are_refused():
    with pytest.raises(
        InputError, match=r"--bits 8 cannot be combined with SCAFFOLD: what its UEs keep is computed from whole uploads"
    ):
        check(spec_from(bits=8, algorithms=["SCAFFOLD"]), trains=False)
    check(spec_from(bits=32, algorithms=["SCAFFOLD"]), trains=False)


@pytest.mark.slow
def test_shorter_uploads_give_more_rounds_and_still_learn():
    """Each form gives more rounds; both together learn more."""
    settings: dict[str, Any] = {
        "algorithms": ["FedAvgS2"],
        "seeds": [0],
        "ues": 6,
        "horizon_s": 1.5,
        "bandwidth_hz": 1.5e5,
        "eval_every_s": 0.75,
    }

    def rounds(**form: Any) -> int:
        spec = spec_from(**settings, **form)
        stage = Stage.of(spec, 0)
        return next(make_timelines(spec, stage, make_algorithms(spec, stage))).rounds

    forms: tuple[dict[str, Any], ...] = ({"bits": 32}, {"bits": 8, "top_k": 0.1})
    full, short = (compare(**settings, **form).summary["algorithms"][0] for form in forms)
    assert rounds(bits=32) == full["rounds"]["mean"]
    assert rounds(bits=8) > 2 * full["rounds"]["mean"]
    assert rounds(top_k=0.1) > 3 * full["rounds"]["mean"]
    assert short["train_loss_personal"]["mean"] < full["train_loss_personal"]["mean"]
