"""Where the UEs are, how the fading falls, how long they compute, and what is no cell."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from perfeds2.network.cell import Cell, compute_seconds


def fading(cell: Cell, rounds: int) -> np.ndarray:
    return np.array([cell.signal_hz(k) / cell.mean_signal_hz for k in range(rounds)])


def test_fading_is_rayleigh_of_scale_40():
    h = fading(Cell.draw(400, 5), 100)
    assert h.mean() == pytest.approx(40 * np.sqrt(np.pi / 2), rel=0.01)  # 50.13
    assert h.std() == pytest.approx(40 * np.sqrt(2 - np.pi / 2), rel=0.01)  # 26.21
    assert stats.kstest(h.ravel(), stats.rayleigh(scale=40).cdf).pvalue > 0.01


def test_fading_is_independent_over_ues_rounds_and_seeds():
    h = fading(Cell.draw(400, 5), 100)
    other = fading(Cell.draw(400, 6), 100)
    limit = 4 / np.sqrt(h.size)
    for a, b in ((h[:, 1:], h[:, :-1]), (h[1:], h[:-1]), (h, other), (h[1:], other[:-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < limit


def test_a_stronger_fade_scales_the_signal():
    weak, strong = Cell.draw(10, 3), Cell.draw(10, 3, fading_scale=80.0)
    np.testing.assert_allclose(strong.signal_hz(7), 2 * weak.signal_hz(7), rtol=1e-12)


def test_the_signal_follows_path_loss_power_and_noise():
    near = Cell(np.array([10.0]), np.array([1e9]), seed=3)
    # Ten times as far is 10^−3.8; twice the power is twice; 3.0103 dB more noise is half.
    np.testing.assert_allclose(replace(near, distance_m=np.array([100.0])).signal_hz(0), near.signal_hz(0) * 10**-3.8)
    loud = Cell(np.array([10.0]), np.array([1e9]), power_w=0.02, noise_dbm_per_hz=-174 + 10 * np.log10(2), seed=3)
    np.testing.assert_allclose(loud.signal_hz(0), near.signal_hz(0), rtol=1e-12)


def test_a_disc_holds_ues_in_proportion_to_area():
    distance = Cell.draw(20_000, 4).distance_m
    assert distance.max() <= 200
    assert stats.kstest((distance / 200) ** 2, "uniform").pvalue > 0.01
    assert np.mean(distance < 100) == pytest.approx(0.25, abs=0.01)


def test_the_other_layouts():
    uniform = Cell.draw(20_000, 4, layout="uniform", radius_m=300.0).distance_m
    assert stats.kstest(uniform / 300, lambda x: np.clip(x, 0, 1)).pvalue > 0.01
    assert Cell.draw(3, 4, layout="equal").distance_m.tolist() == [100, 100, 100]


def test_cpu_frequencies_are_log_uniform():
    cpu_hz = Cell.draw(20_000, 4).cpu_hz
    assert stats.kstest(np.log10(cpu_hz / 2e8), "uniform").pvalue > 0.01


def test_the_first_ues_are_the_same_in_a_larger_cell():
    small, large = Cell.draw(5, 9), Cell.draw(50, 9)
    np.testing.assert_array_equal(small.distance_m, large.distance_m[:5])
    np.testing.assert_array_equal(small.cpu_hz, large.cpu_hz[:5])
    for round_ in (0, 1, 1000):
        np.testing.assert_array_equal(small.signal_hz(round_), large.signal_hz(round_)[:5])


def test_no_ue_stands_on_the_antenna():
    cell = Cell(np.array([0.0, 0.5, 2.0]), np.ones(3))
    assert cell.distance_m.tolist() == [1, 1, 2]


def test_compute_seconds_by_hand():
    # 250,000 cycles a sample, 40 samples, 1 GHz and 200 MHz: 10 ms and 50 ms; a downlink of 1 s comes before.
    cell = Cell(np.ones(2), np.array([1e9, 2e8]), downlink_s=1.0)
    np.testing.assert_allclose(cell.compute_s(40.0), [1.01, 1.05])
    np.testing.assert_allclose(compute_seconds(40.0, np.array([1e5, 2e5]), np.array([1e9, 1e9])), [0.004, 0.008])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"distance_m": np.array([1.0, np.nan])}, "distance_m must be finite and at least 0, got nan"),
        ({"distance_m": np.array([1.0, -5.0])}, "distance_m must be finite and at least 0, got -5"),
        ({"distance_m": np.array([1.0, np.inf])}, "distance_m must be finite"),
        ({"cpu_hz": np.array([0.0, 1e9])}, "cpu_hz must be finite and above 0, got 0"),
        ({"cpu_hz": np.array([-1.0, 1e9])}, "cpu_hz must be finite and above 0, got -1"),
        ({"cpu_hz": np.array([np.nan, 1e9])}, "cpu_hz must be finite"),
        ({"bandwidth_hz": -1e6}, "bandwidth_hz must be finite and above 0, got -1000000"),
        ({"bandwidth_hz": 0.0}, "bandwidth_hz must be finite and above 0"),
        ({"bandwidth_hz": np.nan}, "bandwidth_hz must be finite"),
        ({"bandwidth_hz": np.inf}, "bandwidth_hz must be finite"),
        ({"power_w": 0.0}, "power_w"),
        ({"path_loss_exponent": -1.0}, "path_loss_exponent"),
        ({"noise_dbm_per_hz": np.nan}, "noise_dbm_per_hz"),
        ({"fading_scale": 0.0}, "fading_scale"),
        ({"downlink_s": -0.1}, "downlink_s must be finite and at least 0"),
        ({"cycles_per_sample": -1.0}, "cycles_per_sample must be finite and at least 0"),
        ({"seed": -1}, "seed must be finite and at least 0, got -1"),
        ({"seed": 2**64}, "seed must be a whole number below"),
    ],
)
def test_what_is_no_cell_is_refused_by_name(wrong, words):
    good = {"distance_m": np.array([10.0, 20.0]), "cpu_hz": np.array([1e9, 1e9])}
    with pytest.raises(ValueError, match=words):
        Cell(**(good | wrong))


def test_a_cell_without_ues_is_refused():
    with pytest.raises(ValueError, match="at least one UE"):
        Cell(np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="at least 1 UE, got 0"):
        Cell.draw(0)


def test_a_cell_cannot_be_drawn_with_impossible_frequencies():
    for cpu_hz in ((0.0, 1e9), (1e9, np.inf), (np.nan, 1e9), (-1e8, 1e9)):
        with pytest.raises(ValueError, match="cpu_hz must be two finite frequencies above 0"):
            Cell.draw(3, cpu_hz=cpu_hz)
    with pytest.raises(ValueError, match="distance_m must be finite and at least 0"):
        Cell.draw(3, radius_m=-200.0)
