"""Does a server that looks only at who changed do what one does that looks at everybody?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from in_process import InProcess
from slow_federation import SlowFederation
from test_federation_by_machine import LEARNER, Net

from perfeds2.deployment.crew import Crew
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.server import status_of
from perfeds2.deployment.status import SHOWN, STATES
from perfeds2.deployment.transport import Presence, Reply
from perfeds2.timeline.protocol import Protocol

OWN = DeploymentSpec(norm_factor=0, set_aside_after=2, readmit_s=7.0, wait_s=0, job_s=9.0)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "fail", "leave", "return", "restart", "time"]),
        st.integers(0, 99),
    ),
    min_size=30,
    max_size=80,
)
PROTOCOLS = st.builds(
    Protocol, st.integers(1, 3), st.none() | st.integers(0, 2), st.sampled_from(["restart", "wait", "ignore"])
)


class Remembering(Net):
    """Knows what was sent."""

    def __init__(self, ues):
        super().__init__(ues)
        self.sent = []

    def dispatch(self, request, params):
        self.sent.append(request)
        super().dispatch(request, params)


def play(kind, ues, protocol, events):
    """What happened, told by everything an outsider can see."""
    net = Remembering(ues)
    server = kind(protocol, LEARNER, {"w": np.zeros(1, np.float32)}, net, ues, 10**9, OWN)
    seen = []
    server.step(0.0)
    for what, number in events:
        net.time_s += 1.0
        ue = number % ues
        if what in ("arrive", "fail") and net.out:
            job = net.out.pop(sorted(net.out)[number % len(net.out)])
            reply = Reply(job.ue, job.ticket, job.version, {"w": np.full(1, number, np.float32)}, received_s=net.time_s)
            net.inbox.append(reply if what == "arrive" else replace(reply, error="crashed"))
        elif what in ("leave", "restart"):
            net.present.discard(ue)
            net.out = {ticket: job for ticket, job in net.out.items() if job.ue != ue}
        if what in ("return", "restart"):
            net.present.add(ue)
        server.step(0.0)
        status = status_of(server, "training")
        seen.append((status.states, [(each.ue, each.state, each.version, each.merges) for each in status.devices]))
    return seen, server.record, net.sent, server.params["w"].tolist(), server


@pytest.mark.slow
@settings(max_examples=25, deadline=None, phases=[Phase.generate])  # long stories: shrinking one takes minutes
@given(st.integers(2, 9), PROTOCOLS, EVENTS)
def test_who_looks_only_at_who_changed_does_what_one_does_who_looks_at_all(ues, protocol, events):
    protocol = replace(protocol, quorum=min(protocol.quorum, ues))
    seen, record, sent, weights, server = play(Federation, ues, protocol, events)
    slowly = play(SlowFederation, ues, protocol, events)
    assert sent == slowly[2]
    assert record == slowly[1]
    assert seen == slowly[0]
    assert weights == slowly[3]
    for ue, device in enumerate(server.devices):  # and each is filed where it belongs
        assert [state for state in STATES if ue in server.crew.states[state]] == [device.state]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [Protocol(3, 4, "wait"), Protocol(3, 60, "restart"), Protocol(3)], ids=str)
def test_a_round_looks_at_as_many_devices_however_many_there_are(protocol):
    """Counted: how often any device is looked up while ten rounds close, after everybody was handed the first model."""

    def looks(ues):
        net = InProcess(
            lambda job, _: Reply(job.ue, job.ticket, job.version, {"w": np.ones(1, np.float32)}),
            lambda job: 1.0 + job.ue / 7,
            ues,
        )
        server = Federation(
            protocol, LEARNER, {"w": np.zeros(1, np.float32)}, net, ues, 30, DeploymentSpec(norm_factor=0)
        )
        count = [0]

        class Counted(list):
            def __getitem__(self, place):
                count[0] += 1
                return super().__getitem__(place)

            def __iter__(self):
                count[0] += len(self)
                return super().__iter__()

        while server.round < 20:
            server.step(0.1)
        server.crew.devices = Counted(server.crew.devices)
        while server.round < 30:
            server.step(0.1)
            status_of(server, "training")
        return count[0]

    assert looks(2000) <= 1.3 * looks(200)


def test_the_status_of_many_devices_is_no_longer_than_that_of_some_and_counts_all():
    net = InProcess(
        lambda job, _: Reply(job.ue, job.ticket, job.version, {"w": np.ones(1, np.float32)}), lambda _: 1.0, 5000
    )
    server = Federation(Protocol(3, 4, "wait"), LEARNER, {"w": np.zeros(1, np.float32)}, net, 5000, 10)
    for ue in range(100, 150):
        net.present.discard(ue)
    server.step(0.1)
    status = status_of(server, "training")
    assert (status.ues, status.states["away"], status.states["working"], status.states["idle"]) == (5000, 50, 15, 4935)
    assert len(status.devices) <= SHOWN
    assert [each.ue for each in status.devices if each.state == "away"] == [100, 101, 102, 103]  # longest away


def test_who_was_away_between_two_looks_has_gone_and_come():
    here = Presence([0, 1])
    assert here.changes() == (set(), {0, 1})
    here.discard(0)
    here.add(0)
    here.add(2)
    here.discard(2)
    here.add(1)
    assert here.changes() == ({0, 2}, {0})
    assert here.changes() == (set(), set())


def test_who_left_while_it_waited_for_its_turn_is_passed_over_until_it_is_back():
    crew = Crew(3)
    crew.move([0, 1, 2], here=True)
    crew.move([1], here=False)
    assert crew.take_longest_idle(3) == [0, 2]
    crew.move([1], here=True)
    assert crew.take_longest_idle(3) == [1]
