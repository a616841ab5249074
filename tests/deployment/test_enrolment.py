"""Does a token let one device in once, does a key stay where it was made, and are certificates renewed in time?"""

import concurrent.futures
import contextlib
import shutil
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from perfeds2 import http_server
from perfeds2.deployment import enrolment
from perfeds2.deployment.authority import days_until, name_with, new_key, own_key, read_certificates
from perfeds2.deployment.credentials import BROKER, ENROLMENT, Credentials, make_credentials
from perfeds2.deployment.enrolment import _ask, enrol, enrolling, make_tokens, renew
from perfeds2.errors import InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("keys") / "credentials", 0)


@pytest.fixture(scope="module")
def address(made):
    with enrolling(made, ("127.0.0.1", 0)) as port:
        yield "127.0.0.1", port


@pytest.fixture
def device(tmp_path):
    return Credentials(tmp_path / "device")


numbers = iter(range(1000))  # each test has devices of its own


@pytest.fixture
def token(made):
    return make_tokens(made, [next(numbers)], days=1)[0]


def number(token: str) -> int:
    return int(token.split(".")[0])


def serial(credentials, device) -> int:
    return read_certificates(credentials.file(device, "crt"))[0].serial_number


def request(name: str, key=None) -> bytes:
    return (
        x509.CertificateSigningRequestBuilder(name_with(name))
        .sign(key or new_key(), hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def send(made, address, body: bytes, path: str = "/enrol") -> bytes:
    return _ask(address, made.tls(0, certified=False), "POST", path, body)


# ---- enrolment


def test_a_token_gives_a_certificate_for_a_key_that_stays_on_the_device(made, address, device, token):
    n = enrol(device, address, token)
    assert n == number(token)
    assert own_key(device.file(n, "key")).public_key() == read_certificates(device.file(n, "crt"))[0].public_key()
    assert device.file(n, "key").stat().st_mode & 0o077 == 0
    assert not made.file(n, "key").exists()
    assert serial(made, n) == serial(device, n)
    assert device.brokers.trust() == made.brokers.trust()
    assert not device.clients.certificate.exists()
    assert not list(device.folder.glob("*.key"))
    assert 89 < days_until(read_certificates(device.file(n, "crt"))[0].not_valid_after_utc) < 91


def test_tokens_are_stored_as_hashes_for_their_owner_only(made, token):
    secret = token.split(".")[1]
    files = list((made.folder / "tokens").iterdir())
    assert not any(secret in path.name or secret in path.read_text() for path in files)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (made.folder / "tokens", *files))


def test_a_token_works_once(address, device, token, tmp_path):
    enrol(device, address, token)
    with pytest.raises(InputError, match="unknown or was used"):
        enrol(Credentials(tmp_path / "second"), address, token)


def test_of_many_at_once_one_gets_in(made, token):
    def attempt(_) -> bool:
        try:
            enrolment.enrol_device(made, token.encode() + b"\n" + request(f"device-{number(token)}"))
        except InputError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1
    assert len(made.serials(number(token))) == 1


def test_an_expired_token_is_refused_and_gone(made, address, device):
    n = next(numbers)
    token = make_tokens(made, [n], days=-0.001)[0]
    for why in ("has expired", "unknown or was used"):
        with pytest.raises(InputError, match=why):
            enrol(device, address, token)
    assert not made.file(n, "crt").exists()


def test_a_wrong_token_is_refused(made, address, device, token):
    n, secret, pin, least = token.split(".")
    with pytest.raises(InputError, match="unknown or was used"):
        enrol(device, address, ".".join([n, secret[::-1], pin, least]))
    for malformed in ("", "x", token[1:], f"{token}.1", "999999999." + token, token.replace(".", "")):
        with pytest.raises(InputError, match="is malformed"):
            enrol(device, address, malformed)
    with pytest.raises(InputError, match="another device"):
        send(made, address, f"{next(numbers)}.{secret}.{pin}.{least}\n".encode() + request(f"device-{n}"))
    assert enrol(device, address, token) == number(token)  # nothing of this used it up


def test_the_token_of_one_device_lets_no_other_in(made, address, device, token):
    n, other = number(token), next(numbers)
    with pytest.raises(InputError, match="has expired or is for another device"):
        enrol(device, address, f"{other}.{token.partition('.')[2]}")
    assert not made.file(other, "crt").exists()
    assert not made.file(n, "crt").exists()


def test_a_server_that_the_token_does_not_name_is_not_trusted(made, device, token, tmp_path):
    """Neither one of another authority, nor one whose list is older than the token."""
    foreign = make_credentials(tmp_path / "foreign", 0)
    with enrolling(foreign, ("127.0.0.1", 0)) as port, pytest.raises(InputError, match="no authority known here"):
        enrol(device, ("127.0.0.1", port), token)
    newer = f"{token.rpartition('.')[0]}.99"
    with enrolling(made, ("127.0.0.1", 0)) as port, pytest.raises(InputError, match="older than"):
        enrol(device, ("127.0.0.1", port), newer)
    assert not device.authority.exists()


def test_a_stolen_broker_key_that_was_revoked_gets_no_token(device, tmp_path):
    made = make_credentials(tmp_path / "credentials", 0)
    thief = Credentials(tmp_path / "thief")
    shutil.copytree(made.folder, thief.folder)
    for stolen, mine in zip(made.own_files(BROKER), thief.own_files(ENROLMENT), strict=True):
        shutil.copy(stolen, mine)
    made.rotate(BROKER)
    token = make_tokens(made, [0], days=1)[0]
    shutil.copy(made.brokers.revocations, thief.brokers.revocations)  # the older one would be refused, see above
    with enrolling(thief, ("127.0.0.1", 0)) as port, pytest.raises(InputError, match="revoked"):
        enrol(device, ("127.0.0.1", port), token)
    assert len(list((made.folder / "tokens").iterdir())) == 1


@pytest.mark.parametrize("name", ["device-999", "server", "broker", "device-", ""])
def test_a_request_with_another_name_is_refused(made, address, token, name):
    with pytest.raises(InputError, match=r"another device|cannot be read"):
        send(made, address, token.encode() + b"\n" + (request(name) if name else b""))
    assert not made.file(999, "crt").exists()


@pytest.mark.slow
def test_garbage_and_too_much_are_refused(made, address, token):
    good = request(f"device-{number(token)}")
    weak = request(f"device-{number(token)}", rsa.generate_private_key(65537, 2048))
    other = request(f"device-{number(token)}", ec.generate_private_key(ec.SECP384R1()))
    flipped = good[:150] + (b"A" if good[150:151] != b"A" else b"B") + good[151:]
    for body in (b"", b"\n", b"\0" * 4000, token.encode(), b"\xff\n" + good, token.encode() + b"\n" + flipped):
        with pytest.raises(InputError, match="was refused"):
            send(made, address, body)
    for body in (weak, other):
        with pytest.raises(InputError, match="P-256"):
            send(made, address, token.encode() + b"\n" + body)
    with pytest.raises(InputError, match=r"at most 4096 bytes|closed connection|reset"):  # the body is not read
        send(made, address, b"x" * 4097)
    with pytest.raises(InputError, match="was refused"):
        _ask(address, made.tls(0, certified=False), "GET", "/clients.key")
    assert send(made, address, token.encode() + b"\n" + good)  # the token is still there


def test_eighty_strangers_that_say_nothing_keep_no_one_out(made, tmp_path):
    tokens = make_tokens(made, [next(numbers) for _ in range(5)], days=1)
    with enrolling(made, ("127.0.0.1", 0)) as port, contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for token in tokens:
            assert enrol(Credentials(tmp_path / str(number(token))), ("127.0.0.1", port), token) == number(token)


def test_a_stranger_that_says_nothing_is_ended_after_three_seconds(made, monkeypatch):
    assert http_server.HANDSHAKE_S == 3.0
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.3)
    with enrolling(made, ("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""


def test_answers_are_bounded_in_rate(made, address, monkeypatch):
    slept = list[float]()
    monkeypatch.setattr(enrolment, "time", SimpleNamespace(time=time.time, sleep=slept.append))
    for _ in range(2):
        with pytest.raises(InputError, match="refused"):
            send(made, address, b"no token")
    assert slept == [1 / 50] * 2  # while no other answer is made


def test_an_address_with_many_connections_competes_with_itself_only(monkeypatch):
    monkeypatch.setattr(http_server, "MOST_CLIENTS", 2)
    server = http_server.BoundedServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    with http_server.serving(server) as port, contextlib.ExitStack() as stack:

        def connect(host):
            before, ends_s = len(server._visits), time.monotonic() + 10
            own = (host, 0)
            found = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10, source_address=own))
            while len(server._visits) == before < 2 and time.monotonic() < ends_s:
                time.sleep(0.01)
            return found

        quiet, busy = connect("127.0.0.2"), [connect("127.0.0.1") for _ in range(2)]
        assert busy[0].recv(1) == b""
        quiet.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"501" in quiet.recv(1000)


def test_certified_devices_do_not_compete_with_strangers(made, token, tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "MOST_CLIENTS", 2)
    device = Credentials(tmp_path / "device")
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with enrolling(made, ("127.0.0.1", 0)) as port, contextlib.ExitStack() as stack:
        n = enrol(device, ("127.0.0.1", port), token)

        def connect(context):
            plain = socket.create_connection(("127.0.0.1", port), timeout=10)
            return stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))

        waiting = connect(device.tls(n))
        strangers = [connect(stranger) for _ in range(4)]
        assert strangers[0].recv(1) == b""  # the oldest
        waiting.sendall(b"GET /trust HTTP/1.0\r\n\r\n")
        assert b"200" in waiting.recv(100)


@pytest.mark.slow
def test_a_request_that_comes_byte_by_byte_is_ended(made, monkeypatch):
    monkeypatch.setattr(http_server, "PATIENCE_S", 1.0)
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with (
        enrolling(made, ("127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        stranger.wrap_socket(plain) as slow,
    ):
        slow.settimeout(0.2)
        slow.sendall(b"GET /trust HTTP/1.1\r\nSlow: ")
        ends_s, ended = time.monotonic() + 60, False
        while not ended and time.monotonic() < ends_s:
            try:
                ended = slow.recv(100) == b""
            except TimeoutError:
                with contextlib.suppress(OSError):
                    slow.sendall(b"y")
            except OSError:
                ended = True
        assert ended


def test_a_new_token_readmits_a_device_and_revokes_its_old_certificate(made, address, device, token, tmp_path):
    n = enrol(device, address, token)
    lost = serial(device, n)
    again = Credentials(tmp_path / "again")
    enrol(again, address, make_tokens(made, [n], days=1)[0])
    assert lost in made.clients.revoked()
    assert n in made.devices()
    with pytest.raises(InputError, match=r"failed|refused"):
        renew(device, n)


def test_a_certificate_that_was_replaced_cannot_be_renewed(made, address, device, token, tmp_path):
    """Its holder may not get the new key's certificate: TLS checks revocations, and so does the renewal."""
    n = enrol(device, address, token)
    old = read_certificates(device.file(n, "crt"))[0].public_bytes(Encoding.DER)
    assert enrolment.renew_device(made, old)
    enrol(Credentials(tmp_path / "again"), address, make_tokens(made, [n], days=1)[0])
    with pytest.raises(InputError, match="the certificate was replaced"):
        enrolment.renew_device(made, old)


def test_revoking_a_device_deletes_its_tokens(made, address, device, token, tmp_path):
    n = number(token)
    older, unused = make_tokens(made, [n], days=1) + make_tokens(made, [next(numbers)], days=1)
    enrol(device, address, token)
    with pytest.raises(InputError, match="unknown or was used"):
        enrol(Credentials(tmp_path / "older"), address, older)  # a newer one was used
    older = make_tokens(made, [n], days=1)[0]
    made.revoke(n)
    made.revoke(number(unused))  # it has no certificate yet
    for each in (older, unused):
        with pytest.raises(InputError, match="unknown or was used"):
            enrol(Credentials(tmp_path / "older"), address, each)
    assert made.devices(revoked=True).count(n) == 1


def test_a_server_that_cannot_sign_burns_no_token_and_names_no_path(address, device, token, made, capfd):
    key = made.clients.key.read_bytes()
    made.clients.key.unlink()
    try:
        with pytest.raises(InputError, match="cannot sign now; ask its operator") as said:
            enrol(device, address, token)
    finally:
        made.clients.key.write_bytes(key)
    assert str(made.folder) not in str(said.value)
    assert "clients.key is missing" in capfd.readouterr().err  # the operator is told
    assert enrol(device, address, token) == number(token)


# ---- renewal


def age(made, device, n, days) -> None:
    """Let a device's certificate have so few days left."""
    made.file(n, "crt").unlink()
    device.file(n, "crt").write_bytes(
        made.certify(n, read_certificates(device.file(n, "crt"))[0].public_key(), days=days)
    )


def test_a_certificate_is_renewed_after_half_its_time_for_the_same_key(made, address, device, token):
    n = enrol(device, address, token)
    assert not renew(device, n)
    age(made, device, n, 46)
    assert not renew(device, n)
    age(made, device, n, 44)
    before, key = serial(device, n), device.file(n, "key").read_bytes()
    assert renew(device, n)
    assert not renew(device, n)
    assert device.file(n, "key").read_bytes() == key
    assert made.serials(n) == {before, serial(device, n)}
    made.revoke(n)
    assert {before, serial(device, n)} <= made.clients.revoked()  # the old one too


@pytest.mark.parametrize("days", [44.0, -0.01])
def test_a_revoked_or_expired_device_cannot_renew(made, address, device, token, days):
    n = enrol(device, address, token)
    age(made, device, n, days)
    if days > 0:
        made.revoke(n)
    with pytest.raises(InputError, match="failed"):
        renew(device, n)
    assert len(made.serials(n)) == 1


def test_only_devices_with_a_certificate_renew(made, address):
    with pytest.raises(InputError, match="only a device"):
        send(made, address, b"", "/renew")
    with pytest.raises(InputError, match="only a device"):
        _ask(address, made.tls(None), "POST", "/renew", b"")


def test_a_devices_certificate_is_no_broker(address, device, token):
    n = enrol(device, address, token)
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.load_cert_chain(*device.own_files(n))
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = device.tls(n, certified=False)
    ours = client.wrap_bio(inward, outward, server_hostname="127.0.0.1")
    theirs = listener.wrap_bio(outward, inward, server_side=True)
    for side in (ours, theirs):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        ours.do_handshake()


def test_devices_follow_a_rollover_through_renewal(device, tmp_path):
    made = make_credentials(tmp_path / "credentials", 0)
    token, late = make_tokens(made, [0, 1], days=1)
    with enrolling(made, ("127.0.0.1", 0)) as port:
        enrol(device, ("127.0.0.1", port), token)
        made.roll()
        assert renew(device, 0)  # young, but of the old authority
        enrol(Credentials(tmp_path / "late"), ("127.0.0.1", port), late)  # a token from before
        made.roll(finish=True)
        assert not renew(device, 0)
        assert device.brokers.trust() == made.brokers.trust()
        read_certificates(device.file(0, "crt"))[0].verify_directly_issued_by(
            read_certificates(made.clients.certificate)[0]
        )
