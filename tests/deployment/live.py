"""A federation over a real broker with TLS, all in this process but the broker: what happens to a run in progress?"""

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.mqtt.broker import running_broker
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.runs import key_check
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.preparation import Owner, travelling
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.worker import DeviceWorker

WITHIN_S = 60.0


class Live:
    """Credentials, a broker, a server and devices."""

    def __init__(self, folder, stack, kind: Any = "embedded", **given):
        self.setup = Setup.from_texts({"devices": 3, "quorum": 2, "rounds": 10_000, "max-staleness": 9} | given)
        self.credentials = make_credentials(folder / "credentials", self.setup.ues)
        self.broker = stack.enter_context(running_broker(self.credentials, ("127.0.0.1", 0), folder / "broker", kind))
        self.site = Site("127.0.0.1", self.broker.port, self.credentials)
        self.log = list[str]()
        self.worker = DeviceWorker(lambda number: Owner(state=folder / "devices" / str(number)))
        threading.Thread(target=self.worker.run_for_ever, daemon=True).start()
        self.devices = {}
        for number in range(self.setup.ues):
            stack.enter_context(self.device(number))
        run = travelling(self.setup, "a-run", authority=self.credentials.clients)
        self.transport = stack.enter_context(MqttTransport(Link(self.site), run, self.setup.ues))
        self.transport.authority = self.credentials.clients.trust
        self.transport.check_key = key_check(self.credentials, "a-run")
        algorithm = self.setup.algorithm
        state: Any = {"log": self.log.append, "secure": bool(self.setup.spec.privacy.secure_aggregation)}
        first = dict(self.setup.first_params())
        self.federation = Federation(
            algorithm.protocol,
            algorithm.learner,
            first,
            self.transport,
            self.setup.ues,
            10_000,
            self.setup.own,
            **state,
        )

    @contextlib.contextmanager
    def device(self, number, credentials=None):
        """Run a device, on a machine with its own credentials or on the server's."""
        own = credentials or self.credentials
        link = Link(replace(self.site, credentials=own), number)
        self.devices[number] = DeviceClient(number, link, self.worker.work, self.worker.inbox, credentials=own)
        self.devices[number].start()
        try:
            yield
        finally:
            self.devices[number].close()

    def play(self, rounds=5):
        """Close this many rounds."""
        last, ends_s = self.federation.round + rounds, time.monotonic() + WITHIN_S
        while self.federation.round < last:
            assert time.monotonic() < ends_s, self.log[-5:]
            self.federation.step(0.05)

    def play_until(self, what):
        ends_s = time.monotonic() + WITHIN_S
        while not what():
            assert time.monotonic() < ends_s, self.log[-5:]
            self.federation.step(0.05)
