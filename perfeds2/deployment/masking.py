"""Mask a device's update, and answer each of the server's requests about its round once (secure aggregation).

A device that is ready for a run announces a new key, signed with the key of its certificate. It masks an update only
for a list of members whose keys the federation's devices have signed, and checks each key once. Afterwards it helps the
server compute the sum: it reveals the pair masks that it shares with members that did not upload, and then its shares
of the others' own masks. It never reveals both for the same member, so the server cannot unmask a single update.
"""

import datetime
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from perfeds2.deployment.authority import (
    MOST_TRUST_BYTES,
    common_name,
    is_issued,
    lists_in,
    number_of,
    public_of,
    read_certificates,
    read_privates,
)
from perfeds2.deployment.credentials import Credentials, federated_name, name_of
from perfeds2.deployment.masks import Pair, agree, fewest_left, masked, opened, pairs_of, rows_of, to_words
from perfeds2.deployment.transport import Arrays, Request, RoundMember, SignedKey
from perfeds2.deployment.validate import row_of
from perfeds2.errors import InputError
from perfeds2.privacy.sharing import SECRET_BYTES

PROBE = X25519PrivateKey.generate()  # any key shows whether another is usable


@dataclass(frozen=True)
class Identity:
    """A device's certificate, with which it signs its keys and checks those of others.

    It trusts another device's certificate if the authority that issued its own has issued it, and has not revoked it.
    """

    credentials: Credentials
    number: int
    authority: str  # authorities and lists from the network, PEM; only what issued this device's certificate counts

    def sign(self, text: bytes, key: str) -> SignedKey:
        certificate, private = self.credentials.own_files(self.number)
        signature = read_privates(private)[0].sign(text, ec.ECDSA(hashes.SHA256()))
        return SignedKey(
            key, signature.hex(), read_certificates(certificate)[0].public_bytes(Encoding.PEM).decode("ascii")
        )

    @property
    def trusted(self) -> "Trusted":
        """What this device trusts now: reading its certificate takes longer than deriving masks with one member."""
        own = self.credentials.file(self.number, "crt").read_text(encoding="ascii")
        return trusted_by(own, self.authority)

    def renewed(self, authority: str) -> "Identity":
        """Return this identity with authorities and lists from the network, unless the lists are older."""
        newer = replace(self, authority=authority)
        if newer.trusted.number < self.trusted.number:
            raise InputError("the server sent an older list of revoked devices; it is refused")
        return newer


class Trusted(NamedTuple):
    """Who may certify devices, and which certificates are revoked."""

    issuers: tuple[x509.Certificate, ...]
    revoked: frozenset[int]
    number: int  # of the list
    until: datetime.datetime  # when it expires


class KeyRefusedError(InputError):
    """A device's key for masks that cannot be used."""

    def __init__(self, ue: int, why: str) -> None:
        super().__init__(f"the key of device {ue} {why}")
        self.ue = ue


def check_key(federation: str, run: str, ue: int, signed: SignedKey, trusted: Trusted) -> int:
    """Check that a device announced a usable key and signed it with a valid certificate.

    Args:
        federation: Its name.
        run: ID of the run.
        ue: The device.
        signed: What it announced.
        trusted: The authorities and their list.

    Returns:
        The serial number of the certificate.

    Raises:
        KeyRefusedError: It did not.
    """
    now = datetime.datetime.now(datetime.UTC)
    try:
        certificate = _issued(signed.certificate, trusted.issuers)
        key = certificate.public_key()
        if (
            common_name(certificate.subject) != federated_name(federation, name_of(ue))
            or not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
            or not isinstance(key, ec.EllipticCurvePublicKey)
        ):
            raise ValueError
        key.verify(bytes.fromhex(signed.signature), signed_text(run, ue, signed.key), ec.ECDSA(hashes.SHA256()))
    except Exception:  # untrusted bytes may raise anything
        raise KeyRefusedError(ue, "is not signed by its certificate; it may have been replaced") from None
    check_revoked(ue, certificate.serial_number, trusted)
    try:
        agree(PROBE, bytes.fromhex(signed.key))
    except ValueError:  # also for the few points that make every shared secret zero
        raise KeyRefusedError(ue, "is not a usable point of X25519") from None
    return certificate.serial_number


def check_revoked(ue: int, serial: int, trusted: Trusted) -> None:
    if serial in trusted.revoked:
        raise KeyRefusedError(ue, "is signed by a certificate that was revoked")
    if datetime.datetime.now(datetime.UTC) > trusted.until:
        raise KeyRefusedError(ue, "cannot be checked: the server sent no list of revoked devices that is still valid")


@lru_cache(maxsize=1000)  # members of later rounds have the same certificates
def _issued(text: str, issuers: tuple[x509.Certificate, ...]) -> x509.Certificate:
    """Return a certificate. Raise ValueError unless one of these authorities issued it."""
    certificate = x509.load_pem_x509_certificate(text.encode())
    if not any(is_issued(certificate, each) for each in issuers):
        raise ValueError
    return certificate


@lru_cache(maxsize=100)
def trusted_by(own: str, authority: str) -> Trusted:
    """Return which of these authorities issued our own certificate, and their newest list."""
    ours, offered = x509.load_pem_x509_certificate(own.encode()), authority.encode()[:MOST_TRUST_BYTES]
    issuers = tuple(each for each in x509.load_pem_x509_certificates(offered) if is_issued(ours, each))
    return trusted_lists(issuers, lists_in(offered))


def trusted_lists(issuers: tuple[x509.Certificate, ...], lists: Sequence[x509.CertificateRevocationList]) -> Trusted:
    """Return the authorities with the newest list that one of them has signed."""
    signed = [each for each in lists if any(each.is_signature_valid(public_of(by)) for by in issuers)]
    newest = max(signed, key=number_of, default=None)
    if newest is None or newest.next_update_utc is None:
        return Trusted(issuers, frozenset(), -1, datetime.datetime.min.replace(tzinfo=datetime.UTC))
    revoked = frozenset(each.serial_number for each in newest)
    return Trusted(issuers, revoked, number_of(newest), newest.next_update_utc)


def signed_text(run: str, ue: int, key: str) -> bytes:
    return f"mask key {run} {ue} {key}".encode()


class Agreed(NamedTuple):
    """What a device knows of another one's key, which it has checked."""

    key: str
    secret: bytes  # shared with it
    serial: int  # of its certificate


@dataclass
class Keyring:
    """A device's key for the masks of one run, and what it shares with devices whose keys it has checked."""

    identity: Identity
    run: str
    signed: SignedKey = field(init=False)
    _private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    _agreed: dict[int, Agreed] = field(default_factory=dict)  # by UE

    def __post_init__(self) -> None:
        key = self._private.public_key().public_bytes_raw().hex()
        self.signed = self.identity.sign(signed_text(self.run, self.identity.number, key), key)

    def agreed(self, members: Iterable[RoundMember]) -> list[Agreed]:
        """Return what is known of other members' keys. New keys are checked, and all certificates for being revoked.

        Raises:
            KeyRefusedError: A key is not the member's, or was never sent, or its certificate has been revoked.
        """
        trusted = self.identity.trusted
        return [self._agreed_with(member, trusted) for member in members]

    def _agreed_with(self, member: RoundMember, trusted: Trusted) -> Agreed:
        ue, signed = member.ue, member.signed
        if signed is not None:
            serial = check_key(self.identity.credentials.federation, self.run, ue, signed, trusted)
            self._agreed[ue] = Agreed(signed.key, agree(self._private, bytes.fromhex(signed.key)), serial)
        if ue not in self._agreed:
            raise KeyRefusedError(ue, "is not known here; the server must send it again")
        check_revoked(ue, self._agreed[ue].serial, trusted)  # it may have been since
        return self._agreed[ue]


@dataclass
class MaskedUpdate:
    """An update that waits to be masked, and what its device has revealed of it since."""

    keyring: Keyring
    ticket: int
    update: Arrays
    clip: float
    members: int  # A, of every round
    _own: int = -1  # number in the list of members
    _pairs: dict[int, Pair] = field(default_factory=dict)  # empty until the update is masked
    _share: bytes = b""  # of its own mask
    _gone: frozenset[int] = frozenset()  # members whose pair masks it has revealed
    _is_open: bool = False  # whether it has revealed its shares

    def answer(self, request: Request) -> Arrays:
        """Return what the server asks for.

        Raises:
            InputError: The device must not reveal it.
        """
        asked, is_first = request.asked, request.kind in ("train", "mask")
        if asked is None or is_first == bool(self._pairs) or self._is_open:
            raise InputError("the server asked for a step of secure aggregation again, or too early")
        if is_first:
            return self._mask(asked.members)
        gone = frozenset(asked.gone)
        if self._own in gone or not self._gone <= gone <= self._pairs.keys():
            raise InputError("the server counts this device as gone, or counts a member that was gone as present")
        if self.members - len(gone) < fewest_left(self.members):
            raise InputError(f"{len(gone)} of {self.members} members are gone; the sum of so few is not revealed")
        return self._seeds(asked.gone) if request.kind == "seeds" else self._shares(gone, asked.shares)

    def _mask(self, members: Sequence[RoundMember]) -> Arrays:
        """Mask the update for a list of members, after checking their keys."""
        ring = self.keyring
        own = [number for number, each in enumerate(members) if each.ue == ring.identity.number]
        if len(members) != self.members or len({each.ue for each in members}) != self.members or len(own) != 1:
            raise InputError(
                f"the list of members is wrong: {self.members} different ones, with this device, are expected"
            )
        mine = members[own[0]]
        if mine.ticket != self.ticket or mine.signed not in (None, ring.signed):
            raise InputError("the list of members has another key for this device; it may have been replaced")
        others = {number: each for number, each in enumerate(members) if number != own[0]}
        agreed = dict(zip(others, ring.agreed(others.values()), strict=True))
        keys = {own[0]: ring.signed.key} | {number: each.key for number, each in agreed.items()}
        listed = [f"{each.ue} {each.ticket} {keys[number]}" for number, each in enumerate(members)]
        context = hashlib.sha256("\n".join([ring.run, *listed]).encode()).digest()
        values = row_of(self.update)
        if not np.isfinite(values).all():
            raise InputError("its update has numbers that are not finite")
        self._own = own[0]
        self._pairs = pairs_of({number: each.secret for number, each in agreed.items()}, self._own, context)
        upload, self._share = masked(to_words(values, self.clip, self.members), self._own, self._pairs)
        return upload._asdict()

    def _seeds(self, gone: Sequence[int]) -> Arrays:
        """Reveal the pair masks with members that are gone. From now on, keep the shares of their own masks secret."""
        self._gone = frozenset(gone)
        return {"seeds": rows_of(self._pairs[each].mask for each in gone)}

    def _shares(self, gone: frozenset[int], sealed: Sequence[str]) -> Arrays:
        """Reveal the shares of the own masks of members that are not gone; a forged share becomes zeros."""
        if gone != self._gone or len(sealed) != self.members:
            raise InputError("the server must ask for the shares of all members that are left, and of no others")
        self._is_open = True
        shares = []
        for number, text in enumerate(sealed):
            share = self._share if number == self._own else None
            if number not in gone and number in self._pairs:
                share = opened(_bytes(text), self._pairs[number])
            shares.append(share or bytes(SECRET_BYTES))
        return {"shares": rows_of(shares)}


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
