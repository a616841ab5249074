"""What members of a round reveal to the server, and what they refuse, whatever it asks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from perfeds2.deployment.credentials import make_credentials
from perfeds2.deployment.crew import Device
from perfeds2.deployment.masking import Identity, KeyRefusedError, Keyring, MaskedUpdate, signed_text
from perfeds2.deployment.masks import fewest_left, from_words, to_words, unlocked, unmasked
from perfeds2.deployment.record import Lap, Record
from perfeds2.deployment.summing import Summing
from perfeds2.deployment.transport import Asked, Reply, Request, RoundMember
from perfeds2.deployment.validate import form_of, shortened
from perfeds2.errors import InputError
from perfeds2.timeline.protocol import IDLE

A, CLIP = 5, 2.0
ROUNDS = pytest.mark.parametrize("planned", [False, True])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("keys") / "credentials", A + 1)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("keys") / "strangers", A)


class Table:
    """A server and the members of a round, without a network."""

    def __init__(self, keys, dies=None, planned=False):
        authority = keys.clients.trust().decode()
        drawn = np.random.default_rng(0)
        self.updates = [drawn.normal(size=(4, 9)).astype(np.float32) / 9 for _ in range(A)]
        self.masks = [
            MaskedUpdate(Keyring(Identity(keys, ue, authority), "a-run"), 100 + ue, {"a": update}, CLIP, A)
            for ue, update in enumerate(self.updates)
        ]
        replies = [None if planned else Reply(ue, 100 + ue) for ue in range(A)]  # in planned rounds with the upload
        self.devices = [Device(ue, here=True, reply=replies[ue], version=0) for ue in range(A)]
        self.dies = dies or {}  # by UE: the step in which it stops to answer
        self.change: Callable[[int, str, Any], Any] = lambda _ue, _step, answer: answer  # what a member sends instead
        self.refused, self.asked = list[str | None](), list[str]()
        form = form_of({"a": self.updates[0]})
        self.summing = Summing(self.devices, CLIP, form, self.ask, lambda ue: self.masks[ue].keyring.signed, 100)

    def ask(self, device, kind, asked):
        self.asked.append(kind)
        if self.dies.get(device.ue) == kind:
            device.here = False
            return
        answer = self.change(device.ue, kind, self.answer(device.ue, kind, asked))
        self.refused.append(self.summing.refusal(device.ue, answer))

    def answer(self, ue, kind, asked):
        return self.masks[ue].answer(Request(0, ue, 0, kind, asked=asked))

    def members(self):
        return tuple(RoundMember(ue, 100 + ue, masks.keyring.signed) for ue, masks in enumerate(self.masks))

    def masked(self):
        """Let every member mask its update, and return the shares that each was sent."""
        uploads = [self.answer(ue, "mask", Asked(self.members())) for ue in range(A)]
        return [tuple(each["shares"][holder].tobytes().hex() for each in uploads) for holder in range(A)]

    def run(self):
        self.summing.begin()
        assert self.summing.advance()

    def sum_of(self, ues):
        """The sum that a server would get without masks, in fixed point."""
        words = np.array([to_words(self.updates[ue].ravel(), CLIP, A) for ue in ues])
        return from_words(np.add.reduce(words, axis=0, dtype=np.uint32), CLIP, A).astype(np.float32)

    def check(self, ues):
        """The server knows the sum of these members, bit for bit."""
        self.run()
        assert self.summing.failure is None
        assert self.summing.total is not None
        np.testing.assert_array_equal(self.summing.total["a"].ravel(), self.sum_of(ues))


# ---- members that die


@ROUNDS
def test_the_uploads_of_all_members_give_their_sum_bit_for_bit(keys, planned):
    table = Table(keys, dict.fromkeys(range(A), "shares"), planned)
    table.check(range(A))
    assert table.asked == ["train" if planned else "mask"] * A


def test_a_member_may_die_before_or_after_its_upload(keys):
    Table(keys, {3: "mask"}).check({0, 1, 2, 4})
    Table(keys, {3: "mask", 2: "shares"}).check({0, 1, 2, 4})


def test_a_second_member_may_die_while_the_masks_of_the_first_come_off(keys, monkeypatch):
    monkeypatch.setattr("perfeds2.deployment.summing.fewest_left", lambda _: 3)
    monkeypatch.setattr("perfeds2.deployment.masking.fewest_left", lambda _: 3)
    Table(keys, {0: "mask", 4: "seeds"}).check({1, 2, 3})


@pytest.mark.parametrize("dies", [{0: "mask", 1: "mask"}, {0: "mask", 1: "seeds"}])
def test_too_few_members_learn_nothing_and_give_their_updates_up(keys, dies):
    table = Table(keys, dies)
    table.run()
    assert table.summing.total is None
    assert "3 of 5 members are left, and 4 are needed" in (table.summing.settle(Record(), 9.0) or "")
    assert all(device.reply is None and device.version == IDLE for device in table.devices)


def test_a_member_that_is_gone_counts_as_zeros(keys):
    table, record = Table(keys, {2: "mask"}), Record(laps=[Lap(2, 1.0, 1.0, 0), Lap(3, 1.0, 1.0, 0)])
    table.check({0, 1, 3, 4})
    assert table.summing.settle(record, 9.0) == "gone: UE 2, whose updates count as zeros"
    updates = [device.reply.update["a"] for device in table.devices if device.reply and device.reply.update]
    assert len(updates) == A
    np.testing.assert_array_equal(np.sum(updates, axis=0).ravel(), table.sum_of({0, 1, 3, 4}))
    assert record.laps[2:] == [Lap(2, 0.0, 0.0, 0, 0.0)]


# ---- members that cheat


def forged_token(ue, step, answer):
    """What UE 2 uploads instead, so that the seeds of the others' masks do not open."""
    return answer | {"tokens": answer["tokens"] ^ 1} if ue == 2 and step in ("train", "mask") else answer


@ROUNDS
def test_a_forged_token_costs_a_message_and_no_more(keys, planned):
    table = Table(keys, planned=planned)
    table.change = forged_token
    table.check(range(A))
    assert table.summing.step == "shares"


def test_forged_and_missing_shares_are_left_out_while_enough_are_good(keys):
    table = Table(keys)

    def change(ue, step, answer):
        if step == "shares" and ue == 0:
            return {"shares": answer["shares"] ^ 1}
        return {"shares": 0 * answer["shares"]} if step == "shares" and ue == 1 else forged_token(ue, step, answer)

    table.change = change
    table.check(range(A))


def test_too_many_forged_shares_end_the_round_without_a_sum(keys):
    table = Table(keys)
    table.change = lambda ue, step, answer: (
        {"shares": answer["shares"] ^ 1} if step == "shares" and ue < 3 else forged_token(ue, step, answer)
    )
    table.run()
    assert table.summing.failure == "2 of the 3 shares needed came for UE 0"


@pytest.mark.parametrize("step", ["mask", "seeds"])
def test_an_upload_of_another_round_and_a_forged_seed_spoil_the_sum_noticeably(keys, step):
    """A sum of 36 random words is always too long; one of six would be short enough in up to 8 % of rounds."""
    table, other = Table(keys, {4: "mask"}), Table(keys)
    old = other.answer(2, "mask", Asked(other.members()))
    spoilt = {"mask": {"words": old["words"]}, "seeds": {"seeds": np.zeros((1, 32), np.uint8)}}[step]
    table.change = lambda ue, now, answer: answer | spoilt if now == step and ue == 2 else answer
    table.run()
    assert table.summing.failure == "the sum is longer than clipped updates can be, so a member sent something else"


def test_answers_of_another_form_are_refused(keys):
    table = Table(keys)
    table.change = lambda ue, step, answer: (
        {1: None, 2: answer | {"more": answer["words"]}, 3: answer | {"words": answer["words"][1:]}}.get(ue, answer)
        if step == "mask"
        else answer
    )
    table.run()
    assert [why for why in table.refused if why] == [
        *["has another answer than secure aggregation expects"] * 2,
        "has words of another shape than secure aggregation expects",
    ]


# ---- servers that cheat


def test_a_member_reveals_pair_masks_or_shares_of_a_member_and_never_both(keys):
    table = Table(keys)
    shares = table.masked()
    assert table.answer(0, "seeds", Asked(gone=(3,)))["seeds"].shape == (1, 32)
    with pytest.raises(InputError, match="a member that was gone as present"):
        table.answer(0, "shares", Asked(gone=(), shares=shares[0]))
    revealed = table.answer(0, "shares", Asked(gone=(3,), shares=shares[0]))["shares"]
    assert not revealed[3].any()
    assert revealed[[0, 1, 2, 4]].any(axis=1).all()
    for kind in ("seeds", "shares", "mask"):
        with pytest.raises(InputError, match="again, or too early"):
            table.answer(0, kind, Asked(table.members(), gone=(3, 4), shares=shares[0]))
    table.answer(1, "shares", Asked(shares=shares[1]))  # the other order
    with pytest.raises(InputError, match="again, or too early"):
        table.answer(1, "seeds", Asked(gone=(3,)))


def test_a_member_gives_no_share_of_a_member_it_was_not_told_is_gone(keys):
    table = Table(keys)
    shares = table.masked()
    with pytest.raises(InputError, match="the shares of all members that are left, and of no others"):
        table.answer(0, "shares", Asked(gone=(3,), shares=shares[0]))  # its pair mask with 3 was not asked for


def test_a_member_helps_only_if_enough_uploaded_and_it_is_one_of_them(keys):
    table = Table(keys)
    with pytest.raises(InputError, match="too early"):
        table.answer(0, "seeds", Asked(gone=(3,)))
    table.masked()
    with pytest.raises(InputError, match="2 of 5 members are gone"):
        table.answer(0, "seeds", Asked(gone=(2, 3)))
    for wrong in ((0,), (7,), (-1,)):
        with pytest.raises(InputError, match="counts this device"):
            table.answer(0, "seeds", Asked(gone=wrong))
    assert not table.answer(0, "seeds", Asked(gone=()))["seeds"].size


def test_a_replayed_share_does_not_open(keys):
    table, other = Table(keys), Table(keys)
    shares, old = table.masked(), other.masked()
    mixed = (*shares[0][:2], old[0][2], "not hexadecimal", shares[0][4])
    revealed = table.answer(0, "shares", Asked(shares=mixed))["shares"]
    assert revealed.any(axis=1).tolist() == [True, True, False, False, True]


def test_an_update_is_masked_for_one_list_only(keys):
    table = Table(keys)
    table.masked()
    with pytest.raises(InputError, match="again, or too early"):
        table.answer(0, "mask", Asked(table.members()))


def replaced_key(keys, ue=3, by=3):
    """A key of the server's own, signed by a device, for another one."""
    key = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    return Identity(keys, by, "").sign(signed_text("a-run", ue, key), key)


@pytest.mark.parametrize("how", ["another key", "another device", "a stranger", "another run", "own", "garbage"])
def test_keys_that_were_replaced_are_noticed(keys, strangers, how):
    table = Table(keys)
    members = list(table.members())
    signed = members[3].signed
    assert signed is not None
    forged = {
        "another key": replace(signed, key=table.masks[2].keyring.signed.key),
        "another device": replaced_key(keys, by=5),
        "a stranger": replaced_key(strangers),
        "another run": replace(Table(keys).masks[3].keyring.signed, signature=signed.signature),
        "own": replaced_key(strangers, 0, 0),
        "garbage": replace(signed, certificate="none", signature="xyz"),
    }[how]
    place = 0 if how == "own" else 3
    members[place] = replace(members[place], signed=forged)
    with pytest.raises(InputError, match="may have been replaced"):
        table.answer(0, "mask", Asked(tuple(members)))
    if how == "a stranger":  # also if the server names the strangers' authority
        ring = table.masks[0].keyring
        ring.identity = replace(ring.identity, authority=strangers.clients.trust().decode())
        with pytest.raises(InputError, match="may have been replaced"):
            table.answer(0, "mask", Asked(tuple(members)))


def test_lists_of_the_wrong_members_are_refused(keys):
    table = Table(keys)
    members = table.members()
    for wrong in (members[:3], (*members[:4], members[3]), (*members[1:], members[1])):
        with pytest.raises(InputError, match="5 different ones, with this device"):
            table.answer(0, "mask", Asked(wrong))
    assert fewest_left(A) == 4


def test_a_list_with_another_ticket_for_this_device_is_refused(keys):
    table = Table(keys)
    members = list(table.members())
    members[0] = replace(members[0], ticket=999)
    with pytest.raises(InputError, match="another key for this device"):
        table.answer(0, "mask", Asked(tuple(members)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_not_masked(keys, value):
    """It would count as zeros, or as the largest number, unnoticed. Its device counts as gone."""
    table = Table(keys)
    table.masks[2].update = {"a": np.full((4, 9), value, np.float32)}
    with pytest.raises(InputError, match="its update has numbers that are not finite"):
        table.answer(2, "mask", Asked(table.members()))
    broken = {"a": np.array([value], np.float32)}
    np.testing.assert_array_equal(shortened(broken, 0.0)["a"], [0.0])  # in a replay of its round


@ROUNDS
@pytest.mark.parametrize("how", ["another ticket", "another member"])
def test_a_server_that_names_different_members_learns_nothing(keys, how, planned):
    """Its lists give masks that do not cancel, and seeds that do not open."""
    table, other = Table(keys, planned=planned), keys.clients.trust().decode()
    stranger = Keyring(Identity(keys, A, other), "a-run").signed
    instead = RoundMember(3, 999) if how == "another ticket" else RoundMember(A, 103, stranger)
    upright = table.masks[1].answer

    def answer(request):
        members = list(table.members())
        members[3] = replace(members[3], ticket=instead.ticket) if how == "another ticket" else instead
        return upright(replace(request, asked=Asked(tuple(members))) if request.asked.members else request)

    table.masks[1].answer = answer
    table.run()
    assert table.summing.total is None


@ROUNDS
def test_a_server_that_lies_about_who_is_gone_can_learn_that_update(keys, planned):
    """The documented limit: it has the uploads of all, and gets the masks that the others share with one of them."""
    table = Table(keys, planned=planned)
    table.check(range(A))
    seeds, revealed = unlocked(table.summing.uploads), dict[tuple[int, int], bytes]()
    assert seeds is not None
    for ue in (0, 1, 2, 4):
        revealed[3, ue] = table.answer(ue, "seeds", Asked(gone=(3,)))["seeds"].tobytes()
    stolen = unmasked({3: table.summing.uploads[3].words}, seeds, revealed)
    np.testing.assert_array_equal(stolen, to_words(table.updates[3].ravel(), CLIP, A))


# ---- planned rounds


def test_members_of_a_planned_round_may_die_before_their_upload(keys):
    table, record = Table(keys, {3: "train"}, planned=True), Record()
    table.check({0, 1, 2, 4})
    assert table.summing.settle(record, 9.0) == "gone: UE 3, whose updates count as zeros"
    gone = table.devices[3]
    assert gone.reply is not None
    assert (gone.reply.ticket, gone.version, gone.arrived_s) == (103, 0, 9.0)
    assert record.laps == [Lap(3, 0.0, 0.0, 0, 0.0)]


def test_a_key_that_was_never_sent_is_asked_for(keys):
    table = Table(keys)
    members = (*table.members()[:3], RoundMember(3, 103), table.members()[4])
    with pytest.raises(InputError, match="the key of device 3 is not known here; the server must send it again"):
        table.answer(0, "train", Asked(members))
    table.answer(0, "train", Asked(table.members()))


def test_a_member_whose_certificate_was_revoked_is_refused_also_if_its_key_was_sent_before(tmp_path):
    keys = make_credentials(tmp_path / "credentials", A)
    table = Table(keys)
    ring, members = table.masks[0].keyring, table.members()
    ring.agreed([members[3]])
    older = ring.identity.authority
    keys.revoke(3)
    ring.identity = ring.identity.renewed(keys.clients.trust().decode())
    for sent in (members[3], replace(members[3], signed=None)):
        with pytest.raises(KeyRefusedError, match="the key of device 3 is signed by a certificate that was revoked"):
            ring.agreed([sent])
    with pytest.raises(InputError, match="older list of revoked devices"):
        ring.identity.renewed(older)
    with pytest.raises(InputError, match="older list of revoked devices"):  # or none
        ring.identity.renewed(keys.clients.certificate.read_text())
    ring.identity = replace(ring.identity, authority=keys.clients.certificate.read_text())
    with pytest.raises(KeyRefusedError, match="no list of revoked devices that is still valid"):
        ring.agreed([members[2]])
