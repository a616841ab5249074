"""With secure aggregation a federation merges the same updates, its server sees none, and no death stops a round."""

import json
import queue
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load
from scipy import stats
from worlds import check, survive_kills, world

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.masking import MaskedUpdate
from perfeds2.deployment.mqtt.wire import Head, Here, JobMessage, Run, read
from perfeds2.deployment.replay_run import CLOUD, _job_by_job
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.summing import Summing
from perfeds2.deployment.transport import Reply
from perfeds2.errors import InputError
from perfeds2.privacy.masks import from_words, to_words

SECURE = {
    "devices": 6,
    "quorum": 5,
    "rounds": 3,
    "max-staleness": 3,
    "job-s": 60.0,
    "algorithm": "FedAvgS2",
    "clip": 5.0,
    "secure-aggregation": True,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("keys") / "credentials", 6)


@pytest.fixture
def secure(tmp_path, keys):
    """Make a federation with secure aggregation, in memory."""
    return lambda **given: world(tmp_path, keys, **SECURE | given)


ROUNDS = pytest.mark.parametrize("schedule", ["first", "round_robin"])


@pytest.fixture
def sums(monkeypatch):
    """Compare every sum that a server learns with the sum of the plain words, bit for bit; return how many it learned."""
    plain, learned = {}, []

    def mask(self, members):
        plain[self.ticket] = np.concatenate([self.update[name].ravel() for name in sorted(self.update)])
        return original_mask(self, members)

    def add_up(self, seeds):
        original_sum(self, seeds)
        if self.total is not None:
            tickets = [self.tickets[member] for member in self.left]
            words = [to_words(plain[ticket], self.clip, self.members) for ticket in tickets]
            expected = from_words(np.add.reduce(words, axis=0, dtype=np.uint32), self.clip, self.members)
            total = np.concatenate([self.total[name].ravel() for name in sorted(self.total)])
            np.testing.assert_array_equal(total, expected.astype(np.float32))
            learned.append(len(tickets))

    original_mask, original_sum = MaskedUpdate._mask, Summing._add_up
    monkeypatch.setattr(MaskedUpdate, "_mask", mask)
    monkeypatch.setattr(Summing, "_add_up", add_up)
    return learned


def check_with_zeros(made):
    """The devices' own program comes to the same weights, if updates of members that were gone count as zeros."""
    federation = made.federation
    scales = {(lap.ue, lap.version): lap.scale for lap in federation.record.laps if lap.scale != 1}
    again = _job_by_job(
        made.setup, federation.learner, federation.timeline(), [made.setup.task(0)] * made.setup.ues, {CLOUD: scales}
    )
    for name, values in federation.params.items():
        np.testing.assert_allclose(values, again[name], rtol=0, atol=1e-6 * np.abs(values).max())


@pytest.mark.slow
@ROUNDS
def test_the_simulator_comes_to_the_same_weights(secure, sums, schedule):
    made = secure(schedule=schedule)
    made.run()
    check(made)
    assert sums == [5, 5, 5]


@pytest.mark.slow
@ROUNDS
@pytest.mark.slow
def test_correlated_noise_on_sums_under_masks_is_replayed(secure, sums, schedule):
    made = secure(schedule=schedule, rounds=5, **{"dp-noise": 0.5, "dp-bands": 3})
    made.run()
    check(made)
    assert sums == [5] * 5
    made.federation.learner = replace(made.federation.learner, bands=2)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(made)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "trips"), [("first", 2), ("round_robin", 1)])
def test_a_round_in_which_all_survive_takes_one_further_round_trip_or_none(secure, monkeypatch, schedule, trips):
    made, sent = secure(schedule=schedule, quorum=6), []
    take = type(made.broker).take.__get__(made.broker)
    monkeypatch.setattr(made.broker, "take", lambda topic, *more: (sent.append(topic), take(topic, *more))[1])
    made.run()
    assert sum("/job/" in topic for topic in sent) == 18 * trips
    assert sum(topic.endswith("/head") for topic in sent) == 18 * trips


@pytest.mark.slow
@ROUNDS
def test_keys_and_certificates_are_sent_once(secure, monkeypatch, schedule):
    made, lists = secure(schedule=schedule, quorum=6), []
    take = type(made.broker).take.__get__(made.broker)

    def watched(topic, data, retain):
        if b'"members":[{' in data:
            lists.append(data.count(b"BEGIN CERTIFICATE"))
        take(topic, data, retain)

    monkeypatch.setattr(made.broker, "take", watched)
    made.run()
    assert lists == [*[5] * 6, *[0] * 12]
    made.devices[2].link.kill()
    made.start_device(2)  # with another key, and without those of the others
    made.federation.rounds = 4
    made.run()
    assert sorted(lists[-6:]) == [1, 1, 1, 1, 1, 5]


@pytest.mark.slow
@ROUNDS
def test_a_curious_server_sees_no_update(secure, monkeypatch, schedule):
    """Whatever the broker and the server get from devices: numbers are masked, and the rest is short."""
    made, seen = secure(rounds=2, schedule=schedule), []
    monkeypatch.setattr(made.broker, "take", lambda *sent: (seen.append(sent), take(*sent))[1])
    take = type(made.broker).take.__get__(made.broker)
    made.run()
    replies = [data for topic, data, _ in seen if "/reply/" in topic and not topic.endswith("/head")]
    arrays = [load(data) for data in replies]
    size = sum(values.size for values in made.federation.params.values())
    masked = [each["words"] for each in arrays if "words" in each]
    assert len(masked) == 10
    assert all(sum(values.nbytes for values in each.values()) < size for each in arrays if "words" not in each)
    for words in masked:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-9  # the keys are new in every run
    heads = [json.loads(data) for topic, data, _ in seen if topic.endswith("/head")]
    assert max(len(json.dumps(head)) for head in heads) < 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "dies", "left"),
    [
        ("first", {2: "mask"}, 5),
        ("first", {4: "mask", 2: "seeds"}, 4),
        ("first", {4: "mask", 2: "shares"}, 5),
        ("round_robin", {2: "train"}, 5),
        ("round_robin", {4: "train", 2: "seeds"}, 4),
        ("round_robin", {4: "train", 2: "shares"}, 5),
    ],
)
def test_a_device_killed_in_a_step_does_not_stop_the_round(secure, sums, schedule, dies, left):
    made = secure(rounds=2, quorum=6, schedule=schedule)
    while made.federation.round < 2:
        made.clock_s += 0.1
        made.broker.pump()
        summing = made.federation.summing
        for ue in [ue for ue, step in dies.items() if summing is not None and summing.step == step]:
            made.devices[ue].link.kill()
            made.start_device(ue)  # without what it knew
            del dies[ue]
        while not made.worker.work.empty():
            made.worker.step()
        made.federation.step(wait_s=0.0)
    check_with_zeros(made)
    assert sums == [left, 6]


@pytest.mark.slow
@ROUNDS
def test_doubled_answers_count_once(secure, sums, monkeypatch, schedule):
    """Those of every step: a member that dies makes the server ask for seeds and shares."""
    made, kinds = secure(rounds=1, quorum=6, schedule=schedule), set()
    take = type(made.broker).take.__get__(made.broker)

    def twice(topic, data, retain):
        kinds.update(kind for kind in ("words", "seeds", "shares") if "/reply/" in topic and kind.encode() in data)
        for _ in range(2 if "/reply/" in topic else 1):
            take(topic, data, retain)

    monkeypatch.setattr(made.broker, "take", twice)
    while made.federation.summing is None:
        made.step()
    made.devices[2].link.kill()
    made.run()
    assert kinds == {"words", "seeds", "shares"}
    assert sums == [5]


@pytest.mark.slow
@ROUNDS
@pytest.mark.parametrize("meanwhile", ["uploads", "confirms", "leaves"])
def test_no_upload_comes_after_its_member_counts_as_gone(secure, sums, schedule, meanwhile):
    """A member that takes too long is asked to cancel. It is gone once it has confirmed, or left."""
    made = secure(rounds=1, quorum=6, schedule=schedule)
    while made.federation.summing is None:
        made.step()
    device, summing = made.devices[2], made.federation.summing
    device.work = slow = queue.SimpleQueue()
    for _ in range(20):
        made.step()
    made.clock_s += 61
    made.federation.step(wait_s=0.0)
    assert (summing.left, summing.step) == ([*range(6)], "train" if schedule == "round_robin" else "mask")
    if meanwhile == "leaves":
        device.link.cut()
    if meanwhile == "confirms":
        made.broker.pump()
    made.worker.work.put(slow.get())
    made.worker.step()
    device.link.connect()
    assert any(b"words" in data for *_, data, _ in made.broker.waiting) == (meanwhile == "uploads")
    made.run()
    assert sums == [6 if meanwhile == "uploads" else 5]
    assert made.federation.crew[2].failures == (meanwhile == "confirms")


@pytest.mark.slow
@ROUNDS
def test_random_kills_leave_every_sum_as_it_is_without_masks(secure, sums, schedule):
    made = secure(rounds=12, quorum=4, schedule=schedule)
    survive_kills(made, 5, 30)
    check_with_zeros(made)
    assert len(sums) >= 12
    assert made.federation.round == 12


@pytest.mark.slow
@ROUNDS
def test_a_broker_that_replaces_a_key_is_noticed_and_gets_no_update(secure, sums, monkeypatch, schedule):
    made, uploads = secure(rounds=1, schedule=schedule), []
    take = type(made.broker).take.__get__(made.broker)

    def tamper(topic, data, retain):
        if "/job/" in topic and b"members" in data:
            told = json.loads(data)
            for member in told["asked"]["members"]:
                member.get("signed", {})["key"] = "00" * 31 + "09"
            data = json.dumps(told).encode()
        if "/reply/" in topic and b"words" in data:
            uploads.append(topic)
        take(topic, data, retain)

    monkeypatch.setattr(made.broker, "take", tamper)
    for _ in range(60):
        made.step()
    assert made.federation.round == 0
    assert uploads == sums == []
    assert any("may have been replaced" in line for line in made.log)


def test_a_server_that_names_no_authority_gets_no_key(secure):
    made = secure(rounds=1)
    made.credentials = None
    made.start_server()
    for _ in range(5):
        made.step()
    assert "did not say which authority" in made.federation.dispatcher.troubles[0]


def test_a_step_carries_no_metrics_and_a_key_no_novel(secure):
    """Both would reach the record or the other members unchecked."""
    made = secure(rounds=1)
    while made.federation.summing is None:
        made.step()
    device = made.federation.summing.devices[0]
    job = device.job
    assert job is not None
    made.federation.take(Reply(device.ue, job.ticket, job.version, metrics={"test_accuracy": 7.0}))
    assert "reports more than a step of secure aggregation asks for" in made.log[-1]
    long = {"key": "00" * 32, "signature": "00" * 72, "certificate": "x" * 2000}
    assert read(Here, json.dumps({"here": True, "signed": long}).encode()) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clip": None}, "needs --clip: devices clip"),
        ({"quorum": 2}, "from 3 to 100 updates in a round, and FedAvgS2 has 2"),
        ({"algorithm": "FedAvg-ASY"}, "FedAvg-ASY has 1; set --quorum"),
        ({"algorithm": "FedAsync"}, "FedAsync cannot be combined .*sees? only their sum"),
        ({"merge": "median"}, "weighs, compares or keeps single uploads"),
        ({"bits": 8}, "--bits: masked numbers have 32 bits"),
    ],
)
def test_what_needs_single_updates_is_refused(given, why):
    with pytest.raises(InputError, match=why):
        _ = Setup.from_texts(SECURE | given).algorithm


def test_messages_are_as_before_without_it():
    job = JobMessage(run="r", version=1, ticket=2, kind="train", key="0" * 64)
    known = {"run", "version", "bytes", "sha256", "ticket", "kind", "key"}
    assert json.loads(job.to_bytes()).keys() == known
    assert json.loads(Head(run="r", version=1).to_bytes()).keys() == {
        *("run", "version", "bytes", "sha256", "metrics", "compute_s")
    }
    assert json.loads(Run(run="r", settings="").to_bytes()).keys() == {"run", "settings", "since_s", "own_model"}
