"""Do keys stay with their owners, and do certificates say who may take part, until they no longer may?"""

import datetime
import ipaddress
import os
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perfeds2.deployment import authority as authorities
from perfeds2.deployment.credentials import (
    BROKER,
    ENROLMENT,
    Credentials,
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
    names = read(made.file(BROKER, "crt")).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_certificates_say_who_is_who_and_a_device_is_never_a_server(made):
    expected = dict.fromkeys((BROKER, ENROLMENT), (ExtendedKeyUsageOID.SERVER_AUTH, made.brokers))
    expected |= dict.fromkeys((None, 0, 1, 2), (ExtendedKeyUsageOID.CLIENT_AUTH, made.clients))
    for party, (usage, authority) in expected.items():
        certificate = made.file(party, "crt")
        assert name_in(certificate) == [name_of(party)]
        assert usages(certificate) == {usage}
        read(certificate).verify_directly_issued_by(read(authority.certificate))
        assert not read(certificate).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert read(made.brokers.certificate).public_key() != read(made.clients.certificate).public_key()
    assert len({made.file(party, "key").read_bytes() for party in expected}) == 6


def test_a_devices_certificate_is_for_its_key(made):
    key = serialization.load_pem_private_key(made.file(1, "key").read_bytes(), None)
    assert read(made.file(1, "crt")).public_key() == key.public_key()


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
        for path in (
            each.brokers.key,
            each.clients.key,
            each.file(BROKER, "key"),
            each.certificate_key,
            each.file(0, "key"),
        ):
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


def test_a_new_host_makes_a_new_broker_certificate_with_the_old_hosts_too(made):
    before = contents(made.folder)
    make_credentials(made.folder, 3, ["new.example.org"])
    changed = {name for name, text in contents(made.folder).items() if before[name] != text}
    assert changed == {"broker.crt", "enrolment.crt"}  # no one else has come to know its key
    assert hosts(made) == {"fl.example.org", "10.0.0.7", "new.example.org"}


def test_a_revoked_device_stays_out_until_it_is_given_a_new_key(made):
    serial = read(made.file(1, "crt")).serial_number
    made.revoke(1)
    made.revoke(1)  # once is enough
    assert made.clients.revoked() == {serial}
    assert made.devices() == [0, 2]
    make_credentials(made.folder, 3, ["10.0.0.7"])
    assert made.devices() == [0, 2]
    key = made.file(1, "key").read_bytes()
    made.rotate(1)
    assert made.devices() == [0, 1, 2]
    assert made.file(1, "key").read_bytes() != key
    assert made.clients.revoked() == {serial}


def test_after_rotate_the_old_certificate_is_on_the_list_and_the_new_one_is_not(made):
    device, server = (read(path).serial_number for path in (made.file(2, "crt"), made.certificate))
    key = made.certificate_key.read_bytes()
    made.rotate(2)
    made.rotate(None)
    assert made.clients.revoked() == {device, server}
    assert made.certificate_key.read_bytes() != key
    assert hosts(made) == {"fl.example.org", "10.0.0.7"}
    assert read(made.file(2, "crt")).serial_number not in made.clients.revoked()
    revocations = x509.load_pem_x509_crl(made.clients.revocations.read_bytes())
    key = read(made.clients.certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert revocations.is_signature_valid(key)
    assert 89 < authorities.days_until(revocations.next_update_utc or revocations.last_update_utc) < 91


def test_rotating_the_broker_revokes_all_its_certificates_and_keeps_its_hosts(made):
    make_credentials(made.folder, 3, ["new.example.org"])  # a second certificate for the same key
    old, key = made.serials(BROKER), made.file(BROKER, "key").read_bytes()
    assert len(old) == 2
    made.rotate(BROKER)
    assert made.brokers.revoked() == old
    assert made.clients.revoked() == frozenset()
    assert made.file(BROKER, "key").read_bytes() != key
    assert hosts(made) == {"fl.example.org", "10.0.0.7", "new.example.org"}


def test_without_the_authoritys_key_what_needs_it_says_so_and_changes_nothing(made):
    made.clients.key.unlink()
    made.brokers.key.unlink()
    before = contents(made.folder)
    make_credentials(made.folder, 3, ["10.0.0.7"])  # nothing to sign
    for attempt in (
        lambda: made.rotate(1),
        lambda: made.rotate(None),
        lambda: made.rotate(BROKER),
        lambda: made.roll(),
        lambda: made.revoke(1),
        lambda: make_credentials(made.folder, 4, ["10.0.0.7"]),
        lambda: make_credentials(made.folder, 3, ["elsewhere"]),
    ):
        with pytest.raises(InputError, match=r"(ca|clients)\.key is missing"):
            attempt()
        assert {**contents(made.folder), **before} == contents(made.folder)
    assert made.clients.revoked() == frozenset()


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
    for stray in ("device-x.crt", "device-01.crt", "device--1.crt", "device-.crt"):
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
    made.file(BROKER, "crt").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"broker\.crt is not a readable certificate"):
        make_credentials(made.folder, 1)
    key = made.clients.key.read_bytes()
    made.clients.key.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"clients\.key is not a readable private key"):
        made.rotate(1)
    made.clients.key.write_bytes(key)
    made.clients.revocations.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"clients\.crl is not a readable revocation list"):
        made.devices()


# ---- lists and authorities from the network


@pytest.fixture
def heard(made, tmp_path):
    """A device's folder, and a function that brings it what the authority publishes now."""
    device = Credentials(tmp_path / "device")
    device.folder.mkdir()
    for path in (made.brokers.certificate, made.brokers.revocations):
        (device.folder / path.name).write_bytes(path.read_bytes())
    return device


def test_a_newer_list_is_stored_and_an_older_one_refused(made, heard):
    before = made.brokers.trust()
    made.rotate(BROKER)
    newest = made.brokers.trust()
    assert heard.brokers.take(newest)
    assert not heard.brokers.take(newest)
    with pytest.raises(InputError, match="older than those here"):
        heard.brokers.take(before)
    assert heard.brokers.revoked() == made.brokers.revoked() != frozenset()


def test_a_read_only_folder_keeps_the_list_in_this_process(made, heard, monkeypatch):
    made.rotate(BROKER)
    before, written = contents(heard.folder), authorities.write

    def write(path, text, mode=0o644):
        if path.parent == heard.folder:
            raise PermissionError
        written(path, text, mode)

    monkeypatch.setattr(authorities, "write", write)
    heard.take_trust(made.brokers.trust())
    assert heard.brokers.revoked() == made.brokers.revoked() != frozenset()
    assert contents(heard.folder) == before


def test_what_the_authority_did_not_sign_is_refused(made, heard, tmp_path):
    foreign = make_credentials(tmp_path / "foreign", 0)
    for text in (
        b"",
        b"nonsense",
        made.brokers.certificate.read_bytes(),
        foreign.brokers.trust(),
        made.clients.trust(),
        made.brokers.certificate.read_bytes() + foreign.brokers.revocations.read_bytes(),
        foreign.brokers.certificate.read_bytes() + made.brokers.trust(),
        made.brokers.trust() + foreign.brokers.certificate.read_bytes(),
    ):
        with pytest.raises(InputError, match="are refused"):
            heard.brokers.take(text)
    assert heard.brokers.trust() == made.brokers.trust()


def test_a_stolen_broker_key_makes_no_authority(made, heard):
    """The broker's certificate is signed by the authority, but is not one."""
    stolen = authorities.read_privates(made.file(BROKER, "key"))[0]
    broker = read(made.file(BROKER, "crt"))
    mine = authorities.new_key()
    forged = authorities._sign(
        authorities._unsigned(authorities.name_with("mine"), broker.subject, mine.public_key(), 100).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ),
        mine.public_key(),
        stolen,
    )
    text = forged.public_bytes(Encoding.PEM) + broker.public_bytes(Encoding.PEM) + made.brokers.trust()
    with pytest.raises(InputError, match="no authority known here signed them"):
        heard.brokers.take(text)


def test_a_new_authority_is_learned_through_the_old_one_which_is_then_dropped(made, heard):
    first = made.brokers.trust()
    made.rotate(1)
    revoked = made.clients.revoked()
    made.roll()
    assert made.clients.revoked() == revoked
    overlap = made.brokers.trust()
    assert heard.brokers.take(overlap)
    with pytest.raises(InputError, match="two authorities already"):
        made.roll()
    made.roll(finish=True)
    assert heard.brokers.take(made.brokers.trust())
    assert len(authorities.read_certificates(heard.brokers.certificate)) == 1
    for older in (first, overlap):
        with pytest.raises(InputError, match="are refused"):
            heard.brokers.take(older)
    for party in (BROKER, ENROLMENT, None):
        read(made.file(party, "crt")).verify_directly_issued_by(read(made.authority_of(party).certificate))
    with pytest.raises(InputError, match="one authority only"):
        made.roll(finish=True)


# ---- expiry


def test_what_expires_within_thirty_days_is_named(made):
    left = made.days_left()
    assert {name: round(days) for name, days in left.items() if "/" not in name} == {
        **dict.fromkeys(("broker.crt", "enrolment.crt", "server.crt"), 825),
        **dict.fromkeys(("ca.crt", "clients.crt"), 3650),
        **dict.fromkeys(("ca.crl", "clients.crl"), 90),
    }
    assert made.warnings() == []
    for device, days in ((0, 29.4), (1, 31.0), (2, -0.5)):
        public = authorities.own_key(made.file(device, "key")).public_key()
        made.file(device, "crt").unlink()
        made.certify(device, public, days=days)
    assert made.warnings() == [
        "devices/device-0.crt expires in 29 days (docs/how-to/certificates.md)",
        "devices/device-2.crt has expired (docs/how-to/certificates.md)",
    ]


def test_a_list_is_signed_again_after_half_of_its_time_where_the_key_is(made, monkeypatch):
    def number():
        return authorities.number_of(authorities.read_lists(made.clients.revocations)[0])

    before = number()
    made.renew_lists()
    assert number() == before
    monkeypatch.setattr(authorities, "LIST_FOR", authorities.LIST_FOR * 0.49)
    made.revoke(1)
    monkeypatch.undo()
    key = made.clients.key.read_bytes()
    made.clients.key.unlink()  # kept offline
    made.renew_lists()
    assert number() == before + 1
    made.clients.key.write_bytes(key)
    make_credentials(made.folder, 0)  # as the server does every day
    assert number() == before + 2
    assert made.days_left()["clients.crl"] > 89
    assert made.clients.revoked() == made.serials(1)


def test_revoking_keeps_the_lists_of_other_authorities_in_the_file(tmp_path):
    lab, ward = (make_credentials(tmp_path / name, 1, federation=name) for name in ("lab", "ward"))
    lab.revoke(0)
    for ours, theirs in (
        (ward.clients.certificate, lab.clients.certificate),
        (ward.clients.revocations, lab.clients.revocations),
    ):
        ours.write_bytes(ours.read_bytes() + theirs.read_bytes())
    ward.revoke(0)
    listed = [{each.serial_number for each in one} for one in authorities.read_lists(ward.clients.revocations)]
    assert listed == [ward.serials(0), lab.serials(0)]


def test_a_list_without_a_number_is_refused_in_a_sentence(made, heard):
    key, authority = authorities.read_privates(made.brokers.key)[0], read(made.brokers.certificate)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateRevocationListBuilder(authority.subject, now, now + datetime.timedelta(days=9))
    text = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(InputError, match="are refused: they cannot be read"):
        heard.brokers.take(made.brokers.certificate.read_bytes() + text)
    made.brokers.revocations.write_bytes(text)
    with pytest.raises(InputError, match=r"ca\.crl is not a readable revocation list"):
        made.rotate(BROKER)


def test_the_keys_of_authorities_may_be_encrypted(tmp_path, monkeypatch):
    monkeypatch.setenv(authorities.ENCRYPTED_BY, "correct horse")
    held = make_credentials(tmp_path / "keys", 1)
    assert b"ENCRYPTED" in held.clients.key.read_bytes()
    assert b"ENCRYPTED" not in held.file(0, "key").read_bytes()
    held.roll()
    held.rotate(0)
    monkeypatch.setenv(authorities.ENCRYPTED_BY, "another")
    with pytest.raises(InputError, match=r"clients\.key is not a readable private key with this passphrase"):
        held.rotate(0)
    monkeypatch.delenv(authorities.ENCRYPTED_BY)
    with pytest.raises(InputError, match="is encrypted; set the environment variable PERFEDS2_PASSPHRASE"):
        held.rotate(0)
