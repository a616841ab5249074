"""What does the server make of what comes over the wire?"""

import warnings

import numpy as np
import pytest

pytest.importorskip("flwr")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower's dependencies have their own
    from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    from perfeds2.deployment.flower.transport import FlowerTransport, read_reply, to_arrays, to_records

from perfeds2.deployment.transport import Request

JOB = Request(7, 2, 4)


@pytest.fixture(autouse=True)
def as_in_a_run(monkeypatch):
    """Flower makes messages only where it runs an app."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Node:
    def __init__(self, node_id, name="", status="online"):
        self.node_id, self.name, self.status = node_id, name, status


class FewNodes(Grid):
    """What a transport needs of Flower's grid, and nothing else."""

    def __init__(self, nodes):
        self.nodes, self.pushed, self.replies = nodes, [], {}

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        self.pushed += messages
        return [str(len(self.pushed))]

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in message_ids if i in self.replies]

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def message(content):
    """A reply with a content, or with an error."""
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    return Message(content, reply_to=asked)


def answer(update, ticket=7, version=4, **more):
    return message(
        RecordDict(
            {
                "answer": ConfigRecord({"ticket": ticket, "version": version, "compute_s": 0.5} | more),
                "metrics": MetricRecord({"train_loss": 1.5}),
            }
            | to_records("update", update)
        )
    )


def test_a_reply_is_read_as_it_was_sent():
    reply = read_reply(answer({"w": np.arange(3, dtype=np.float32)}), JOB, 9.0)
    assert (reply.ue, reply.ticket, reply.version, reply.received_s, reply.compute_s) == (2, 7, 4, 9.0, 0.5)
    assert reply.update is not None
    assert reply.update["w"].tolist() == [0, 1, 2]
    assert reply.metrics == {"train_loss": 1.5}


@pytest.mark.parametrize(("code", "gone"), [(2, False), (8, False), (3, True), (5, True)])
def test_a_device_that_went_away_is_told_from_one_that_failed(code, gone):
    reply = read_reply(message(Error(code, "")), JOB, 9.0)
    assert reply.error
    assert reply.gone == gone
    assert reply.ticket == JOB.ticket


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"answer": ConfigRecord({"ticket": "seven"})}),
        RecordDict({"answer": ConfigRecord({"ticket": 7, "version": 4, "compute_s": 0.0}),
                    "update/000000": ConfigRecord({"bytes": b"no arrays"})}),
        RecordDict({"answer": ConfigRecord({"ticket": 7, "version": 4, "compute_s": 0.0}),
                    "update/000000": ConfigRecord({"bytes": [1, 2]})}),
    ],
    ids=["nothing", "words", "garbage", "no bytes"],
)  # fmt: skip
def test_what_cannot_be_read_is_an_error_of_that_device(content):
    reply = read_reply(message(content), JOB, 9.0)
    assert "unreadable" in (reply.error or "")
    assert not reply.gone


def test_arrays_of_any_size_arrive_as_they_were(monkeypatch):
    monkeypatch.setattr("perfeds2.deployment.flower.transport.PIECE_BYTES", 100)
    arrays = {"w": np.arange(400, dtype=np.float32).reshape(20, 20), "b": np.float32(3.0), "none": np.zeros((0, 2))}
    records = to_records("update", arrays)
    assert len(records) > 12
    came = to_arrays("update", RecordDict(dict(reversed(records.items()))))
    assert came is not None
    assert came.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(came[name], values)
        assert came[name].dtype == np.asarray(values).dtype
    assert to_arrays("model", RecordDict(dict(records))) is None


def test_devices_have_the_numbers_they_were_registered_with_and_others_get_no_jobs():
    nodes = [Node(11, "device-2"), Node(5, "device-0"), Node(3), Node(8, "device-9"), Node(4, "device-1", "offline")]
    transport = FlowerTransport(FewNodes(nodes), 4)
    assert transport.changes() == (set(), {0, 2})
    assert transport._node == {2: 11, 0: 5}


def test_a_job_goes_out_and_its_reply_comes_back():
    grid = FewNodes([Node(11, "device-0")])
    with FlowerTransport(grid, 1) as transport:
        assert transport.changes() == (set(), {0})
        assert transport.dispatch(Request(7, 0, 4), {"w": np.ones(2, np.float32)})
        sent = grid.pushed[0]
        assert sent.metadata.dst_node_id == 11
        assert dict(sent.content["job"]) == {"ticket": 7, "ue": 0, "version": 4}
        grid.replies["1"] = answer({"w": np.zeros(2, np.float32)})
        (reply,) = transport.poll(10.0)
    assert reply.ticket == 7
