"""Seconds until UEs have their models."""

from dataclasses import replace

import numpy as np
import pytest

from perfeds2.errors import InputError
from perfeds2.network.cell import Cell
from perfeds2.network.energy import ENERGY
from perfeds2.network.link import Downlink
from perfeds2.network.radios import RADIOS
from perfeds2.spec.build import Stage, make_algorithms, make_timelines
from perfeds2.spec.cells import make_cell
from perfeds2.spec.resolve import spec_from
from perfeds2.timeline.energy import energy_of
from perfeds2.timeline.jobs import MERGED
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate


def test_multicast_is_at_the_rate_of_the_weakest():
    # On 10 Hz signals of 30 and 70 Hz carry 20 and 30 bit/s: 60 bits take every UE 3 s.
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


def test_scaffolds_control_variate_goes_out_with_every_model():
    """The first multicast of 2,410 numbers takes 2,410·32 bits over the weakest UE's rate; with the variate twice that."""
    spec = spec_from(
        downlink="multicast",
        radio="umi",
        link="shannon",
        algorithms=["FedAvgS2", "SCAFFOLD"],
        rounds=3,
        ues=6,
        quorum=2,
    )
    stage = Stage.of(spec, 0)
    plain, scaffold = make_timelines(spec, stage, make_algorithms(spec, stage))
    cell = stage.cell
    heard_hz = (
        (cell.mean_signal_hz / cell.power_w).min() * 10**1.4 * 10**-0.2
    )  # 44 dBm; 2 dB more noise than the station
    rate = cell.bandwidth_hz * min(np.log2(1 + heard_hz / cell.bandwidth_hz), 7.4)
    for timeline, numbers in ((plain, 2410), (scaffold, 2 * 2410)):
        jobs = timeline.jobs()
        first = np.asarray(jobs.model_s)[jobs.version == 0]
        np.testing.assert_allclose(first, 32 * numbers / rate)


def test_without_a_downlink_scaffold_has_the_rounds_of_others():
    spec = spec_from(algorithms=["FedAvgS2", "SCAFFOLD"], rounds=3, ues=6, quorum=2)
    stage = Stage.of(spec, 0)
    plain, scaffold = make_timelines(spec, stage, make_algorithms(spec, stage))
    assert plain is scaffold


def hand_made(way, model_bits=60.0):
    """Signals of 70, 30 and 10 Hz on 10 Hz: 30, 20 and 10 bit/s of the base station."""
    cell = Cell(np.full(3, 50.0), np.full(3, 1e9), bandwidth_hz=10.0, downlink=Downlink(way, 1.0, model_bits))
    cell.__dict__["_heard_hz"] = np.array([70.0, 30.0, 10.0])
    return cell


def test_one_hand_out_after_the_other_by_hand():
    cell, who = hand_made("multicast"), np.array
    # To UEs 0 and 1: at 20 bit/s, so 3 s. Meanwhile, at second 1, UE 0 is handed another: 2 s of its own from second 3 on.
    waits_s, free_s = cell.send_models(who([0, 1]), 0.0, 0.0)
    np.testing.assert_allclose(waits_s, [3, 3])
    assert free_s == pytest.approx(3.0)
    waits_s, free_s = cell.send_models(who([0]), 1.0, free_s)
    np.testing.assert_allclose(waits_s, [4])
    assert free_s == pytest.approx(5.0)
    np.testing.assert_allclose(cell.send_models(who([2]), 9.0, free_s)[0], [6])  # no UE before it
    assert cell.send_models(who([], int), 9.0, free_s)[1] == free_s
    # Each on half of the band, at the same SNR: 4 and 6 s; the band is free when both have their model.
    waits_s, free_s = hand_made("unicast").send_models(who([0, 1]), 1.0, 2.0)
    np.testing.assert_allclose(waits_s, [5, 7])
    assert free_s == pytest.approx(8.0)


@pytest.mark.parametrize("stale", ["restart", "wait"])
def test_a_timeline_knows_how_long_models_took(tmp_path, stale):
    cell = Cell.draw(8, 2, radio=RADIOS["umi"], cpu_hz=(2e7, 2e9), downlink=Downlink("unicast", 25.0, 1e6))
    line = simulate(cell, Protocol(2, 1, stale), payload_bits=1e5, samples=40.0, rounds=30)
    assert line.lost or stale == "wait"
    line.save(tmp_path / "line.npz")
    back = Timeline.load(tmp_path / "line.npz")
    short = simulate(cell, Protocol(2, 1, stale), payload_bits=1e5, samples=40.0, rounds=11)
    np.testing.assert_array_equal(back.log.model_s, line.log.model_s)
    np.testing.assert_array_equal(line.prefix(11).log.model_s, short.log.model_s)
    jobs = line.jobs()
    merged = jobs.outcome == MERGED
    began_s = jobs.start_s + jobs.model_s + cell.compute_s(40.0)[jobs.ue]
    np.testing.assert_allclose(jobs.sending_s[merged], began_s[merged])
    # The base station sends one hand-out after the other: none of a later version comes before one of an earlier.
    there_s = jobs.start_s + jobs.model_s
    last = [there_s[jobs.version == version].max() for version in np.unique(jobs.version)]
    assert (np.diff(last) > 0).all()


def test_waiting_for_models_costs_no_energy_whatever_is_lost():
    cell = Cell.draw(8, 2, radio=RADIOS["umi"], cpu_hz=(2e7, 2e9), downlink=Downlink("multicast", 25.0, 1e6))
    line, model = simulate(cell, Protocol(2, 2), payload_bits=1e5, samples=40.0, rounds=30), ENERGY["chen"]
    energy, by_hand = energy_of(line, cell, model, 1e5, np.array([line.end_s])), 0.0
    jobs = line.jobs()
    for i, ue in enumerate(jobs.ue):
        wait_s = float(np.atleast_1d(jobs.model_s)[i])
        by_hand += 1e-27 * cell.cpu_hz[ue] ** 3 * max(jobs.sending_s[i] - jobs.start_s[i] - wait_s, 0.0)
        by_hand += cell.power_w * (jobs.arrival_s[i] - jobs.sending_s[i])
    assert energy.total_j == pytest.approx(by_hand)
    assert energy.by_time_j[0] == pytest.approx(by_hand)


def test_a_bit_costs_the_same_however_long_its_model_took():
    """An LTE phone spends 77 nJ a bit, and 2.9 W while it sends."""
    cell = Cell.draw(5, 2, radio=RADIOS["umi"], rician_k=np.inf, downlink=Downlink("multicast", 25.0, 1e6))
    line = simulate(cell, Protocol(5), payload_bits=1e5, samples=40.0, rounds=1)
    jobs = line.jobs()
    sending_s = (jobs.arrival_s - jobs.sending_s)[jobs.outcome == MERGED]
    assert np.asarray(jobs.model_s).min() > 0
    energy = energy_of(line, cell, ENERGY["lte"], 1e5, np.zeros(0))
    assert energy.sending_j.sum() == pytest.approx(5 * 1e5 * 77e-9 + 2.9 * sending_s.sum())
