"""Is a federation's record enough to predict how long its next rounds take?"""

import csv
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import told
from in_process import InProcess

from perfeds2.deployment.calibrate import calibrate, fit, read_laps
from perfeds2.deployment.device import do_job, upload_s
from perfeds2.deployment.merging import StartModel
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.record import LAPS
from perfeds2.deployment.server import serve
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Reply, Request
from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS
from perfeds2.learning.task import payload_bits
from perfeds2.network.cell import Cell
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline
from perfeds2.timeline.simulate import simulate

DEVICES = 8
SETUP = Setup.from_texts({"devices": DEVICES, "quorum": 3, "max-staleness": 8, "rounds": 60, "seed": 3, "batch": 10})
COMPUTE_S = np.geomspace(0.5, 3.0, DEVICES)
RATE_BPS = np.geomspace(4e5, 4e4, DEVICES)[[3, 1, 4, 0, 5, 2, 7, 6]]
BITS = payload_bits(SETUP.model())
OVERHEAD_S = 0.05


def jitter(job) -> float:
    return float(np.exp(0.05 * np.random.default_rng([job.ue, job.version]).standard_normal()))


def answer(job, params):
    update = {name: np.float32(1e-3) * values for name, values in params.items()}
    seconds = float(COMPUTE_S[job.ue] * jitter(job)) if job.kind == "train" else 0.0
    metrics: dict[str, float] = {name: 0.5 for name in METRICS}  # noqa: C420 (of plain str)
    return Reply(job.ue, job.ticket, job.version, update if job.kind == "train" else None, metrics, seconds)


def delay_s(job) -> float:
    return float(COMPUTE_S[job.ue] * jitter(job) + BITS / RATE_BPS[job.ue] + OVERHEAD_S) if job.kind == "train" else 0.1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrate") / "run"
    serve(SETUP, InProcess(answer, delay_s, DEVICES), path)
    SETUP.write(path)
    return path


@pytest.mark.slow
def test_the_fitted_devices_are_those_that_there_were(run, tmp_path):
    made = calibrate(run, tmp_path / "fleet.csv", rounds=20)
    assert list(made.devices.index) == list(range(DEVICES))
    assert made.devices.compute_s.to_numpy() == pytest.approx(COMPUTE_S, rel=0.08)
    assert made.devices.rate_bps.to_numpy() == pytest.approx(BITS / (BITS / RATE_BPS + OVERHEAD_S), rel=1e-3)
    assert (made.devices.compute_spread < 0.15).all()
    assert (made.devices.rate_spread < 1e-3).all()
    rows = list(csv.DictReader((tmp_path / "fleet.csv").read_text().splitlines()))
    samples = SETUP.algorithm.learner.samples
    assert float(rows[2]["samples_per_s"]) == pytest.approx(samples / made.devices.compute_s[2], rel=1e-5)


def test_the_servers_turnaround_counts_as_uplink_time():
    """Every job arrives 0.5 s later than its device says it took."""
    cell = Cell.draw(4, 0)
    timeline = simulate(cell, Protocol(2), payload_bits=1e5, samples=40.0, rounds=12)
    took_s = (timeline.arrival_s - timeline.start_s[timeline.versions]).ravel() + 1.0 - 0.5
    late = replace(timeline, arrival_s=timeline.arrival_s + 1.0)
    columns = {"ue": timeline.ues.ravel(), "version": timeline.versions.ravel(), "took_s": took_s, "compute_s": 0.1}
    laps = pd.DataFrame(columns)
    for ue, rate_bps in fit(laps, late, 12, 1e5).rate_bps.items():
        assert rate_bps == pytest.approx(1e5 / np.median(took_s[laps.ue == ue] - 0.1 + 0.5))


@pytest.mark.slow
def test_only_the_first_rounds_are_looked_at(run, tmp_path):
    few, all_ = (calibrate(run, tmp_path / "fleet.csv", rounds=rounds) for rounds in (20, None))
    laps = read_laps(run)
    assert all_.devices.jobs.sum() == len(laps)
    assert few.devices.jobs.sum() == (laps.version < 20).sum() < len(laps)


def test_the_next_rounds_take_as_long_as_predicted(run, tmp_path):
    made = calibrate(run, tmp_path / "fleet.csv", rounds=20)
    assert made.checked == (20, 60)
    assert abs(made.gap) < 0.1
    real_s, predicted_s = made.seconds
    assert real_s == pytest.approx(made.real_s[-1] - made.real_s[19])
    assert predicted_s == pytest.approx(made.predicted_s[-1] - made.predicted_s[19])


@pytest.mark.slow
def test_the_command_writes_a_fleet_that_simulate_takes(run, tmp_path):
    fleet = tmp_path / "fleet.csv"
    status, said, _ = told("calibrate", run, "--rounds", 20, "--out", fleet)
    assert status == 0
    assert "8 devices compute " in said
    assert "Rounds 20 to 59 took" in said
    command = ("simulate", "--spec", run / "spec.toml", "--cell", fleet, "--out", tmp_path / "sim", "--quiet")
    assert told(*command)[0] == 0
    simulated, made = Timeline.load(tmp_path / "sim" / "timeline.npz"), calibrate(run, fleet, rounds=20)
    np.testing.assert_array_equal(simulated.time_s, made.predicted_s)  # the same clock


def test_what_cannot_be_calibrated_is_said(run, tmp_path):
    with pytest.raises(InputError, match=r"is not the folder of a federation: it has no federation.toml"):
        calibrate(tmp_path, tmp_path / "fleet.csv")
    (tmp_path / LAPS).write_text("ue,version,took_s,compute_s,scale\n0,0,1.0,2.0,1.0\n")
    with pytest.raises(InputError, match="computed longer than it took"):
        read_laps(tmp_path)
    (tmp_path / LAPS).write_text("a,b\n0,0\n")
    with pytest.raises(InputError, match="is not a list of jobs"):
        read_laps(tmp_path)
    del run


def test_a_federation_has_devices_of_its_own_on_which_rates_can_be_imposed():
    with pytest.raises(InputError, match="cell is not a setting of a federation"):
        Setup.from_texts({"cell": "x.csv"})
    with pytest.raises(InputError, match="--uplink-bps 'fast' is not a value for each device; expected DEVICE=VALUE"):
        Setup.from_texts({"uplink-bps": "fast"})
    told = Setup.from_texts({"uplink-bps": "0=2e5,3=1e6"})
    assert told.own.uplink_bps == {0: 2e5, 3: 1e6}
    assert Setup.from_toml(told.to_toml()) == told
    assert "uplink-bps" in travelling(told, "run").settings


@pytest.mark.slow
def test_an_imposed_rate_delays_the_answer():
    setup = Setup.from_texts({"devices": 2, "batch": 4, "uplink-bps": f"1={BITS / 7}"})
    task, first = setup.task(0), setup.first_params()
    update = do_job(setup, task, Request(0, 1, 0), StartModel(first))[0].update
    assert update is not None
    assert [upload_s(setup, device, update) for device in (0, 1)] == [0.0, pytest.approx(7.0)]
