"""Are real and simulated time put side by side as they were?"""

import json
from dataclasses import replace

import numpy as np
import pytest

from perfeds2.deployment.calibrate import both_clocks
from perfeds2.deployment.record import Lap, Record
from perfeds2.deployment.serve import serve
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import InProcess, Reply
from perfeds2.learning.metrics import METRICS
from perfeds2.report.read import Clocks, load_run
from perfeds2.report.run import clocks_chart, clocks_table, page


def test_a_device_takes_what_it_took_and_one_that_never_answered_is_away():
    setup = Setup.from_texts({"devices": 4, "quorum": 2, "rounds": 4})
    laps = [Lap(0, 1.0, 0.5, 0), Lap(0, 2.0, 0.5, 0), Lap(1, 4.0, 1.5, 0), Lap(1, 3.0, 1.5, 0), Lap(2, 100.0, 2.5, 0)]
    clocks = both_clocks(setup, Record(laps=laps, closed_s=[10.0, 11.0, 30.0, 40.0]))
    assert clocks["real_s"] == [10.0, 11.0, 30.0, 40.0]
    # UE 0 takes 1, 2, 1, 2 s and UE 1 takes 4, 3, 4, 3 s; both are merged when the later one is there.
    assert clocks["simulated_s"] == [4.0, 7.0, 11.0, 14.0]
    assert (clocks["compute_s"], clocks["beyond_s"]) == (1.5, 1.5)


def test_waiting_for_everybody_does_not_wait_for_who_never_came():
    setup = Setup.from_texts({"devices": 3, "quorum": 2, "max-staleness": 1, "stale": "wait", "rounds": 3})
    clocks = both_clocks(setup, Record(laps=[Lap(0, 1.0, 1.0, 0), Lap(1, 1.0, 1.0, 0)], closed_s=[1.0, 2.0, 3.0]))
    assert clocks["simulated_s"] == [1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Devices that are always as fast, but for a first job that takes 5 seconds longer."""
    setup = Setup.from_texts({"devices": 3, "algorithm": "PerFed-SYN", "rounds": 5, "target-accuracy": 0.6})

    def answer(job, params):
        update = None if job.kind == "evaluate" else {name: np.zeros_like(values) for name, values in params.items()}
        return Reply(job.ue, job.ticket, job.version, update, dict.fromkeys(METRICS, 0.2 * job.version), 0.5)

    path = tmp_path_factory.mktemp("clocks") / "run"
    serve(setup, InProcess(answer, lambda job: 1.0 + job.ue + 5.0 * (job.version == 0), 3), path)
    return path


def test_where_the_server_takes_no_time_both_clocks_agree(folder):
    clocks = json.loads((folder / "summary.json").read_text())["clocks"]
    assert clocks == {
        "real_s": [8.0, 11.0, 14.0, 17.0, 20.0],
        "simulated_s": [8.0, 11.0, 14.0, 17.0, 20.0],
        "compute_s": 0.5,
        "beyond_s": 1.5,
    }


def test_its_report_shows_them_side_by_side(folder):
    slow_server = Clocks((8.0, 11.0, 14.0, 17.0, 20.0), (3.0, 6.0, 9.0, 12.0, 15.0), 0.5, 1.5)
    run = replace(load_run(folder), clocks=slow_server)
    assert clocks_table(run).rows == [
        ["The whole run", "20 s", "15 s", "+33.3 %"],
        ["A round, median", "3 s", "3 s", "+0.0 %"],
        ["A round, 90 % are shorter", "6 s", "3 s", "+100.0 %"],
        ["To 60 % personalised accuracy, after 3 rounds", "14 s", "9 s", "+55.6 %"],
    ]
    chart = clocks_chart(run)
    assert chart is not None
    real, simulated = chart.series
    assert list(real.x) == [0.0, 8.0, 11.0, 14.0, 17.0, 20.0]
    assert list(simulated.x) == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    assert list(real.y) == list(simulated.y) == pytest.approx([0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    html = page(run)
    assert "<h2>Real and simulated time</h2>" in html
    assert "0.5 s of computing and 1.5 s of everything else" in html


def test_a_run_of_the_version_before_has_no_such_section(folder, tmp_path):
    summary = json.loads((folder / "summary.json").read_text())
    del summary["clocks"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert "simulated time</h2>" not in page(load_run(tmp_path))
