"""Do the invariants of Algorithm 1 hold whatever devices do: arrive, fail, lie, leave, come back, or die with the server?"""

import copy
import itertools
from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.transport import Presence, Reply, Request
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg
from perfeds2.runs.folder import Folder
from perfeds2.timeline.protocol import IDLE, Protocol

LEARNER = Learner(FedAvg(), beta=0.5)
UES = st.integers(0, 5)


class Net:
    """A transport whose replies are chosen one by one."""

    def __init__(self, ues):
        self.present = Presence(range(ues))
        self.time_s = 0.0
        self.out: dict[int, Request] = {}  # ticket: job, at work on a device
        self.inbox: list[Reply] = []

    def dispatch(self, request, params):  # noqa: ARG002 (the interface)
        assert request.ue in self.present.here, "a job was sent to a device that is away"
        self.out[request.ticket] = request

    def cancel(self, ue):
        pass  # its devices do not listen while they work

    def poll(self, wait_s):  # noqa: ARG002 (the interface)
        came, self.inbox = self.inbox, []
        return came

    def changes(self):
        return self.present.changes()

    def key_of(self, ue):  # noqa: ARG002 (the interface)
        return None

    def troubles(self):
        return {}

    def now(self):
        return self.time_s


class FederationMachine(RuleBasedStateMachine):
    """The model: a list of what was merged, and the weights they make by hand."""

    @initialize(
        ues=st.integers(2, 6),
        quorum=st.integers(1, 6),
        bound=st.none() | st.integers(0, 3),
        stale=st.sampled_from(["restart", "wait", "ignore"]),
    )
    def begin(self, ues, quorum, bound, stale):
        self.ues, self.protocol = ues, Protocol(min(quorum, ues), bound, stale)
        self.net = Net(ues)
        self.federation = self.fresh()
        self.saved = {}
        self.federation.save = self.save
        self.sent: dict[int, float] = {}  # ticket: the number its honest update is made of
        self.weight = 0.0
        self.rounds = 0
        self.step()

    readmit_s = 0

    def fresh(self):
        own = DeploymentSpec(norm_bound=100.0, norm_factor=0, set_aside_after=3, wait_s=0, readmit_s=self.readmit_s)
        return Federation(self.protocol, LEARNER, {"w": np.zeros(1, np.float32)}, self.net, self.ues, 10**9, own)

    def save(self, federation):
        """What the checkpoint has is what was merged: kept by hand, in memory."""
        self.saved = {"params": copy.deepcopy(federation.params), "merges": list(federation.record.merges)}

    def step(self):
        self.net.time_s += 1.0
        before = self.federation.round
        self.federation.step(wait_s=0.0)
        merges, quorum = self.federation.record.merges, self.protocol.quorum
        for k in range(before, self.federation.round):  # the weights, by hand
            updates = [self.sent[m.ticket] for m in merges[k * quorum : (k + 1) * quorum]]
            self.weight -= 0.5 * sum(updates) / quorum

    def reply(self, job, update):
        return Reply(job.ue, job.ticket, job.version, update, received_s=self.net.time_s)

    def honest(self, job, value):
        self.sent[job.ticket] = float(value)
        return self.reply(job, {"w": np.full(1, value, np.float32)})

    def pick(self, number):
        out = sorted(self.net.out)
        return self.net.out.pop(out[number % len(out)])

    @precondition(lambda self: self.net.out)
    @rule(number=st.integers(0, 99), value=st.integers(-8, 8))
    def arrives(self, number, value):
        job = self.pick(number)
        if job.ue in self.net.present.here:
            self.net.inbox.append(self.honest(job, value))
        self.step()

    @precondition(lambda self: len(self.net.out) > 1)
    @rule(numbers=st.lists(st.integers(0, 99), min_size=2, max_size=5))
    def several_arrive_at_once(self, numbers):
        for number in numbers:
            if self.net.out:
                job = self.pick(number)
                if job.ue in self.net.present.here:
                    self.net.inbox.append(self.honest(job, number % 5))
        self.step()

    @precondition(lambda self: self.net.out)
    @rule(number=st.integers(0, 99), value=st.integers(1, 8))
    def arrives_twice(self, number, value):
        job = self.pick(number)
        if job.ue in self.net.present.here:
            self.net.inbox += [self.honest(job, value)] * 2
        self.step()

    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 99), ue=UES)
    def an_old_reply_is_sent_again(self, number, ue):
        tickets = sorted(self.sent)
        ticket = tickets[number % len(tickets)]
        if ticket not in self.net.out:
            replayed = {"w": np.full(1, 77.0, np.float32)}
            self.net.inbox.append(Reply(ue % self.ues, ticket, 0, replayed, received_s=self.net.time_s))
        self.step()

    @precondition(lambda self: self.net.out)
    @rule(number=st.integers(0, 99), how=st.sampled_from(["nan", "shape", "dtype", "name", "huge", "version", "crash"]))
    def a_bad_reply_comes(self, number, how):
        job = self.pick(number)
        good = np.full(1, 1.0, np.float32)
        update = {
            "nan": {"w": good * np.nan},
            "shape": {"w": np.ones((1, 1), np.float32)},
            "dtype": {"w": np.ones(1)},
            "name": {"w": good, "v": good},
            "huge": {"w": good * 1e6},
        }.get(how, {"w": good})
        version = job.version + (how == "version")
        error = "crashed" if how == "crash" else None
        if job.ue in self.net.present.here:
            if how == "huge":
                self.sent[job.ticket] = 100.0  # shortened to the bound on norms
            self.net.inbox.append(replace(self.reply(job, update), version=version, error=error))
        self.step()

    @rule(ue=UES)
    def leaves(self, ue):
        self.net.present.discard(ue % self.ues)
        self.net.out = {t: job for t, job in self.net.out.items() if job.ue != ue % self.ues}
        self.step()

    @rule(ue=UES)
    def returns(self, ue):
        self.net.present.add(ue % self.ues)
        self.step()

    @invariant()
    def nothing_staler_than_the_bound_is_merged(self):
        bound = self.protocol.max_staleness
        for merge in self.federation.record.merges:
            assert 0 <= merge.version <= merge.round
            assert bound is None or merge.round - merge.version <= bound

    @invariant()
    def every_round_merges_exactly_a_different_jobs_and_devices(self):
        merges, quorum = self.federation.record.merges, self.protocol.quorum
        assert len(merges) == quorum * self.federation.round
        assert len({merge.ticket for merge in merges}) == len(merges)
        for k, group in itertools.groupby(merges, key=lambda merge: merge.round):
            assert len({merge.ue for merge in group}) == quorum, k

    @invariant()
    def only_what_devices_sent_in_good_faith_is_in_the_weights(self):
        assert np.allclose(self.federation.params["w"], self.weight, rtol=1e-5, atol=1e-5)

    @invariant()
    def a_device_has_one_job_and_the_protocol_knows_of_it(self):
        for ue, device in enumerate(self.federation.devices):
            assert sum(job.ue == ue for job in self.net.out.values()) <= 1
            assert device.job is None or device.reply is None
            works = device.reply is not None or (device.job is not None and device.wanted)
            assert (device.version != IDLE) == works

    @invariant()
    def no_one_idles_who_could_work(self):
        if self.protocol.waits:
            return
        for ue in self.net.present.here:
            device = self.federation.devices[ue]
            assert device.set_aside or device.job is not None or device.reply is not None

    @invariant()
    def a_round_that_could_close_has_closed(self):
        if self.protocol.waits:
            return
        bound = self.protocol.max_staleness
        ready = [
            ue
            for ue, device in enumerate(self.federation.devices)
            if device.reply is not None and (bound is None or self.federation.round - device.version <= bound)
        ]
        assert len(ready) < self.protocol.quorum

    @invariant()
    def the_timeline_is_one_the_simulator_could_have_left(self):
        timeline = self.federation.timeline()
        assert timeline.rounds == self.federation.round

    @invariant()
    def the_checkpoint_has_all_that_was_merged(self):
        if self.federation.round:
            assert self.saved["merges"] == self.federation.record.merges
            assert np.array_equal(self.saved["params"]["w"], self.federation.params["w"])


FederationMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


class TestFederationByMachine(FederationMachine.TestCase):
    """Found by pytest."""


class CrashingMachine(FederationMachine):
    """The same, with a server that dies and starts again from its file."""

    def save(self, federation):
        super().save(federation)
        self.checkpoints.save(federation, 0.0)

    @initialize()
    def a_folder(self):
        import tempfile
        from pathlib import Path

        self.place = tempfile.TemporaryDirectory()
        self.folder = Folder(Path(self.place.name))
        self.folder.parts.mkdir()
        self.checkpoints = Checkpoints(self.folder)

    def teardown(self):
        if hasattr(self, "place"):
            self.place.cleanup()

    @precondition(lambda self: self.saved)
    @rule()
    def the_server_is_killed(self):
        before = self.federation
        self.federation = self.fresh()
        self.federation.save = self.save
        self.net.present = Presence(self.net.present.here)  # a new process asks anew
        self.checkpoints = Checkpoints(self.folder)
        assert self.checkpoints.load(self.federation) == 0.0
        assert self.federation.round == before.round
        assert self.federation.record.merges == before.record.merges
        assert [d.merged_in for d in self.federation.devices] == [d.merged_in for d in before.devices]
        assert self.federation.dispatcher.next_ticket >= before.dispatcher.next_ticket  # no ticket is given out twice
        self.net.out.clear()  # the old run's jobs answer no one
        self.net.inbox.clear()
        self.step()


CrashingMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


class TestFederationThatCrashes(CrashingMachine.TestCase):
    """Found by pytest."""
