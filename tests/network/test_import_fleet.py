"""Are the device files of others read as they are meant, and does nothing in a hostile one ever run?"""

import builtins
import json
import math
import os
import pickle
import random
import subprocess

import pytest

from examples import import_fleet as imported_fleet
from examples.import_fleet import import_fleet, main, read_pickle
from examples.mahimahi_trace import write_trace
from perfeds2.errors import InputError
from perfeds2.network.fleet_file import FleetFile

CAPACITY = {ue: {"computation": 100.0 * (ue + 1), "communication": 2000.0} for ue in range(3)}
BEHAVIOUR = {
    7: {"duration": 9, "active": [0, 300], "inactive": [100, 400], "finish_time": 1000, "model": "CPH"},
    8: {"duration": 9, "active": [500], "inactive": [500], "finish_time": 1000, "model": "never there"},
    9: {"duration": 9, "active": [900], "inactive": [2000], "finish_time": 1000, "model": "CPH"},
}
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def imported(folder, kind, *whole, most=100):
    """The fleet file of some contents."""
    files = []
    for number, each in enumerate(whole):
        files.append(folder / f"{number}")
        files[-1].write_bytes(each if isinstance(each, bytes) else json.dumps(each).encode())
    path, count = import_fleet(kind, files, folder / "fleet", most)
    read = FleetFile.open(path)
    assert read.ues == count
    return read


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fedscale_gives_speeds_and_hours(tmp_path, protocol):
    file = imported(tmp_path, "fedscale", *(pickle.dumps(each, protocol) for each in (CAPACITY, BEHAVIOUR)))
    assert [row.numbers["samples_per_s"] for row in file.rows] == pytest.approx([1000 / 300, 1000 / 600, 1000 / 900])
    assert [row.numbers["rate_bps"] for row in file.rows] == [2e6] * 3
    assert [row.hours.intervals for row in file.rows] == [
        ((0, 100), (300, 400)),
        ((900, 1000),),
        ((0, 100), (300, 400)),
    ]
    assert file.rows[0].hours.period_s == 1000


def test_flash_gives_log_normal_rates(tmp_path):
    file = imported(tmp_path, "flash", {"a": {"down_u": 9, "down_sigma": 1, "up_u": 100.0, "up_sigma": 50.0}})
    median, spread = file.rows[0].numbers["rate_bps"], file.rows[0].numbers["rate_spread"]
    mean = median * math.exp(spread**2 / 2)
    assert mean == pytest.approx(100 * 1024 * 8)
    assert mean * math.sqrt(math.expm1(spread**2)) == pytest.approx(50 * 1024 * 8)


def test_flhetbench_gives_steps_and_hours(tmp_path):
    latencies = [{"Phone Model": "#1, new\n", "ResNet Latency": 54.0, "ResNet STD": 0}]
    timers = {
        "1": {
            "isSuccess": True,
            "trace_start": 100,
            "trace_end": 700,
            "ready_time": [[500, 600], [100, 400], [390, 450]],
        },
        "2": {"isSuccess": False, "trace_start": 0, "trace_end": 1, "ready_time": []},
    }
    (row,) = imported(tmp_path, "flhetbench", latencies, timers).rows
    assert row.name == "#1, new"
    assert row.numbers == {"compute_s": pytest.approx(0.054), "compute_spread": 0.0}
    assert row.hours.intervals == ((0, 350), (400, 500))
    assert row.hours.period_s == 600


def test_only_the_first_devices_are_taken(tmp_path):
    assert imported(tmp_path, "fedscale", pickle.dumps(CAPACITY), most=2).ues == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_are_read_as_pickle_reads_them(protocol):
    shared = [1.5, -3, 2**40, -(2**90)]
    data = {1: shared, "a": [shared, []], 2: {}, 2.5: "é", "b": {"c": {"d": shared}}}
    data |= {str(number): {"x": [float(number)]} for number in range(2500)}  # longer than a batch
    assert read_pickle(pickle.dumps(data, protocol)) == data


# ---- hostile files


class Runs:
    """Calls a function when it is loaded."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


def hostile_files(marker):
    """At least 200 files, of which many would write ``marker`` if they were loaded."""
    calls = [
        Runs(os.system, f"touch {marker}"),
        Runs(builtins.eval, f"open({str(marker)!r}, 'w')"),
        Runs(builtins.exec, f"open({str(marker)!r}, 'w')"),
        Runs(builtins.open, str(marker), "w"),
        Runs(subprocess.Popen, ["touch", str(marker)]),
    ]
    for protocol in PROTOCOLS:
        for call in calls:
            for whole in (call, {0: call}, {0: CAPACITY[0] | {"computation": call}}, [CAPACITY[0], [call]]):
                yield pickle.dumps(whole, protocol)
        for other in ({1, 2}, b"bytes", 1j, range(3), os.path.join, bytearray(3), {0: {"computation": {1}}}):
            yield pickle.dumps(other, protocol)
    yield b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()
    yield b"(S'touch %s'\nios\nsystem\n." % str(marker).encode()
    yield b"(cos\nsystem\nS'touch %s'\no." % str(marker).encode()
    whole = pickle.dumps(CAPACITY)
    yield from (whole[:length] for length in range(0, len(whole) - 1, 4))
    draw = random.Random(0)
    yield from (b"\x80\x04" + draw.randbytes(200) for _ in range(30))
    yield b"]" * 200_000 + b"a" * 199_999 + b"."  # deep lists
    yield b"[" * 200_000 + b"]" * 200_000  # deep JSON
    yield b"}" + b")" + b"\x85" * 50_000 + b"K\x01s."  # a dict whose key is a deep tuple
    yield b"}]K\x01s."  # a dict whose key is a list
    yield b"]q\x00h\x00a."  # a list that holds itself
    yield b"\x8d" + (2**62).to_bytes(8, "little") + b"short."  # claims a very long text
    yield b"L" + b"9" * 100_000 + b"L\n."
    for bad in (0, -1.0, math.nan, math.inf, 1e300, "fast", None, [1.0], 10**400):
        yield pickle.dumps({0: {"computation": 1.0, "communication": bad}})
        yield pickle.dumps({0: {"computation": bad, "communication": 1.0}})
        yield pickle.dumps({0: {"active": [bad], "inactive": [5], "finish_time": 0}})
    yield from (json.dumps(each).encode() for each in ({}, [], [1], {"a": 1}, {"a": {}}, [[]]))
    yield from (b"", b".", b"0", b"N.", b"{", b"((((", b"K\x01K\x02.", b"h\x05.", b"u.", b"s.", b"t.", b"K\x01a.")


@pytest.mark.slow
def test_every_hostile_file_is_refused_and_none_runs(tmp_path):
    marker = tmp_path / "ran"
    files = list(hostile_files(marker))
    assert len(files) >= 200
    for number, content in enumerate(files):
        path = tmp_path / "hostile"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"expected a device file of fedscale|gives a fleet that"):
            pytest.fail(f"file {number} was read: {import_fleet('fedscale', [path], tmp_path / 'fleet', 9)}")
    assert not marker.exists()
    assert not (tmp_path / "fleet").exists()
    assert pickle.loads(next(iter(hostile_files(marker)))) == 0  # it would have run
    assert marker.exists()


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("MAX_BYTES", "has more than 10 bytes"),
        ("MAX_OPERATIONS", "is too large or too deeply nested"),
        ("MAX_WAITING", "is too large or too deeply nested"),
        ("MAX_TEXT", "gives a fleet of more than 10 characters"),
    ],
)
def test_sizes_are_bounded(tmp_path, monkeypatch, limit, sentence):
    monkeypatch.setattr(imported_fleet, limit, 10 if limit != "MAX_WAITING" else 2)
    with pytest.raises(InputError, match=sentence):
        imported(tmp_path, "fedscale", pickle.dumps(CAPACITY))


def test_the_script_writes_a_fleet_and_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capacity").write_bytes(pickle.dumps(CAPACITY))
    main(["fedscale", "capacity", "--out", "phones"])
    assert FleetFile.open("phones/fleet.csv").ues == 3
    for given, sentence in (
        (("fedscale", "capacity", "--out", "phones"), "already has a fleet.csv"),
        (("flash", "capacity", "--out", "other"), "expected a device file of flash"),
        (("flash", "missing", "--out", "other"), "missing"),
    ):
        with pytest.raises(SystemExit, match=sentence):
            main(given)
    assert not (tmp_path / "other").exists()


def test_a_mahimahi_trace_becomes_rates_of_half_seconds(tmp_path):
    """Three packets of 12,000 bits in the first half second, one in each of the next two."""
    write_trace(["3", "7", "12", "900", "", "1400"], tmp_path / "traces" / "lte.csv")
    lines = (tmp_path / "traces" / "lte.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["time_s,bps", "0.0,72000.0", "0.5,24000.0", "1.0,24000.0"]
