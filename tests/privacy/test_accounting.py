"""Is the privacy of every UE exact? Oracles integrate densities and multiply matrices; neither shares code with it."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import toeplitz

from perfeds2 import Cell, Protocol, noise_for, privacy_loss, simulate
from perfeds2.privacy.accounting import densest, noise_filter, sensitivity
from perfeds2.timeline.record import Timeline


def timeline_of(seed: int) -> Timeline:
    """A random cell of up to 12 UEs under a random protocol."""
    rng = np.random.default_rng(seed)
    ues = int(rng.integers(2, 13))
    protocol = Protocol(int(rng.integers(1, ues + 1)), [None, 2, 5][seed % 3])
    cell = Cell.draw(ues, seed=seed)
    return simulate(cell, protocol, payload_bits=77_120, samples=120, rounds=int(rng.integers(1, 60)))


def integrated_delta(epsilon: float, mean: float) -> float:
    """δ(ε) of N(0, 1) against N(mean, 1), by integrating max(0, p − e^ε·q) over its support."""

    def excess(x: float) -> float:
        return (math.exp(-((x - mean) ** 2) / 2) - math.exp(epsilon - x**2 / 2)) / math.sqrt(2 * math.pi)

    first = epsilon / mean + mean / 2  # the densities cross here
    return float(quad(excess, first, max(first, mean) + 12, epsabs=1e-13, epsrel=1e-9, limit=200)[0])


def integrated_epsilon(mean: float, delta: float) -> float:
    if mean == 0 or integrated_delta(0.0, mean) <= delta:
        return 0.0
    low, high = 0.0, mean**2 / 2 + mean * 10
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if integrated_delta(middle, mean) > delta else (low, middle)
    return low


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_epsilon_is_what_integration_gives_on_random_timelines(seed):
    timeline, rng = timeline_of(seed), np.random.default_rng(seed)
    sigma, delta = float(rng.uniform(1.0, 20.0)), 10.0 ** -int(rng.integers(3, 8))
    merges = np.bincount(timeline.ues.ravel(), minlength=timeline.population)
    expected = {int(k): integrated_epsilon(np.sqrt(k) / sigma, delta) for k in np.unique(merges)}
    found = privacy_loss(timeline, sigma, delta)
    np.testing.assert_allclose(found, [expected[k] for k in merges.tolist()], rtol=1e-4, atol=1e-6)


def test_ten_merges_at_noise_four_cost_the_known_epsilon():
    timeline = simulate(Cell.draw(2, seed=0), Protocol(2), payload_bits=77_120, samples=120, rounds=10)
    assert privacy_loss(timeline, 4.0, 1e-5).round(2).tolist() == [3.34, 3.34]  # zCDP would say 4.11


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 200.0])
@pytest.mark.parametrize("bands", [1, 4])
def test_the_noise_for_an_epsilon_gives_the_worst_ue_exactly_that(epsilon, bands):
    timeline = timeline_of(7)
    assert privacy_loss(timeline, noise_for(timeline, epsilon, bands=bands), bands=bands).max() == pytest.approx(
        epsilon, rel=1e-9
    )


def test_a_ue_that_is_never_merged_loses_nothing():
    timeline = simulate(Cell.draw(20, seed=1), Protocol(2), payload_bits=77_120, samples=120, rounds=3)
    assert (privacy_loss(timeline, 1.0)[timeline.starved] == 0).all()
    assert timeline.starved.size


@pytest.mark.parametrize("bands", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_sensitivity_is_the_norm_over_all_rounds_that_merged_a_ue(seed, bands):
    """Brute force: invert the whole matrix that makes the noise, and try every sign of every upload."""
    timeline = timeline_of(seed)
    rounds = min(timeline.rounds, 9)
    short = timeline.prefix(rounds)
    column = np.zeros(rounds)
    column[: min(bands, rounds)] = noise_filter(bands)[:rounds]
    factor = np.linalg.inv(np.tril(toeplitz(column)))
    for ue, found in enumerate(sensitivity(short, bands)):
        took = factor[:, (short.ues == ue).any(axis=1)]
        worst = max(np.linalg.norm(took @ signs) for signs in product([-1.0, 1.0], repeat=took.shape[1]))
        assert found == pytest.approx(worst, abs=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_no_timeline_is_worse_than_merges_as_early_and_dense_as_rests_allow(bands):
    rounds, rest = 9, 3
    found, worst = densest(rounds, rest, bands), [0.0] * 4
    column = np.linalg.inv(toeplitz(np.pad(noise_filter(bands), (0, rounds))[:rounds], np.eye(1, rounds)[0]))
    for merged in product([0.0, 1.0], repeat=rounds):  # all sets of rounds that are at least three apart
        chosen = np.flatnonzero(merged)
        if np.diff(chosen).min(initial=rest) >= rest:
            worst[chosen.size] = max(worst[chosen.size], float(np.linalg.norm(column @ np.array(merged))))
    np.testing.assert_allclose(found, worst, rtol=1e-9)


def test_the_last_merge_counts_even_if_its_rest_does_not_end():
    """Ten rounds with a rest of three allow four merges: in rounds 0, 3, 6 and 9."""
    np.testing.assert_allclose(densest(10, 3) ** 2, range(5), rtol=1e-12)


def test_the_filter_of_the_noise_is_the_root_of_a_difference():
    root = noise_filter(6)
    np.testing.assert_allclose(np.convolve(root, root)[:6], [1, -1, 0, 0, 0, 0], atol=1e-15)


@pytest.mark.parametrize(
    ("sigma", "delta", "bands", "said"),
    [(0.0, 0.1, 1, "sigma"), (1.0, 0.0, 1, "delta"), (1.0, 1.0, 1, "delta"), (1.0, 0.1, 0, "bands")],
)
def test_numbers_out_of_range_are_refused(sigma, delta, bands, said):
    with pytest.raises(ValueError, match=said):
        privacy_loss(timeline_of(0), sigma, delta, bands)
