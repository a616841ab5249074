"""Has the noise that is added the claimed size and correlation, and is it refused where it would protect nothing?"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_numpy import evaluate_in_numpy, train_in_numpy

from perfeds2 import Cell, FedBuff, Learner, Mean, Protocol, compare, privacy_loss, simulate, spec_from
from perfeds2.deployment.merging import noise_on as noise_on_round
from perfeds2.errors import InputError
from perfeds2.learning.datasets import digits
from perfeds2.learning.lanes import Lane, shape_of
from perfeds2.learning.methods import METHODS
from perfeds2.learning.methods.fedrep import head_of
from perfeds2.learning.models.mlp import MLP
from perfeds2.learning.noise import NOISE, drawn, noise_now, noise_on, secret_key, threefry
from perfeds2.learning.objectives import FedAvg, Objective
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.replay import Prepared, advance, first_weights, start
from perfeds2.learning.script import Script
from perfeds2.learning.train import train_together
from perfeds2.privacy.accounting import noise_filter
from perfeds2.spec.build import Stage, make_algorithms
from perfeds2.spec.privacy import with_noise

TASK = replace(digits(4, 2, 0), model=MLP((64, 10)))
ROUNDS, QUORUM, CLIP, SIGMA, BETA = 40, 2, 0.5, 3.0, 0.1
TIMELINE = simulate(Cell.draw(4, seed=0), Protocol(QUORUM, 3), payload_bits=1e4, samples=24, rounds=ROUNDS)
REFUSED = {
    "SCAFFOLD",
    "FedDyn",
    "CA2FL",
    "SAFA",
    "FedAT",
    "FedAsync",
    "AsyncFedED",
    "SEAFL",
    "FedASMU",
    "REFL",
    "FedCompass",
}


@dataclass(frozen=True)
class Constant(Objective):
    """An objective whose every gradient is the same number."""

    value: float = 0.0

    def gradient(self, params, start, batches, context):
        del start, batches, context
        return jax.tree.map(lambda v: jnp.full_like(v, self.value), params)


def moves(learner: Learner) -> np.ndarray:
    """The move of every round, divided by the step: shape (rounds, parameters)."""
    script = Script.of(TIMELINE, learner.merge)
    prepared, state = Prepared.of(TASK, script, learner, 0), start(TASK, script, learner, 0)
    flat = [np.concatenate([np.ravel(w) for w in jax.tree.leaves(state.params)])]
    for k in range(ROUNDS):
        state = advance(prepared, state, k, k + 1)
        flat.append(np.concatenate([np.ravel(w) for w in jax.tree.leaves(state.params)]))
    return -np.diff(np.array(flat, float), axis=0) / BETA


def learner(**more) -> Learner:
    return Learner(**{"objective": Constant(), "beta": BETA, "batch": 8, "clip": CLIP, "noise": SIGMA} | more)


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 4])
def test_noise_has_the_claimed_variance_and_correlation(bands):
    noise = moves(learner(bands=bands)) * QUORUM / (SIGMA * CLIP)
    weights = noise_filter(bands)
    for lag in range(6):
        expected = float(weights[lag:] @ weights[: bands - lag]) if lag < bands else 0.0
        later = noise[bands:]  # from here on, all terms of the filter are drawn
        found = np.mean(later[lag:] * later[: len(later) - lag])
        assert found == pytest.approx(expected, abs=5 / np.sqrt(later.size))


@pytest.mark.slow
def test_shared_noise_has_only_draws_from_round_0_on():
    key, weights = secret_key(7), noise_filter(3)
    draws = [numbers(jax.jit(drawn, static_argnums=2)(key, round_, 3)) for round_ in range(4)]
    for round_ in range(4):
        noise = noise_now(key, jnp.int32(round_), {"b": jnp.zeros(1), "w": jnp.zeros((2, 2))}, jnp.float32(2.0), 3)
        expected = 2 * np.sum([weights[back] * draws[round_ - back] for back in range(min(3, round_ + 1))], axis=0)
        found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noise)])
        np.testing.assert_allclose(found, expected[:5], rtol=1e-5, atol=1e-6)


def numbers(pairs) -> np.ndarray:
    return np.concatenate([np.real(pairs), np.imag(pairs)])


def test_numbers_of_a_round_are_normal_and_do_not_repeat():
    from scipy.stats import kstest

    noise = moves(learner()) * QUORUM / (SIGMA * CLIP)
    assert kstest(noise.ravel(), "norm").pvalue > 1e-4
    first = np.corrcoef(noise)
    assert np.abs(first - np.eye(ROUNDS)).max() < 6 / np.sqrt(noise.shape[1])


def test_the_generator_is_the_librarys():
    key, low = jax.random.key(5), jnp.arange(1000, dtype=jnp.uint32)
    high, other = jax.jit(threefry)(jax.random.key_data(key), jnp.zeros_like(low), low)
    with jax.threefry_partitionable(True):
        np.testing.assert_array_equal(high ^ other, jax.random.bits(key, (1000,)))


def test_numbers_are_those_of_box_and_muller_in_double_precision():
    key, low = jax.random.key(5), jnp.arange(2000, dtype=jnp.uint32)
    words = jax.jit(threefry)(jax.random.key_data(key), jnp.full_like(low, NOISE + 7), low)
    share, turn = ((np.asarray(word, np.float64) + 0.5) / 2**32 for word in words)
    expected = np.sqrt(-2 * np.log(share)) * np.exp(2j * np.pi * turn)
    np.testing.assert_allclose(numbers(jax.jit(drawn, static_argnums=2)(key, 7, 2000)), numbers(expected), atol=2e-5)


@pytest.mark.slow
def test_numbers_are_drawn_once_however_many_arrays_they_fill():
    def rotations(like):
        compiled = noise_now.lower(secret_key(7), jnp.int32(3), like, jnp.float32(1.0), 1).compile()
        return str(compiled.as_text()).count("shift-left(")

    assert rotations({"a": jnp.zeros(3), "b": jnp.zeros(5)}) == rotations({"w": jnp.zeros(8)}) > 0


@pytest.mark.slow
def test_a_discount_of_stale_uploads_does_not_shrink_the_noise():
    assert TIMELINE.staleness.max() > 0
    np.testing.assert_allclose(moves(learner(merge=FedBuff())), moves(learner(merge=Mean())), atol=2e-5)


@pytest.mark.slow
def test_an_upload_that_is_not_finite_is_left_out():
    np.testing.assert_array_equal(moves(learner(objective=Constant(np.nan))), moves(learner()))


@pytest.mark.slow
def test_uploads_are_clipped_before_the_noise_is_added():
    much = moves(learner(objective=Constant(1e3), noise=1e-9))
    np.testing.assert_allclose(np.linalg.norm(much, axis=1), CLIP, rtol=1e-3)


@pytest.mark.slow
def test_trainings_side_by_side_get_the_noise_they_get_alone(monkeypatch):
    evaluate_in_numpy(monkeypatch.setattr)
    points, every = evaluation_points(TIMELINE, about=1), [learner(bands=3), learner(bands=3, noise=1.0)]
    lanes = [Lane(TASK, TIMELINE, one, points, seed) for seed, one in enumerate(every)]
    *_, last = train_together(lanes)
    for number, lane in enumerate(lanes):
        script = Script.of(TIMELINE, lane.learner.merge)
        prepared = Prepared.of(TASK, script, lane.learner, lane.seed)
        alone = advance(prepared, start(TASK, script, lane.learner, lane.seed), 0, ROUNDS).params
        for found, expected in zip(jax.tree.leaves(last[number].state.params), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def algorithms(**settings):
    spec = spec_from(**{"task": "synthetic", "ues": 6, "rounds": 5, "clip": 1.0, "algorithms": ["FedAvgS2"]} | settings)
    return make_algorithms(spec, Stage.of(spec, 0))


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_server_uses_uploads_one_by_one_are_refused(name):
    if name not in REFUSED:
        assert algorithms(algorithms=[name], dp_noise=2.0)[0].learner.noise == 2.0
        return
    with pytest.raises(InputError, match=f"{name} cannot be combined with --dp-noise"):
        algorithms(algorithms=[name], dp_noise=2.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dp_noise": 1.0, "clip": None}, "--dp-noise needs --clip"),
        ({"epsilon": 1.0, "bits": 8}, "--bits may lengthen"),
        ({"epsilon": 1.0, "top_k": 0.5}, "--top-k may lengthen"),
        ({"epsilon": 1.0, "dp_noise": 1.0}, "both given"),
        ({"delta": 1e-6}, "--delta has no effect"),
        ({"dp_bands": 2}, "--dp-bands has no effect"),
    ],
)
def test_settings_that_protect_nothing_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        algorithms(**settings)


def test_weights_above_one_are_refused():
    class Twice(FedBuff):
        def weights(self, staleness):
            return 2.0 * super().weights(staleness)

    spec = spec_from(dp_noise=1.0, clip=1.0)
    assert with_noise(spec.privacy, learner(merge=FedBuff()), TIMELINE).noise == SIGMA
    with pytest.raises(InputError, match="the weight 2; with noise, weights are at most 1"):
        with_noise(spec.privacy, learner(merge=Twice()), TIMELINE)
    with pytest.raises(ValueError, match="noise is relative to clip"):
        moves(learner(clip=None))


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 3])
def test_epsilon_holds_exactly_for_the_worst_ue_of_every_algorithm(bands, monkeypatch):
    train_in_numpy(monkeypatch.setattr)
    found = compare(
        task="synthetic", ues=6, algorithms=["FedAvgS2", "FedAvg-SYN"], seeds=[0], rounds=8, clip=1.0,
        epsilon=3.0, delta=1e-6, dp_bands=bands,
    )  # fmt: skip
    for row in found.summary["algorithms"]:
        timeline = found.timelines[row["algorithm"], 0]
        losses = privacy_loss(timeline, row["noise"]["values"][0], 1e-6, bands)
        assert losses.max() == pytest.approx(3.0, rel=1e-6)
        assert row["epsilon_worst"]["mean"] == pytest.approx(3.0, rel=1e-6)
        assert row["epsilon_median"]["mean"] == pytest.approx(np.median(losses))
        own = [each["epsilon"] for each in found.ue_rows if each["algorithm"] == row["algorithm"]]
        np.testing.assert_allclose(own, losses)
        spent = [each["epsilon"] for each in found.rows if each["algorithm"] == row["algorithm"]]
        assert spent == sorted(spent)
        assert spent[0] == 0
        assert spent[-1] == pytest.approx(3.0, rel=1e-6)
    assert any("ε" in note and "zeros" in note for note in found.summary["notes"])


@pytest.mark.parametrize("name", ["FedBABU", "FedPer"])
def test_what_is_not_uploaded_gets_no_noise(name):
    """FedBABU's head stays as it was drawn, and what FedPer's UEs keep; the layer below gets noise."""
    task = replace(TASK, model=MLP((64, 4, 10)))
    objective = METHODS[name]().objective
    learner = Learner(objective, BETA, 8, clip=CLIP, noise=SIGMA, noise_seed=5)
    params = first_weights(task.model, np.int32(0))
    key, deviation = secret_key(5), jnp.float32(SIGMA * CLIP)
    noise = jax.jit(noise_on, static_argnums=(0, 5))(objective, key, jnp.int32(3), params, deviation, 1)
    head = set(head_of(params))
    assert {each for each, values in noise.items() if not np.any(values)} == head
    ours = noise_on_round({each: np.asarray(w) for each, w in params.items()}, learner, 3)  # in a federation
    assert ours is not None
    assert ours.keys() == params.keys() - head
    for each, values in ours.items():
        np.testing.assert_allclose(values, noise[each], rtol=1e-6)


def test_a_learners_noise_seed_is_secret_and_part_of_what_lanes_share():
    learner = Learner(FedAvg(), clip=1.0, noise=1.0)
    secret = replace(learner, noise_seed=123456789)
    assert "123456789" not in repr(secret)
    assert shape_of(TASK, learner, 2) != shape_of(TASK, secret, 2)
    assert shape_of(TASK, secret, 2) == shape_of(TASK, replace(secret, noise_seed=7), 2)


def test_one_bit_is_too_few():
    with pytest.raises(ValueError, match="bits must be at least 2, a sign and a step, got 1"):
        Learner(FedAvg(), bits=1)
