"""How do a server and its devices know each other, and how does one of them stop being known?

A folder holds a certificate authority made here and what it vouches for. The server shows a certificate named ``server`` for its
host names; device N shows one named ``device-N``. An MQTT broker takes who is speaking from that name; Flower is told the public
half of the same key. A list of revoked certificates, signed by the authority, says which no longer count.

Every private file is readable by its owner only, and none lies in a folder of results, which people share. The authority's
private key is needed only to sign: keep it off line between times.
"""

import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perfeds2.errors import InputError

SERVER = "server"  # the name in the server's certificate
MOST_DEVICES = 1_000_000
VALID_DAYS = 825
YESTERDAY = datetime.timedelta(days=1)  # clocks differ
LOOPBACK = ("127.0.0.1", "localhost")
RESULTS = (("spec.toml", "sweep.toml", "tune.toml"), ("parts", "summary.json", "report.html"))  # one of each: results
HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.I)


class Credentials:
    """Where the files of a federation are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"  # the certificate everybody needs
        self.authority_key = folder / "ca.key"
        self.certificate = folder / "server.crt"
        self.certificate_key = folder / "server.key"
        self.revocations = folder / "revoked.crl"  # for whoever lets devices in: the broker

    def device_key(self, device: int) -> Path:
        """The private half: belongs on the device, nowhere else. In two notations: for TLS, and for Flower."""
        return self.folder / "devices" / f"{device_name(device)}.key"

    def device_public_key(self, device: int) -> Path:
        """What Flower's server is told."""
        return self.device_key(device).with_suffix(".pub")

    def device_certificate(self, device: int) -> Path:
        """What the device shows a broker."""
        return self.device_key(device).with_suffix(".crt")

    def devices(self) -> list[int]:
        """Who may take part, by number: those known here and not revoked."""
        revoked = self.revoked()
        return [device for device in self._known() if not revoked or not self._is_revoked(device, revoked)]

    def revoked_devices(self) -> list[int]:
        """Whose certificates, as far as they are known here, no longer count."""
        return sorted(set(self._known()).difference(self.devices()))

    def revoked(self) -> frozenset[int]:
        """The serial numbers of certificates that no longer count."""
        if not self.revocations.exists():
            return frozenset()
        return frozenset(each.serial_number for each in _read_revocations(self))

    def _known(self) -> list[int]:
        names = {path.stem for kind in ("pub", "crt") for path in (self.folder / "devices").glob(f"device-*.{kind}")}
        numbers = [re.fullmatch(r"device-(0|[1-9]\d*)", name) for name in names]
        return sorted(int(number[1]) for number in numbers if number)

    def _is_revoked(self, device: int, revoked: frozenset[int]) -> bool:
        path = self.device_certificate(device)
        return path.exists() and _read_certificate(path).serial_number in revoked


def device_name(device: int) -> str:
    """The name in its certificate."""
    if not 0 <= device < MOST_DEVICES:
        raise InputError(f"device {device} cannot be; expected a number from 0 to {MOST_DEVICES - 1}.")
    return f"device-{device}"


def make_credentials(folder: Path, devices: int, hosts: Sequence[str] = LOOPBACK) -> Credentials:
    """An authority, a server certificate for its host names or addresses, and a key and a certificate for each device.

    What exists already stays: more devices get theirs, a new host gets the server a new certificate that has the old ones too.
    A device whose public key alone is here (``devices/device-N.pub``, because it made its own) gets a certificate for it.
    """
    names = [check_host(host) for host in hosts]
    if not 0 <= devices <= MOST_DEVICES:
        raise InputError(f"--devices {devices} cannot be; expected a number from 0 to {MOST_DEVICES}.")
    credentials = Credentials(folder)
    _make_folder(credentials)
    if not credentials.authority.exists():
        _make_authority(credentials)
    if not credentials.revocations.exists():
        _write_revocations(credentials, [])
    had = _hosts_of(credentials)
    if had is None or not set(names) <= set(had):
        wanted = list(dict.fromkeys([*(had or ()), *names]))
        if not wanted:
            raise InputError("--host is missing: a name or address by which devices reach the server.")
        key = _read_private(credentials.certificate_key) if credentials.certificate_key.exists() else _new_key()
        _write_server(credentials, key, wanted)
    for device in sorted({*range(devices), *credentials._known()}):
        if not credentials.device_certificate(device).exists():
            _complete_device(credentials, device)
    return credentials


def rotate(credentials: Credentials, device: int | None = None) -> None:
    """A new key and certificate for a device, or (None) for the server; the old one stops counting. Also lets a revoked one in again."""
    if device is None:
        hosts = _hosts_of(credentials)
        if hosts is None:
            raise InputError(f"{credentials.folder} holds no server certificate; see perfeds2 federate credentials.")
        _revoke(credentials, credentials.certificate, x509.ReasonFlags.superseded)
        _write_server(credentials, _new_key(), hosts)
        return
    _check_known(credentials, device)
    _revoke(credentials, credentials.device_certificate(device), x509.ReasonFlags.superseded)
    make_device_key(credentials, device)
    _write_device_certificate(credentials, device)


def revoke(credentials: Credentials, device: int) -> None:
    """Its certificate no longer counts. Its number stays taken, until ``rotate`` lets it in again."""
    _check_known(credentials, device)
    if not credentials.device_certificate(device).exists():  # an old folder: it has only a key for Flower
        _complete_device(credentials, device)
    _revoke(credentials, credentials.device_certificate(device), x509.ReasonFlags.privilege_withdrawn)


def unregister(credentials: Credentials, device: int) -> None:
    """Revoke a device and forget it: its number is free for another."""
    revoke(credentials, device)
    for path in (credentials.device_key, credentials.device_public_key, credentials.device_certificate):
        path(device).unlink(missing_ok=True)


# ---- where keys may lie


def credentials_beside(run: Path) -> Path:
    """Where the keys of a federation on one machine go: beside its results, never among them."""
    return run.parent / f".{run.name}.credentials"


def keep_apart(credentials: Path, run: Path) -> None:
    """Results are shared and keys are not: neither may lie inside the other."""
    keys, results = credentials.resolve(), run.resolve()
    if keys == results or keys in results.parents or results in keys.parents:
        raise InputError(
            f"credentials {credentials} and results {run} lie inside one another; results are shared and keys must not be: "
            "choose folders beside one another."
        )


def _refuse_results(folder: Path) -> None:
    for above in (folder, *folder.parents):
        if all(any((above / name).exists() for name in names) for names in RESULTS):
            raise InputError(
                f"{folder} lies among the results in {above}, which people share; choose another folder for keys."
            )


def _make_folder(credentials: Credentials) -> None:
    """For the owner only. A folder with other things in it is left alone."""
    folder = credentials.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a folder for credentials.")
    _refuse_results(folder.resolve())
    if folder.exists() and not credentials.authority.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds other files and no ca.crt; choose an empty or new folder for credentials.")
    for each in (folder, folder / "devices"):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
        each.chmod(0o700)


def check_host(host: str) -> str:
    """A name or an address, without a port."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if not HOST.fullmatch(host) or host.replace(".", "").isdecimal():
        raise InputError(
            f"--host {host!r} is no host name or address; expected one such as fl.example.org or 10.0.0.7."
        )
    return host.lower()


def _check_known(credentials: Credentials, device: int) -> None:
    name = device_name(device)
    if device not in credentials._known():
        raise InputError(f"{credentials.folder} knows no {name}; see perfeds2 federate credentials.")


# ---- what the authority signs


def _make_authority(credentials: Credentials) -> None:
    if credentials.authority_key.exists():
        raise InputError(
            f"{credentials.authority_key} has lost its {credentials.authority}; put it back, or choose a new folder."
        )
    key = _new_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    name = _name("perfeds2 federation authority")
    certificate = (
        _unsigned(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_private(credentials.authority_key, key)
    _write(credentials.authority, certificate.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)


def _write_server(credentials: Credentials, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> None:
    """It serves, and is also a client: of the broker."""
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed = _signed(credentials, SERVER, key.public_key(), usages, names)
    _write_private(credentials.certificate_key, key)
    _write(credentials.certificate, signed, 0o644)


def _complete_device(credentials: Credentials, device: int) -> None:
    """A certificate, and where there is none yet, the key it is for."""
    key = credentials.device_key(device)
    if not credentials.device_public_key(device).exists():
        make_device_key(credentials, device)
    elif key.exists() and b"BEGIN PRIVATE KEY" not in key.read_bytes():  # made when there was only Flower
        _write_device_key(credentials, device, _read_private(key))
    _write_device_certificate(credentials, device)


def make_device_key(credentials: Credentials, device: int) -> None:
    _write_device_key(credentials, device, _new_key())


def _write_device_key(credentials: Credentials, device: int, key: ec.EllipticCurvePrivateKey) -> None:
    _write_private(credentials.device_key(device), key, PrivateFormat.PKCS8, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(credentials.device_public_key(device), public + b"\n", 0o644)


def _write_device_certificate(credentials: Credentials, device: int) -> None:
    """A client and never a server: no device can pass for the broker."""
    path = credentials.device_public_key(device)
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(f"{path} holds no public key of an elliptic curve; make one with ssh-keygen -t ecdsa -b 256.")
    signed = _signed(credentials, device_name(device), key, [ExtendedKeyUsageOID.CLIENT_AUTH])
    _write(credentials.device_certificate(device), signed, 0o644)


def _signed(
    credentials: Credentials,
    name: str,
    key: ec.EllipticCurvePublicKey,
    usages: Sequence[x509.ObjectIdentifier],
    hosts: x509.SubjectAlternativeName | None = None,
) -> bytes:
    authority, authority_key = _authority(credentials)
    certificate = (
        _unsigned(_name(name), authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    if hosts is not None:
        certificate = certificate.add_extension(hosts, critical=False)
    return certificate.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _revoke(credentials: Credentials, certificate: Path, reason: x509.ReasonFlags) -> None:
    """Put a certificate on the list, if there is one."""
    if not certificate.exists():
        return
    serial = _read_certificate(certificate).serial_number
    listed = [*_read_revocations(credentials)] if credentials.revocations.exists() else []
    if serial in (each.serial_number for each in listed):
        return
    now = datetime.datetime.now(datetime.UTC)
    new = x509.RevokedCertificateBuilder(serial, now).add_extension(x509.CRLReason(reason), critical=False).build()
    _write_revocations(credentials, [*listed, new])


def _write_revocations(credentials: Credentials, listed: Sequence[x509.RevokedCertificate]) -> None:
    """A list that never runs out before the authority does: with one that has, nobody would be let in."""
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
            f"{path} is not here (kept off line?); only with it can a certificate or a revocation be signed: put it back "
            "for this command."
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


def _hosts_of(credentials: Credentials) -> list[str] | None:
    """The hosts in the server's certificate; None if there is none, or one that a broker could not use."""
    if not credentials.certificate.exists():
        return None
    certificate = _read_certificate(credentials.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return hosts if certificate.subject == _name(SERVER) else None


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise InputError(f"{path} is not a readable certificate; copy it again.") from None


def _read_revocations(credentials: Credentials) -> x509.CertificateRevocationList:
    try:
        return x509.load_pem_x509_crl(credentials.revocations.read_bytes())
    except ValueError:
        raise InputError(f"{credentials.revocations} is not a readable list of revocations; copy it again.") from None


def _read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    text = path.read_bytes()
    read = serialization.load_pem_private_key if b"BEGIN PRIVATE KEY" in text else serialization.load_ssh_private_key
    try:
        key = read(text, password=None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is not a readable private key; copy it again.")
    return key


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())  # a handshake costs a quarter of what P-384 asks


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, *forms: PrivateFormat) -> None:
    notations = [key.private_bytes(Encoding.PEM, form, NoEncryption()) for form in forms or [PrivateFormat.PKCS8]]
    _write(path, b"".join(notations), 0o600)


def _write(path: Path, text: bytes, mode: int) -> None:
    """The old file or the new one, never half; a private one is not readable by others for a moment."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 from the start
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
