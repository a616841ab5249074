"""With secure aggregation a federation merges the same updates, its server sees none, and no death stops a round."""

import json
import queue
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from scipy import stats
from worlds import check, survive_kills, world

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.masking import KeyRefusedError, Keyring, MaskedUpdate, signed_text
from perfeds2.deployment.masks import fewest_left, from_words, to_words
from perfeds2.deployment.messages import Head, Here, JobMessage, Run, read
from perfeds2.deployment.mqtt.runs import KEY_NOTE, key_notes
from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.replay_run import CLOUD, _job_by_job
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.summing import Summing
from perfeds2.deployment.suspects import Suspects
from perfeds2.deployment.transport import Reply
from perfeds2.errors import InputError

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
        summing = made.federation.uploads.summing
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
def test_rounds_go_on_when_a_member_leaves_in_a_sum_and_never_comes_back(secure, sums, schedule):
    made = secure(rounds=3, quorum=4, schedule=schedule)
    while made.federation.uploads.summing is None:
        made.step()
    ue = made.federation.uploads.summing.devices[0].ue
    made.devices[ue].link.kill()
    made.run(most=200)
    check_with_zeros(made)
    assert sums == [3, 4, 4]


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
    while made.federation.uploads.summing is None:
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
    while made.federation.uploads.summing is None:
        made.step()
    device, summing = made.devices[2], made.federation.uploads.summing
    device.state.work = slow = queue.SimpleQueue()
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
    made = secure(rounds=24, quorum=4, schedule=schedule)
    survive_kills(made, 5, 50)
    check_with_zeros(made)
    assert len(sums) >= 24
    assert made.federation.round == 24


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


# ---- one hostile device


@pytest.fixture
def hostile(secure, monkeypatch):
    """Make a federation in which device 2 changes what it answers, and what it announces."""

    def make(change=lambda _kind, answer: answer, announce=lambda signed, _identity: signed, **given):
        def answered(self, request):
            answer = original(self, request)
            return change(request.kind, answer) if self.keyring.identity.number == 2 else answer

        def announced(self):
            started(self)
            if self.identity.number == 2:
                self.signed = announce(self.signed, self.identity)

        original, started = MaskedUpdate.answer, Keyring.__post_init__
        monkeypatch.setattr(MaskedUpdate, "answer", answered)
        monkeypatch.setattr(Keyring, "__post_init__", announced)
        return secure(**{"readmit-s": 0.0} | given)

    return make


def aside(made):
    return [device.ue for device in made.federation.devices if device.set_aside]


ZERO = "00" * 32  # every secret shared with it is zero
UNUSABLE = {
    "of low order": lambda _, identity: identity.sign(signed_text("a-run", 2, ZERO), ZERO),
    "of another curve": lambda _, identity: identity.sign(signed_text("a-run", 2, "ab"), "ab"),
    "unsigned": lambda signed, _: replace(signed, signature="00"),
    "of another run": lambda signed, identity: identity.sign(signed_text("b", 2, signed.key), signed.key),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", UNUSABLE)
def test_a_device_that_announces_an_unusable_key_is_refused_and_no_other_is_blamed(hostile, sums, key):
    made = hostile(announce=UNUSABLE[key])
    made.run()
    assert sums == [5] * 3
    assert [device.failures for device in made.federation.devices] == [0] * 6
    assert made.federation.crew[2].merges == 0
    assert "trouble: UE 2: the key of device 2 is not" in "\n".join(made.log)
    assert not [line for line in made.log if line.startswith(("failed", "set aside"))]


@pytest.mark.slow
@ROUNDS
@pytest.mark.parametrize("ues", [6, 5])  # also if every round needs every device
def test_a_device_that_uploads_garbage_is_found_and_set_aside(hostile, sums, schedule, ues):
    def garbage(_, answer):
        return answer | ({"words": answer["words"] * 7 + 5} if "words" in answer else {})

    made = hostile(garbage, devices=ues, schedule=schedule, rounds=4, quorum=5 if ues == 6 else 4)
    made.run()
    assert aside(made) == [2]
    assert sum("not summed" in line for line in made.log) <= 4
    check_with_zeros(made)
    assert len(sums) == 4


@pytest.mark.slow
@ROUNDS
def test_a_device_whose_shares_do_not_open_is_set_aside(hostile, sums, schedule):
    def forged(_, answer):
        return answer | {name: answer[name] ^ 1 for name in ("digests", "tokens") if name in answer}

    made = hostile(forged, schedule=schedule)
    made.run()
    assert aside(made) == [2]
    assert "set aside: UE 2 for bad shares of its mask" in made.log
    assert sums == [5] * 3


@pytest.mark.slow
@ROUNDS
def test_a_complaint_about_a_good_key_stops_no_round_and_blames_no_one(hostile, sums, schedule):
    def complain(kind, answer):
        if kind in ("train", "mask"):
            raise KeyRefusedError(3, "is not to my liking")
        return answer

    made = hostile(complain, schedule=schedule, devices=5)
    made.run()
    assert aside(made) == []
    assert [device.failures for device in made.federation.devices] == [0] * 5
    assert sums == [4] * 3
    check_with_zeros(made)


@pytest.mark.slow
def test_devices_learn_that_another_was_revoked_without_a_new_run(tmp_path):
    keys = make_credentials(tmp_path / "credentials", 6)
    made = world(tmp_path, keys, **SECURE | {"rounds": 4})
    while made.federation.round < 2:
        made.step()
    keys.revoke(4)
    runs = made.devices[0].state.ready
    link: Any = made.transport.link
    link.cut()  # as a broker does that is started again
    link.connect()
    made.run()
    assert made.devices[0].state.ready is runs
    revoked = keys.serials(4)
    assert all(device.state.secrets.keyring.identity.trusted.revoked == revoked for device in made.devices.values())


@pytest.mark.parametrize(
    ("owner", "given", "why"),
    [
        (Owner(secure_only=True), {"secure-aggregation": False}, "requires secure aggregation"),
        (Owner(least_quorum=6), {}, r"a round has 5 updates, and this device requires 6 \(--least-quorum"),
        (Owner(clip_at_most=4.9), {}, r"clips to 5.0, and this device requires at most 4.9 \(--clip-at-most"),
        (Owner(clip_at_most=4.9), {"secure-aggregation": False, "clip": None}, "clips to None"),
    ],
)
def test_a_device_takes_part_only_in_runs_that_its_owner_allows(owner, given, why, keys):
    run = travelling(Setup.from_texts(SECURE | given), "a-run", authority=keys.clients)
    with pytest.raises(InputError, match=why):
        prepare(run, owner, 0)
    Owner(secure_only=True, least_quorum=5, clip_at_most=5.0).check(Setup.from_texts(SECURE))


@pytest.mark.parametrize("members", [4, 5, 6, 9, 20])
def test_the_one_who_spoils_sums_is_alone_after_few_of_them(members):
    most = members - fewest_left(members)
    for culprit in range(members):
        suspects, found, spoilt = Suspects(), None, 0
        for _ in range(100):
            left = set(range(members)) - suspects.left_out(range(members), most)
            assert len(left) >= fewest_left(members)
            if culprit in left:
                found, spoilt = suspects.spoilt(left), spoilt + 1
            else:
                suspects.good(left)
            if found is not None:
                break
        assert found == culprit
        assert spoilt <= max(members // max(most, 1), members.bit_length() + 1)


def test_who_only_spoils_when_another_is_out_frames_no_one_alone():
    suspects = Suspects()
    assert suspects.spoilt(range(5)) is None
    for _ in range(5):
        suspects.good(set(range(5)) - suspects.left_out(range(5), 1))
    assert suspects.ues == set()  # all were in good sums since


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
    while made.federation.uploads.summing is None:
        made.step()
    device = made.federation.uploads.summing.devices[0]
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


def test_a_server_that_can_make_certificates_of_devices_says_so(tmp_path):
    keys, secure = make_credentials(tmp_path / "keys", 1), Setup.from_texts(SECURE)
    assert key_notes(secure, keys) == [KEY_NOTE]
    assert key_notes(Setup.from_texts({}), keys) == []
    keys.clients.key.unlink()
    assert key_notes(secure, keys) == []
