"""Who can read what on the broker, and which limits does the wire have? In memory."""

import datetime
import shutil
import socket
import ssl
import tempfile
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fake_broker import FakeBroker
from raw_mqtt import Client, text, wait_for
from worlds import world

from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.enrolment import renew_device
from perfeds2.deployment.messages import Here, JobMessage, Run
from perfeds2.deployment.mqtt.broker import Limits, access_list, check_alone, configuration, running_broker
from perfeds2.deployment.mqtt.device import DeviceClient
from perfeds2.deployment.mqtt.embedded import (
    ClientConnection,
    EmbeddedBroker,
    Fields,
    MalformedError,
    Type,
    matches,
    read_access,
)
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.quota import Quota
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.mqtt.wire import Assembly, Parcel, Topics
from perfeds2.deployment.preparation import Owner, prepare, travelling
from perfeds2.deployment.server import end_training, request_evaluations
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.transport import Request
from perfeds2.deployment.worker import DeviceWorker
from perfeds2.errors import InputError

TOPICS = Topics()
MODEL = {"w": np.arange(100_000, dtype=np.float32)}  # two chunks


class Curious:
    """A device that subscribes to everything that the access list lets it read."""

    def __init__(self, broker, number, topics=TOPICS):
        self.link, self.number, self.topics = broker.link(), number, topics
        self.heard, self.jobs = {}, []
        self.link.start(self)

    def last_will(self):
        return None

    def up(self):
        for topic in (self.topics.run, f"{self.topics.federation}/model/+/+", self.topics.job(self.number)):
            self.link.subscribe(topic)
        self.link.publish(self.topics.here(self.number), Here(here=True, session="s", run="r").to_bytes())

    def message(self, topic, data, _retained):
        if topic == self.topics.job(self.number):
            self.jobs.append(JobMessage.model_validate_json(data))
        elif data:
            self.heard[topic] = data

    def read(self, version, job):
        chunks = [
            data
            for topic, data in sorted(self.heard.items())
            if topic.startswith(f"{self.topics.federation}/model/{version}/")
        ]
        said = Parcel(b"".join(chunks)).announced
        return Assembly(said["bytes"], said["sha256"], dict(enumerate(chunks))).arrays(job.key)


def serve(broker, topics=TOPICS, run="r", since_s=0.0) -> Any:
    transport = MqttTransport(broker.link(), Run(run=run, settings="", since_s=since_s), 3, topics)
    transport.__enter__()
    return transport


def test_a_curious_device_reads_only_the_versions_it_holds_a_job_for():
    broker = FakeBroker()
    transport, curious, _ = serve(broker), Curious(broker, 1), Curious(broker, 0)
    for ue, version in ((0, 3), (1, 4), (0, 5)):
        transport.dispatch(Request(version, ue, version), {"w": MODEL["w"] + version})
    broker.pump()
    job = curious.jobs[0]
    assert {each.version for each in curious.jobs} == {4}
    np.testing.assert_array_equal(curious.read(4, job)["w"], MODEL["w"] + 4)
    for version in (3, 5):
        assert f"perfeds2/model/{version}/1" in curious.heard  # it hears the bytes
        with pytest.raises(ValueError, match="InvalidTag"):
            curious.read(version, job)
    assert not any(MODEL["w"][1000:2000].tobytes() in data for data in curious.heard.values())


def test_a_server_that_restarts_publishes_the_same_model_with_a_new_key():
    broker = FakeBroker()
    first, device = serve(broker), Curious(broker, 0)
    first.dispatch(Request(7, 0, 3), MODEL)
    broker.pump()
    broker.links.remove(first.link)  # killed
    serve(broker).dispatch(Request(8, 0, 3), MODEL)
    broker.pump()
    before, after = device.jobs[0], device.jobs[-1]
    assert before.key != after.key
    np.testing.assert_array_equal(device.read(3, after)["w"], MODEL["w"])


# ---- several federations on one broker


def test_federations_with_different_names_do_not_disturb_each_other():
    broker = FakeBroker()
    names = [Topics(), Topics("lab"), Topics("ward")]
    servers = [serve(broker, topics) for topics in names]
    devices = [Curious(broker, 1, topics) for topics in names]
    broker.pump()
    for version, server in enumerate(servers):
        assert server.changes() == (set(), {1})
        server.dispatch(Request(version, 1, version), {"w": MODEL["w"] + version})
    broker.pump()
    for version, device in enumerate(devices):
        assert [job.ticket for job in device.jobs] == [version]
        np.testing.assert_array_equal(device.read(version, device.jobs[0])["w"], MODEL["w"] + version)
    servers[0].__exit__()
    broker.pump()
    assert {topic.split("/")[0] for topic in broker.retained} == {"lab", "ward"}


def test_a_second_server_of_a_federation_refuses_and_leaves_the_first_in_peace():
    """A broker lets in one client per certificate, so each server disconnects the other until one gives way."""
    broker = FakeBroker()
    first = serve(broker, run="first", since_s=1.0)
    broker.pump()
    first.link.cut()
    second = serve(broker, run="second", since_s=2.0)
    broker.pump()
    second.changes()  # the first may be dead
    for back, gone in ((first, second), (second, first)):
        gone.link.cut()
        back.link.connect()
        broker.pump()
    first.changes()
    with pytest.raises(InputError, match=r"another server runs the federation .*run first"):
        second.changes()
    second.__exit__()
    first.link.connect()
    broker.pump()
    first.changes()
    assert Run.model_validate_json(broker.retained["perfeds2/run"]).run == "first"


def test_a_second_server_on_a_broker_that_lets_both_in_refuses_at_once():
    broker = FakeBroker()
    first = serve(broker, run="first", since_s=1.0)
    broker.pump()
    second = serve(broker, run="second", since_s=2.0)
    broker.pump()
    first.changes()
    with pytest.raises(InputError, match="another server"):
        second.changes()
    assert Run.model_validate_json(broker.retained["perfeds2/run"]).run == "first"


def test_a_run_that_a_killed_server_left_behind_does_not_stop_the_next():
    broker = FakeBroker()
    broker.links.remove(serve(broker, run="first", since_s=1.0).link)
    second = serve(broker, run="second", since_s=2.0)
    for _ in range(3):
        broker.pump()
        second.changes()
        second.link.cut()
        second.link.connect()


def test_the_access_lists_of_two_federations_keep_their_devices_apart(tmp_path):
    (tmp_path / "access.txt").write_text(access_list("lab") + access_list("ward"))
    rules = read_access(tmp_path / "access.txt")

    def may(name, verb, topic):
        return any(
            verb in can and user in (None, name) and matches(what.replace("%u", name), topic)
            for user, can, what in rules
        )

    assert may("lab.server", "write", "lab/job/lab.device-1")
    assert not may("lab.server", "write", "ward/job/ward.device-1")
    assert not may("server", "read", "lab/here/lab.device-1")
    assert may("lab.device-1", "write", "lab/reply/lab.device-1/7/head")
    assert may("lab.device-1", "read", "lab/job/lab.device-1")
    for other in ("lab/reply/lab.device-2/7/head", "ward/reply/ward.device-1/7/head", "ward/here/ward.device-1"):
        assert not may("lab.device-1", "write", other)
    assert not may("lab.device-1", "read", "ward/job/ward.device-1")
    assert Topics("ward").device_number("lab.device-1") is None  # the one thing that it may write to the other
    assert Topics("ward").device_number("ward.device-1") == 1


@pytest.mark.slow
def test_two_federations_share_a_real_broker(kind, tmp_path):
    """Both have a device 1 and a server, and the broker lets in one client per name."""
    lab = make_credentials(tmp_path / "lab", 2, federation="lab")
    (tmp_path / "ward").mkdir()
    for name in ("ca", "clients"):  # of one authority, as the edges of a cloud on one machine
        for path in lab.folder.glob(f"{name}.*"):
            shutil.copy(path, tmp_path / "ward")
    ward = make_credentials(tmp_path / "ward", 2, federation="ward")
    assert (Credentials(lab.folder).federation, Credentials(ward.folder).federation) == ("lab", "ward")
    run = Run(run="r", settings="")
    with (
        running_broker(lab, ("127.0.0.1", 0), tmp_path / "broker", kind, also=["ward"]) as broker,
        ExitStack() as stack,
    ):
        servers = {}
        for held in (lab, ward):
            site = Site(broker.host, broker.port, held)
            transport = MqttTransport(Link(site), run, 2, Topics(site.federation))
            servers[held.federation] = stack.enter_context(transport)
        here = Here(here=True, session="s", run="r").to_bytes()
        for held in (lab, ward):
            device = stack.enter_context(Client(broker, held, 1))
            seen, server = set[int](), servers[held.federation]

            def came(device=device, seen=seen, server=server):
                for other in (lab, ward):  # it may write only the one that is its own
                    device.publish(Topics(other.federation).here(1), here)
                seen.update(server.changes().came)
                return seen

            wait_for(came, 60.0)
            assert seen == {1}
        assert all(server.link.is_up for server in servers.values())
        assert not servers["ward"].changes().went
        assert len((tmp_path / "broker" / "access.txt").read_text().split("user ")) == 3


def test_federations_of_different_authorities_have_one_broker_each(tmp_path):
    """Otherwise ward's authority could sign a certificate for lab.server."""
    lab, ward = (make_credentials(tmp_path / name, 0, federation=name) for name in ("lab", "ward"))
    lab.roll()
    check_alone(lab.clients)  # a rollover is no second federation
    listed = ward.clients.revocations.read_bytes()
    for suffix in ("crt", "crl"):
        with (lab.folder / f"clients.{suffix}").open("ab") as file:
            file.write((ward.folder / f"clients.{suffix}").read_bytes())
    with (
        pytest.raises(InputError, match="run one broker for each federation"),
        running_broker(lab, ("127.0.0.1", 0), tmp_path / "broker", "embedded"),
    ):
        pass
    lab.rotate(None)
    assert listed in lab.clients.revocations.read_bytes()  # the list of another authority is kept


def test_a_device_of_a_named_federation_renews_its_certificate(tmp_path):
    held = make_credentials(tmp_path / "keys", 2, federation="lab")
    own = x509.load_pem_x509_certificate(held.file(1, "crt").read_bytes())
    assert own.subject.rfc4514_string() == "CN=lab.device-1"
    assert renew_device(held, own.public_bytes(Encoding.DER)) == own.public_bytes(Encoding.PEM)


def test_a_folder_of_credentials_belongs_to_one_federation(tmp_path):
    make_credentials(tmp_path / "keys", 1, federation="lab").rotate(None)
    assert make_credentials(tmp_path / "keys", 2).federation == "lab"
    with pytest.raises(InputError, match="has the federation 'lab'"):
        make_credentials(tmp_path / "keys", 2, federation="ward")
    with pytest.raises(InputError, match=r"--federation 'a\.b' is not a name"):
        make_credentials(tmp_path / "more", 1, federation="a.b")


# ---- limits of a device


def slow_world(tmp_path, owner=Owner(), quorum=2):  # noqa: B008 (frozen)
    """A federation in which device 0, in a thread of its own, would sleep for a day in every job."""
    made = world(tmp_path, devices=3, quorum=quorum, rounds=6, **{"max-staleness": 1, "slow": "0=100000"})
    made.devices[0].link.kill()
    worker = DeviceWorker(lambda _: owner)
    device = made.devices[0] = DeviceClient(0, made.broker.link(), worker.work, worker.inbox, say=lambda _: None)
    device.start()
    threading.Thread(target=worker.run_for_ever, daemon=True).start()
    wait_for(lambda: step(made) and made.federation.crew[0].job is not None, 60.0)
    return made


def step(made):
    made.step()
    time.sleep(0.01)
    return True


@pytest.mark.slow
def test_a_job_that_is_not_wanted_any_more_is_cancelled_while_the_device_sleeps(tmp_path):
    made = slow_world(tmp_path)
    federation, sent = made.federation, set()
    wait_for(lambda: step(made) and (sent.add(getattr(federation.crew[0].job, "version", 0)) or len(sent) > 1), 60.0)
    wait_for(lambda: step(made) and federation.round == made.setup.rounds, 60.0)
    assert federation.crew[0].failures == 0
    asked: set[int] = set()
    end_training(federation)
    wait_for(lambda: step(made) and not request_evaluations(federation, asked) and len(asked) == 3, 60.0)
    assert federation.crew[0].evaluated == made.setup.rounds
    assert not [line for line in made.log if "failed" in line or "refused" in line]


@pytest.mark.slow
def test_a_device_gives_up_a_job_after_its_own_time_limit(tmp_path):
    made = slow_world(tmp_path, Owner(job_s=0.3), quorum=3)  # rounds wait for it
    wait_for(lambda: step(made) and any("UE 0" in line and "took longer than 0.3 s" in line for line in made.log), 60.0)
    wait_for(lambda: step(made) and any("set aside: UE 0" in line for line in made.log), 60.0)


def test_a_model_larger_than_the_owner_allows_is_refused():
    run = travelling(Setup.from_texts({"devices": 2, "quorum": 1}), "r")
    with pytest.raises(InputError, match=r"the model has 0\.0 MB, and this device accepts .* MB \(--memory-mb\)"):
        prepare(run, Owner(memory_bytes=1000), 0)


# ---- quotas


def test_a_device_that_sends_too_much_is_reported_once_and_ignored_for_a_minute():
    broker, clock = FakeBroker(), [100.0]
    transport, device, other = serve(broker), Curious(broker, 0), Curious(broker, 1)
    transport.now = lambda: clock[0]
    broker.pump()
    transport.changes()
    transport._peers[0].quota = Quota(messages=5, bytes=1000)
    for _ in range(20):
        device.link.publish(TOPICS.here(0), Here(here=True, session="s", run="r").to_bytes())
    other.link.publish(TOPICS.here(1), Here(here=False, session="s").to_bytes())
    device.link.publish(TOPICS.here(0), Here(here=False, session="s").to_bytes())
    broker.pump()
    assert (
        transport.troubles()[0]
        == "sends more than 5 messages or 1,000 bytes in a minute; the rest of that minute is ignored"
    )
    assert transport.changes().went == {1}
    clock[0] += 60.0
    device.link.publish(TOPICS.here(0), Here(here=False, session="s").to_bytes())
    broker.pump()
    assert transport.changes().went == {0}


def test_bytes_count_as_well_as_messages():
    quota = Quota(messages=100, bytes=1000)
    assert [quota.exceeded(400, 0.0) for _ in range(3)] == [False, False, True]
    assert not quota.exceeded(400, 61.0)


def test_the_embedded_broker_disconnects_a_device_over_its_quota_and_never_the_server(made, tmp_path):
    (tmp_path / "access.txt").write_text(access_list())
    lines = configuration(made, ("127.0.0.1", 0), tmp_path, Limits()).splitlines()
    broker = EmbeddedBroker({name: value for name, _, value in (line.partition(" ") for line in lines)})
    publish = text("perfeds2/here/x") + b"hello"

    def send(name, times, kind=Type.PUBLISH, body=publish):
        connection = ClientConnection(broker)  # another one each time: it has reconnected
        connection.name, connection.greeted = name, True
        connection.send = lambda data: None  # noqa: ARG005 (its name is that of the method)
        for _ in range(times):
            connection.handle(kind << 4, Fields(body))

    for name in ("device-0", "device-2", "server"):
        broker.quotas[name].messages = 5
    send("device-0", 3)
    with pytest.raises(MalformedError, match="more than 5 messages"):
        send("device-0", 3)
    with pytest.raises(MalformedError, match="more than 5 messages"):
        send("device-2", 6, Type.PINGREQ, b"")
    send("device-1", 10)
    send("server", 10)


# ---- clocks


@pytest.mark.parametrize(("days", "why"), [((1, 9), "is not yet valid"), ((-9, -1), "has expired")])
def test_a_machine_with_a_wrong_clock_is_told_about_its_clock(made, monkeypatch, days, why):
    error = handshake_error(*days)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse(*_, **__):
            raise error

        monkeypatch.setattr(ssl.SSLContext, "wrap_socket", refuse)
        said = str(Site("127.0.0.1", listener.getsockname()[1], made).why_refused(0))
    assert f"this machine's clock says {time.strftime('%Y-%m-%d', time.gmtime())}" in said
    assert f"certificate {why}; set the clock" in said
    assert "ca.crt" not in said


def handshake_error(first_day, last_day):
    """What OpenSSL says about a broker's certificate that is valid from one day from now to another."""
    now, key = datetime.datetime.now(datetime.UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    first, last = now + datetime.timedelta(days=first_day), now + datetime.timedelta(days=last_day)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), first, last)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        listener.load_cert_chain(file.name)
    client = ssl.create_default_context(cadata=certificate.decode())
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(inward, outward, server_hostname="localhost")
    for side in (ours, listener.wrap_bio(outward, inward, server_side=True)):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        ours.do_handshake()
    return caught.value
