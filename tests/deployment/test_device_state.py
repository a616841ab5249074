"""Does one thread alone change a device's state, and is nothing lost between it, the connection and the worker?"""

import queue
import threading

import numpy as np
from fake_broker import AtOnce, FakeBroker

from perfeds2.deployment.device_state import DeviceState, Inbox
from perfeds2.deployment.messages import Head, JobMessage, Run
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.preparation import Ready
from perfeds2.deployment.setup import Setup

JOB = JobMessage(run="r", ticket=4, version=0, kind="mask", key="0" * 64)


class Silent:
    """A connection that remembers what was announced."""

    def __init__(self):
        self.announced = []

    def announce(self, here):
        self.announced.append(here)

    def forget(self):
        pass

    def send(self, *_, **__):
        return lambda: None


def state_with(wire):
    return DeviceState(0, wire, queue.SimpleQueue(), say=lambda _: None)


def ready_for(run):
    return Ready(run, Setup.from_texts({"devices": 2, "quorum": 1}), None, 100)


def test_events_of_many_threads_are_handled_by_one_in_turn():
    inbox, handled = Inbox(), []
    threads = [
        threading.Thread(target=inbox.put, args=(lambda: handled.append(threading.get_ident()),)) for _ in range(9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handled == []
    inbox.drain()
    assert handled == [threading.get_ident()] * 9


def test_an_event_that_fails_ends_nothing(capfd):
    inbox, handled = Inbox(), []
    inbox.put(lambda: 1 / 0)
    inbox.put(handled.append, "next")
    inbox.drain()
    assert handled == ["next"]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_authorities_that_come_while_a_device_prepares_are_used_afterwards():
    wire = Silent()
    state = state_with(wire)
    old, new = (Run(run="r", settings="", authority=text) for text in ("old", "new"))
    state.take_run(old.to_bytes())
    item = state.work.get_nowait()
    state.take_run(new.to_bytes())
    assert state.work.empty()
    assert isinstance(item.what, Run)
    state.prepared(item.what, ready_for("r"))
    assert state.work.get_nowait().what == new
    assert wire.announced[-1].run == "r"


def test_a_job_is_dropped_when_it_is_answered_or_a_newer_one_comes():
    state = state_with(Silent())
    state.take_run(Run(run="r", settings="").to_bytes())
    state.prepared(Run(run="r", settings=""), ready_for("r"))
    state.work.get_nowait()
    state.take_job(JOB)
    first = state.work.get_nowait()
    assert not first.dropped.is_set()
    state.take_job(JOB.model_copy(update={"ticket": 5}))
    second = state.work.get_nowait()
    assert first.dropped.is_set()
    assert not second.dropped.is_set()
    assert isinstance(second.what, JobMessage)
    state.send(second.what, second.what.head())
    assert second.dropped.is_set()


def test_a_masked_update_is_not_sent_over_a_connection_that_the_server_has_not_heard_of():
    broker, work = FakeBroker(), queue.SimpleQueue()
    device = DeviceClient(0, broker.link(), work, AtOnce(), say=lambda _: None)
    device.start()
    head, update = Head(run="r", version=0), {"words": np.zeros(3, np.uint32)}
    device._session = "newer"  # the link is up again, but its event waits in the inbox
    assert device.link.is_up
    assert device.send(4, head, update, now=True) is None
    device._session = device.state.session
    assert device.send(4, head, None, now=True) is not None
