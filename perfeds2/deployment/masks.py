"""Mask the updates of a round's A members, so that the server learns their sum and nothing else.

Updates are clipped and written in fixed point modulo 2^32. Every two members agree on a pair mask, which one of them adds
and the other subtracts, so it cancels in the sum. Each member also adds a mask of its own, and splits its seed among all
members, any t of which can reveal it. If a member is missing, the others reveal the pair masks they share with it, but
never its own mask, so an upload that arrives too late stays hidden.

Each upload also carries the seed of its member's own mask, encrypted with a token of every other member. The tokens are
in their uploads: all uploads together decrypt all seeds without a further message, and fewer decrypt none.

Members are numbered from 0 in the order of the list that all of them got, and the list is part of every key.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Float, UInt8, UInt32

from perfeds2.privacy.sharing import SECRET_BYTES, new_secret, split

HALF = 2**31 - 1  # largest sum in fixed point
KEY_BYTES = 32

Words = UInt32[np.ndarray, " d"]
Rows = UInt8[np.ndarray, "A bytes"]  # one for each member


def threshold_of(members: int) -> int:
    """Return t: how many members can together reveal another's own mask."""
    return (members + 1) // 2


def fewest_left(members: int) -> int:
    """Return how many members must upload: if t − 1 of them collude with the server, two honest ones remain."""
    return threshold_of(members) + 1


# ---- fixed point


def to_words(values: Float[np.ndarray, " d"], clip: float, members: int) -> Words:
    """Return values from −clip to clip in fixed point, scaled so that the sum of all members' just fits."""
    most = HALF // members
    rounded = np.rint(np.asarray(values, np.float64) * (most / clip))
    return np.clip(rounded, -most, most).astype(np.int64).astype(np.uint32)


def from_words(total: Words, clip: float, members: int) -> Float[np.ndarray, " d"]:
    """Return the sum of members' values from the sum of their words."""
    return total.view(np.int32) * (clip / (HALF // members))


# ---- masks


class Pair(NamedTuple):
    """What a member shares with one other member only."""

    mask: bytes  # seed of the pair mask
    sends: bytes  # key of what it sends to the other
    receives: bytes
    gives: bytes  # token that it uploads, for the other's seed
    needs: bytes  # token that the other uploads, for its own seed


def agree(private: X25519PrivateKey, key: bytes) -> bytes:
    """Return the secret that two devices share in all their rounds.

    Raises:
        ValueError: The other's public key is invalid.
    """
    return private.exchange(X25519PublicKey.from_public_bytes(key))


def pairs_of(shared: Mapping[int, bytes], own: int, context: bytes) -> dict[int, Pair]:
    """Return what a member shares with each of the others in one round.

    Args:
        shared: From ``agree``, by number of the other member.
        own: The member's number.
        context: Digest of the list of members. Members with different lists share nothing.
    """
    pairs = {}
    for other, secret in shared.items():
        info = b"pair masks" + context + bytes(f"{min(own, other)} {max(own, other)}", "ascii")
        made = HKDF(hashes.SHA256(), 5 * KEY_BYTES, None, info).derive(secret)
        mask, *ways = (made[start : start + KEY_BYTES] for start in range(0, len(made), KEY_BYTES))
        up, down, give, need = ways
        pairs[other] = Pair(mask, up, down, give, need) if own < other else Pair(mask, down, up, need, give)
    return pairs


def pad(seed: bytes, size: int) -> Words:
    """Return a mask of ``size`` words: the key stream of ChaCha20. Every seed makes one mask, so the nonce is zero."""
    stream = ChaCha20Poly1305(seed).encrypt(bytes(12), bytes(4 * size), None)  # ``Cipher`` takes longer to set up
    return np.frombuffer(stream, "<u4", size).astype(np.uint32, copy=False)


class Upload(NamedTuple):
    """What a member uploads."""

    words: Words  # masked
    shares: Rows  # of the seed of its own mask, each encrypted to its holder; its own row is the encrypted seed
    digests: Rows  # of the shares, to detect a forged one
    tokens: Rows  # for each other member's seed; its own row is empty


def masked(words: Words, own: int, pairs: Mapping[int, Pair]) -> tuple[Upload, bytes]:
    """Mask a member's words, and return them with the share of its own seed that it keeps."""
    seed, members = new_secret(), len(pairs) + 1
    total = words + pad(seed, words.size)
    for other, pair in pairs.items():
        (np.add if own < other else np.subtract)(total, pad(pair.mask, words.size), out=total)
    shares = split(seed, threshold_of(members), members)
    lock = _lock(pairs[other].needs for other in sorted(pairs))
    sealed = [
        ChaCha20Poly1305(pairs[holder].sends).encrypt(bytes(12), share, None)
        if holder in pairs
        else ChaCha20Poly1305(lock).encrypt(bytes(12), seed, None)
        for holder, share in enumerate(shares)
    ]
    tokens = (pairs[other].gives if other in pairs else bytes(KEY_BYTES) for other in range(members))
    return Upload(total, rows_of(sealed), rows_of(map(digest_of, shares)), rows_of(tokens)), shares[own]


def _lock(tokens: Iterable[bytes]) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, None, b"own mask").derive(b"".join(tokens))


def unlocked(uploads: Mapping[int, Upload]) -> dict[int, bytes] | None:
    """Return the seeds of all members' own masks from all their uploads; None if one is missing or a token was forged."""
    seeds = {}
    for member, upload in uploads.items():
        tokens = (each.tokens[member].tobytes() for other, each in sorted(uploads.items()) if other != member)
        try:
            seeds[member] = ChaCha20Poly1305(_lock(tokens)).decrypt(bytes(12), upload.shares[member].tobytes(), None)
        except InvalidTag:
            return None
    return seeds


def opened(sealed: bytes, pair: Pair) -> bytes | None:
    """Decrypt a share from another member; None if it is forged."""
    try:
        share = ChaCha20Poly1305(pair.receives).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None
    return share if len(share) == SECRET_BYTES else None


def unmasked(
    words: Mapping[int, Words], seeds: Mapping[int, bytes], revealed: Mapping[tuple[int, int], bytes]
) -> Words:
    """Return the sum of the uploads without their masks.

    Args:
        words: Masked words by member.
        seeds: Seed of each of these members' own masks.
        revealed: Seeds of the pair masks of (a member, a missing one).
    """
    total = np.zeros_like(next(iter(words.values())))
    for member, uploaded in words.items():
        total += uploaded - pad(seeds[member], total.size)
    for (member, missing), seed in revealed.items():
        (np.subtract if member < missing else np.add)(total, pad(seed, total.size), out=total)
    return total


def digest_of(share: bytes) -> bytes:
    return hashlib.sha256(share).digest()


def rows_of(texts: Iterable[bytes]) -> Rows:
    rows = list(texts)
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), len(rows[0]) if rows else 0)
