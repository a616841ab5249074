"""Do keys stay with their owners, and do certificates say who may take part, until they no longer may?"""

import ipaddress
import os
import stat

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perfeds2.deployment.credentials import (
    check_host,
    credentials_beside,
    keep_apart,
    make_credentials,
    name_of,
)
from perfeds2.errors import InputError


@pytest.fixture
def made(tmp_path):
    return make_credentials(tmp_path / "keys", 3, ["fl.example.org", "10.0.0.7"])


def read(path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def name_in(path) -> list[str | bytes]:
    return [each.value for each in read(path).subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def usages(path) -> set[x509.ObjectIdentifier]:
    return set(read(path).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def hosts(made) -> set[str]:
    names = read(made.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_certificates_say_who_is_who_and_a_device_is_never_a_server(made):
    assert name_in(made.certificate) == ["server"]
    assert usages(made.certificate) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    for device in range(3):
        certificate = made.file(device, "crt")
        assert name_in(certificate) == [f"device-{device}"]
        assert usages(certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH}
        read(certificate).verify_directly_issued_by(read(made.authority))
        assert not read(certificate).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_devices_certificate_is_for_its_key(made):
    key = serialization.load_pem_private_key(made.file(1, "key").read_bytes(), None)
    assert read(made.file(1, "crt")).public_key() == key.public_key()
    assert not made.file(1, "pub").exists()


def test_private_files_are_their_owners_only(made, tmp_path):
    old = os.umask(0)
    try:
        open_to_all = make_credentials(tmp_path / "umask", 1)
        open_to_all.rotate(0)
    finally:
        os.umask(old)
    for each in (made, open_to_all):
        for path in (each.folder, each.folder / "devices"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in (each.authority_key, each.certificate_key, each.file(0, "key")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(made.folder.rglob(".*"))


def test_what_exists_stays_and_what_is_new_is_added(made):
    before = contents(made.folder)
    make_credentials(made.folder, 3, ["10.0.0.7"])
    assert contents(made.folder) == before
    make_credentials(made.folder, 5, ["10.0.0.7"])
    after = contents(made.folder)
    assert {name: after[name] for name in before} == before
    assert made.devices() == [0, 1, 2, 3, 4]


def test_a_new_host_makes_a_new_server_certificate_with_the_old_hosts_too(made):
    before = contents(made.folder)
    make_credentials(made.folder, 3, ["new.example.org"])
    changed = {name for name, text in contents(made.folder).items() if before[name] != text}
    assert changed == {"server.crt"}  # no one else has come to know its key
    assert hosts(made) == {"fl.example.org", "10.0.0.7", "new.example.org"}


def test_a_revoked_device_stays_out_until_it_is_given_a_new_key(made):
    serial = read(made.file(1, "crt")).serial_number
    made.revoke(1)
    made.revoke(1)  # once is enough
    assert made.revoked() == {serial}
    assert made.devices() == [0, 2]
    make_credentials(made.folder, 3, ["10.0.0.7"])
    assert made.devices() == [0, 2]
    key = made.file(1, "key").read_bytes()
    made.rotate(1)
    assert made.devices() == [0, 1, 2]
    assert made.file(1, "key").read_bytes() != key
    assert made.revoked() == {serial}


def test_after_rotate_the_old_certificate_is_on_the_list_and_the_new_one_is_not(made):
    device, server = (read(path).serial_number for path in (made.file(2, "crt"), made.certificate))
    key = made.certificate_key.read_bytes()
    made.rotate(2)
    made.rotate(None)
    assert made.revoked() == {device, server}
    assert made.certificate_key.read_bytes() != key
    assert hosts(made) == {"fl.example.org", "10.0.0.7"}
    assert read(made.file(2, "crt")).serial_number not in made.revoked()
    revocations = x509.load_pem_x509_crl(made.revocations.read_bytes())
    key = read(made.authority).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert revocations.is_signature_valid(key)
    assert revocations.next_update_utc == read(made.authority).not_valid_after_utc


def test_without_the_authoritys_key_what_needs_it_says_so_and_changes_nothing(made):
    made.authority_key.unlink()
    before = contents(made.folder)
    make_credentials(made.folder, 3, ["10.0.0.7"])  # nothing to sign
    for attempt in (
        lambda: made.rotate(1),
        lambda: made.rotate(None),
        lambda: made.revoke(1),
        lambda: make_credentials(made.folder, 4, ["10.0.0.7"]),
        lambda: make_credentials(made.folder, 3, ["elsewhere"]),
    ):
        with pytest.raises(InputError, match=r"ca\.key is missing"):
            attempt()
        assert {**contents(made.folder), **before} == contents(made.folder)
    assert made.revoked() == frozenset()


def test_a_device_may_bring_its_own_public_key(made):
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    made.file(7, "pub").write_bytes(public)
    make_credentials(made.folder, 3, ["10.0.0.7"])
    assert made.devices() == [0, 1, 2, 7]
    assert not made.file(7, "key").exists()
    assert read(made.file(7, "crt")).public_key() == key.public_key()
    made.file(8, "pub").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"device-8\.pub is not a public key"):
        make_credentials(made.folder, 3, ["10.0.0.7"])


@pytest.mark.parametrize(
    "host", ["", "a b", "http://a", "a:80", "-a", "a..b", "a/b", "1.2.3", "x" * 64, "a\nb", "*.a.org"]
)
def test_hosts_are_checked(host, tmp_path):
    with pytest.raises(InputError, match="is not a host name or address"):
        make_credentials(tmp_path / "keys", 1, ["ok.example.org", host])
    assert not (tmp_path / "keys").exists()


def test_hosts_that_are_hosts():
    assert [check_host(host) for host in ("FL.example.org", "localhost", "10.0.0.7", "::1", "my_box")] == [
        "fl.example.org",
        "localhost",
        "10.0.0.7",
        str(ipaddress.ip_address("::1")),
        "my_box",
    ]


def test_numbers_are_checked(made):
    for number in (-1, 1_000_000):
        with pytest.raises(InputError, match="expected a number"):
            name_of(number)
    with pytest.raises(InputError, match="has no certificate of device-9"):
        made.rotate(9)
    with pytest.raises(InputError, match="has no certificate of device-9"):
        made.revoke(9)
    for stray in ("device-x.pub", "device-01.crt", "device--1.crt", "device-.pub"):
        (made.folder / "devices" / stray).write_bytes(b"")
    assert made.devices() == [0, 1, 2]


def test_keys_never_lie_among_results_nor_results_among_keys(tmp_path):
    run = tmp_path / "runs" / "first"
    (run / "parts").mkdir(parents=True)
    (run / "spec.toml").touch()
    for folder in (run, run / "credentials", run / "deeper" / "still"):
        with pytest.raises(InputError, match="is inside the results"):
            make_credentials(folder, 1)
    make_credentials(credentials_beside(run), 1)
    keep_apart(credentials_beside(run), run)
    for keys, results in ((run, run), (run / "keys", run), (run, run / "results"), (run / "a" / ".." / "keys", run)):
        with pytest.raises(InputError, match="must not be inside each other"):
            keep_apart(keys, results)
    assert not list(run.rglob("*.key"))


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    mode = tmp_path.stat().st_mode
    with pytest.raises(InputError, match=r"has other files and no ca\.crt"):
        make_credentials(tmp_path, 1)
    with pytest.raises(InputError, match="is a file"):
        make_credentials(tmp_path / "thesis.txt", 1)
    assert tmp_path.stat().st_mode == mode


def test_what_is_damaged_is_named(made):
    made.certificate.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"server\.crt is not a readable certificate"):
        make_credentials(made.folder, 1)
    key = made.authority_key.read_bytes()
    made.authority_key.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"ca\.key is not a readable private key"):
        made.rotate(1)
    made.authority_key.write_bytes(key)
    made.revocations.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"revoked\.crl is not a readable list"):
        made.devices()
