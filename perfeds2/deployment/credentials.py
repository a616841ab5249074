"""Issue and revoke the certificates with which a server and its devices authenticate.

A folder holds a certificate authority and the certificates it signed. The server's certificate is named ``server`` and
lists its host names. The certificate of device N is named ``device-N``, and the broker takes the sender of a message
from that name. A list signed by the authority says which certificates are revoked.

Every private file is readable by its owner only. No key is stored in a folder of results, because people share those.
The authority's private key is needed only to sign; keep it offline otherwise.
"""

import datetime
import ipaddress
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perfeds2.errors import InputError
from perfeds2.files import write_atomically

SERVER = "server"  # common name in the server's certificate
FEDERATION = "perfeds2"  # default name of a federation
MOST_DEVICES = 1_000_000
VALID_DAYS = 825
YESTERDAY = datetime.timedelta(days=1)  # tolerance for clocks that differ
LOOPBACK = ("127.0.0.1", "localhost")
RESULTS = (("spec.toml", "sweep.toml", "tune.toml"), ("parts", "summary.json", "report.html"))  # one of each: results
HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.I)

Parsed = TypeVar("Parsed")


class Credentials:
    """The files in a federation's credentials folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"  # needed on every machine
        self.authority_key = folder / "ca.key"
        self.certificate, self.certificate_key = self.own_files(None)
        self.revocations = folder / "revoked.crl"  # needed by the broker

    def file(self, device: int | None, suffix: str) -> Path:
        """Return the path of a file of a device, or of the server (None).

        The suffix ``crt`` is the certificate, ``key`` the private key, which belongs on its own machine only, and
        ``pub`` the public key of a device that made its own.
        """
        folder = self.folder if device is None else self.folder / "devices"
        return folder / f"{name_of(device)}.{suffix}"

    def own_files(self, device: int | None) -> tuple[Path, Path]:
        """Return the paths of the certificate and the key of a device, or of the server (None)."""
        return self.file(device, "crt"), self.file(device, "key")

    def devices(self, revoked: bool = False) -> list[int]:
        """Return the devices whose certificate is not revoked, or, with ``revoked``, those whose is."""
        listed = self.revoked()
        return [device for device in self.numbers("crt") if (bool(listed) and self.serial(device) in listed) == revoked]

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers of revoked certificates."""
        return frozenset(each.serial_number for each in _read_revocations(self))

    def numbers(self, suffix: str) -> list[int]:
        """Return the numbers of the devices that have a file with this suffix."""
        names = [path.stem for path in (self.folder / "devices").glob(f"device-*.{suffix}")]
        found = [re.fullmatch(r"device-(0|[1-9]\d*)", name) for name in names]
        return sorted(int(match[1]) for match in found if match)

    def serial(self, device: int | None) -> int:
        """Return the serial number of the certificate of a device, or of the server (None)."""
        path = self.file(device, "crt")
        if not path.exists():
            raise InputError(
                f"{self.folder} has no certificate of {name_of(device)}; make one with perfeds2 federate credentials."
            )
        return _read_certificate(path).serial_number

    def rotate(self, device: int | None) -> None:
        """Make a new key and certificate for a device, or for the server (None), and revoke the old one."""
        self.revoke(device)
        for suffix in ("key", "pub"):
            self.file(device, suffix).unlink(missing_ok=True)
        _issue(self, device, _hosts_of(self) if device is None else ())

    def revoke(self, device: int | None) -> None:
        """Revoke a certificate. The device's number stays taken until ``rotate`` lets it in again."""
        serial = self.serial(device)
        if serial not in self.revoked():
            now = datetime.datetime.now(datetime.UTC)
            new = x509.RevokedCertificateBuilder(serial, now).build()
            _write_revocations(self, [*_read_revocations(self), new])


def name_of(device: int | None) -> str:
    """Return the name in the certificate of a device, or of the server (None)."""
    if device is None:
        return SERVER
    if not 0 <= device < MOST_DEVICES:
        raise InputError(f"device {device} is out of range; expected a number from 0 to {MOST_DEVICES - 1}.")
    return f"device-{device}"


def federated_name(federation: str, name: str) -> str:
    """Return the name of a client in a federation. On one broker, no two federations have a name in common."""
    return name if federation == FEDERATION else f"{federation}.{name}"


def make_credentials(folder: Path, devices: int, hosts: Sequence[str] = LOOPBACK) -> Credentials:
    """Make an authority, a server certificate, and a key and a certificate for each device.

    Existing files stay. A new host leads to a new server certificate, which also lists the old hosts. A device that
    made its own key, of which only ``devices/device-N.pub`` is in the folder, gets a certificate for that key.

    Args:
        folder: The credentials folder; made if it does not exist.
        devices: Number of devices, n.
        hosts: Host names and addresses of the server.

    Returns:
        The files of the folder.

    Raises:
        InputError: A host or the number of devices is invalid, or the folder cannot be used.
    """
    names = [check_host(host) for host in hosts]
    if not 0 <= devices <= MOST_DEVICES:
        raise InputError(f"--devices {devices} is out of range; expected a number from 0 to {MOST_DEVICES}.")
    credentials = Credentials(folder)
    _make_folder(credentials)
    if not credentials.authority.exists():
        _make_authority(credentials)
    if not credentials.revocations.exists():
        _write_revocations(credentials, [])
    had = _hosts_of(credentials)
    if not had or not set(names) <= set(had):
        _issue(credentials, None, list(dict.fromkeys([*had, *names])))
    for device in sorted({*range(devices), *credentials.numbers("pub")}):
        if not credentials.file(device, "crt").exists():
            _issue(credentials, device)
    return credentials


# ---- where keys may be stored


def credentials_beside(run: Path) -> Path:
    """Return the folder for the keys of a federation on one machine: beside its results."""
    return run.parent / f".{run.name}.credentials"


def keep_apart(credentials: Path, run: Path) -> None:
    """Raise InputError if keys would lie inside results, which people share, or results inside keys."""
    keys, results = credentials.resolve(), run.resolve()
    if keys == results or keys in results.parents or results in keys.parents:
        raise InputError(
            f"credentials {credentials} and results {run} must not be inside each other, because results are often shared; "
            "choose separate folders."
        )


def _make_folder(credentials: Credentials) -> None:
    """Make the folder, accessible to its owner only. Refuse a folder with other files in it."""
    folder = credentials.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a folder for credentials.")
    whole = folder.resolve()
    for above in (whole, *whole.parents):
        if all(any((above / name).exists() for name in names) for names in RESULTS):
            raise InputError(
                f"{whole} is inside the results in {above}, which may be shared; choose another folder for keys."
            )
    if folder.exists() and not credentials.authority.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} has other files and no ca.crt; choose an empty or new folder for credentials.")
    for each in (folder, folder / "devices"):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
        each.chmod(0o700)


def check_host(host: str) -> str:
    """Return a host name or address in its canonical form.

    Raises:
        InputError: It is neither a host name nor an address.
    """
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if not HOST.fullmatch(host) or host.replace(".", "").isdecimal():
        raise InputError(
            f"--host {host!r} is not a host name or address; expected for example fl.example.org or 10.0.0.7."
        )
    return host.lower()


# ---- what the authority signs


def _make_authority(credentials: Credentials) -> None:
    if credentials.authority_key.exists():
        raise InputError(
            f"{credentials.authority_key} is there, but {credentials.authority} is missing; put it back, or choose a new folder."
        )
    key = _new_key()
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )
    name = _name("perfeds2 federation authority")
    certificate = (
        _unsigned(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    _write_private(credentials.authority_key, key)
    _write_signed(credentials.authority, certificate, key.public_key(), key)


def _issue(credentials: Credentials, device: int | None, hosts: Sequence[str] = ()) -> None:
    """Sign and write the certificate of a device, or of the server (None).

    It certifies the public key if there is one, otherwise the private key, otherwise a new key. A device's certificate
    is valid for clients only, so no device can impersonate the broker. The server is also a client of the broker.
    """
    authority, authority_key = _authority(credentials)
    public_file, key_file = credentials.file(device, "pub"), credentials.file(device, "key")
    if public_file.exists():
        public = _read_own_public(public_file)
    else:
        key = _read_private(key_file) if key_file.exists() else _new_key()
        public = key.public_key()
        _write_private(key_file, key)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if device is None:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    certificate = (
        _unsigned(_name(name_of(device)), authority.subject, public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if hosts:
        certificate = certificate.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
    _write_signed(credentials.file(device, "crt"), certificate, public, authority_key)


def _write_signed(
    path: Path,
    certificate: x509.CertificateBuilder,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
) -> None:
    whole = certificate.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    _write(path, whole.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)


def _write_revocations(credentials: Credentials, listed: Sequence[x509.RevokedCertificate]) -> None:
    """Sign and write the list. It expires with the authority: an expired list would lock every client out."""
    authority, key = _authority(credentials)
    revocations = x509.CertificateRevocationListBuilder(
        authority.subject, datetime.datetime.now(datetime.UTC) - YESTERDAY, authority.not_valid_after_utc
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    revocations = revocations.add_extension(x509.CRLNumber(len(listed)), critical=False).add_extension(issuer, False)
    for each in listed:
        revocations = revocations.add_revoked_certificate(each)
    _write(credentials.revocations, revocations.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)


def _authority(credentials: Credentials) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path = credentials.authority_key
    if not path.exists():
        raise InputError(
            f"{path} is missing (kept offline?); it signs certificates and revocations: put it back for this command."
        )
    return _read_certificate(credentials.authority), _read_private(path)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _unsigned(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now, serial = datetime.datetime.now(datetime.UTC), x509.random_serial_number()
    valid = now - YESTERDAY, now + datetime.timedelta(days=VALID_DAYS)
    return x509.CertificateBuilder(issuer, name, key, serial, *valid)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# ---- files


def _hosts_of(credentials: Credentials) -> list[str]:
    """Return the hosts in the server's certificate; empty if there is no certificate."""
    if not credentials.certificate.exists():
        return []
    certificate = _read_certificate(credentials.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _read_certificate(path: Path) -> x509.Certificate:
    return _read(path, x509.load_pem_x509_certificate, "certificate")


def _read_revocations(credentials: Credentials) -> x509.CertificateRevocationList | tuple[()]:
    if not credentials.revocations.exists():
        return ()
    return _read(credentials.revocations, x509.load_pem_x509_crl, "list of revocations")


def _read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    key = _read(path, lambda text: serialization.load_pem_private_key(text, None), "private key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} holds a private key of another kind; make new credentials.")
    return key


def _read(path: Path, read: Callable[[bytes], Parsed], what: str) -> Parsed:
    try:
        return read(path.read_bytes())
    except ValueError:
        raise InputError(f"{path} is not a readable {what}; copy it again.") from None


def _read_own_public(path: Path) -> ec.EllipticCurvePublicKey:
    with suppress(ValueError):
        key = serialization.load_ssh_public_key(path.read_bytes())
        if isinstance(key, ec.EllipticCurvePublicKey):
            return key
    raise InputError(f"{path} is not a public key of an elliptic curve; make one with ssh-keygen -t ecdsa -b 256.")


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())  # a handshake costs a quarter of one with P-384


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, text: bytes, mode: int) -> None:
    with write_atomically(path, mode) as file:
        file.write(text)
