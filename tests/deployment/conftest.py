"""Brokers to try things on: Mosquitto, where it is installed, and the embedded one."""

import pytest
from needs import needs


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Credentials of a server and four devices."""
    from perfeds2.deployment.credentials import make_credentials

    return make_credentials(tmp_path_factory.mktemp("keys") / "credentials", 4)


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs("mosquitto")), "embedded"])
def kind(request):
    return request.param


@pytest.fixture(
    scope="module"
)  # its thread, type-checked, draws random numbers, which Hypothesis takes for a test's own
def running(made, tmp_path_factory):
    """A broker of each kind, for all tests that do it no lasting harm."""
    from perfeds2.deployment.mqtt.broker import running_broker

    started = {}

    def get(kind):
        if kind not in started:
            context = running_broker(made, ("127.0.0.1", 0), tmp_path_factory.mktemp("broker") / kind, kind)
            started[kind] = context, context.__enter__()
        return started[kind][1]

    yield get
    for context, _ in started.values():
        context.__exit__(None, None, None)


@pytest.fixture
def broker(running, kind):
    return running(kind)


@pytest.fixture
def own(made, kind, tmp_path):
    """The same credentials behind a separate broker, with limits."""
    from perfeds2.deployment.mqtt.broker import Limits, running_broker

    def start(**limits):
        return running_broker(made, ("127.0.0.1", 0), tmp_path / kind, kind, Limits(**limits))

    return start


@pytest.fixture
def watcher(broker, made):
    """A device that stays while others misbehave."""
    from raw_mqtt import Client

    with Client(broker, made, 3) as client:
        yield client


@pytest.fixture(scope="session")
def nursery():
    """Starts processes of Python without importing everything again."""
    from forked import Nursery

    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def forking(nursery, monkeypatch):
    """Have the package start its processes in this way."""
    from forked import stand_in

    from perfeds2.deployment import processes

    monkeypatch.setattr(processes, "subprocess", stand_in(nursery.popen))
