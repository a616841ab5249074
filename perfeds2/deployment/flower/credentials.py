"""How do a server and its devices know each other?

The server shows a certificate, signed by a certificate authority made here; devices know the authority and nothing else.
A device shows a key of its own; the server knows the public halves of those that may take part. Every private file is
readable by its owner only. The authority's private key is needed only to add a server certificate later: keep it off line.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 825
YESTERDAY = datetime.timedelta(days=1)  # clocks differ


class Credentials:
    """Where the files of a federation are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"  # the certificate every device and every command needs
        self.authority_key = folder / "ca.key"
        self.certificate = folder / "server.crt"
        self.certificate_key = folder / "server.key"

    def device_key(self, device: int) -> Path:
        """The private half: belongs on the device, nowhere else."""
        return self.folder / "devices" / f"{device_name(device)}.key"

    def device_public_key(self, device: int) -> Path:
        """What the server is told."""
        return self.device_key(device).with_suffix(".pub")

    def devices(self) -> list[int]:
        """Whose public keys are here, by number."""
        return sorted(int(path.stem.rpartition("-")[2]) for path in (self.folder / "devices").glob("device-*.pub"))


def device_name(device: int) -> str:
    return f"device-{device}"


def make_credentials(folder: Path, devices: int, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Credentials:
    """An authority, a server certificate for its host names or addresses, and a key pair for each device.

    What exists already stays: a second call with more devices adds only theirs.
    """
    credentials = Credentials(folder)
    (folder / "devices").mkdir(parents=True, exist_ok=True)
    if not credentials.authority.exists():
        _make_authority(credentials)
    if not credentials.certificate.exists():
        _make_certificate(credentials, hosts)
    for device in range(devices):
        if not credentials.device_public_key(device).exists():
            make_device_key(credentials, device)
    return credentials


def make_device_key(credentials: Credentials, device: int) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(credentials.device_key(device), key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    credentials.device_public_key(device).write_bytes(public + b"\n")


def _make_authority(credentials: Credentials) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    name = _name("perfeds2 federation authority")
    certificate = (
        _unsigned(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_private(credentials.authority_key, key)
    _write_signed(credentials.authority, certificate, key)


def _make_certificate(credentials: Credentials, hosts: Sequence[str]) -> None:
    authority_key = serialization.load_pem_private_key(credentials.authority_key.read_bytes(), password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    authority = x509.load_pem_x509_certificate(credentials.authority.read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _unsigned(_name(hosts[0]), authority.subject, key)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    _write_private(credentials.certificate_key, key)
    _write_signed(credentials.certificate, certificate, authority_key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _unsigned(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now, serial = datetime.datetime.now(datetime.UTC), x509.random_serial_number()
    valid = now - YESTERDAY, now + datetime.timedelta(days=VALID_DAYS)
    return x509.CertificateBuilder(issuer, name, key.public_key(), serial, *valid)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_signed(path: Path, certificate: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> None:
    path.write_bytes(certificate.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> None:
    """Never readable by others, not for a moment."""
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
