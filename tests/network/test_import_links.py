"""Do drive tests and contact plans become the traces and hours that they describe?"""

import numpy as np
import pytest

from examples.import_links import main
from perfeds2.api import compare
from perfeds2.network.fleet_file import FleetFile
from perfeds2.network.traces import Traces


def imported(folder, kind, text, *flags):
    (folder / "given.csv").write_text(text)
    main([kind, str(folder / "given.csv"), "--out", str(folder / "fleet"), *flags])
    return FleetFile.open(folder / "fleet" / "fleet.csv")


def traces_of(file):
    return Traces(range(file.ues), [file.traces[row.trace] for row in file.rows])


def test_a_received_power_becomes_a_rate(tmp_path):
    """−95 dBm of 15 dBm: 110 dB lost. 23 dBm then arrive as −87 dBm, 22 dB above the noise of 1 MHz at 5 dB: the limit,
    2 bit/s/Hz. 12 dB less are 10 dB: 0.4·log2(11) = 1.3838 bit/s/Hz. −125 dBm are −8 dB and count, −129 dBm are −12 dB and do not.
    """
    file = imported(tmp_path, "drive", "time_s,rsrp_dbm\n1000,-95\n1002.5,-107\n1004,-125\n1005,-129\n")
    traces = traces_of(file)
    for time_s, mbps in ((0.0, 2.0), (2.4, 2.0), (2.6, 1.38377), (4.1, 0.084898), (5.1, 0.0)):
        assert traces.rate_bps(time_s)[0] == pytest.approx(1e6 * mbps, rel=1e-4)


def test_phones_of_one_drive_have_a_common_time(tmp_path):
    file = imported(tmp_path, "drive", "name,time_s,rsrp_dbm\na,5,-95\nb,7,-107\na,6,-107\nb,9,-95\n")
    assert file.names == ["a", "b"]
    assert [file.traces[row.trace or ""].time_s.tolist() for row in file.rows] == [[0, 1], [0, 4]]


PLAN = "name,start_s,end_s,bps\nsat,100,400,1e6\nsat,300,500,4e6\nother,0,50,2e6\nsat,900,1000,1e6\n"


def test_a_contact_plan_becomes_hours_and_rates(tmp_path):
    file = imported(tmp_path, "contacts", PLAN, "--period-s", "1000")
    assert file.rows[0].hours.borders_s() == [100, 500, 900, 1000]
    assert file.rows[1].hours.borders_s() == [0, 50]
    assert [row.hours.period_s for row in file.rows] == [1000, 1000]
    traces = traces_of(file)
    assert [trace.lasts_s for trace in traces.traces] == [1000, 1000]
    for since_s in (0.0, 1000.0, 5000.0):  # 200 s at 1, then 200 s at 4, later 100 s at 1 Mbit/s; and 50 s at 2
        for second, mbps in ((50, (0, 0)), (150, (1, 0)), (350, (4, 0)), (499, (4, 0)), (600, (0, 0)), (950, (1, 0))):
            np.testing.assert_allclose(traces.rate_bps(since_s + second), 1e6 * np.array(mbps))
        carried = traces.carried(np.full(2, since_s), np.full(2, since_s + 1000))
        np.testing.assert_allclose(carried, [1.1e9, 1e8])


def test_a_satellite_learns_only_during_its_contacts(tmp_path):
    imported(tmp_path, "contacts", PLAN, "--period-s", "1000")
    settings = {"cell": str(tmp_path / "fleet" / "fleet.csv"), "on_leave": "keep", "labels_per_ue": 5, "seeds": [0]}
    result = compare(algorithms=["FedAvg-ASY"], rounds=5, **settings)
    timeline = result.timelines["FedAvg-ASY", 0]
    assert timeline.rounds == 5
    for ue, second in zip(timeline.ues[:, 0], timeline.arrival_s[:, 0] % 1000, strict=True):
        assert (100 <= second <= 500 or second >= 900) if ue == 0 else second <= 50


@pytest.mark.parametrize("text", ["time_s,power\n0,1\n", "time_s,rsrp_dbm\n", "time_s,rsrp_dbm\n0,weak\n"])
def test_a_file_without_the_columns_is_refused(tmp_path, text):
    with pytest.raises(SystemExit, match="rsrp_dbm"):
        imported(tmp_path, "drive", text)


def test_a_plan_longer_than_its_period_and_a_second_fleet_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="period"):
        imported(tmp_path, "contacts", PLAN, "--period-s", "900")
    imported(tmp_path, "contacts", PLAN)
    with pytest.raises(SystemExit, match="already has"):
        imported(tmp_path, "contacts", PLAN)
