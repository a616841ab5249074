"""Masks cancel in the sum, hide every upload, and come off again when members are missing."""

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy import stats

from perfeds2.deployment.masks import (
    HALF,
    agree,
    digest_of,
    fewest_left,
    from_words,
    masked,
    opened,
    pad,
    pairs_of,
    threshold_of,
    to_words,
    unlocked,
    unmasked,
)
from perfeds2.privacy.sharing import PRIME, join, new_secret, split

CONTEXT = b"the list"


@pytest.fixture
def same_seeds(monkeypatch):
    """Draw the seeds of the members' own masks from a fixed seed."""
    drawn = np.random.default_rng(7)
    monkeypatch.setattr("perfeds2.deployment.masks.new_secret", lambda: drawn.bytes(31).rjust(32, b"\0"))


class Round:
    """The members of a round, who have all uploaded."""

    def __init__(self, members, size=50, clip=2.0, seed=0):
        drawn = np.random.default_rng(seed).uniform(-1, 1, (members, size))
        self.words = [to_words(row, clip, members) for row in drawn]
        private = [X25519PrivateKey.from_private_bytes(bytes([seed, each] * 16)) for each in range(members)]
        keys = [each.public_key().public_bytes_raw() for each in private]
        shared = [
            {other: agree(each, key) for other, key in enumerate(keys) if other != own}
            for own, each in enumerate(private)
        ]
        self.pairs = [pairs_of(each, own, CONTEXT) for own, each in enumerate(shared)]
        uploads = [masked(words, own, self.pairs[own]) for own, words in enumerate(self.words)]
        self.uploads, self.kept = [each for each, _ in uploads], [share for _, share in uploads]

    def share(self, of, holder):
        """The share that a holder has of a member's seed."""
        if of == holder:
            return self.kept[of]
        share = opened(self.uploads[of].shares[holder].tobytes(), self.pairs[holder][of])
        assert share is not None
        return share

    def total(self, left, holders=None):
        """What the server computes when only these members have uploaded."""
        members = range(len(self.words))
        seeds = {
            of: join({each: self.share(of, each) for each in holders or left}, threshold_of(len(members)))
            for of in left
        }
        revealed = {(one, gone): self.pairs[one][gone].mask for one in left for gone in members if gone not in left}
        return unmasked({one: self.uploads[one].words for one in left}, seeds, revealed)


@pytest.mark.parametrize("members", [3, 4, 5, 6])
def test_the_sum_is_that_of_the_plain_words_whoever_is_missing(members):
    made = Round(members)
    for count in range(fewest_left(members), members + 1):
        for left in itertools.combinations(range(members), count):
            plain = np.sum([made.words[one] for one in left], axis=0, dtype=np.uint32)
            np.testing.assert_array_equal(made.total(left), plain)


def test_any_t_holders_reveal_the_same_sum():
    made, everyone = Round(5), range(5)
    sums = [made.total(everyone, holders) for holders in itertools.combinations(everyone, threshold_of(5))]
    assert all(np.array_equal(each, sums[0]) for each in sums)


def test_a_sum_of_clipped_values_never_wraps():
    for members in (3, 7, 50, 100):
        for value in (1.5, -1.5):
            total = to_words(np.array([value]), 1.5, members) * np.uint32(members)
            assert from_words(total, 1.5, members) == pytest.approx(value * members)
            assert abs(int(total.view(np.int32)[0])) <= HALF


def test_a_value_beyond_the_clip_counts_as_the_clip():
    words = to_words(np.array([7.5, -7.5]), 1.5, 3)
    np.testing.assert_allclose(from_words(words, 1.5, 3), [1.5, -1.5])


def test_fixed_point_is_as_fine_as_float32_needs():
    values = np.random.default_rng(1).uniform(-1, 1, 1000)
    assert np.abs(from_words(to_words(values, 1.0, 50), 1.0, 50) - values).max() < 2e-8


@pytest.mark.usefixtures("same_seeds")
def test_masked_words_are_uniform_and_plain_ones_are_not():
    made = Round(3, size=100_000)

    def p_value(words):
        counts = [np.bincount(words.view(np.uint8)[place::4], minlength=256) for place in range(4)]
        return min(stats.chisquare(each).pvalue for each in counts)

    assert p_value(made.words[0]) < 1e-9
    assert min(p_value(each.words) for each in made.uploads) > 0.001


@pytest.mark.usefixtures("same_seeds")
def test_a_late_upload_stays_hidden_while_another_is_missing():
    """The others have given up its owner, and revealed the masks they share with it: its own mask is left."""
    made, late, missing = Round(4, size=20_000), 1, 3
    assert unlocked({each: upload for each, upload in enumerate(made.uploads) if each != missing}) is None
    shown = made.uploads[late].words.copy()
    for other in (0, 2, missing):
        mask = pad(made.pairs[other][late].mask, shown.size)
        shown -= mask if late < other else -mask
    assert stats.chisquare(np.bincount(shown.view(np.uint8), minlength=256)).pvalue > 0.01


@pytest.mark.usefixtures("same_seeds")
def test_members_in_league_with_the_server_learn_the_sum_of_the_others_and_no_more():
    """They know their own updates and all masks but that between the other two. Of one other, they would know all."""
    made = Round(4, size=20_000)
    seeds = unlocked(dict(enumerate(made.uploads)))
    assert seeds is not None
    shown = {}
    for other in (1, 3):
        masks = {(other, each): made.pairs[each][other].mask for each in (0, 2)}
        shown[other] = unmasked({other: made.uploads[other].words}, seeds, masks)
        assert stats.chisquare(np.bincount(shown[other].view(np.uint8), minlength=256)).pvalue > 0.01
    np.testing.assert_array_equal(shown[1] + shown[3], made.words[1] + made.words[3])


def test_fewer_than_t_shares_fit_every_secret():
    """Whatever the secret, some last share would complete the t − 1 shares to it: they exclude nothing."""
    threshold = 3
    shares = dict(enumerate(split(new_secret(), threshold, 5)))
    known = {0: shares[0], 3: shares[3]}
    for wanted in (0, 1, PRIME - 1):
        # the value at 0 is linear in the share of holder 4
        at = [int.from_bytes(join(known | {4: value.to_bytes(32)}, threshold)) for value in (0, 1)]
        last = (wanted - at[0]) * pow(at[1] - at[0], -1, PRIME) % PRIME
        assert int.from_bytes(join(known | {4: last.to_bytes(32)}, threshold)) == wanted
    with pytest.raises(ValueError, match="3 shares are needed, got 2"):
        join(known, threshold)


@pytest.mark.parametrize("members", [3, 4, 7])
def test_one_share_less_than_t_is_not_enough(members):
    seed, threshold = new_secret(), threshold_of(members)
    shares = split(seed, threshold, members)
    assert seed not in shares
    assert join(dict(enumerate(shares[:threshold])), threshold) == seed
    assert join(dict(enumerate(shares[: threshold - 1])), threshold - 1) != seed


def test_a_share_opens_only_for_its_holder_and_only_unchanged():
    made = Round(4)
    sealed = made.uploads[0].shares[1].tobytes()
    assert digest_of(made.share(0, 1)) == made.uploads[0].digests[1].tobytes()
    assert opened(sealed, made.pairs[2][0]) is None  # another holder
    assert opened(made.uploads[1].shares[0].tobytes(), made.pairs[1][0]) is None  # sent back to its sender
    assert opened(bytes([sealed[0] ^ 1]) + sealed[1:], made.pairs[1][0]) is None


def test_a_share_of_another_length_does_not_open():
    made = Round(3)
    short = ChaCha20Poly1305(made.pairs[0][1].sends).encrypt(bytes(12), b"short", None)
    assert opened(short, made.pairs[1][0]) is None


def test_members_with_different_lists_share_nothing():
    private = [X25519PrivateKey.generate() for _ in range(2)]
    secrets = [
        agree(one, other.public_key().public_bytes_raw()) for one, other in zip(private, private[::-1], strict=True)
    ]
    one, other = pairs_of({1: secrets[0]}, 0, b"a list"), pairs_of({0: secrets[1]}, 1, b"another")
    assert set(one[1]).isdisjoint(other[0])
    same = pairs_of({0: secrets[1]}, 1, b"a list")[0]
    assert (same.mask, same.sends, same.gives) == (one[1].mask, one[1].receives, one[1].needs)


@pytest.mark.parametrize("members", [3, 4, 7])
def test_all_uploads_open_their_sum_and_fewer_do_not(members):
    made = Round(members)
    uploads = dict(enumerate(made.uploads))
    seeds = unlocked(uploads)
    assert seeds is not None
    words = {number: upload.words for number, upload in uploads.items()}
    np.testing.assert_array_equal(unmasked(words, seeds, {}), np.sum(made.words, axis=0, dtype=np.uint32))
    for gone in range(members):
        assert unlocked({number: upload for number, upload in uploads.items() if number != gone}) is None


def test_a_forged_token_is_noticed():
    uploads = dict(enumerate(Round(4).uploads))
    uploads[2] = uploads[2]._replace(tokens=uploads[2].tokens ^ 1)
    assert unlocked(uploads) is None


def test_a_mask_is_the_key_stream_of_chacha20_after_its_first_block():
    """The first block is the key of Poly1305 (RFC 8439)."""
    seed = bytes(range(32))
    stream = Cipher(ChaCha20(seed, (1).to_bytes(4, "little") + bytes(12)), None).encryptor().update(bytes(400))
    np.testing.assert_array_equal(pad(seed, 100), np.frombuffer(stream, "<u4"))
