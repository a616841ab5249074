"""Who can read what on the broker, and which limits does the wire have? In memory."""

import threading
import time
from typing import Any

import numpy as np
import pytest
from fake_broker import FakeBroker
from raw_mqtt import wait_for
from worlds import world

from perfeds2.deployment.mqtt.broker import access_list
from perfeds2.deployment.mqtt.device import DeviceClient, Owner, Worker, prepare, travelling
from perfeds2.deployment.mqtt.embedded import matches, read_access
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.mqtt.wire import Assembly, Here, JobMessage, Parcel, Run, Topics
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.transport import Request
from perfeds2.errors import InputError

TOPICS = Topics()
MODEL = {"w": np.arange(100_000, dtype=np.float32)}  # two chunks


class Curious:
    """A device that subscribes to everything that the access list lets it read."""

    def __init__(self, broker, number, topics=TOPICS):
        self.link, self.number, self.topics = broker.link(), number, topics
        self.heard, self.jobs = {}, []
        self.link.start(self)

    def last_will(self):
        return None

    def up(self):
        for topic in (self.topics.run, f"{self.topics.federation}/model/+/+", self.topics.job(self.number)):
            self.link.subscribe(topic)
        self.link.publish(self.topics.here(self.number), Here(here=True, session="s", run="r").to_bytes())

    def message(self, topic, data, _retained):
        if topic == self.topics.job(self.number):
            self.jobs.append(JobMessage.model_validate_json(data))
        elif data:
            self.heard[topic] = data

    def read(self, version, job):
        chunks = [
            data
            for topic, data in sorted(self.heard.items())
            if topic.startswith(f"{self.topics.federation}/model/{version}/")
        ]
        said = Parcel(b"".join(chunks)).announced
        return Assembly(said["bytes"], said["sha256"], dict(enumerate(chunks))).arrays(job.key)


def serve(broker, topics=TOPICS, run="r", since_s=0.0) -> Any:
    transport = MqttTransport(broker.link(), Run(run=run, settings="", since_s=since_s), 3, topics)
    transport.__enter__()
    return transport


def test_a_curious_device_reads_only_the_versions_it_holds_a_job_for():
    broker = FakeBroker()
    transport, curious, _ = serve(broker), Curious(broker, 1), Curious(broker, 0)
    for ue, version in ((0, 3), (1, 4), (0, 5)):
        transport.dispatch(Request(version, ue, version), {"w": MODEL["w"] + version})
    broker.pump()
    job = curious.jobs[0]
    assert {each.version for each in curious.jobs} == {4}
    np.testing.assert_array_equal(curious.read(4, job)["w"], MODEL["w"] + 4)
    for version in (3, 5):
        assert f"perfeds2/model/{version}/1" in curious.heard  # it hears the bytes
        with pytest.raises(ValueError, match="InvalidTag"):
            curious.read(version, job)
    assert not any(MODEL["w"][1000:2000].tobytes() in data for data in curious.heard.values())


def test_a_server_that_restarts_publishes_the_same_model_with_a_new_key():
    broker = FakeBroker()
    first, device = serve(broker), Curious(broker, 0)
    first.dispatch(Request(7, 0, 3), MODEL)
    broker.pump()
    broker.links.remove(first.link)  # killed
    serve(broker).dispatch(Request(8, 0, 3), MODEL)
    broker.pump()
    before, after = device.jobs[0], device.jobs[-1]
    assert before.key != after.key
    np.testing.assert_array_equal(device.read(3, after)["w"], MODEL["w"])


# ---- several federations on one broker


def test_federations_with_different_names_do_not_disturb_each_other():
    broker = FakeBroker()
    names = [Topics(), Topics("lab"), Topics("ward")]
    servers = [serve(broker, topics) for topics in names]
    devices = [Curious(broker, 1, topics) for topics in names]
    broker.pump()
    for version, server in enumerate(servers):
        assert server.changes() == (set(), {1})
        server.dispatch(Request(version, 1, version), {"w": MODEL["w"] + version})
    broker.pump()
    for version, device in enumerate(devices):
        assert [job.ticket for job in device.jobs] == [version]
        np.testing.assert_array_equal(device.read(version, device.jobs[0])["w"], MODEL["w"] + version)
    servers[0].__exit__()
    broker.pump()
    assert {topic.split("/")[0] for topic in broker.retained} == {"lab", "ward"}


def test_a_second_server_of_a_federation_refuses_and_leaves_the_first_in_peace():
    """A broker lets in one client per certificate, so each server disconnects the other until one gives way."""
    broker = FakeBroker()
    first = serve(broker, run="first", since_s=1.0)
    broker.pump()
    first.link.cut()
    second = serve(broker, run="second", since_s=2.0)
    broker.pump()
    second.changes()  # the first may be dead
    for back, gone in ((first, second), (second, first)):
        gone.link.cut()
        back.link.connect()
        broker.pump()
    first.changes()
    with pytest.raises(InputError, match=r"another server runs the federation .*run first"):
        second.changes()
    second.__exit__()
    first.link.connect()
    broker.pump()
    first.changes()
    assert Run.model_validate_json(broker.retained["perfeds2/run"]).run == "first"


def test_a_second_server_on_a_broker_that_lets_both_in_refuses_at_once():
    broker = FakeBroker()
    first = serve(broker, run="first", since_s=1.0)
    broker.pump()
    second = serve(broker, run="second", since_s=2.0)
    broker.pump()
    first.changes()
    with pytest.raises(InputError, match="another server"):
        second.changes()
    assert Run.model_validate_json(broker.retained["perfeds2/run"]).run == "first"


def test_a_run_that_a_killed_server_left_behind_does_not_stop_the_next():
    broker = FakeBroker()
    broker.links.remove(serve(broker, run="first", since_s=1.0).link)
    second = serve(broker, run="second", since_s=2.0)
    for _ in range(3):
        broker.pump()
        second.changes()
        second.link.cut()
        second.link.connect()


def test_the_access_lists_of_two_federations_keep_their_devices_apart(tmp_path):
    (tmp_path / "access.txt").write_text(access_list("lab") + access_list("ward"))
    rules = read_access(tmp_path / "access.txt")

    def may(name, verb, topic):
        return any(
            verb in can and user in (None, name) and matches(what.replace("%u", name), topic)
            for user, can, what in rules
        )

    assert may("lab.server", "write", "lab/job/lab.device-1")
    assert not may("lab.server", "write", "ward/job/ward.device-1")
    assert not may("server", "read", "lab/here/lab.device-1")
    assert may("lab.device-1", "write", "lab/reply/lab.device-1/7/head")
    assert may("lab.device-1", "read", "lab/job/lab.device-1")
    for other in ("lab/reply/lab.device-2/7/head", "ward/reply/ward.device-1/7/head", "ward/here/ward.device-1"):
        assert not may("lab.device-1", "write", other)
    assert not may("lab.device-1", "read", "ward/job/ward.device-1")
    assert Topics("ward").device_number("lab.device-1") is None  # the one thing that it may write to the other
    assert Topics("ward").device_number("ward.device-1") == 1


# ---- limits of a device


def slow_world(tmp_path, owner=Owner(), quorum=2):  # noqa: B008 (frozen)
    """A federation in which device 0, in a thread of its own, would sleep for a day in every job."""
    made = world(tmp_path, devices=3, quorum=quorum, rounds=6, **{"max-staleness": 1, "slow": "0=100000"})
    made.devices[0].link.kill()
    worker = Worker(lambda _: owner)
    device = made.devices[0] = DeviceClient(0, made.broker.link(), worker.work, say=lambda _: None)
    device.start()
    threading.Thread(target=worker.run_for_ever, daemon=True).start()
    wait_for(lambda: step(made) and made.federation.crew[0].job is not None, 60.0)
    return made


def step(made):
    made.step()
    time.sleep(0.01)
    return True


def test_a_job_that_is_not_wanted_any_more_is_cancelled_while_the_device_sleeps(tmp_path):
    made = slow_world(tmp_path)
    federation, sent = made.federation, set()
    wait_for(lambda: step(made) and (sent.add(getattr(federation.crew[0].job, "version", 0)) or len(sent) > 1), 60.0)
    wait_for(lambda: step(made) and federation.round == made.setup.rounds, 60.0)
    assert federation.crew[0].failures == 0
    asked: set[int] = set()
    federation.want_no_more()
    wait_for(lambda: step(made) and not federation.ask_everybody(asked) and len(asked) == 3, 60.0)
    assert federation.crew[0].evaluated == made.setup.rounds
    assert not [line for line in made.log if "failed" in line or "refused" in line]


def test_a_device_gives_up_a_job_after_its_own_time_limit(tmp_path):
    made = slow_world(tmp_path, Owner(job_s=0.3), quorum=3)  # rounds wait for it
    wait_for(lambda: step(made) and any("UE 0" in line and "took longer than 0.3 s" in line for line in made.log), 60.0)
    wait_for(lambda: step(made) and any("set aside: UE 0" in line for line in made.log), 60.0)


def test_a_model_larger_than_the_owner_allows_is_refused():
    run = travelling(Setup.from_texts({"devices": 2, "quorum": 1}), "r")
    with pytest.raises(InputError, match=r"the model has 0\.0 MB, and this device accepts .* MB \(--memory-mb\)"):
        prepare(run, Owner(memory_bytes=1000), 0)
