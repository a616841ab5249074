"""What do the commands of a federation over MQTT say when something is missing? One sentence, with what to do."""

import command_line
import pytest

from perfeds2 import errors
from perfeds2.deployment import local, run_queue
from perfeds2.deployment.mqtt import broker
from perfeds2.deployment.mqtt.local import run_locally
from perfeds2.deployment.mqtt.many import read_numbers
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        command_line.perfeds2("federate", "credentials", "credentials", "--devices", 2, "--host", "127.0.0.1")[0] == 0
    )
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [("local",), ("server",), ("submit", "out"), ("device", "--number", 0, "--server", "127.0.0.1:1")],
    ids=lambda command: command[0],
)
def test_without_paho_it_says_what_to_install(here, monkeypatch, command):
    found = errors.importlib.util.find_spec
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None if name == "paho" else found(name))
    status, said = command_line.perfeds2("federate", *command)
    assert status == 2
    assert "a federation needs paho, which must be installed: python" in said
    assert "-m pip install 'perfeds2[mqtt]'." in said
    assert not (here / "runs").exists()


def test_a_server_without_mosquitto_says_how_to_get_it_or_another(here, monkeypatch):
    monkeypatch.setattr(broker, "find_mosquitto", lambda: None)
    status, said = command_line.perfeds2("federate", "server", "--credentials", here / "credentials")
    assert status == 2
    assert "Mosquitto is not installed; install it (Debian, Ubuntu: sudo apt install mosquitto" in said
    assert "--broker HOST:PORT" in said


def test_a_local_federation_without_mosquitto_says_that_it_uses_its_own_broker(tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    def no_more(*_):
        raise Enough

    monkeypatch.setattr(broker, "find_mosquitto", lambda: None)
    monkeypatch.setattr(local, "supervise", no_more)
    said = []
    with pytest.raises(Enough):
        run_locally(Setup.from_texts({"devices": 2, "quorum": 1}), tmp_path / "run", say=said.append)
    assert said == ["Mosquitto is not installed: the embedded broker carries the messages."]


def test_what_waits_in_the_queue_is_not_rewritten(here):
    run = ("runs/first", "--devices", 2, "--quorum", 1, "--rounds")
    assert command_line.perfeds2("federate", "submit", *run, 5)[0] == 0
    before = (here / "runs" / "first" / "federation.toml").read_text()
    status, said = command_line.perfeds2("federate", "submit", *run, 5, "--job-s", 7)
    assert (status, "is in the queue" in said) == (2, True)
    assert (here / "runs" / "first" / "federation.toml").read_text() == before


def test_devices_are_numbers_and_ranges_of_them():
    assert read_numbers("3") == [3]
    assert read_numbers("0,2,4-6") == [0, 2, 4, 5, 6]
    for wrong in ("", "a", "-1", "1;2"):
        with pytest.raises(InputError, match="0,2,4-6"):
            read_numbers(wrong)


def test_status_names_the_runs_and_what_expires_soon(here):
    from perfeds2.deployment.authority import own_key
    from perfeds2.deployment.credentials import Credentials

    made = Credentials(here / "credentials")
    made.certify(1, own_key(made.file(1, "key")).public_key(), days=10.4)
    assert command_line.perfeds2("federate", "submit", "runs/first", "--devices", 2, "--quorum", 1)[0] == 0
    status, said, _ = command_line.told("federate", "status")
    assert status == 0
    assert "No server uses" in said
    assert "runs/first: waiting" in said
    assert "warning: devices/device-1.crt expires in 10 days" in said
    assert said.count("warning") == 1


@pytest.mark.usefixtures("here")
def test_rotate_says_what_to_install_and_until_when_the_old_key_works():
    said = {}
    for flags in ((), ("--number", 1), ("--broker",)):
        status, said[flags], _ = command_line.told("federate", "rotate", *flags)
        assert status == 0
    assert "copy clients.crl there" in said[()]
    assert "for device-1; install" in said["--number", 1]
    assert "copy ca.crl there" in said["--broker",]
    assert "refuses the old key once it has received the list" in " ".join(said["--broker",].split())
    status, wrong = command_line.perfeds2("federate", "rotate", "--number", 1, "--broker")
    assert (status, "give one of them" in wrong) == (2, True)


def test_a_device_enrols_by_two_commands_and_renews_while_it_runs(here, monkeypatch, capfd):
    from perfeds2.deployment import enrolment
    from perfeds2.deployment.credentials import Credentials
    from perfeds2.deployment.mqtt import many
    from perfeds2.deployment.mqtt.device import DeviceClient
    from perfeds2.deployment.mqtt.link import Link
    from perfeds2.deployment.preparation import Owner
    from perfeds2.deployment.site import Site
    from perfeds2.deployment.worker import DeviceWorker

    made, device = Credentials(here / "credentials"), Credentials(here / "device")
    status, tokens, _ = command_line.told("federate", "token", "--devices", 4)
    assert status == 0
    assert [line.split(".")[0] for line in tokens.splitlines()] == ["2", "3"]  # 0 and 1 have a certificate
    assert len(command_line.told("federate", "token", "--number", 1)[1].splitlines()) == 1
    site = Site("127.0.0.1", 1, device)
    with enrolment.enrolling(made, ("127.0.0.1", 0)) as port:
        token = tokens.splitlines()[1]
        command = ("federate", "enrol", f"127.0.0.1:{port}", "--token", token, "--credentials", device.folder)
        status, said, _ = command_line.told(*command)
        assert (status, "This is device 3." in said) == (0, True)
        status, said = command_line.perfeds2(*command)
        assert (status, "unknown or was used" in said) == (2, True)
        worker = DeviceWorker(lambda _: Owner())
        running = DeviceClient(3, Link(site, 3), worker.work, worker.inbox)
        before = device.file(3, "crt").read_bytes()
        many._renew([running], site)
        assert device.file(3, "crt").read_bytes() == before
        monkeypatch.setattr(enrolment, "RENEW_DAYS", 91)
        many._renew([running], site)
        assert device.file(3, "crt").read_bytes() != before
    many._renew([running], site)
    assert "device-3: enrolment at 127.0.0.1" in capfd.readouterr().out  # the server is away, which ends nothing


def test_the_server_opens_the_enrolment_port_only_if_asked(here, monkeypatch):
    def no_more(*_):
        raise InputError("enough")

    monkeypatch.setattr(run_queue, "serve_queue", no_more)
    command = ("federate", "server", "--broker", "127.0.0.1:1", "--credentials", here / "credentials")
    assert "Devices enrol" not in command_line.told(*command)[1]
    assert "Devices enrol on port " in command_line.told(*command, "--enrol", "127.0.0.1:0")[1]


def test_a_rollover_says_what_comes_next(here):
    said = [command_line.told("federate", "rollover", *flags) for flags in ((), ("--finish",))]
    assert [status for status, _, _ in said] == [0, 0]
    assert "then use --finish" in " ".join(said[0][1].split())
    assert "needs a new token" in " ".join(said[1][1].split())
    status, wrong = command_line.perfeds2("federate", "rollover", "--finish", "--credentials", here / "credentials")
    assert (status, "one authority only" in wrong) == (2, True)
