"""Rates and bandwidths: numbers by hand, limits, and the way back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from perfeds2.network.cell import Cell
from perfeds2.network.link import bandwidth_for_rate, rate_bps

LN2 = np.log(2)


def test_the_rate_on_one_hertz_is_the_bits_of_one_plus_the_signal():
    np.testing.assert_allclose(rate_bps(np.ones(4), np.array([1.0, 3.0, 15.0, 0.0])), [1, 2, 4, 0], rtol=1e-15)
    assert rate_bps(2.0, 6.0) == pytest.approx(4)  # 2 Hz · log2(1 + 6/2)


def test_the_rate_with_the_papers_numbers():
    # p/N0 = 10^−2 W / 10^−20.4 W/Hz = 10^18.4 Hz; at 100 m 100^−3.8 = 10^−7.6; so g = 10^10.8 Hz before fading. On 1 MHz
    # the signal-to-noise ratio is 10^4.8, and 4.8 · log2(10) = 15.945255; the 1 in log2(1 + SNR) adds 10^−4.8 / ln 2.
    cell = Cell(np.array([100.0]), np.array([1e9]))
    assert cell.mean_signal_hz[0] == pytest.approx(10**10.8, rel=1e-12)
    assert rate_bps(np.array([1e6]), cell.mean_signal_hz)[0] == pytest.approx(15_945_277.6, rel=1e-8)


def test_the_paper_counts_nats_where_it_means_bits():
    # Erratum 3: b·ln(1 + SNR) is in nat/s; in bit/s it is 1/ln 2 = 1.4427 times as much.
    printed = 1e6 * np.log(1 + 10**4.8)
    assert rate_bps(np.array([1e6]), np.array([10**10.8]))[0] / printed == pytest.approx(1.4426950408889634)


def test_no_band_no_rate():
    np.testing.assert_array_equal(rate_bps(np.zeros(3), np.array([0.0, 1.0, 1e30])), [0, 0, 0])


def test_the_rate_vanishes_with_the_band_and_saturates_with_it():
    signal = np.array([1e9])
    # b → 0: r = b·log2(g/b) → 0, though r/b grows without end.
    bands = np.array([1e-30, 1e-60, 1e-120])
    np.testing.assert_allclose(rate_bps(bands, signal), bands * np.log2(1e9 / bands), rtol=1e-12)
    # b → ∞: r → g / ln 2 from below.
    bands = np.array([1e13, 1e15, 1e18, 1e24])
    rates = rate_bps(bands, signal)
    np.testing.assert_allclose(rates, 1e9 / LN2, rtol=1e-4)
    np.testing.assert_allclose(rates[2:], 1e9 / LN2, rtol=1e-8)
    assert (np.diff(rates) >= 0).all()


@given(st.floats(-2, 16), st.floats(-3, 9), st.floats(0.01, 0.99))
def test_the_rate_is_strictly_concave_in_the_band(signal_log, band_log, part):
    # With r(0) = 0: a part of the band carries more than its part of the rate. Once saturated, it carries nearly all.
    signal, band = np.array([10**signal_log]), np.array([10**band_log])
    assert rate_bps(part * band, signal) > part * rate_bps(band, signal)


@pytest.mark.slow
@given(st.floats(-4, 14), st.floats(-6, 15))
@settings(max_examples=300)
def test_the_band_for_a_rate_is_the_inverse_of_the_rate(signal_log, ratio_log):
    signal = np.array([10**signal_log])
    band = signal / 10**ratio_log
    assert bandwidth_for_rate(rate_bps(band, signal), signal) == pytest.approx(band, rel=1e-9)


@pytest.mark.parametrize("signal", 10.0 ** np.arange(-2, 15, 2))
def test_the_band_reaches_its_rate_at_every_gain_and_load(signal):
    loads = np.concatenate([10.0 ** np.arange(-30, 0), [0.3, 0.5, 0.9], 1 - 10.0 ** -np.arange(2, 15)])
    rates = loads * signal / LN2
    band = bandwidth_for_rate(rates, signal)
    np.testing.assert_allclose(rate_bps(band, np.full(rates.size, signal)), rates, rtol=1e-9)
    assert (np.diff(band) > 0).all()


@given(st.floats(-14, -1e-3))
def test_the_band_agrees_with_root_finding(load_log):
    # ln ln(1 + x) − ln x = ln Γ, x = e^y the signal-to-noise ratio: in y this is smooth, falling, and never flat.
    load = 10**load_log
    root = brentq(lambda y: np.log(np.log1p(np.exp(y))) - y - np.log(load), -12, 200, xtol=1e-13)
    band = 5e7 / np.exp(np.asarray(root))
    assert bandwidth_for_rate(np.array([load * 5e7 / LN2]), 5e7)[0] == pytest.approx(band, rel=1e-9)


def test_no_rate_needs_no_band():
    np.testing.assert_array_equal(bandwidth_for_rate(np.zeros(2), np.array([1.0, 0.0])), [0, 0])


def test_a_rate_above_saturation_needs_an_infinite_band():
    assert bandwidth_for_rate(np.array([1e6 / LN2, np.nan]), np.array([1e6, 1.0])).tolist() == [np.inf, np.inf]
    band = bandwidth_for_rate(np.array([1e5, 3e6, 0.0]), np.array([1e6, 1e6, 0.0]))
    assert np.isfinite(band[0])
    assert band.tolist()[1:] == [np.inf, 0.0]
    assert bandwidth_for_rate(2.0, 6.0) == pytest.approx(bandwidth_for_rate(np.array([2.0]), 6.0)[0])
