"""Issue and revoke the certificates with which a broker, a server and devices authenticate.

A folder holds two authorities and the certificates they signed. ``ca`` signs the certificates of the broker and of the
enrolment port, which are valid for servers only and list their host names. ``clients`` signs those of the federation's
server, named ``server``, and of device N, named ``device-N``, which are valid for clients only; the broker takes the
sender of a message from that name. So no client can impersonate the broker. Each authority has a revocation list.

Every private file is readable by its owner only. No key is stored in a folder of results, because people share those.
"""

import ipaddress
import re
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from perfeds2.deployment.authority import (
    VALID_DAYS,
    Authority,
    days_until,
    own_key,
    read_certificates,
    read_lists,
    write,
)
from perfeds2.deployment.tls import tls_context
from perfeds2.errors import InputError
from perfeds2.runs.folder import alone

SERVER, BROKER, ENROLMENT = "server", "broker", "enrolment"  # common names in certificates
FEDERATION = "perfeds2"  # default name of a federation
MOST_DEVICES = 1_000_000
WARN_DAYS = 30
LOOPBACK = ("127.0.0.1", "localhost")
RESULTS = (("spec.toml", "sweep.toml", "tune.toml"), ("parts", "summary.json", "report.html"))  # one of each: results
HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.I)

Party = int | str | None  # a device, BROKER or ENROLMENT, or the federation's server


class Credentials:
    """The files in a federation's credentials folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.brokers = Authority(folder, "ca")  # its certificate and list are needed on every machine
        self.clients = Authority(folder, "clients")  # its certificate and list are needed by the broker
        self.authority = self.brokers.certificate
        self.certificate, self.certificate_key = self.own_files(None)
        self.federation = self._federation()

    def _federation(self) -> str:
        """Return the federation named in a client's certificate; the default if there is none yet."""
        for path in (self.certificate, next(self.folder.glob("devices/device-*.crt"), None)):
            if path is not None and path.exists():
                name = read_certificates(path)[0].subject.rfc4514_string().removeprefix("CN=")
                return name.rpartition(".")[0] or FEDERATION
        return FEDERATION

    def file(self, party: Party, suffix: str) -> Path:
        """Return the path of a certificate (``crt``) or a private key (``key``)."""
        folder = self.folder / "devices" if isinstance(party, int) else self.folder
        return folder / f"{name_of(party)}.{suffix}"

    def own_files(self, party: Party) -> tuple[Path, Path]:
        """Return the paths of a certificate and its key."""
        return self.file(party, "crt"), self.file(party, "key")

    def devices(self, revoked: bool = False) -> list[int]:
        """Return the devices whose certificate is not revoked, or, with ``revoked``, those whose is."""
        listed = self.clients.revoked()
        found = (device_number(path.stem) for path in (self.folder / "devices").glob("device-*.crt"))
        numbers = sorted(number for number in found if number is not None)
        return [each for each in numbers if (bool(listed) and not self.serials(each).isdisjoint(listed)) == revoked]

    def serials(self, party: Party) -> frozenset[int]:
        """Return the serial numbers of a party's certificates: the newest one, and those it renewed."""
        path = self.file(party, "crt")
        if not path.exists():
            raise InputError(
                f"{self.folder} has no certificate of {name_of(party)}; make one with perfeds2 federate credentials."
            )
        return frozenset(each.serial_number for each in read_certificates(path))

    def rotate(self, party: Party) -> None:
        """Make a new key and certificate for a party, and revoke the old ones."""
        hosts = self.hosts(party)
        self.revoke(party)
        for path in self.own_files(party):
            path.unlink()
        with self.locked():
            self.issue(party, hosts)

    def revoke(self, party: Party) -> None:
        """Revoke a party's certificates, and delete its tokens.

        A device's number stays taken until ``rotate`` or a new token lets it in again.
        """
        with self.locked():
            if not self.drop_tokens(party) or self.file(party, "crt").exists():
                self.authority_of(party).revoke(self.serials(party))

    @property
    def tokens(self) -> Path:
        """The folder of tokens that were not used: files with a device's name, called by the hash of a secret."""
        return self.folder / "tokens"

    def drop_tokens(self, party: Party) -> bool:
        """Delete a device's tokens, and return whether it had any."""
        stored = list(self.tokens.glob("*")) if isinstance(party, int) else []
        found = [path for path in stored if path.read_text(encoding="utf-8").split()[:1] == [name_of(party)]]
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)

    def roll(self, finish: bool = False) -> None:
        """Replace both authorities: first add new ones, later (``finish``) trust only those."""
        with self.locked():
            for authority in (self.brokers, self.clients):
                authority.finish() if finish else authority.roll()
            for party in (BROKER, ENROLMENT, None) if finish else ():
                self.issue(party, self.hosts(party))

    def issue(self, party: Party, hosts: Sequence[str] = ()) -> None:
        """Sign a certificate for a party's key. Create the key if there is none."""
        public = own_key(self.file(party, "key")).public_key()
        self.certify(party, public, hosts)

    def certify(
        self, party: Party, public: ec.EllipticCurvePublicKey, hosts: Sequence[str] = (), days: float = VALID_DAYS
    ) -> bytes:
        """Sign, store and return a certificate."""
        return self.keep(party, self.sign(party, public, hosts, days))

    def sign(
        self, party: Party, public: ec.EllipticCurvePublicKey, hosts: Sequence[str] = (), days: float = VALID_DAYS
    ) -> x509.Certificate:
        authority = self.authority_of(party)
        is_server = authority is self.brokers
        usage = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
        name = name_of(party) if is_server else federated_name(self.federation, name_of(party))
        return authority.sign(name, public, usage, hosts, days)

    def keep(self, party: Party, certificate: x509.Certificate) -> bytes:
        """Store and return a certificate. Earlier ones stay in the file while they are valid, to be revoked."""
        path = self.file(party, "crt")
        earlier = read_certificates(path) if path.exists() else []
        valid = [each for each in earlier if days_until(each.not_valid_after_utc) > 0]
        texts = [each.public_bytes(Encoding.PEM) for each in (certificate, *valid)]
        write(path, b"".join(texts))
        return texts[0]

    def authority_of(self, party: Party) -> Authority:
        return self.brokers if party in (BROKER, ENROLMENT) else self.clients

    def hosts(self, party: Party) -> list[str]:
        """Return the hosts in a certificate; empty if there is none."""
        path = self.file(party, "crt")
        if not path.exists() or self.authority_of(party) is self.clients:
            return []
        names = read_certificates(path)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]

    def renew_lists(self) -> None:
        """Sign the revocation lists again whose validity is half over, if their keys are here."""
        with self.locked():
            for authority in (self.brokers, self.clients):
                if authority.revocations.exists():
                    authority.renew()

    def locked(self) -> AbstractContextManager[None]:
        """Let one process at a time change the folder."""
        return alone(self.folder, within_s=60.0)

    def days_left(self) -> dict[str, float]:
        """Return the days until each certificate, list and authority in the folder expires, by file name."""
        ends = {path: read_certificates(path)[0].not_valid_after_utc for path in self.folder.rglob("*.crt")}
        ends |= {path: read_lists(path)[0].next_update_utc for path in self.folder.glob("*.crl")}
        left = {str(path.relative_to(self.folder)): days_until(end) for path, end in ends.items() if end is not None}
        return dict(sorted(left.items()))

    def warnings(self) -> list[str]:
        """Return a sentence for each file that expires within 30 days or has expired."""
        left = {name: days for name, days in self.days_left().items() if days < WARN_DAYS}
        return [
            f"{name} {f'expires in {days:.0f} days' if days > 0 else 'has expired'} (docs/how-to/certificates.md)"
            for name, days in left.items()
        ]

    def take_trust(self, text: bytes) -> None:
        """Take the broker's authorities and list from the network. A read-only folder is left alone.

        Raises:
            InputError: They are refused.
        """
        try:
            self.brokers.take(text)
        except OSError:
            trust = self.brokers.trust()
            self.brokers = Authority(Path(tempfile.mkdtemp()), self.brokers.name)
            write(self.brokers.certificate, trust)
            write(self.brokers.revocations, trust)
            self.brokers.take(text)

    def tls(self, party: Party, certified: bool = True) -> ssl.SSLContext:
        """Return a client's TLS context that verifies the broker and that it is not revoked.

        Args:
            party: The client.
            certified: Whether the client has a certificate yet.

        Raises:
            InputError: A file is missing or unusable.
        """
        trust, own = (self.brokers.certificate, self.brokers.revocations), self.own_files(party)
        files = (*trust, *own) if certified else trust
        for path in files:
            if not path.exists():
                raise InputError(f"{path} does not exist; copy it from where perfeds2 federate credentials was run.")
        try:
            return tls_context(ssl.PROTOCOL_TLS_CLIENT, trust, own if certified else None)
        except OSError as error:
            raise InputError(f"{', '.join(map(str, files))} are not usable certificates and keys: {error}.") from None


def name_of(party: Party) -> str:
    """Return the name in the certificate of a party."""
    if not isinstance(party, int):
        return party or SERVER
    if not 0 <= party < MOST_DEVICES:
        raise InputError(f"device {party} is out of range; expected a number from 0 to {MOST_DEVICES - 1}.")
    return f"device-{party}"


def device_number(name: str, federation: str = FEDERATION) -> int | None:
    """Return the number in a device's name in a federation; None for any other name."""
    before = federated_name(federation, "device-")
    digits = name.removeprefix(before)
    return int(digits) if name.startswith(before) and re.fullmatch("0|[1-9][0-9]{0,5}", digits) else None


def federated_name(federation: str, name: str) -> str:
    """Return the name of a client in a federation. On one broker, no two federations have a name in common."""
    return name if federation == FEDERATION else f"{federation}.{name}"


def make_credentials(
    folder: Path, devices: int, hosts: Sequence[str] = LOOPBACK, federation: str | None = None
) -> Credentials:
    """Make two authorities, certificates of broker and server, and a key and a certificate for each device.

    Existing files stay. A new host leads to new certificates of the broker, which also list the old hosts.

    Args:
        folder: The credentials folder; made if it does not exist.
        devices: Number of devices, n.
        hosts: Host names and addresses of the broker.
        federation: Name of the federation, perfeds2 by default. Federations on one broker need different names.

    Returns:
        The files of the folder.

    Raises:
        InputError: A host or the number of devices is invalid, or the folder cannot be used.
    """
    names = [check_host(host) for host in hosts]
    if not 0 <= devices <= MOST_DEVICES:
        raise InputError(f"--devices {devices} is out of range; expected a number from 0 to {MOST_DEVICES}.")
    credentials = Credentials(folder)
    if federation is not None and not re.fullmatch("[a-z0-9-]{1,32}", federation):
        raise InputError(f"--federation {federation!r} is not a name; expected up to 32 of a to z, 0 to 9 and -.")
    if federation not in (None, credentials.federation) and credentials.certificate.exists():
        raise InputError(f"{folder} has the federation {credentials.federation!r}; choose a new folder for another.")
    credentials.federation = federation or credentials.federation
    make_folder(credentials)
    if credentials.clients.revocations.exists():
        credentials.renew_lists()
    with credentials.locked():
        credentials.brokers.make()
        credentials.clients.make()
        for party in (BROKER, ENROLMENT):
            had = credentials.hosts(party)
            if not had or not set(names) <= set(had):
                credentials.issue(party, list(dict.fromkeys([*had, *names])))
        for party in (None, *range(devices)):
            if not credentials.file(party, "crt").exists():
                credentials.issue(party)
    return credentials


# ---- where keys may be stored


def credentials_beside(run: Path) -> Path:
    """Return the folder for the keys of a federation on one machine: beside its results."""
    return run.parent / f".{run.name}.credentials"


def keep_apart(credentials: Path, run: Path) -> None:
    """Raise InputError if one of the folders of keys and results is inside the other, because people share results."""
    keys, results = credentials.resolve(), run.resolve()
    if keys == results or keys in results.parents or results in keys.parents:
        raise InputError(
            f"credentials {credentials} and results {run} must not be inside each other, because results are often shared; "
            "choose separate folders."
        )


def make_folder(credentials: Credentials) -> None:
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
    if (
        folder.exists()
        and not credentials.authority.exists()
        and {path.name for path in folder.iterdir()} - {"devices"}
    ):
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
