"""Do monitors see what happened, in the form they read, and only from this machine?"""

import http.client
import json
import math
import re
import socket
import threading
from typing import get_args

import numpy as np
import pytest
from fake_broker import FakeBroker
from in_process import InProcess
from prometheus_client import generate_latest

from perfeds2.deployment import metrics as module
from perfeds2.deployment.metrics import Metrics, exposed
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.record import Lap, Loss, MergedUpdate, Record
from perfeds2.deployment.server import serve
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.status import ClosedRound, DeviceState, DeviceStatus, Status
from perfeds2.deployment.transport import Reply
from perfeds2.deployment.validate import reason_of
from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS
from perfeds2.runs.folder import Folder

STATES = ["working", "working", "arrived", "away", "set aside", "idle"]
SHARES = {"0": 2 / 3, "1": 1 / 3}
SAMPLE = re.compile(r'(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<label>\w+)="(?P<value>[^"\\\n]*)"\})? (?P<number>\S+)')
KINDS = {"counter", "gauge", "histogram"}


def parse(text):
    """The exposition format as its specification has it, as strictly as we can: {metric: {label value: number}}."""
    assert text.endswith("\n")
    kinds, helped, found = {}, set(), {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            assert name not in (helped if word == "HELP" else kinds), f"{word} of {name} twice"
            assert word in ("HELP", "TYPE")
            helped.add(name) if word == "HELP" else kinds.setdefault(name, rest)
            current = name
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        name = sample["name"]
        own = name if name in kinds else re.sub(r"_(bucket|sum|count)$", "", name)
        assert own == current, f"{name} does not stand below its own TYPE"
        assert own in helped
        assert kinds[own] in KINDS
        assert (kinds[own] == "histogram") == (own != name)
        assert (kinds[own] == "counter") == own.endswith("_total")
        number = float(sample["number"])  # reads NaN and +Inf as Prometheus does
        assert sample["value"] not in found.setdefault(name, {}), line
        found[name][sample["value"]] = number
    for own in (name for name, kind in kinds.items() if kind == "histogram"):
        counts = list(found[f"{own}_bucket"].values())
        assert counts == sorted(counts)
        assert list(found[f"{own}_bucket"])[-1] == "+Inf"
        assert counts[-1] == found[f"{own}_count"][None]
    return found


def status(states=STATES, closed=(1.0, 4.0), phase="training", time_s=6.0, quorum=2, **more):
    rows = [
        {"ue": ue, "state": state, "version": 0, "seen_s": 1.0, "merges": 1, "refused": 1}
        for ue, state in enumerate(states)
    ]
    recent = [ClosedRound(round=k, time_s=at, took_s=1.0, ues=[0, 1]) for k, at in enumerate(closed)]
    return Status(
        process=1,
        phase=phase,
        round=len(closed),
        rounds=9,
        time_s=time_s,
        quorum=quorum,
        ues=len(states),
        states={state: states.count(state) for state in get_args(DeviceState)},
        devices=[DeviceStatus.model_validate(row) for row in rows],
        recent=recent,
        jobs=4,
        refused=6,
        accuracy=0.4,
        **more,
    )


def record():
    return Record(
        merges=[MergedUpdate(0, 0, 0, 0, 1.0), MergedUpdate(0, 1, 0, 1, 1.0), MergedUpdate(4, 0, 1, 2, 4.0)],
        losses=[Loss(3, 0, 0, math.inf)],
        laps=[Lap(0, 0.05, 0.01, 0), Lap(1, 700.0, 0.01, 0)],
        closed_s=[1.0, 4.0],
    )


def told(**more):
    metrics, known = Metrics(model_bytes=100), record()
    metrics.tell(status(**more), known)
    return metrics, known


def test_every_number_is_what_was_told():
    metrics, known = told()
    failing = {"reasons": {"wrong job": 4, "wrong update": 2}, "broker": "it hangs", "broker_failures": 3}
    metrics.tell(status(**failing, warning="look"), known)  # nothing else happened
    seen = parse(generate_latest(metrics.registry).decode())
    assert seen["perfeds2_devices"] == {
        "working": 2,
        "arrived": 1,
        "finishing": 0,
        "idle": 1,
        "away": 1,
        "set aside": 1,
        "spent": 0,
    }
    assert seen["perfeds2_refusals_total"] == {"wrong job": 4, "wrong update": 2}
    assert seen["perfeds2_merge_share"] == pytest.approx(SHARES)
    assert seen["perfeds2_staleness_bucket"]["0.0"] == 2
    alone = {name: values[None] for name, values in seen.items() if None in values}
    expected = {
        "rounds_total": 2,
        "rounds_wanted": 9,
        "quorum": 2,
        "run_seconds": 6.0,
        "updates_merged_total": 3,
        "broker_up": 0,
        "broker_failures_total": 3,
        "alarm": 1,
        "staleness_sum": 3,
        "staleness_count": 3,
        "updates_lost_total": 1,
        "updates_refused_total": 6,
        "jobs_total": 4,
        "sent_bytes_total": 400,
        "received_bytes_total": 200,
        "personal_accuracy": 0.4,
        "accuracy_fall": 0.0,
        "round_seconds_sum": 4.0,
        "round_seconds_count": 2,
        "job_seconds_sum": 700.05,
        "job_seconds_count": 2,
    }
    assert {name: alone[f"perfeds2_{name}"] for name in expected} == pytest.approx(expected)
    assert alone["perfeds2_last_round_age_seconds"] == pytest.approx(2.0, abs=1.0)
    buckets = seen["perfeds2_job_seconds_bucket"]
    assert (buckets["0.05"], buckets["300.0"], buckets["+Inf"]) == (1, 1, 2)  # a bucket holds its own edge


def test_the_ten_files_that_expire_first_are_shown_and_an_unreadable_one_does_no_harm():
    metrics = Metrics(1, lambda: {f"{days}.crt": float(days) for days in range(20, 0, -1)})
    seen = parse(generate_latest(metrics.registry).decode())["perfeds2_certificate_days_left"]
    assert seen == {f"{days}.crt": days for days in range(1, 11)}

    def unreadable():
        raise InputError("server.crt is not a certificate.")

    assert b"perfeds2_build_info" in generate_latest(Metrics(1, unreadable).registry)


def test_only_what_is_new_is_counted():
    metrics, known = told()
    known.closed_s.append(4.5)
    known.laps.append(Lap(0, 1.0, 0.5, 0))
    metrics.tell(status(closed=(1.0, 4.0, 4.5)), known)
    seen = parse(generate_latest(metrics.registry).decode())
    assert seen["perfeds2_round_seconds_count"][None] == 3
    assert seen["perfeds2_round_seconds_sum"][None] == 4.5
    assert seen["perfeds2_job_seconds_count"][None] == 3
    assert seen["perfeds2_round_seconds_bucket"]["0.5"] == 1


def test_prometheus_own_parser_reads_it():
    from prometheus_client import parser

    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(generate_latest(told()[0].registry).decode())
    }
    assert families["perfeds2_rounds"].type == "counter"
    assert families["perfeds2_round_seconds"].type == "histogram"
    assert {sample.labels["state"]: sample.value for sample in families["perfeds2_devices"].samples}["working"] == 2


@pytest.mark.parametrize(
    ("more", "is_well", "words"),
    [
        ({}, True, r"ok: training, round 1 of 9 closed 2\.\d s ago"),
        ({"quorum": 4}, True, "ok"),
        ({"quorum": 5}, False, r"below the quorum for 31 s: 4 of 6 devices can be used, 5 are needed"),
        ({"states": ["away"] * 6}, False, "below the quorum for 31 s: 0 of 6"),
        ({"broker": "the broker cannot be reached"}, False, "the broker cannot be reached"),
        ({"closed": ()}, True, "ok: training, no round has closed yet"),
    ],
)
def test_health_is_whether_a_round_can_close(more, is_well, words):
    metrics, known = Metrics(model_bytes=100), record()
    metrics._enough_s -= 31.0
    metrics.tell(status(**more), known)
    assert metrics.health()[0] == (200 if is_well else 503)
    assert re.match(words, metrics.health()[1])


def test_a_server_is_not_unwell_because_a_device_left_just_now():
    metrics, known = told()
    metrics.tell(status(quorum=5), known)
    assert metrics.health()[0] == 200


def test_a_server_that_does_not_say_anything_any_more_is_not_well(monkeypatch):
    assert Metrics(1).health() == (503, "starting")
    metrics, _ = told()
    monkeypatch.setattr(module, "SILENT_S", -1.0)
    assert metrics.health()[0] == 503
    assert "has not updated its status" in metrics.health()[1]


def ask(address, path, method="GET", host=None):
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_it_answers_on_loopback_and_nowhere_else():
    port, others = free_port(), {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    unwell = told(quorum=5)[0]
    unwell._enough_s -= 31.0
    with exposed(unwell, port) as address:
        assert address == f"http://127.0.0.1:{port}"
        code, kind, text = ask(address, "/metrics")
        assert (code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert parse(text)["perfeds2_rounds_total"][None] == 2
        code, _, text = ask(address, "/healthz")
        assert (code, text[:16]) == (503, "below the quorum")
        for path in ("/", "/metrics/../../etc/passwd", "/metrics?x=1"):
            assert ask(address, path)[0] == 404
        assert ask(address, "/metrics", "POST")[0] == 501
        for other in {*others, "127.0.0.2"} - {"127.0.0.1"}:
            with socket.socket() as probe:
                assert probe.connect_ex((other, port)) != 0, other
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0  # over with the run


def test_only_a_request_for_this_machine_is_answered():
    """A web page whose name was rebound to 127.0.0.1 sends its own name as the host."""
    ours = ("localhost:9100", "127.0.0.1", "[::1]:9100")
    theirs = ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[::1")
    with exposed(told()[0], free_port()) as address:
        for path in ("/healthz", "/metrics"):
            assert [ask(address, path, host=host)[0] for host in ours] == [200] * 3
            assert [ask(address, path, host=host)[0] for host in theirs] == [403] * 4


@pytest.mark.slow
def test_a_client_that_says_nothing_does_not_keep_others_waiting():
    with exposed(told()[0], free_port()) as address:
        assert address is not None
        host, port = address.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(20)]
        assert ask(address, "/healthz")[0] == 200
        for each in silent:
            each.close()


def test_without_a_port_no_one_listens_and_a_taken_one_is_refused():
    with exposed(told()[0], 0) as address:
        assert address is None
        assert not [thread for thread in threading.enumerate() if "serve_forever" in thread.name]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(InputError, match=r"--metrics-port \d+ cannot be opened \(Address already in use\)"),
            exposed(told()[0], taken.getsockname()[1]),
        ):
            pass


def test_a_federation_tells_its_monitors_and_its_log(tmp_path, monkeypatch):
    """In process; devices that answer at once, and one that quotes a line of its own making."""
    port, seen = free_port(), []
    texts = {"devices": 3, "quorum": 2, "rounds": 3, "metrics-port": port, "log": "json", "set-aside-after": 1}
    setup = Setup.from_texts(texts)
    forged = "x\n2026-01-01T00:00:00+0000 finished: UE 1 ticket 9\x1b[2J"

    def answer(job, params):
        update = None if job.kind == "evaluate" else {name: np.zeros_like(values) for name, values in params.items()}
        metrics = dict.fromkeys(METRICS, 0.5) | ({forged: 0.5} if job.ue == 2 else {})
        return Reply(job.ue, job.ticket, job.version, update, metrics)

    class Watched(InProcess):
        def poll(self, wait_s):
            seen.append((ask(f"http://127.0.0.1:{port}", "/healthz"), ask(f"http://127.0.0.1:{port}", "/metrics")[2]))
            return super().poll(wait_s)

    monkeypatch.setattr("perfeds2.deployment.server.STATUS_EVERY_S", 0.01)
    serve(setup, Watched(answer, lambda job: 1.0 + job.ue if job.kind == "train" else 0.05, 3), tmp_path / "run")
    last = parse(seen[-1][1])
    assert last["perfeds2_rounds_total"][None] == 3
    assert last["perfeds2_devices"]["set aside"] == 1
    assert last["perfeds2_updates_refused_total"][None] == 1
    assert last["perfeds2_received_bytes_total"][None] == 6 * 4 * 2410
    assert last["perfeds2_personal_accuracy"][None] == 0.5
    assert seen[-1][0][0] == 200
    lines = (tmp_path / "run" / "events.log").read_text().splitlines()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert len(events) == len(lines)
    assert sum("finished" in line and "UE 1" not in line for line in lines) == 1
    assert last["perfeds2_refusals_total"] == {"wrong report": 1}
    assert "\x1b" not in "".join(lines)
    refused = next(event for event in events if event["event"].startswith("refused: "))
    assert refused["event"].startswith("refused: UE 2 ticket 2 ")
    closed = [event for event in events if " closed at " in event["event"]]
    assert [event["round"] for event in closed] == [0, 1, 2]
    assert events[-2]["event"].startswith("finished")
    assert events[-1]["event"].startswith("results: timeline.npz ")
    assert all(set(event) >= {"time", "event"} for event in events)


def test_an_event_has_a_time_and_the_round(tmp_path):
    folder = Folder(tmp_path)
    folder.log("before: UE 1")
    assert not (tmp_path / "events.jsonl").exists()
    folder.log_json()
    folder.log("failed: UE 12 ticket 345: UE 9 ticket 1 said so", round=7)
    folder.log("started with 3 of 4 devices")
    lines = (tmp_path / "events.log").read_text().splitlines()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events == [
        {"time": lines[1].split(" ")[0], "round": 7, "event": "failed: UE 12 ticket 345: UE 9 ticket 1 said so"},
        {"time": lines[2].split(" ")[0], "event": "started with 3 of 4 devices"},
    ]
    assert len(lines) == 3


def test_what_others_sent_cannot_forge_a_line_or_steer_a_terminal(tmp_path):
    folder = Folder(tmp_path)
    folder.log_json()
    folder.log("failed: UE 3 ticket 4: x\n2026-01-01T00:00:00+0000 finished\x1b[2J\u2028{}")
    line = (tmp_path / "events.log").read_text(encoding="utf-8")
    assert line.endswith("failed: UE 3 ticket 4: x\\n2026-01-01T00:00:00+0000 finished\\x1b[2J\\u2028{}\n")
    assert len(line.splitlines()) == 1
    (told_,) = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert json.loads(told_)["event"].startswith("failed: UE 3 ticket 4: x\n2026")
    assert b"\x1b" not in told_


# ---- the heartbeat


@pytest.fixture
def beating():
    broker = FakeBroker()
    transport = MqttTransport(broker.link(), travelling(Setup.from_texts({"devices": 2, "quorum": 1}), "a-run"), 2)
    clock = {"s": 100.0}
    transport.now = lambda: clock["s"]

    def after(seconds, delivers=True):
        clock["s"] += seconds
        told = transport.troubles()[None]
        if delivers:
            broker.pump()
        return told

    with transport:
        yield broker, after


def test_a_broker_that_is_connected_and_delivers_nothing_is_noticed_and_forgiven(beating):
    _, after = beating
    assert [after(6.0) for _ in range(5)] == [None] * 5
    assert after(6.0, delivers=False) is None  # a heartbeat leaves
    assert after(14.0, delivers=False) is None
    said = after(2.0)
    assert said == "the broker is connected, but delivers no messages; restart it"
    assert after(0.5) is None
    metrics = Metrics(1)
    metrics.tell(status(broker=said), record())
    assert metrics.health() == (503, said)


def test_a_broker_that_comes_back_owes_no_old_heartbeat(beating):
    broker, after = beating
    after(6.0, delivers=False)
    broker.die()
    assert after(4.0) == "the broker cannot be reached; see the server's log"
    broker.live()
    assert [after(6.0) for _ in range(4)] == [None] * 4


def test_a_server_that_was_busy_blames_no_broker(beating):
    _, after = beating
    after(6.0)
    assert after(300.0) is None


def test_refusals_have_few_reasons():
    words = {"answers version 'x has' of a job", "reports a = 1", "lacks arrays ['has']", "ticket 3 has no update", "?"}
    assert {reason_of(why) for why in words} == {
        *("wrong job", "wrong report", "missing part", "wrong update", "other"),
    }
