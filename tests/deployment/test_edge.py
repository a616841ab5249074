"""Does a cloud merge the models of its edges once each, whichever process dies and whatever an edge sends? In one process."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from in_process import InProcess

from perfeds2.deployment.checkpoint import Checkpoints
from perfeds2.deployment.edge import Edge, recall_jobs
from perfeds2.deployment.federation import Federation
from perfeds2.deployment.fields import DeploymentSpec
from perfeds2.deployment.transport import Presence, Reply, Request
from perfeds2.learning.learner import Learner
from perfeds2.learning.objectives import FedAvg
from perfeds2.runs.folder import Folder
from perfeds2.timeline.protocol import Protocol

EDGES, DEVICES, EDGE_ROUNDS, CLOUD_ROUNDS = 2, 2, 2, 3
EVERY = 11  # moves between two kills of the same; every move is the last before one of them
FIRST = {"w": np.array([1.0, -2.0], np.float32)}


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


class Hub:
    """The cloud's transport and the edges' backhaul, in memory."""

    def __init__(self):
        self.jobs, self.replies, self.time_s, self.sent = {}, [], 0.0, []
        self.present = Presence(range(EDGES))

    def dispatch(self, request, params):
        self.sent.append(request)
        self.jobs[request.ue] = request, dict(params)

    def cancel(self, ue):
        self.jobs.pop(ue, None)

    def poll(self, wait_s):
        self.time_s += wait_s
        came, self.replies = self.replies, []
        return [replace(reply, received_s=self.time_s) for reply in came]

    def changes(self):
        return self.present.changes()

    def troubles(self):
        return {}

    def key_of(self, ue):  # noqa: ARG002 (the interface)
        return None

    def now(self):
        return self.time_s


class Line:
    """An edge's end of the hub."""

    def __init__(self, cloud, ue):
        self.cloud, self.ue = cloud, ue

    @property
    def hub(self):
        return self.cloud.net

    def newest(self):
        return self.hub.jobs.get(self.ue)

    def answer(self, reply):
        self.hub.jobs.pop(self.ue)
        self.hub.replies.append(reply)


class Machine:
    """A server that can be killed: only its folder survives."""

    def __init__(self, folder, net, ues, protocol, beta, rounds=0):
        self.folder, self.make_net, self.shape = Folder(folder), net, (ues, protocol, beta, rounds)
        self.folder.parts.mkdir(parents=True)
        self.log = []
        self.boot()

    def boot(self):
        ues, protocol, beta, rounds = self.shape
        self.net, learner = self.make_net(), Learner(FedAvg(), beta=beta)
        own = DeploymentSpec(job_s=0.0, norm_factor=0.0)
        server = Federation(protocol, learner, dict(FIRST), self.net, ues, rounds, own, self.log.append)
        self.server, checkpoints = server, Checkpoints(self.folder)
        server.adopted = None if rounds else dict(FIRST)
        resumed = checkpoints.load(server) is not None
        if not resumed:
            checkpoints.save(server, 0.0)
        server.save = lambda state: checkpoints.save(state, 0.0)
        server.origin_s = -server.opened_s
        if rounds and resumed:
            recall_jobs(server)


class World:
    """A cloud, two edges and four devices, a step at a time."""

    def __init__(self, folder, cloud=None, rounds=CLOUD_ROUNDS):
        def answer(edge):
            return lambda job, params: Reply(
                job.ue, job.ticket, job.version, {"w": (params["w"] + np.float32(edge + 3 * job.ue)).astype(np.float32)}
            )

        protocol = cloud or Protocol(EDGES)
        self.cloud = Machine(folder / "cloud", Hub, EDGES, protocol, 1.0, rounds)
        self.machines = [
            Machine(
                folder / f"edge-{number}",
                lambda number=number: InProcess(
                    answer(number), lambda job, number=number: 1.0 + job.ue + number, DEVICES
                ),
                DEVICES,
                Protocol(DEVICES),
                0.25,
            )
            for number in range(EDGES)
        ]
        self.edges = [self.edge(number) for number in range(EDGES)]

    def edge(self, number):
        return Edge(self.machines[number].server, Line(self.cloud, number), EDGE_ROUNDS)

    def moves(self):
        """Everything that happens in one step, one after the other."""
        for edge in self.edges:
            yield edge.exchange
            yield lambda edge=edge: edge.federation.step(1.0)
        yield lambda: self.cloud.server.step(0.1)

    def run(self, kill=lambda _: None, most=200):
        done = 0
        for _ in range(most):
            for number in range(2 * EDGES + 1):
                list(self.moves())[number]()
                kill(done)
                done += 1
            if self.cloud.server.round == self.cloud.server.rounds:
                return done
        raise AssertionError(f"stuck: {self.cloud.log[-5:]} {self.machines[0].log[-5:]}")

    def kill_edge(self, number):
        self.machines[number].boot()
        self.edges[number] = self.edge(number)

    def kill_cloud(self):
        self.cloud.boot()


def weights(rounds):
    """The cloud's model after rounds that merge these edges and versions: two devices each, and a step of 0.25."""
    models = [FIRST["w"].astype(float)]
    for merges in rounds:
        changes = []
        for edge, version in merges:
            model = models[version]
            for _ in range(EDGE_ROUNDS):
                model = model - 0.25 * np.mean([model + edge + 3 * ue for ue in range(DEVICES)], axis=0)
            changes.append(models[version] - model)
        models.append(models[-1] - np.mean(changes, axis=0))
    return models[-1]


def check(world):
    """Every job was merged once, with all of its rounds and as it should, and nothing was lost."""
    server, quorum = world.cloud.server, world.cloud.server.protocol.quorum
    jobs = [(merge.ue, merge.version) for merge in server.record.merges]
    rounds = [jobs[first : first + quorum] for first in range(0, len(jobs), quorum)]
    assert len(rounds) == server.rounds
    np.testing.assert_allclose(server.params["w"], weights(rounds), rtol=1e-5)
    assert len(set(jobs)) == len(jobs)
    assert not server.record.losses
    for edge, machine in enumerate(world.machines):
        record = machine.server.record
        assert [each.round for each in record.adoptions] == [EDGE_ROUNDS * k for k in range(len(record.adoptions))]
        versions = [version for ue, version in jobs if ue == edge]
        assert [each.version for each in record.adoptions][: len(versions)] == versions
        assert len(record.adoptions) <= len(versions) + 1


def test_two_edges_and_a_cloud_train_as_written_down(tmp_path):
    world = World(tmp_path)
    world.run()
    check(world)
    assert [merge.version for merge in world.cloud.server.record.merges] == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERY))
@pytest.mark.parametrize("cloud", [Protocol(2), Protocol(1), Protocol(1, 1, "wait")], ids=["all", "any", "wait"])
def test_kills_of_edge_and_cloud_at_any_step_lose_and_double_nothing(tmp_path, cloud, first):
    world = World(tmp_path, cloud, rounds=4 // cloud.quorum)

    def kill(now):
        if now % EVERY == first:
            world.kill_edge(1)
        if (now + EVERY // 2) % EVERY == first:
            world.kill_cloud()

    world.run(kill)
    check(world)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"update": {"w": np.array([np.nan, 0], np.float32)}}, "not finite"),
        ({"update": {"w": np.full(2, 1e30, np.float32)}}, "above the bound"),
        ({"update": {"w": np.zeros(3, np.float32)}}, "expected float32[2]"),
        ({"update": {}}, "lacks arrays"),
        ({"version": 7}, "answers version 7"),
        ({"ticket": 99}, "not outstanding"),
    ],
)
def test_what_a_hostile_edge_sends_is_refused(tmp_path, wrong, said):
    world = World(tmp_path)
    line: Any = world.edges[0].backhaul
    sent = []

    def lie(reply):
        Line.answer(line, replace(reply, **wrong) if len(sent) == 1 else reply)
        sent.append(reply)

    line.answer = lie
    if "ticket" in wrong:  # then its job is still outstanding
        line.answer = lambda reply: (line.hub.replies.append(replace(reply, **wrong)), Line.answer(line, reply))
    world.run()
    check(world)
    assert any(said in line for line in world.cloud.log)


def test_an_edge_refuses_a_model_that_it_does_not_know(tmp_path):
    world = World(tmp_path)
    world.cloud.net.jobs[0] = Request(5, 0, 3), {"w": np.zeros(7, np.float32)}
    world.edges[0].exchange()
    assert "expected float32[2]" in world.cloud.net.replies[0].error
    assert not world.machines[0].server.record.adoptions
