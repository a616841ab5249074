"""Split a secret into shares: any t of them recover it, and fewer reveal nothing (Shamir's secret sharing)."""

import math
import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**256 - 189  # the largest below 2^256: secrets and shares have 32 bytes
SECRET_BYTES = 32
SEALED_BYTES = SECRET_BYTES + 16  # an encrypted share


def extra_bits(members: int) -> int:
    """Return how many bits a member sends in addition to its update: shares, their digests, and tokens.

    Numbers take 32 bits each, as without masks. Keys are sent once in a run and not counted.
    """
    return 8 * members * (SEALED_BYTES + 2 * SECRET_BYTES)


def new_secret() -> bytes:
    return secrets.randbelow(PRIME).to_bytes(SECRET_BYTES)


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return one share for each holder: a random polynomial of degree t − 1 through the secret, at 1, 2, … holders.

    Args:
        secret: From ``new_secret``.
        threshold: t, how many shares recover the secret.
        holders: How many shares to make.
    """
    if not 1 <= threshold <= holders:
        raise ValueError(f"threshold must be from 1 to the number of holders, {holders}, got {threshold}.")
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for point in range(1, holders + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = value * point + coefficient  # points are small, so that one remainder at the end is faster
        shares.append((value % PRIME).to_bytes(SECRET_BYTES))
    return shares


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from the shares of at least t holders, numbered from 0 (Lagrange's polynomial at 0).

    Raises:
        ValueError: There are too few shares.
    """
    if len(shares) < threshold:
        raise ValueError(f"{threshold} shares are needed, got {len(shares)}.")
    points = tuple(sorted(shares)[:threshold])
    secret = sum(
        weight * int.from_bytes(shares[holder]) for holder, weight in zip(points, _weights(points), strict=True)
    )
    return (secret % PRIME).to_bytes(SECRET_BYTES)


@lru_cache(maxsize=100)  # the secrets of a round are joined from the same holders
def _weights(points: tuple[int, ...]) -> list[int]:
    """Return the weight of each holder's share in the secret."""
    weights = []
    for holder in points:
        above = math.prod(other + 1 for other in points if other != holder)
        below = math.prod(other - holder for other in points if other != holder)
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
