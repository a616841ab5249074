"""A whole federation over a broker in memory, a step at a time: who dies when is decided here."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fake_broker import AtOnce, FakeBroker

from perfeds2.deployment import noise_ledger
from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.runs import key_check
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.preparation import Owner, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.worker import DeviceWorker
from perfeds2.learning.replay import replay
from perfeds2.runs.folder import Folder, open_folder


@dataclass
class World:
    """A broker, a server and devices, in one thread, a step at a time."""

    setup: Setup
    folder: Folder
    broker: Any = field(default_factory=FakeBroker)
    worker: DeviceWorker = field(init=False)
    devices: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    said: list = field(default_factory=list)  # by devices
    clock_s: float = 0.0
    credentials: Credentials | None = None  # needed for secure aggregation
    files: dict = field(default_factory=dict)  # of the devices' owners, by flag

    def __post_init__(self):
        devices = self.folder.path / "devices"
        self.worker = DeviceWorker(lambda number: Owner(files=self.files, state=devices / str(number)), inbox=AtOnce())

    def start_server(self):
        setup, algorithm, checkpoints = self.setup, self.setup.algorithm, Checkpoints(self.folder)
        self.transport = MqttTransport(self.broker.link(), self.run_message(), setup.ues)
        self.transport.now = lambda: self.clock_s
        if self.credentials is not None:
            self.transport.authority = self.credentials.clients.trust
            self.transport.check_key = key_check(self.credentials, "a-run")
        self.transport.__enter__()
        first = dict(setup.first_params())
        self.federation = Federation(
            algorithm.protocol,
            algorithm.learner,
            first,
            self.transport,
            setup.ues,
            setup.rounds,
            setup.own,
            self.log.append,
            losses=setup.losses,
            schedule=setup.schedule,
            secure=bool(setup.spec.privacy.secure_aggregation),
            encoding=setup.encoding,
        )
        new, path = checkpoints.load(self.federation) is None, self.folder.path
        self.federation.learner = noise_ledger.start(algorithm.learner, path, self.federation.round, new=new)

        def save(state):
            checkpoints.save(state, 0.0)
            noise_ledger.reach(algorithm.learner, path, state.round)

        self.federation.save = save

    def run_message(self):
        authority = None if self.credentials is None else self.credentials.clients
        return travelling(self.setup, "a-run", authority=authority)

    def start_device(self, number):
        queues = self.worker.work, self.worker.inbox
        device = DeviceClient(number, self.broker.link(), *queues, say=self.said.append, credentials=self.credentials)
        self.devices[number] = device
        device.start()

    def step(self, messages=10**9, jobs=10**9):
        self.clock_s += 0.1
        self.broker.pump(messages)
        while jobs > 0 and not self.worker.work.empty():
            self.worker.step()
            jobs -= 1
        self.federation.step(wait_s=0.0)

    def run(self, most=2000):
        for _ in range(most):
            if self.federation.round == self.federation.rounds:
                return
            self.step()
        raise AssertionError(f"stuck in round {self.federation.round}: {self.log[-5:]}")


def world(tmp_path, credentials=None, files=None, **given):
    told = {"devices": 4, "quorum": 2, "rounds": 8, "max-staleness": 3} | given
    setup = Setup.from_texts(told, files)
    made = World(setup, open_folder(tmp_path / "run", setup.spec), credentials=credentials, files=files or {})
    made.start_server()
    for number in range(setup.ues):
        made.start_device(number)
    return made


def check(world):
    """Every round once, every ticket once, and the simulator comes to the same weights."""
    federation, record = world.federation, world.federation.record
    timeline = federation.timeline()
    assert timeline.rounds == federation.rounds
    tickets = [merge.ticket for merge in record.merges]
    assert len(tickets) == len(set(tickets)) == timeline.ues.size
    jobs = [(merge.ue, merge.version) for merge in record.merges]
    assert len(jobs) == len(set(jobs))
    again = replay(world.setup.task(0), timeline, federation.learner, world.setup.seed)
    for name, values in federation.params.items():
        np.testing.assert_allclose(values, again[name], rtol=0, atol=1e-6 * np.abs(values).max())


def survive_kills(made, seed, most):
    """Run to the end while devices, connections, the server and the broker die at random."""
    chance = random.Random(seed)
    kills, devices = 0, made.setup.ues
    while made.federation.round < made.federation.rounds:
        made.step(messages=chance.choice([1, 3, 10, 100]), jobs=chance.choice([0, 1, 5]))
        if kills < most and chance.random() < 0.4:
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
                number = chance.randrange(devices)
                if what == "device":
                    made.devices[number].link.kill()
                    made.start_device(number)
                else:
                    made.devices[number].link.cut()
                    made.devices[number].link.connect()
    assert kills == most
