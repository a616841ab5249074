"""What modulation carries, and how bands are shared on it."""

import csv
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfeds2.allocation.bandwidth import Uplink, equal_finish
from perfeds2.errors import InputError
from perfeds2.network.link import rate_bps
from perfeds2.network.modulation import LINKS, Attenuated, Steps, up_to
from perfeds2.network.radios import RADIOS
from perfeds2.spec.cells import make_cell
from perfeds2.spec.resolve import spec_from

CQI = cast("Steps", LINKS["cqi"])
TWO = Steps((0.0, 10.0), (1.0, 3.0))  # from an SNR of 1 on 1 bit/s/Hz, from 10 on 3


def rate_by_definition(steps: Steps, band_hz: float, signal_hz: float) -> float:
    """Return the best rate: a step in the part of the band in which the signal reaches its SNR."""
    at = zip(steps.snr_db, steps.bits, strict=True)
    return max(bits * min(band_hz, signal_hz / 10 ** (snr_db / 10)) for snr_db, bits in at)


def least_band_by_definition(steps: Steps, rate: float, signal_hz: float) -> float:
    at = zip(steps.snr_db, steps.bits, strict=True)
    return min((rate / bits for snr_db, bits in at if rate / bits * 10 ** (snr_db / 10) <= signal_hz), default=math.inf)


def test_two_steps_by_hand():
    assert TWO.bits_per_s_hz(np.array([1.0, 2.0, 10 / 3, 5.0, 10.0, 100.0])).tolist() == pytest.approx(
        [1, 1, 1, 1.5, 3, 3]
    )
    assert TWO.bits_per_s_hz(np.array([0.5])).tolist() == [0.5]  # half of the band, with twice the power in it
    assert TWO.least_hz(np.array([3.0, 3.0, 3.0]), np.array([10.0, 9.0, 2.0])).tolist() == [1.0, 3.0, math.inf]


@pytest.mark.parametrize("name", ["cqi", "cqi-64qam"])
def test_the_steps_are_those_of_the_outside_implementation(name):
    with (Path(__file__).parent / "reference_cqi.csv").open() as file:
        rows = [
            (float(row["bits_per_symbol"]), float(row["rate_1024"]), float(row["snr_db"]))
            for row in csv.DictReader(file)
        ]
    steps = LINKS[name]
    assert isinstance(steps, Steps)
    assert len(steps.bits) == 15
    for order, rate, snr_db in rows:
        if order * rate / 1024 in steps.bits:
            assert steps.snr_db[steps.bits.index(order * rate / 1024)] == pytest.approx(snr_db, abs=0.1)
    assert (steps.bits[0], steps.bits[-1]) == pytest.approx((0.1523, 7.4063 if name == "cqi" else 5.5547), abs=5e-5)


@pytest.mark.parametrize("name", ["cqi", "cqi-64qam"])
def test_no_step_carries_more_than_shannon(name):
    steps = LINKS[name]
    assert isinstance(steps, Steps)
    shannon = np.log2(1 + 10 ** (np.array(steps.snr_db) / 10))
    assert (np.array(steps.bits) < shannon).all()
    assert (np.array(steps.bits) > 0.6 * shannon).all()


def test_200_rates_are_those_of_the_definition():
    rng = np.random.default_rng(1)
    band_hz, signal_hz = 10 ** rng.uniform(3, 7, 200), 10 ** rng.uniform(2, 10, 200)
    expected = [rate_by_definition(CQI, *each) for each in zip(band_hz, signal_hz, strict=True)]
    assert rate_bps(band_hz, signal_hz, CQI).tolist() == pytest.approx(expected, rel=1e-12)
    rates = np.array(expected)
    found = CQI.least_hz(rates * (1 - 1e-9), signal_hz)
    needed = [least_band_by_definition(CQI, *each) for each in zip(rates * (1 - 1e-9), signal_hz, strict=True)]
    assert found.tolist() == pytest.approx(needed, rel=1e-12)


def test_attenuated_is_a_share_of_shannon_up_to_a_limit():
    link = Attenuated(0.4, 2.0)
    assert link.bits_per_s_hz(np.array([1.0, 3.0, 1e6])).tolist() == pytest.approx([0.4, 0.8, 2.0])
    assert rate_bps(5.0, 15.0, link) == pytest.approx(0.8 * 5)


@given(st.integers(0, 10_000))
def test_equal_finish_ends_as_early_as_possible_on_steps(number):
    rng = np.random.default_rng(number)
    n = int(rng.integers(1, 9))
    signal_hz, bits = 10 ** rng.uniform(2, 9, n), 10 ** rng.uniform(3, 7, n)
    compute_s, band_hz = rng.uniform(0, 2, n) * (rng.random(n) < 0.7), 10 ** rng.uniform(4, 7)
    uplink = Uplink(0, band_hz, signal_hz, compute_s, bits, np.full(n, 1 / n), None, link=CQI)
    given_hz = equal_finish(uplink)
    assert given_hz.sum() <= band_hz * (1 + 1e-12)
    end_s = max(compute_s[i] + bits[i] / rate_by_definition(CQI, given_hz[i], signal_hz[i]) for i in range(n))
    earlier = end_s * (1 - 1e-9)
    if (compute_s < earlier).all():
        rates = bits / (earlier - compute_s)
        needed = sum(least_band_by_definition(CQI, *each) for each in zip(rates, signal_hz, strict=True))
        assert needed > band_hz * (1 - 1e-9)


def test_equal_finish_on_attenuated_links_ends_together():
    rng = np.random.default_rng(4)
    signal_hz, bits = 10 ** rng.uniform(5, 9, 6), 10 ** rng.uniform(4, 6, 6)
    link = Attenuated(0.4, 2.0)
    uplink = Uplink(0, 1e6, signal_hz, np.zeros(6), bits, np.full(6, 1 / 6), None, link=link)
    ends_s = bits / rate_bps(equal_finish(uplink), signal_hz, link)
    assert ends_s.tolist() == pytest.approx([ends_s[0]] * 6, rel=1e-9)


def test_realistic_radios_use_the_steps_and_walk_unless_told_otherwise():
    realistic, paper = make_cell(spec_from(radio="umi"), 0), make_cell(spec_from(), 0)
    assert realistic.link == CQI
    assert realistic.coherence_s == pytest.approx(0.423 * 3e8 / (0.83 * 3.5e9))
    assert (paper.link, paper.coherence_s) == (None, None)
    told = make_cell(spec_from(radio="umi", link="shannon", speed_mps=0), 0)
    assert (told.link, told.coherence_s) == (None, None)
    assert make_cell(spec_from(link="cqi-64qam"), 0).link == LINKS["cqi-64qam"]
    assert RADIOS["umi"] is not None


def test_an_efficiency_cap_removes_the_steps_above_it():
    link = make_cell(spec_from(radio="umi", efficiency_cap=5.0), 0).link
    assert isinstance(link, Steps)
    assert link.bits == CQI.bits[:10]
    assert up_to(Attenuated(0.4, 2.0), 1.0) == Attenuated(0.4, 1.0)
    with pytest.raises(InputError, match="no step carries"):
        make_cell(spec_from(radio="umi", efficiency_cap=0.1), 0)


def test_steps_must_rise():
    with pytest.raises(ValueError, match="rise"):
        Steps((0.0, 0.0), (1.0, 2.0))
    with pytest.raises(ValueError, match="rising"):
        Steps((0.0, 1.0), (2.0, 1.0))


@pytest.mark.parametrize("radio", [{"radio": "umi"}, {"radio": "umi", "link": "shannon"}, {}], ids=str)
def test_in_tdd_an_upload_has_a_share_of_the_time_and_models_have_the_rest(radio):
    whole, quarter = (
        make_cell(spec_from(**radio, downlink="multicast", **more), 0) for more in ({}, {"uplink_share": 0.25})
    )
    part_hz, signal_hz = whole.bandwidth_hz / whole.ues, whole.signal_hz(0)
    full_bps = rate_bps(part_hz, signal_hz, whole.limit)
    assert rate_bps(part_hz, signal_hz, quarter.limit) == pytest.approx(0.25 * full_bps)
    assert quarter.model_s(1) == pytest.approx(np.asarray(whole.model_s(1)) / 0.75)


def test_tdd_must_leave_time_for_a_downlink():
    with pytest.raises(InputError, match="leaves no time"):
        make_cell(spec_from(uplink_share=1, downlink="unicast"), 0)
