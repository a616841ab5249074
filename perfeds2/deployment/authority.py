"""A certificate authority: what it signs, what it revokes, and how it is replaced.

Its certificate file holds one certificate, or three during a rollover, the newest first: the new authority, the new
authority signed by the old one, and the old one. A machine that trusts the old authority can therefore verify the new
one. The revocation list names every revoked certificate, is signed by each authority, and its number only grows.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from perfeds2.errors import InputError
from perfeds2.files import write_atomically

AUTHORITY_DAYS = 3650
VALID_DAYS = 825
LIST_DAYS = 90  # until a revocation list expires; a server that has the key signs it again after half of them
ENCRYPTED_BY = "PERFEDS2_PASSPHRASE"  # environment variable: encrypts the keys of authorities
LIST_FOR = datetime.timedelta(days=LIST_DAYS)
YESTERDAY = datetime.timedelta(days=1)  # tolerance for clocks that differ
MOST_TRUST_BYTES = 128 * 1024  # of authorities and lists from the network

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Authority:
    """The files of an authority. Its key is needed only to sign."""

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    @property
    def revocations(self) -> Path:
        return self.folder / f"{self.name}.crl"

    def make(self) -> None:
        """Create the authority. Existing files stay."""
        if not self.certificate.exists():
            if self.key.exists():
                raise InputError(
                    f"{self.key} is there, but {self.certificate} is missing; put it back, or choose a new folder."
                )
            self._replace([], [])
        if not self.revocations.exists():
            self._write_lists([], 1, datetime.datetime.now(datetime.UTC) - YESTERDAY)

    def roll(self) -> None:
        """Add a new authority, which signs from now on. The old one is trusted until ``finish``."""
        if len(read_certificates(self.certificate)) > 1:
            raise InputError(f"{self.certificate} has two authorities already; end the rollover first: --finish.")
        self._replace(read_certificates(self.certificate), self._keys())
        self.revoke(())

    def finish(self) -> None:
        """Trust the newest authority only."""
        newest, *older = read_certificates(self.certificate)
        if not older:
            raise InputError(f"{self.certificate} has one authority only; start a rollover without --finish.")
        write_private(self.key, self._keys()[:1], _passphrase())
        write(self.certificate, _pem([newest]))
        self.revoke(())

    def _replace(self, old: Sequence[x509.Certificate], old_keys: Sequence[ec.EllipticCurvePrivateKey]) -> None:
        key = new_key()
        usage = dict.fromkeys(
            [
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ],
            False,
        )
        name = name_with(f"perfeds2 {self.name} authority {x509.random_serial_number() % 2**32:08x}")

        def signed(issuer: x509.Name, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
            return _sign(
                _unsigned(name, issuer, key.public_key(), AUTHORITY_DAYS)
                .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(
                    x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
                ),
                key.public_key(),
                signer,
            )

        crossed = [signed(each.subject, signer) for each, signer in zip(old, old_keys, strict=True)]
        write_private(self.key, [key, *old_keys], _passphrase())
        write(self.certificate, _pem([signed(name, key), *crossed, *old]))

    def sign(
        self,
        name: str,
        public: ec.EllipticCurvePublicKey,
        usage: x509.ObjectIdentifier,
        hosts: Iterable[str] = (),
        days: float = VALID_DAYS,
    ) -> x509.Certificate:
        """Return a certificate for a public key, for one usage only."""
        key, authority = self._keys()[0], read_certificates(self.certificate)[0]
        days = min(days, days_until(authority.not_valid_after_utc))
        certificate = (
            _unsigned(name_with(name), authority.subject, public, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if names := list(map(_host, hosts)):
            certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _sign(certificate, public, key)

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers of revoked certificates."""
        if not self.revocations.exists():
            return frozenset()
        return frozenset(each.serial_number for each in read_lists(self.revocations)[0])

    def revoke(self, serials: Iterable[int]) -> None:
        """Add certificates to the revocation list, and sign it again."""
        newest = read_lists(self.revocations)[0]
        now = datetime.datetime.now(datetime.UTC)
        new = [x509.RevokedCertificateBuilder(each, now).build() for each in set(serials) - self.revoked()]
        # OpenSSL takes the list with the latest time, which counts in seconds.
        dated = max(now - YESTERDAY, newest.last_update_utc + datetime.timedelta(seconds=1))
        self._write_lists([*newest, *new], number_of(newest) + 1, dated)

    def _write_lists(self, revoked: Sequence[x509.RevokedCertificate], number: int, dated: datetime.datetime) -> None:
        """Sign and write the list. Lists of other authorities in the file stay."""
        lists, known = [], read_certificates(self.certificate)
        ours = [key.public_key() for key in self._keys()]
        theirs = [each.subject for each in known if each.public_key() not in ours]
        found = read_lists(self.revocations) if self.revocations.exists() else []
        others = [each for each in found if each.issuer in theirs]
        for key in self._keys():
            authority = next(each for each in known if each.public_key() == key.public_key())
            until = min(datetime.datetime.now(datetime.UTC) + LIST_FOR, authority.not_valid_after_utc)
            builder = x509.CertificateRevocationListBuilder(
                authority.subject, dated, until, revoked_certificates=list(revoked)
            ).add_extension(x509.CRLNumber(number), critical=False)
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
            lists.append(builder.add_extension(issuer, critical=False).sign(key, hashes.SHA256()))
        write(self.revocations, _pem([*lists, *others]))

    def renew(self) -> None:
        """Sign the list again if half of its time is over and the key is here."""
        until = read_lists(self.revocations)[0].next_update_utc
        if self.key.exists() and until is not None and days_until(until) < LIST_DAYS / 2:
            self.revoke(())

    def _keys(self) -> list[ec.EllipticCurvePrivateKey]:
        if not self.key.exists():
            raise InputError(
                f"{self.key} is missing (kept offline?); it signs certificates and revocations: put it back for this command."
            )
        return read_privates(self.key, _passphrase())

    # ---- what others need to verify certificates

    def trust(self) -> bytes:
        """Return the authorities and the lists as one text."""
        return self.certificate.read_bytes() + self.revocations.read_bytes()

    def take(self, text: bytes, pin: str = "", least: int = 0) -> bool:
        """Store authorities and lists from the network, if authorities known here signed them.

        Args:
            text: What ``trust`` returned elsewhere.
            pin: Fingerprint of the authority to trust if none is known here yet.
            least: Smallest acceptable number of the lists.

        Returns:
            Whether they are newer than those here.

        Raises:
            InputError: They are unreadable, older, or not signed by a known authority.
        """
        refused = "the authorities and revocations from the network are refused"
        try:
            offered, lists = x509.load_pem_x509_certificates(text[:MOST_TRUST_BYTES]), lists_in(text[:MOST_TRUST_BYTES])
            number = min(map(number_of, lists))
        except ValueError:
            raise InputError(f"{refused}: they cannot be read.") from None
        if self.certificate.exists():
            known = read_certificates(self.certificate)
            least = max(least, number_of(read_lists(self.revocations)[0]) if self.revocations.exists() else 0)
        else:
            known = [each for each in offered if fingerprint(each) == pin]
        trusted = list(known)
        for each in reversed(offered):
            if not any(is_issued(each, by, authority=True) for by in trusted):
                raise InputError(f"{refused}: no authority known here signed them.")
            trusted.append(each)
        if not all(any(each.is_signature_valid(public_of(by)) for by in offered) for each in lists):
            raise InputError(f"{refused}: no authority known here signed the list.")
        if number < least or offered[0].not_valid_before_utc < known[0].not_valid_before_utc:
            raise InputError(f"{refused}: they are older than those here.")
        new = not self.revocations.exists() or number > least
        if new:
            write(self.certificate, _pem(offered))
            write(self.revocations, _pem(lists))
        return new


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def number_of(revocations: x509.CertificateRevocationList) -> int:
    return revocations.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def days_until(end: datetime.datetime) -> float:
    return (end - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)


def is_issued(certificate: x509.Certificate, by: x509.Certificate, *, authority: bool = False) -> bool:
    """Return whether an authority signed a certificate; with ``authority``, that of another authority."""
    try:
        certificate.verify_directly_issued_by(by)
        return not authority or certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False


def public_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError("an authority has a key of another kind; make new credentials.")
    return key


def name_with(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def common_name(name: x509.Name) -> str:
    """Return the common name if a certificate's name has no other part; otherwise an empty text."""
    names = [str(each.value) for each in name if each.oid == NameOID.COMMON_NAME]
    return names[0] if names and name == name_with(names[0]) else ""


def _unsigned(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now, serial = datetime.datetime.now(datetime.UTC), x509.random_serial_number()
    return x509.CertificateBuilder(issuer, name, key, serial, now - YESTERDAY, now + datetime.timedelta(days=days))


def _sign(
    certificate: x509.CertificateBuilder, public: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    whole = certificate.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return whole.add_extension(issuer, critical=False).sign(signer, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# ---- files


def read_certificates(path: Path) -> list[x509.Certificate]:
    return _read(path, x509.load_pem_x509_certificates, "certificate")


def read_lists(path: Path) -> list[x509.CertificateRevocationList]:
    return _read(path, lists_in, "revocation list")


def read_privates(path: Path, passphrase: bytes | None = None) -> list[ec.EllipticCurvePrivateKey]:
    if b"ENCRYPTED" not in path.read_bytes():
        passphrase = None
    elif passphrase is None:
        raise InputError(f"{path} is encrypted; set the environment variable {ENCRYPTED_BY}.")

    def read(text: bytes) -> list[ec.EllipticCurvePrivateKey]:
        kind = b"PRIVATE KEY" if passphrase is None else b"ENCRYPTED PRIVATE KEY"
        keys = [serialization.load_pem_private_key(each, passphrase) for each in _blocks(text, kind)]
        return [key for key in keys if isinstance(key, ec.EllipticCurvePrivateKey)]

    return _read(path, read, "private key" if passphrase is None else "private key with this passphrase")


def _passphrase() -> bytes | None:
    return os.environ[ENCRYPTED_BY].encode() if os.environ.get(ENCRYPTED_BY) else None


def lists_in(text: bytes) -> list[x509.CertificateRevocationList]:
    lists = [x509.load_pem_x509_crl(each) for each in _blocks(text, b"X509 CRL")]
    try:
        for each in lists:
            number_of(each)
    except x509.ExtensionNotFound:
        raise ValueError("a revocation list without a number") from None
    return lists


def _blocks(text: bytes, kind: bytes) -> list[bytes]:
    return re.findall(rb"-----BEGIN %b-----.+?-----END %b-----" % (kind, kind), text, re.DOTALL)


def _read(path: Path, read: Callable[[bytes], list[Parsed]], what: str) -> list[Parsed]:
    try:
        if found := read(path.read_bytes()):
            return found
    except ValueError:
        pass
    raise InputError(f"{path} is not a readable {what}; copy it again.")


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())  # a handshake costs a quarter of one with P-384


def own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the key in a file, or create one."""
    if not path.exists():
        write_private(path, [new_key()])
    return read_privates(path)[0]


def write_private(path: Path, keys: Iterable[ec.EllipticCurvePrivateKey], passphrase: bytes | None = None) -> None:
    protection = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    texts = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection) for key in keys]
    write(path, b"".join(texts), 0o600)


def write(path: Path, text: bytes, mode: int = 0o644) -> None:
    with write_atomically(path, mode) as file:
        file.write(text)


def _pem(signed: Iterable[x509.Certificate | x509.CertificateRevocationList]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in signed)
