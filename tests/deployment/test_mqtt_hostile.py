"""What can a device do to a server over MQTT, or a server to a device? As little as the protocol needs. In memory."""

import json
import queue
import tomllib
from typing import Any

import numpy as np
import pytest
import tomli_w
from fake_broker import AtOnce, FakeBroker

from perfeds2.deployment.fields import SETTINGS
from perfeds2.deployment.messages import TEXT_BYTES, Head, Here, JobMessage, Run, read
from perfeds2.deployment.mqtt import transport as mqtt_transport
from perfeds2.deployment.mqtt import wire
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.mqtt.wire import Parcel, Topics
from perfeds2.deployment.preparation import Owner, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Request, SignedKey
from perfeds2.deployment.worker import DeviceWorker

TOPICS = Topics()
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32(1.5) * np.ones((), np.float32)}
UPDATE = {name: values + 1 for name, values in MODEL.items()}
BIG = {"w": np.zeros(200_000, np.float32)}  # more than one chunk


def outstanding(transport):
    """The jobs that are not answered yet, by UE."""
    return {ue: peer.job for ue, peer in transport._peers.items() if peer.job is not None}


class Listening:
    """Someone with a connection, who may publish what they like: the broker lets devices do it below their own name."""

    def __init__(self, broker):
        self.got = []
        self.link = broker.link()
        self.link.start(self)

    def last_will(self):
        return None

    def up(self):
        pass

    def message(self, topic, data, retained):  # noqa: ARG002 (the interface)
        self.got.append((topic, data))


class Side:
    """A server with a job out to device 0, and that device's connection."""

    def __init__(self, model=MODEL):
        self.broker = FakeBroker()
        self.transport = MqttTransport(self.broker.link(), Run(run="r", settings=""), 3)
        self.transport.__enter__()
        self.device = Listening(self.broker)
        self.device.link.subscribe(TOPICS.job(0))
        self.say(TOPICS.here(0), Here(here=True, session="s", run="r").to_bytes())
        assert self.transport.changes().came == {0}
        self.transport.dispatch(Request(7, 0, 3), model)
        self.broker.pump()

    def say(self, topic, data):
        self.device.link.publish(topic, data)
        self.broker.pump()

    def head(self, update: Any = UPDATE, ticket=7, **changed: Any):
        announced = {} if update is None else Parcel.of(update).announced
        said = {"run": "r", "version": 3, "compute_s": 0.1} | announced | changed
        self.say(TOPICS.reply(0, ticket, wire.HEAD), json.dumps(said).encode())

    def chunks(self, update=UPDATE, ticket=7):
        for number, chunk in enumerate(Parcel.of(update).chunks):
            self.say(TOPICS.reply(0, ticket, number), chunk)

    def replies(self) -> Any:
        return self.transport.poll(0.0)


def test_an_answer_comes_whole_and_once():
    side = Side()
    side.head(metrics={"train_loss": float("nan")})
    assert side.replies() == []
    side.chunks()
    (reply,) = side.replies()
    assert (reply.ue, reply.ticket, reply.version, reply.error) == (0, 7, 3, None)
    assert np.isnan(reply.metrics["train_loss"])
    for name, values in UPDATE.items():
        np.testing.assert_array_equal(reply.update[name], values)
    side.head()  # delivered again
    side.chunks()
    assert side.replies() == []


def test_chunks_come_in_any_order_and_twice():
    side = Side(BIG)
    side.head(BIG)
    chunks = Parcel.of(BIG).chunks
    assert len(chunks) == 4
    for number in (2, 0, 2, 3, 0):
        side.say(TOPICS.reply(0, 7, number), chunks[number])
        assert side.replies() == []
    side.head(BIG)  # what has come stays
    side.say(TOPICS.reply(0, 7, 1), chunks[1])
    (reply,) = side.replies()
    np.testing.assert_array_equal(reply.update["w"], BIG["w"])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bytes": 10**9}, "announces 1000000000 bytes"),
        ({"run": "another"}, "of another run"),
        ({"bytes": -5}, "unreadable head"),
        ({"version": "3"}, "unreadable head"),
        ({"version": 1e300}, "unreadable head"),
        ({"metrics": {str(number): 1.0 for number in range(100)}}, "unreadable head"),
        ({"metrics": {"train_loss": "x" * 100_000}}, "unreadable head"),
        ({"sha256": "no"}, "unreadable head"),
        ({"error": "line\nround 5 closed\x1b[2J"}, "line round 5 closed [2J"),
    ],
)
def test_a_head_is_judged_before_any_memory_is_taken(changed, why):
    side = Side()
    side.head(**changed)
    (reply,) = side.replies()
    assert why in reply.error
    assert "\n" not in reply.error
    assert len(reply.error) < 400
    assert not outstanding(side.transport)
    side.chunks()  # too late
    assert side.replies() == []


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff" * 50, b'{"run": "r"}', b"1" * 10**6])
def test_rubbish_instead_of_a_head_is_an_error_of_that_device(data):
    side = Side()
    side.say(TOPICS.reply(0, 7, wire.HEAD), data)
    (reply,) = side.replies()
    assert reply.error == "unreadable head of a reply"


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("1", b"x"),
        ("0", b"x"),
        ("0", b"x" * wire.CHUNK_BYTES),
        ("-1", b"x"),
        ("01", b"x"),
        ("٣", b"x"),
        ("x" * 500, b"x"),
        ("9" * 40, b"x"),
    ],
)
def test_a_chunk_that_was_not_announced_ends_the_answer(part, data):
    side = Side()
    side.head()
    side.say(TOPICS.reply(0, 7, part), data)
    (reply,) = side.replies()
    assert "did not announce" in reply.error
    assert not outstanding(side.transport)


def test_what_has_another_checksum_or_is_no_arrays_is_refused():
    side = Side()
    side.head(sha256="0" * 64)
    side.chunks()
    assert "checksum" in side.replies()[0].error
    side = Side()
    rubbish = Parcel(
        b"\x40" + b"\0" * 7 + b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}' + b"    "
    )
    said: Any = rubbish.announced
    side.head(**said)
    side.say(TOPICS.reply(0, 7, 0), rubbish.data)
    assert "not safetensors" in side.replies()[0].error


def test_chunks_without_a_head_or_of_another_ticket_are_never_kept():
    side = Side()
    for ticket in (7, 8, 10**15):
        side.chunks(ticket=ticket)
    assert outstanding(side.transport)[0].update is None
    assert [reply.ticket for reply in side.replies()] == [8]  # told once, however many there are
    side.head()
    side.chunks()
    assert side.replies()[0].error is None


def test_a_flood_of_answers_no_one_waits_for_takes_no_memory():
    side = Side()
    for number in range(2000):
        side.head(ticket=100 + number)
    assert len(side.replies()) <= 2
    assert set(outstanding(side.transport)) == {0}


def test_names_in_topics_are_taken_literally():
    side = Side()
    for name in (
        "device-00",
        "device-3",
        "device-",
        "device--1",
        "device-0x",
        "server",
        "device-" + "9" * 30,
        "device-٠",
    ):
        side.say(f"perfeds2/here/{name}", Here(here=True, session="s", run="r").to_bytes())
        side.say(f"perfeds2/reply/{name}/7/head", b"{}")
    for topic in (
        "perfeds2/reply/device-0/7",
        "perfeds2/reply/device-0",
        "perfeds2/here",
        "perfeds2/reply/device-0/7/0/0",
    ):
        side.say(topic, b"x")
        side.transport.message(topic, b"x", False)
    assert side.transport.changes() == (set(), set())
    assert side.replies() == []


def test_a_device_that_went_took_its_job_along_and_an_old_will_is_not_believed():
    side = Side()
    side.say(TOPICS.here(0), Here(here=True, session="new", run="r").to_bytes())
    side.say(TOPICS.here(0), Here(here=False, session="s").to_bytes())
    assert side.transport.changes() == (set(), set())
    side.say(TOPICS.here(0), Here(here=False, session="new").to_bytes())
    assert side.transport.changes().went == {0}
    side.head()
    assert side.replies()[0].update is None  # no one waits for it
    side.say(TOPICS.here(0), b"{")
    side.say(TOPICS.here(0), Here(here=True, session="new", run="r", error="no data\nhere").to_bytes())
    assert side.transport.changes().came == set()
    assert side.transport.troubles()[0] == "no data here"


def test_a_device_that_comes_and_goes_all_the_time_costs_one_coming_a_second():
    side, clock = Side(), [0.0]
    side.transport.now = lambda: clock[0]
    side.transport._peers[0].came_s = mqtt_transport.NEVER_S
    arrivals = 0
    for step in range(500):
        clock[0] = step * 0.01
        side.say(TOPICS.here(0), Here(here=step % 2 == 0, session="s", run="r").to_bytes())
        arrivals += len(side.transport.changes().came)
    assert 3 <= arrivals <= 6
    clock[0] += 1.0
    side.say(TOPICS.here(0), Here(here=True, session="s", run="r").to_bytes())
    assert 0 in side.transport._presence.here


def test_a_device_that_announces_new_keys_all_the_time_has_few_of_them_checked():
    """A check takes 0.7 ms, and a device may send 60,000 messages in a minute."""
    side, clock, checked = Side(), [0.0], []
    side.transport.now = lambda: clock[0]
    side.transport._peers[0].came_s = mqtt_transport.NEVER_S
    side.transport.check_key = lambda ue, signed: checked.append((ue, signed.key))

    def announce(number):
        signed = SignedKey(f"{number:064x}", "", "")
        side.say(TOPICS.here(0), Here(here=True, session="s", run="r", signed=signed).to_bytes())

    for number in range(3 * mqtt_transport.MOST_KEYS):
        announce(number)
    assert len(checked) == mqtt_transport.MOST_KEYS
    assert side.transport.troubles()[0] == "announces more than 60 keys for masks in a minute"
    assert 0 in side.transport.changes().went
    clock[0] = 61.0
    announce(0)
    assert checked[-1] == (0, "0" * 64)
    assert side.transport.changes().came == {0}


def test_what_was_retained_before_is_not_believed():
    broker = FakeBroker()
    stranger = Listening(broker)
    stranger.link.publish(TOPICS.here(0), Here(here=True, session="s", run="r").to_bytes(), retain=True)
    transport = MqttTransport(broker.link(), Run(run="r", settings=""), 1)
    transport.__enter__()
    broker.pump()
    assert transport.changes().came == set()


# ---- the other side


class DeviceSide:
    """A device, and a server's connection."""

    def __init__(self, settings=None, owner=Owner(), own_model=False):  # noqa: B008 (frozen)
        setup = Setup.from_texts({"devices": 2, "quorum": 1, "rounds": 3})
        self.run = travelling(setup, "r") if settings is None else Run(run="r", settings=settings, own_model=own_model)
        self.first, self.broker = setup.first_params(), FakeBroker()
        self.server = Listening(self.broker)
        for topic in TOPICS.from_devices:
            self.server.link.subscribe(topic)
        self.worker = DeviceWorker(lambda _: owner, inbox=AtOnce())
        self.said = []
        self.device = DeviceClient(1, self.broker.link(), self.worker.work, self.worker.inbox, self.said.append)
        self.device.start()
        self.tell(TOPICS.run, self.run.to_bytes())

    def tell(self, topic, data):
        self.server.link.publish(topic, data)
        self.broker.pump()
        while not self.worker.work.empty():
            self.worker.step()
            self.broker.pump()

    def publish(self, version, arrays):
        self.sealed = Parcel.of(arrays).sealed()
        for number, chunk in enumerate(self.sealed.chunks):
            self.server.link.publish(TOPICS.model(version, number), chunk, retain=True)

    def job(self, ticket=5, version=0, run="r", **changed):
        said = {"run": run, "ticket": ticket, "version": version, "kind": "train", "key": self.sealed.key}
        said |= self.sealed.announced | changed
        self.server.got.clear()
        self.tell(TOPICS.job(1), json.dumps(said).encode())
        return [each for each in self.server.got if "/reply/" in each[0]]

    def here(self) -> Any:
        return Here.model_validate_json([data for topic, data in self.server.got if "/here/" in topic][-1])


@pytest.fixture(scope="module")
def ready():
    side = DeviceSide()
    side.publish(0, side.first)
    return side


@pytest.mark.slow
def test_a_job_that_comes_again_is_answered_with_the_same_bytes_and_not_computed_again(ready, monkeypatch):
    assert ready.here() == Here(here=True, session=ready.device.state.session, run="r")
    first = ready.job(ticket=5)
    assert [topic.rpartition("/")[2] for topic, _ in first] == ["head", "0"]
    monkeypatch.setattr(ready.worker, "_do", None)  # would raise
    assert ready.job(ticket=5) == first
    assert ready.job(ticket=4) == []  # older than what was answered: no one waits for it
    assert not [topic for topic in ready.device.link.topics if "model" in topic]


@pytest.mark.slow
def test_jobs_of_others_and_rubbish_are_ignored(ready):
    assert ready.job(ticket=20, run="another") == []
    assert ready.job(ticket=21, kind="exec") == []
    assert ready.job(ticket=-1) == []
    ready.tell(TOPICS.job(1), b"{" * 1000)
    ready.tell(TOPICS.run, b"\xff{")
    assert ready.job(ticket=22)  # and it goes on


def test_a_model_of_another_size_or_with_another_checksum_is_not_taken(ready):
    head = Head.model_validate_json(ready.job(ticket=30, bytes=10**9)[0][1])
    assert head.error == "the model has another size than on this device"
    assert ready.device._fetching is None
    assert ready.job(ticket=31, sha256="0" * 64) == []
    assert ready.job(ticket=32)


@pytest.mark.parametrize("name", ["app-module", "data-dir"])
def test_the_network_never_says_what_a_device_loads_or_where(name, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nmodel = load_data = 1\n")
    side = DeviceSide(tomli_w.dumps({"devices": 2, name: str(trap)}))
    assert f"the setting {name}, which only this device's owner may choose" in side.here().error
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("devices = 2\nrounds = 'many'", "whole number"),
        ("shell = 'rm'", "shell is not a setting"),
        ("devices = ", "not readable TOML"),
        ("task = 'trap.py:what'\ndevices = 2", "refers to a file or module"),
        ("devices = 1\nquorum = 1", "this is device 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_sentence(settings, why):
    side = DeviceSide(settings)
    assert why in side.here().error
    assert any("cannot take part" in line for line in side.said)


def test_a_run_with_the_devices_own_model_needs_the_owners_file(tmp_path):
    assert "--app-module FILE" in DeviceSide("devices = 2", own_model=True).here().error
    broken = tmp_path / "mine.py"
    broken.write_text(
        "class Mine:\n    def init(self, key):\n        return {}\n    def __call__(self, params, x):\n        return x\n"
        "model = Mine()\ndef load_data(folder, device):\n    raise RuntimeError('patient 17 has')\n"
    )
    side = DeviceSide("devices = 2", Owner(app_module=broken), own_model=True)
    assert side.here().error == "RuntimeError while getting ready; see this device's log"  # and not what the data are


def test_what_travels_has_no_paths():
    told = Setup.from_texts({"devices": 2, "data-dir": "/a/b", "app-module": "/e/f.py"})
    run = travelling(told, "r")
    assert "/" not in run.settings
    assert run.own_model


def test_two_devices_of_one_process_share_what_is_built_in():
    worker = DeviceWorker(lambda _: Owner())
    assert isinstance(worker.work, queue.SimpleQueue)
    run = travelling(Setup.from_texts({"devices": 2, "quorum": 1}), "r")
    assert worker._prepare(0, run) is worker._prepare(1, run)


def test_texts_are_small_and_strict():
    assert read(JobMessage, b"x" * 10**7) is None
    assert read(Here, b'{"here": 1}') is None
    assert len(Run(run="r", settings="x").to_bytes()) < TEXT_BYTES


def test_what_is_the_servers_own_business_does_not_travel():
    setup = Setup.from_texts(
        {"devices": 3, "quorum": 1, "metrics-port": 9100, "log": "json", "job-s": 5, "data-dir": "/d", "slow": "1=2"}
    )
    told = tomllib.loads(travelling(setup, "r").settings)
    own = {name for name, each in SETTINGS.items() if each.section == "deployment"}
    assert own & set(told) == {"slow"}
    assert "data-dir" not in told
    assert Setup.from_texts(told).algorithm == setup.algorithm  # and what devices need does


def test_a_device_that_cannot_read_the_run_says_so_to_the_server():
    side = Side()
    device = DeviceClient(1, side.broker.link(), queue.SimpleQueue(), AtOnce(), lambda _: None)
    device.start()
    side.broker.pump()
    device.state.run = None
    side.transport.troubles()
    device.message(TOPICS.run, b'{"run": "r", "from-the-future": ', False)
    side.broker.pump()
    assert "is perfeds2 here older" in str(side.transport.troubles()[1])


def test_who_was_revoked_is_named_until_it_is_back():
    broker = FakeBroker()
    with MqttTransport(broker.link(), Run(run="r", settings=""), 3, barred=lambda: {1: "was revoked"}) as transport:
        assert transport.troubles()[1] == "was revoked"
        transport.message(TOPICS.here(1), Here(here=True, session="s", run="r").to_bytes(), False)
        assert transport.troubles()[1] is None


def test_a_broker_that_is_away_for_long_is_trouble_and_one_that_is_back_is_not():
    side, clock = Side(), [1e6]
    side.transport.now = lambda: clock[0]
    assert side.transport.troubles()[None] is None
    side.transport.link.is_up = False
    clock[0] += 1.0
    assert side.transport.troubles()[None] is None
    clock[0] += 5.0
    assert "cannot be reached" in str(side.transport.troubles()[None])
    side.transport.link.is_up = True
    assert side.transport.troubles()[None] is None
