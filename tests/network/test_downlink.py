"""Seconds until UEs have their models."""

from dataclasses import replace

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.downlink import Downlink
from perfeds2.network.energy import ENERGY
from perfeds2.network.radios import RADIOS
from perfeds2.spec.build import make_cell
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.rounds import Protocol
from perfeds2.timeline.simulate import simulate


def test_multicast_is_at_the_rate_of_the_weakest():
    # On 10 Hz signals of 30 and 70 Hz carry 20 and 30 bit/s: 60 bits take everybody 3 s.
    downlink = Downlink("multicast", 1.0, 60.0)
    np.testing.assert_allclose(downlink.seconds(np.array([70.0, 30.0]), 10.0, 1, None), [3, 3])
    np.testing.assert_allclose(downlink.seconds(np.array([70.0, 30.0]), 10.0, 2, 1.5), [4, 4])  # at most 15 bit/s


def test_unicast_shares_band_and_power():
    # Two at a time: half of the band each, at the same SNR: 10 and 15 bit/s.
    downlink = Downlink("unicast", 1.0, 60.0)
    np.testing.assert_allclose(downlink.seconds(np.array([70.0, 30.0]), 10.0, 1, None), [2, 3])
    np.testing.assert_allclose(downlink.seconds(np.array([70.0, 30.0]), 10.0, 2, None), [4, 6])


def test_what_ues_hear_of_the_base_station():
    """Its power in place of theirs, and a UE's noise figure of 7 dB in place of the base station's 5."""
    cell = Cell.draw(6, 1, radio=RADIOS["umi"], power_w=0.2)
    louder = replace(cell, downlink=Downlink("unicast", 0.2 * 10**0.2, 1e5))
    alike = 1e5 / (cell.bandwidth_hz * np.minimum(np.log2(1 + cell.mean_signal_hz / cell.bandwidth_hz), 7.4))
    np.testing.assert_allclose(louder.model_s(1), alike)
    np.testing.assert_allclose(louder.job_s(40.0, 1), alike + cell.compute_s(40.0))


def test_free_is_free():
    cell = Cell.draw(4, 1)
    assert cell.model_s(3) == 0.0
    np.testing.assert_array_equal(cell.job_s(40.0, 3), cell.compute_s(40.0))


def test_the_model_comes_before_the_computing_and_costs_ues_nothing():
    free = Cell.draw(5, 2, radio=RADIOS["umi"], rician_k=np.inf)
    sent = replace(free, downlink=Downlink("multicast", 25.0, 1e6))
    one, two = (simulate(cell, Protocol(5), payload_bits=1e5, samples=40.0, rounds=3) for cell in (free, sent))
    np.testing.assert_allclose(np.diff(two.time_s), np.diff(one.time_s) + sent.model_s(5)[0])  # type: ignore[index]
    joules = [energy_of(t, cell, ENERGY["yang"], 1e5, np.zeros(0)).total_j for t, cell in ((one, free), (two, sent))]
    assert joules[0] == pytest.approx(joules[1])


def test_a_spec_says_how_models_are_sent():
    downlink = make_cell(spec_from(downlink="multicast", radio="uma"), 0).downlink
    assert downlink is not None
    assert (downlink.way, downlink.power_w, downlink.model_bits) == (
        "multicast",
        pytest.approx(79.43, rel=1e-3),
        77_120,
    )
    assert make_cell(spec_from(downlink="free"), 0).downlink is None
    own = make_cell(spec_from(downlink="unicast", bs_power_dbm=30), 0).downlink
    assert own is not None
    assert own.power_w == pytest.approx(1.0)
    with pytest.raises(InputError, match="--downlink must be 'free', 'multicast' or 'unicast'"):
        spec_from(downlink="pigeon")
