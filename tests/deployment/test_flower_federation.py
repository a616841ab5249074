"""Does a whole federation work: separate processes, TLS, device keys?"""

import json
import os
import re
import subprocess
import sys
import time

import command_line
import pytest

pytest.importorskip("flwr")

from drills import Drill, check_log, replayed

from perfeds2.deployment.credentials import Credentials, credentials_beside, make_credentials, make_device_key
from perfeds2.deployment.flower.site import Site
from perfeds2.deployment.processes import MARK, Processes, is_alive, marked

pytestmark = pytest.mark.slow


def says(path, pattern, timeout_s=120):
    """Wait until a log says something."""
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        if path.exists() and (found := re.search(pattern, path.read_text(errors="replace"), re.IGNORECASE)):
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"{path} never said {pattern}:\n{path.read_text(errors='replace') if path.exists() else ''}")


def test_three_devices_train_over_tls_strangers_are_refused_and_nothing_is_left_running(tmp_path):
    out = tmp_path / "run"
    with Drill(out, "--devices", "3", "--quorum", "2", "--max-staleness", "3", "--rounds", "2") as drill:
        drill.wait_for(lambda: "submitted run" in drill.log())
        mark = drill.mark
        theirs = Credentials(credentials_beside(out))
        address = json.loads((theirs.folder / "flower" / "run.json").read_text())["server"]

        # One stranger knows the authority and has a key nobody registered; the other trusts another authority.
        stranger = Credentials(tmp_path / "stranger")
        (stranger.folder / "devices").mkdir(parents=True)
        stranger.authority.write_bytes(theirs.authority.read_bytes())
        make_device_key(stranger, 0)
        deceived = make_credentials(tmp_path / "deceived", 1)
        with Processes(tmp_path / "logs", Site(address, theirs, tmp_path / "home").environment()) as strangers:
            for name, credentials in (("stranger", stranger), ("deceived", deceived)):
                strangers.start(name, Site(address, credentials, tmp_path / "home").device(0))
            assert says(tmp_path / "logs" / "stranger.log", "nobody has registered this key")
            assert says(tmp_path / "logs" / "deceived.log", "CERTIFICATE_VERIFY_FAILED")
        activated = (out / "logs" / "superlink.log").read_text().count("Activated node_id")
        assert activated == 3  # the strangers never were
        drill.end(280)

    timeline = check_log(out)
    assert timeline.rounds == 2
    assert timeline.population == 3
    for name in ("metrics.csv", "summary.json", "report.html", "model.safetensors", "ue_metrics.csv"):
        assert (out / name).exists(), name
    assert len((out / "ue_metrics.csv").read_text().splitlines()) == 1 + 3  # everybody evaluated
    assert "relative" in replayed(out)
    assert marked(mark) == []


def test_what_a_federation_started_is_ended_even_what_detached_itself(tmp_path):
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
    with Processes(tmp_path, {}) as processes:
        processes.start("parent", [sys.executable, "-c", script])
        while len(marked(processes.mark)) < 2:
            time.sleep(0.05)
        pids = marked(processes.mark)
    assert len(pids) >= 2
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_federation_started_ends_when_it_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from perfeds2.deployment.processes import Processes\n"
        f"p = Processes(Path({str(tmp_path)!r}), {{}}); p.__enter__(); p.start('child', [sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid('child'), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    ends = time.monotonic() + 20
    while is_alive(child) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not is_alive(child)
    assert MARK not in os.environ


def test_keys_are_for_their_owners_only_and_a_second_call_adds_devices(tmp_path):
    made = make_credentials(tmp_path / "keys", 2, ["fl.example.org", "10.0.0.7"])
    first = made.device_key(0).read_bytes()
    for path in (made.authority_key, made.certificate_key, made.device_key(0), made.device_key(1)):
        assert path.stat().st_mode & 0o077 == 0
    make_credentials(tmp_path / "keys", 3)
    assert made.device_key(0).read_bytes() == first
    assert made.devices() == [0, 1, 2]


def test_the_server_certificate_is_signed_by_the_authority_for_its_hosts(tmp_path):
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    made = make_credentials(tmp_path / "keys", 0, ["fl.example.org", "10.0.0.7"])
    authority = x509.load_pem_x509_certificate(made.authority.read_bytes())
    certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    context = ssl.create_default_context(cafile=str(made.authority))
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["federate", "local", "--devices", "3", "--quorum", "7"], "--quorum must be from 1 to the number of UEs, 3"),
        (["federate", "local", "--slow", "fast"], "--slow 'fast' names no device"),
        (["federate", "device", "--number", "1", "--server", "a:1"], "holds no ca.crt"),
        (["federate", "local", "--resume", "nowhere"], "holds no federation"),
        (["replay", "nowhere"], "holds no finished run"),
    ],
    ids=["quorum", "slow", "credentials", "resume", "replay"],
)
def test_what_cannot_be_done_is_said_in_one_sentence(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said = command_line.perfeds2(*words)
    assert status == 2, said
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_commands_are_there():
    _, said, _ = command_line.told("federate", "--help")
    for name in (
        "local",
        "credentials",
        "server",
        "proxy",
        "register",
        "unregister",
        "device",
        "submit",
        "watch",
        "stop",
        "resume",
    ):
        assert name in said
