"""Does a federation over a broker merge every update once, whoever dies? In memory: the broker loses what a real one can."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fake_broker import FakeBroker

from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.mqtt import transport as mqtt_transport
from perfeds2.deployment.mqtt.device import Device, Owner, Worker, travelling
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.setup import Setup
from perfeds2.learning.replay import replay
from perfeds2.runs.folder import Folder, open_folder


@dataclass
class World:
    """A broker, a server and devices, in one thread, a step at a time."""

    setup: Setup
    folder: Folder
    broker: Any = field(default_factory=FakeBroker)
    worker: Worker = field(default_factory=lambda: Worker(lambda _: Owner()))
    devices: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    clock_s: float = 0.0

    def start_server(self):
        setup, algorithm = self.setup, self.setup.algorithm
        self.transport = MqttTransport(self.broker.link(), travelling(setup, "a-run"), setup.ues)
        self.transport.now = lambda: self.clock_s
        self.transport.__enter__()
        first = dict(setup.first_params())
        self.federation = Federation(
            algorithm.protocol, algorithm.learner, first, self.transport, setup.ues, setup.rounds, setup.own, self.log.append
        )  # fmt: skip
        checkpoints = Checkpoints(self.folder)
        checkpoints.load(self.federation)
        self.federation.save = lambda state: checkpoints.save(state, 0.0)

    def start_device(self, number):
        self.devices[number] = Device(number, self.broker.link(), self.worker.work, say=lambda _: None)
        self.devices[number].start()

    def step(self, messages=10**9, jobs=10**9):
        self.clock_s += 0.1
        self.broker.pump(messages)
        while jobs > 0 and not self.worker.work.empty():
            self.worker.step()
            jobs -= 1
        self.federation.step(wait_s=0.0)

    def run(self, most=2000):
        for _ in range(most):
            if self.federation.round == self.setup.rounds:
                return
            self.step()
        raise AssertionError(f"stuck in round {self.federation.round}: {self.log[-5:]}")


def world(tmp_path, **given):
    told = {"devices": 4, "quorum": 2, "rounds": 8, "max-staleness": 3} | given
    setup = Setup.from_texts(told)
    made = World(setup, open_folder(tmp_path / "run", setup.spec))
    made.start_server()
    for number in range(setup.ues):
        made.start_device(number)
    return made


def check(world):
    """Every round once, every ticket once, and the simulator comes to the same weights."""
    federation, record = world.federation, world.federation.record
    timeline = federation.timeline()
    assert timeline.rounds == world.setup.rounds
    tickets = [merge.ticket for merge in record.merges]
    assert len(tickets) == len(set(tickets)) == timeline.ues.size
    jobs = [(merge.ue, merge.version) for merge in record.merges]
    assert len(jobs) == len(set(jobs))
    again = replay(world.setup.task(0), timeline, world.setup.algorithm.learner, world.setup.seed)
    for name, values in federation.params.items():
        np.testing.assert_allclose(values, again[name], rtol=0, atol=1e-6 * np.abs(values).max())


def test_devices_train_and_the_simulator_agrees(tmp_path):
    made = world(tmp_path)
    made.run()
    check(made)
    assert not [line for line in made.log if "refused" in line or "failed" in line]
    assert all(device.evaluated >= 0 for device in map(made.federation.devices.__getitem__, range(4)))


def test_a_model_is_published_once_and_cleared_when_nobody_works_on_it(tmp_path):
    made = world(tmp_path)
    published = []
    take = made.broker.take
    made.broker.take = lambda topic, data, retain: (published.append((topic, bool(data))), take(topic, data, retain))
    while made.federation.round < made.setup.rounds:
        made.step()
        held = {device.job.version for device in map(made.federation.devices.__getitem__, range(4)) if device.job}
        there = {int(topic.split("/")[2]) for topic in made.broker.retained if topic.startswith("perfeds2/model/")}
        assert there >= held
        assert len(there) <= len(held) + 1  # and the newest, for whoever comes next
    models = [topic for topic, full in published if full and topic.startswith("perfeds2/model/")]
    assert len(models) == len(set(models))
    made.transport.__exit__()
    made.broker.pump()
    assert not [topic for topic in made.broker.retained if not topic.startswith("perfeds2/here/")]


def test_a_broker_that_dies_with_jobs_and_answers_loses_nothing(tmp_path):
    made = world(tmp_path, rounds=12)
    for messages in (5, 9, 14, 23, 31):  # it has taken more than it delivered
        made.step(messages=messages)
        made.broker.die()
        made.step()
        made.broker.live()
        for _ in range(4):
            made.step()
    made.run()
    check(made)
    assert not [line for line in made.log if "refused" in line or "lost" in line]


def test_a_device_that_comes_back_answers_the_job_it_had(tmp_path):
    made = world(tmp_path, quorum=4, rounds=2)
    while not made.federation.record.merges:
        made.step()
    made.broker.die()  # with everything it knew, while everybody has a job
    made.devices.pop(2)
    made.broker.links = [
        link for link in made.broker.links if link.listener is not None and getattr(link.listener, "number", 0) != 2
    ]
    made.broker.live()
    made.start_device(2)  # and device 2 has died, too
    made.run()
    check(made)


def test_whoever_does_not_come_back_with_the_broker_is_missed(tmp_path):
    made = world(tmp_path, rounds=6, quorum=3, devices=4)
    made.step()
    made.step()
    made.broker.die()
    made.broker.links.remove(made.devices[3].link)
    made.broker.live()
    made.step()
    assert 3 in made.transport._presence
    made.clock_s += mqtt_transport.CONFIRM_WITHIN_S
    made.run()
    assert 3 not in made.transport._presence
    check(made)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_fifty_kills_of_devices_server_and_broker_lose_and_double_nothing(tmp_path, seed):
    chance = random.Random(seed)
    made = world(tmp_path, rounds=60, devices=5)
    kills = 0
    while made.federation.round < made.setup.rounds:
        made.step(messages=chance.choice([1, 3, 10, 100]), jobs=chance.choice([0, 1, 5]))
        if kills < 50 and chance.random() < 0.4:
            kills += 1
            what = chance.choice(["device", "device", "connection", "server", "broker"])
            if what == "broker":
                made.broker.die()
                for _ in range(chance.randrange(3)):
                    made.step(jobs=chance.choice([0, 5]))
                made.broker.live()
            elif what == "server":
                killed: Any = made.transport.link
                killed.kill()
                made.start_server()
            else:
                number = chance.randrange(5)
                if what == "device":
                    made.devices[number].link.kill()
                    made.start_device(number)
                else:
                    made.devices[number].link.cut()
                    made.devices[number].link.connect()
    assert kills == 50
    check(made)
