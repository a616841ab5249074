"""Enrol devices with one-time tokens, and renew their certificates. A private key never leaves its device.

A token holds a device number, a secret, the authority to trust and the smallest acceptable number of its revocation
list. The server stores a hash of the secret and deletes it when it is used, so a token works once. The device first
fetches authorities and list without verifying the server, and checks them against the token. Then it sends its request
over TLS.

    GET /trust                             the authorities and lists of brokers
    POST /enrol, a token and a request     a certificate, valid for 90 days
    POST /renew, over TLS as the device    the newest certificate for the same key; a new one after 45 days
"""

import hashlib
import http.client
import re
import secrets
import ssl
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from perfeds2.deployment.authority import (
    MOST_TRUST_BYTES,
    common_name,
    days_until,
    fingerprint,
    name_with,
    new_key,
    number_of,
    read_certificates,
    read_lists,
    write,
    write_private,
)
from perfeds2.deployment.credentials import ENROLMENT, Credentials, device_number, make_folder, name_of
from perfeds2.deployment.tls import tls_context
from perfeds2.errors import InputError
from perfeds2.http_server import PATIENCE_S, Address, BoundedServer, serving

TOKEN = re.compile(r"(0|[1-9]\d{0,5})\.([\w-]{43})\.([0-9a-f]{64})\.(\d{1,9})", re.ASCII)
ENROLLED_DAYS = 90
RENEW_DAYS = 45  # a certificate with fewer days left is renewed
MOST_BYTES = 4096  # of a request
ANSWER_S = 0.02  # from one answer to the next


def make_tokens(credentials: Credentials, devices: Iterable[int], days: float) -> list[str]:
    """Return a token for each device. Only hashes of their secrets are stored."""
    pin = fingerprint(read_certificates(credentials.brokers.certificate)[0])
    least = number_of(read_lists(credentials.brokers.revocations)[0])
    made, ends = [], int(time.time() + days * 86_400)
    credentials.tokens.mkdir(mode=0o700, exist_ok=True)
    for device in devices:
        secret = secrets.token_urlsafe(32)
        write(_stored(credentials, secret), f"{name_of(device)} {ends}".encode(), 0o600)
        made.append(f"{device}.{secret}.{pin}.{least}")
    return made


def _stored(credentials: Credentials, secret: str) -> Path:
    return credentials.tokens / hashlib.sha256(secret.encode()).hexdigest()


# ---- on the server


class RefusedError(InputError):
    """A request that is not granted. The client gets this message, and none of any other error."""


def enrol_device(credentials: Credentials, body: bytes) -> bytes:
    """Return a certificate for a request, and use up its token."""
    text, _, pem = body.partition(b"\n")
    token = TOKEN.fullmatch(text.decode("ascii", "replace"))
    try:
        request = x509.load_pem_x509_csr(pem)
        public, valid, name = request.public_key(), request.is_signature_valid, common_name(request.subject)
    except Exception:  # untrusted bytes may raise anything
        raise RefusedError("the request cannot be read") from None
    if not (valid and isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1)):
        raise RefusedError("the request is not signed with a key of the curve P-256")
    if token is None or name != name_of(int(token[1])):
        raise RefusedError("the request names another device than the token")
    device, stored = int(token[1]), _stored(credentials, token[2])
    with credentials.locked():
        try:
            named, ends = stored.read_text().split()
        except FileNotFoundError:
            raise RefusedError("the token is unknown or was used; ask for a new one") from None
        if named != name or time.time() > int(ends):
            stored.unlink(missing_ok=True)
            raise RefusedError("the token has expired or is for another device; ask for a new one")
        signed = credentials.sign(device, public, days=ENROLLED_DAYS)
        stored.unlink()  # only now: if signing fails, the token still works
        credentials.drop_tokens(device)
        if credentials.file(device, "crt").exists():
            credentials.clients.revoke(credentials.serials(device))
            credentials.file(device, "crt").unlink()
        return credentials.keep(device, signed)


def renew_device(credentials: Credentials, shown: bytes | None) -> bytes:
    """Return the newest certificate for the key of a valid one. If it expires soon, issue a new one."""
    old = None if shown is None else x509.load_der_x509_certificate(shown)
    name = "" if old is None else common_name(old.subject)
    device = device_number(name, credentials.federation)
    if old is None or device is None or not isinstance(public := old.public_key(), ec.EllipticCurvePublicKey):
        raise RefusedError("only a device with a valid certificate can renew it")
    with credentials.locked():
        if old.serial_number not in credentials.serials(device):
            raise RefusedError("the certificate was replaced")
        newest = read_certificates(credentials.file(device, "crt"))[0]
        rolled = newest.issuer != read_certificates(credentials.clients.certificate)[0].subject
        if newest.public_key() == public and days_until(newest.not_valid_after_utc) > RENEW_DAYS and not rolled:
            return newest.public_bytes(Encoding.PEM)
        return credentials.certify(device, public, days=ENROLLED_DAYS)


@contextmanager
def enrolling(credentials: Credentials, address: Address) -> Iterator[int]:
    """Enrol devices and renew certificates within the context, and yield the port."""
    lock = threading.Lock()

    def context() -> ssl.SSLContext:
        trust, own = (
            (credentials.clients.certificate, credentials.clients.revocations),
            credentials.own_files(ENROLMENT),
        )
        return tls_context(ssl.PROTOCOL_TLS_SERVER, trust, own, strangers=True)

    class _Enrolment(BaseHTTPRequestHandler):
        server_version, sys_version = "perfeds2", ""

        def do_GET(self) -> None:
            self.answer(credentials.brokers.trust() if self.path == "/trust" else None)

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                self.send_error(413, f"at most {MOST_BYTES} bytes are accepted")
                return
            body = self.rfile.read(int(length))
            try:
                with lock:
                    time.sleep(ANSWER_S)
                    if self.path == "/enrol":
                        text = enrol_device(credentials, body)
                    else:
                        text = renew_device(credentials, self.connection.getpeercert(binary_form=True))
                self.answer(text)
            except RefusedError as error:
                self.send_error(403, str(error))
            except (InputError, OSError, ValueError):  # such as a missing file, whose path stays on this machine
                traceback.print_exc()
                self.send_error(500, "the server cannot sign now; ask its operator")

        def answer(self, text: bytes | None) -> None:
            if text is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

    with serving(BoundedServer(address, _Enrolment, context)) as port:
        yield port


# ---- on a device


def enrol(credentials: Credentials, address: Address, token: str) -> int:
    """Make a key, have it certified, and return the device's number.

    Raises:
        InputError: The token is malformed, or the server refuses it or cannot be verified.
    """
    found = TOKEN.fullmatch(token.strip())
    if found is None:
        raise InputError("--token is malformed; copy the whole line that perfeds2 federate token printed.")
    device, key = int(found[1]), new_key()
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE  # the token says which authority to trust
    trust = _ask(address, stranger, "GET", "/trust")
    make_folder(credentials)
    credentials.brokers.take(trust, pin=found[3], least=int(found[4]))
    request = x509.CertificateSigningRequestBuilder(name_with(name_of(device))).sign(key, hashes.SHA256())
    body = found[0].encode() + b"\n" + request.public_bytes(Encoding.PEM)
    certificate = _ask(address, credentials.tls(device, certified=False), "POST", "/enrol", body)
    if x509.load_pem_x509_certificate(certificate).public_key() != key.public_key():
        raise InputError("the server returned a certificate for another key; ask its operator.")
    write_private(credentials.file(device, "key"), [key])
    write(credentials.file(device, "crt"), certificate)
    write(_address_file(credentials), f"{address[0]} {address[1]}".encode())
    return device


def renew(credentials: Credentials, device: int) -> bool:
    """Fetch the newest list and certificate from the server that enrolled this device.

    Returns whether the certificate is new.

    Raises:
        InputError: The server refuses, cannot be reached or cannot be verified.
    """
    if not _address_file(credentials).exists():
        return False
    host, port = _address_file(credentials).read_text().split()
    context, path = credentials.tls(device), credentials.file(device, "crt")
    credentials.take_trust(_ask((host, int(port)), context, "GET", "/trust"))
    text = _ask((host, int(port)), context, "POST", "/renew", b"")
    old, new = read_certificates(path)[0], x509.load_pem_x509_certificate(text)
    if new == old or new.public_key() != old.public_key():
        return False
    write(path, text)
    return True


def _address_file(credentials: Credentials) -> Path:
    return credentials.folder / "enrolment.txt"


def _ask(address: Address, context: ssl.SSLContext, method: str, path: str, body: bytes | None = None) -> bytes:
    where = f"{address[0]}:{address[1]}"
    try:
        with closing(http.client.HTTPSConnection(*address, timeout=PATIENCE_S, context=context)) as connection:
            connection.request(method, path, body)
            response = connection.getresponse()
            text = response.read(MOST_TRUST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"enrolment at {where} failed: {error}.") from None
    if response.status != http.client.OK:
        raise InputError(f"enrolment at {where} was refused: {response.reason}.")
    return text
