"""Is a fleet file read as it is meant, and what is wrong with one said in a sentence with the line?"""

# pyright: reportOptionalMemberAccess=false

import math

import numpy as np
import pytest
from command_line import perfeds2, told, train_here
from in_numpy import train_in_numpy

from perfeds2.errors import InputError
from perfeds2.network.availability import Availability, Hours
from perfeds2.network.cell import Cell
from perfeds2.network.fleet_file import FleetFile
from perfeds2.network.quality import link_quality
from perfeds2.network.synthetic_fleet import Made, write_fleet
from perfeds2.network.traces import Trace, Traces
from perfeds2.spec.build import clock_key
from perfeds2.spec.cells import make_cell
from perfeds2.spec.fleet_warnings import fleet_warnings
from perfeds2.spec.resolve import spec_from

FLEET = """name,distance_m,gain_db,rate_bps,cpu_hz,compute_s,samples_per_s,power_w,uplink_trace,available,energy_budget_j
near,50,,,1e9,,,,,,2.5
# for people
measured,,-90,,,0.5,,0.2,,,
wired,,,1e6,,,200,,,0-600;1200-1800/3600,

roaming,,,,,,,,up.csv,30-,10
"""
TRACE = "time_s,bps\n0,1e5\n10,0\n20,2e5\n"


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "fleet.csv").write_text(FLEET)
    (tmp_path / "up.csv").write_text(TRACE)
    return tmp_path / "fleet.csv"


def test_every_column_means_what_it_says(fleet):
    file = FleetFile.open(fleet)
    drawn = Cell.draw(4, seed=3, cycles_per_sample=1000.0)
    cell = file.cell(drawn, batch=40, keeps=True)
    assert file.names == ["near", "measured", "wired", "roaming"]
    np.testing.assert_allclose(cell.distance_m, [50, *drawn.distance_m[1:]])
    np.testing.assert_allclose(cell.cpu_hz, [1e9, 40 / 0.5 * 1000, 200 * 1000, drawn.cpu_hz[3]])
    np.testing.assert_allclose(cell.compute_s(80)[1:3], [2 * 0.5, 80 / 200])
    np.testing.assert_allclose(cell.power_w, [0.01, 0.2, 0.01, 0.01])
    own = cell.fleet.own_bps
    np.testing.assert_allclose(own, [np.nan, np.nan, 1e6, (10 * 1e5 + 10 * 2e5) / 30])
    assert cell.fleet.shares_band.tolist() == [True, True, False, False]
    assert not cell.is_plain
    assert cell.present(0.0).tolist() == [True, True, True, False]
    assert cell.present(700.0).tolist() == [True, True, False, True]
    assert cell.present(3600.0 + 700.0).tolist() == [True, True, False, True]
    assert cell.fleet.presence.keeps
    np.testing.assert_array_equal(cell.fleet.energy_budget_j, [2.5, np.nan, np.nan, 10])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_columns_may_be_separated_by_semicolons_or_tabs(fleet, separator):
    hours = "0-600;1200-1800/3600"
    fleet.write_text(FLEET.replace(hours, "H").replace(",", separator).replace("H", f'"{hours}"'))
    (fleet.parent / "up.csv").write_text(TRACE.replace(",", separator))
    file = FleetFile.open(fleet)
    (fleet.parent / "up.csv").write_text(TRACE)
    fleet.write_text(FLEET)
    usual = FleetFile.open(fleet)
    assert file.rows == usual.rows
    np.testing.assert_array_equal(file.traces["up.csv"].bps, usual.traces["up.csv"].bps)


def test_rates_and_computing_times_in_another_unit_are_suspected(tmp_path):
    def said(text):
        (tmp_path / "fleet.csv").write_text(text)
        (tmp_path / "up.csv").write_text("time_s,bps\n0,4\n1,8\n")
        return [line.partition(": ")[2] for line in FleetFile.open(tmp_path / "fleet.csv").unit_warnings(77_120.0)]

    (slow,) = said("rate_bps\n2\n20\n12\n")
    assert slow.startswith("an upload takes 38,560 s at 2 bit/s; did you mean Mbit/s?")
    (traced,) = said("uplink_trace\nup.csv\n")
    assert traced.startswith("an upload takes 12,853 s at 6 bit/s;")
    (long,) = said("rate_bps,compute_s\n2e6,1500\n1e6,2500\n")
    assert long.startswith("a gradient step takes 2,500 s (compute_s); did you mean milliseconds?")
    assert said("rate_bps,compute_s\n2e6,1.5\n1e6,900\n5,0.1") == []  # one slow device is possible
    assert said("distance_m\n50\n") == []


def test_devices_whose_memory_is_too_small_are_named(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("name,memory_mb\na,1\nb,3\nc,\nd,1.9\n")
    (line,) = FleetFile.open(path).memory_warning("PerFedS2", 2_000_000)
    assert line.startswith(f"{path}: a job of PerFedS2 needs about 2 MB, and a, d have less (memory_mb).")
    assert FleetFile.open(path).memory_warning("PerFedS2", 900_000) == []
    path.write_text("name,memory_mb\nwatch,0.001\nphone,4000\n")
    (note,) = fleet_warnings(spec_from(cell={"kind": str(path)}, schedule="first"))
    assert "watch have less" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        ("simulate", "--quorum", "1"),
        ("sweep", "--algorithms", "FedAvgS2", "--grid", "quorum=1,2", "--seeds", "1"),
        ("tune", "--algorithms", "FedAvgS2", "--search", "beta=0.1", "--tuning-seeds", "1", "--rungs", "1"),
        ("arena", "--methods", "FedAvgS2", "--tune", "0", "--seeds", "1"),
        ("plan", "--quorum", "1", "--within-s", "1"),  # refused, but not before the warning
    ],
    ids=lambda given: given[0],
)
def test_a_suspicious_fleet_is_mentioned_once(tmp_path, monkeypatch, given):
    train_here(monkeypatch)
    train_in_numpy(monkeypatch.setattr)
    (tmp_path / "fleet.csv").write_text("rate_bps\n2\n20\n")
    command, *flags = given
    more = () if command == "plan" else ("--horizon-s", 100_000)
    if command in ("sweep", "tune", "arena"):
        more += ("--workers", 1)
    found = ("--task", "synthetic", "--cell", tmp_path / "fleet.csv", *flags, *more, "--out", tmp_path / "out")
    status, *shown = told(command, *found)
    assert status == (2 if command == "plan" else 0), shown
    assert " ".join(" ".join(shown).split()).count("bit/s; did you mean Mbit/s?") == 1


def test_a_gain_is_the_links_mean_gain_whatever_the_radio(fleet):
    cell = FleetFile.open(fleet).cell(Cell.draw(4, seed=3, rician_k=math.inf), batch=40)
    noise_w = 10 ** (-174 / 10) / 1000
    assert cell.signal_hz(0)[1] == pytest.approx(0.2 * 1e-9 / noise_w)  # −90 dB of 0.2 W
    spec = spec_from(cell=str(fleet), radio="umi", fading="none", task="digits")
    made = make_cell(spec, 0)
    assert made.signal_hz(0)[1] == pytest.approx(0.2 * 1e-9 / noise_w / 10**0.5)  # and 5 dB of noise figure


def test_the_band_is_for_those_who_share_it(fleet):
    cell = FleetFile.open(fleet).cell(Cell.draw(4, seed=3), batch=40)
    # what the whole band would carry at this signal is the rate of the uplink of its own
    assert cell.bandwidth_hz * np.log2(1 + cell.signal_hz(5)[2] / cell.bandwidth_hz) == pytest.approx(1e6)
    both = link_quality([cell])
    assert both is not None
    assert both.snr_db.median < 10 * np.log10(cell.mean_signal_hz[0] * 2000 / cell.bandwidth_hz)


def test_a_fleet_of_distances_is_the_plain_cell(tmp_path):
    drawn = Cell.draw(5, seed=1)
    lines = [f"{d!r},{f!r}" for d, f in zip(drawn.distance_m.tolist(), drawn.cpu_hz.tolist(), strict=True)]
    (tmp_path / "f.csv").write_text("\n".join(["distance_m,cpu_hz", *lines]))
    cell = FleetFile.open(tmp_path / "f.csv").cell(Cell.draw(5, seed=1), batch=1)
    assert cell.is_plain
    np.testing.assert_array_equal(cell.signal_hz(3), drawn.signal_hz(3))


def test_the_number_of_devices_is_the_number_of_rows(fleet):
    assert spec_from(cell=str(fleet)).cell.ues == 4
    with pytest.raises(InputError, match=r"has 4 devices, but there are 7 \(--ues\)"):
        make_cell(spec_from(cell=str(fleet), ues=7), 0)


def test_the_batch_matters_to_the_clock_only_where_seconds_a_step_are_given(fleet, tmp_path):
    assert clock_key(spec_from(cell=str(fleet), batch=10)) != clock_key(spec_from(cell=str(fleet)))
    (tmp_path / "f.csv").write_text("cpu_hz\n1e9\n")
    one, other = (spec_from(cell=str(tmp_path / "f.csv"), batch=batch) for batch in (10, 20))
    assert clock_key(one) == clock_key(other)


BAD = {
    "": "is empty; expected a line of column names",
    "rate_bps\n": "has no devices",
    "rate_bps,colour\n1e6,red\n": "has a column 'colour' in line 1; expected any of name, distance_m,",
    "rate_bps,rate_bps\n1,2\n": "has a column 'rate_bps' in line 1; expected",
    "rate_bps,cpu_hz\n1e6,1e9\n1e6\n": "has 1 values in line 3, but 2 columns",
    "rate_bps\nnan\n": "has rate_bps 'nan' in line 2; expected a number from 1e-09 to 1e+18",
    "rate_bps\n1e6\n-5\n": "has rate_bps '-5' in line 3",
    "distance_m\nfar\n": "has distance_m 'far' in line 2; expected a number from 0 to 1e+09",
    "cpu_hz\ninf\n": "has cpu_hz 'inf' in line 2",
    "power_w\n0\n": "has power_w '0' in line 2",
    "distance_m,rate_bps\n5,1e6\n": "has distance_m and rate_bps in line 2; give only one of them",
    "cpu_hz,compute_s\n1e9,1\n": "has cpu_hz and compute_s in line 2",
    "available\n0-600;500-700\n": "in line 2: intervals must be in rising order, not overlap, and lie between 0 and the period",
    "available\n0-600;1200-1800/1500\n": "in line 2: intervals must be in rising order, not overlap, and lie between 0 and the period",
    "available\n5-5\n": "in line 2: intervals must be in rising order, not overlap, and lie between 0 and the period",
    "available\n;\n": "in line 2: intervals must be in rising order, not overlap, and lie between 0 and the period",
    "available\nnight\n": "in line 2: 'night' is not an interval",
    "available\n0-x\n": "in line 2: 'x' is not a number of seconds",
    "available\n0-nan\n": "in line 2: 'nan' is not a number of seconds",
    "uplink_trace\nmissing.csv\n": "names a trace in line 2 that is not there: ",
    "uplink_trace\nempty.csv\n": "line 1 is ''; expected time_s,bps",
    "uplink_trace\nzero.csv\n": "its rates must be from 0 to 1e+18 bit/s and not all 0",
    "uplink_trace\nnone.csv\n": "a trace needs as many rates as seconds",
    "uplink_trace\nlate.csv\n": "its times must start at 0 and increase, got [1.]",
    "uplink_trace\nback.csv\n": "its times must start at 0 and increase, got [0. 3. 3.]",
    "uplink_trace\nnegative.csv\n": "its rates must be from 0 to 1e+18 bit/s and not all 0, got -1",
    "uplink_trace\nwords.csv\n": "line 2 is '0,fast'; expected two numbers",
    'rate_bps\n"1e6': "has rate_bps",
}
TRACES = {
    "empty.csv": "",
    "zero.csv": "time_s,bps\n0,0\n1,0\n",
    "none.csv": "time_s,bps\n",
    "late.csv": "time_s,bps\n1,5\n",
    "back.csv": "time_s,bps\n0,5\n3,5\n3,6\n",
    "negative.csv": "time_s,bps\n0,-1\n",
    "words.csv": "time_s,bps\n0,fast\n",
}


@pytest.mark.parametrize(("text", "sentence"), list(BAD.items())[:-1], ids=range(len(BAD) - 1))
def test_a_bad_file_is_refused_in_one_sentence_with_its_line(text, sentence, tmp_path):
    for name, trace in TRACES.items():
        (tmp_path / name).write_text(trace)
    file = tmp_path / "fleet.csv"
    file.write_text(text)
    with pytest.raises(InputError) as told:
        spec_from(cell=str(file))
    assert str(told.value).startswith(f"--cell '{file}' ")
    assert sentence in str(told.value)
    assert str(told.value).count("\n") == 0


def test_what_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "fleet.csv").write_bytes(b"\xff\xfe\x00rate")
    with pytest.raises(InputError, match="is not a readable CSV in UTF-8"):
        spec_from(cell=str(tmp_path / "fleet.csv"))
    with pytest.raises(InputError, match="was not found"):
        spec_from(cell=str(tmp_path / "other.csv"))


def test_settings_of_fleets_are_refused_where_they_change_nothing(fleet, tmp_path):
    with pytest.raises(
        InputError, match=r"--on-leave keep has no effect without a --cell FILE\.csv whose devices have hours"
    ):
        make_cell(spec_from(on_leave="keep"), 0)
    (tmp_path / "f.csv").write_text("cpu_hz\n1e9\n")
    with pytest.raises(InputError, match="--trace-end hold has no effect"):
        make_cell(spec_from(cell=str(tmp_path / "f.csv"), trace_end="hold"), 0)
    with pytest.raises(InputError, match="--distance-m and --cell"):
        make_cell(spec_from(cell=str(fleet), distance_m=[1, 2, 3, 4]), 0)
    (tmp_path / "up.csv").write_text("time_s,bps\n0,1e5\n10,0\n")
    with pytest.raises(InputError, match=r"the trace of UE \d+ ends with 0 bit/s, which --trace-end hold"):
        make_cell(spec_from(cell=str(fleet), trace_end="hold"), 0)


def test_what_such_a_fleet_cannot_have_is_refused(fleet):
    with pytest.raises(
        InputError, match="--downlink multicast cannot be combined with devices that have dedicated uplinks"
    ):
        make_cell(spec_from(cell=str(fleet), downlink="multicast"), 0)


def test_spreads_are_the_fleets(tmp_path):
    (tmp_path / "f.csv").write_text("cpu_hz,compute_spread,rate_bps,rate_spread\n1e9,0.2,,\n1e9,,1e6,0.5\n1e9,0,,0\n")
    spread = make_cell(spec_from(cell=str(tmp_path / "f.csv")), 0).fleet.spread
    assert (spread.compute.tolist(), spread.rate.tolist()) == ([0.2, 0.0, 0.0], [0.0, 0.5, 0.0])
    (tmp_path / "g.csv").write_text("cpu_hz,compute_spread\n1e9,0\n")
    assert make_cell(spec_from(cell=str(tmp_path / "g.csv")), 0).fleet.spread is None
    for text, said in (
        ("gain_db,rate_spread\n-90,0.1\n", "has rate_spread without rate_bps in line 2"),
        ("rate_bps,rate_spread\n1e6,3.5\n", "has rate_spread '3.5' in line 2; expected a number from 0 to 3"),
    ):
        (tmp_path / "h.csv").write_text(text)
        with pytest.raises(ValueError, match=said):
            FleetFile.open(tmp_path / "h.csv")


@pytest.mark.slow
def test_a_folder_keeps_its_fleet(fleet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    command = [
        "simulate",
        "--cell",
        "fleet.csv",
        "--rounds",
        5,
        "--quorum",
        1,
        "--seed",
        0,
        "--algorithms",
        "FedAvgS2",
        "--quiet",
    ]
    assert perfeds2(*command, "--out", out) == (0, "")
    before = (out / "timeline.npz").read_bytes()
    for name in ("timeline.npz", "summary.json"):
        (out / name).unlink()
    fleet.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert perfeds2("simulate", "--resume", out, "--quiet") == (0, "")
    assert (out / "timeline.npz").read_bytes() == before
    (out / "fleet.json").write_text("{}")
    status, said = perfeds2("simulate", "--resume", out, "--quiet")
    assert status == 2
    assert "is damaged" in said


@pytest.mark.usefixtures("fleet")
def test_a_file_that_has_changed_is_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [
        "simulate",
        "--cell",
        "fleet.csv",
        "--rounds",
        2,
        "--quorum",
        1,
        "--seed",
        0,
        "--algorithms",
        "FedAvgS2",
        "--quiet",
        "--out",
        "run",
    ]
    assert perfeds2(*command)[0] == 0
    (tmp_path / "up.csv").write_text(TRACE.replace("2e5", "3e5"))  # a trace counts too
    status, said = perfeds2(*command)
    assert status == 2
    assert "has changed since this spec was written" in said or "different run" in said


def test_a_made_up_fleet_can_be_read_and_is_the_same_again(tmp_path):
    one, other = (write_fleet(tmp_path / name, Made(12, seed=5, trace_s=30, day_s=100.0)) for name in "ab")
    assert one.read_bytes() == other.read_bytes()
    file = FleetFile.open(one)
    assert file.digest == FleetFile.open(other).digest
    assert (file.ues, bool(file.traces), file.has_hours) == (12, True, True)
    cell = file.cell(Cell.draw(12), batch=40)
    assert 0.2 < np.mean([cell.present(second).mean() for second in np.linspace(0, 300, 60)]) < 0.95
    status, said = perfeds2("fleet", "--devices", 3, "--out", tmp_path / "a")
    assert status == 2
    assert "already has a fleet.csv" in said


def test_hours_repeat_and_borders_belong_to_what_follows():
    presence = Availability([Hours(((0.0, 0.1), (0.3, 0.7)), 0.7), Hours(((2.0, 3.0),))])
    assert presence.present(0.0).tolist() == [True, False]
    now, seen = 0.0, []
    for _ in range(12):
        now = presence.changes_s(now)
        seen.append((round(now, 9), presence.present(now).tolist()))
    assert seen[:4] == [(0.1, [False, False]), (0.3, [True, False]), (0.7, [True, False]), (0.8, [False, False])]
    assert (2.0, [True, True]) in seen
    assert presence.present(3.0)[1] == np.False_
    assert Availability([Hours(((2.0, 3.0),))]).changes_s(3.0) == math.inf


@pytest.mark.parametrize("end", ["repeat", "hold"])
def test_sending_is_the_integral_of_the_rate_turned_round(end):
    rng = np.random.default_rng(4)
    traces = [Trace(np.array([0.0, 1.0, 2.5]), np.array([100.0, 0.0, 50.0])), Trace(np.array([0.0]), np.array([10.0]))]
    traces.append(Trace(np.arange(300) * 0.25, np.append(rng.uniform(0, 99, 299) * (rng.random(299) < 0.7), 1.0)))
    made = Traces([4, 7, 9], traces, end)
    for _ in range(300):
        since_s, bits = rng.uniform(0, 400, 3), rng.uniform(1e-3, 5e3, 3)
        done_s = made.done_s(since_s, bits)
        np.testing.assert_allclose(made.carried(since_s, done_s), bits, rtol=1e-9)
        assert (made.carried(since_s, done_s - 1e-5) < bits).all()  # not a moment earlier
    assert made.rate_bps(1.0).tolist()[:2] == [0.0, 10.0]
