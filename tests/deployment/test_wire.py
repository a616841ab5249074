"""Who can read what on the broker, and which limits does the wire have? In memory."""

import numpy as np
import pytest
from fake_broker import FakeBroker

from perfeds2.deployment.mqtt import wire
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.mqtt.wire import Assembly, Here, JobMessage, Parcel, Run
from perfeds2.deployment.transport import Request

MODEL = {"w": np.arange(100_000, dtype=np.float32)}  # two chunks


class Curious:
    """A device that subscribes to everything that the access list lets it read."""

    def __init__(self, broker, number):
        self.link, self.number = broker.link(), number
        self.heard, self.jobs = {}, []
        self.link.start(self)

    def last_will(self):
        return None

    def up(self):
        for topic in (wire.RUN, "perfeds2/model/+/+", wire.job_topic(self.number)):
            self.link.subscribe(topic)
        self.link.publish(wire.here_topic(self.number), Here(here=True, session="s", run="r").to_bytes())

    def message(self, topic, data, _retained):
        if topic == wire.job_topic(self.number):
            self.jobs.append(JobMessage.model_validate_json(data))
        elif data:
            self.heard[topic] = data

    def read(self, version, job):
        chunks = [data for topic, data in sorted(self.heard.items()) if topic.startswith(f"perfeds2/model/{version}/")]
        said = Parcel(b"".join(chunks)).announced
        return Assembly(said["bytes"], said["sha256"], dict(enumerate(chunks))).arrays(job.key)


def serve(broker):
    transport = MqttTransport(broker.link(), Run(run="r", settings=""), 3)
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
