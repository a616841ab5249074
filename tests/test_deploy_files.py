"""Do the files in deploy/ say what the code does, as far as can be seen without Docker and systemd?"""

import configparser
import http.server
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from test_docs import commands, parse

from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.mqtt.broker import Limits, access_list, configuration

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
OURS = {name: each for name, each in COMPOSE["services"].items() if name != "broker"}
TEXTS = [DEPLOY / "README.md", DEPLOY / "compose.yaml", ROOT / "docs" / "how-to" / "operate.md"]


def unit(path):
    read = configparser.RawConfigParser(strict=False)  # SystemCallFilter stands twice
    read.optionxform = str  # type: ignore[assignment,method-assign]  # as they stand
    read.read_string(path.read_text(encoding="utf-8"))
    return read


# ---- the broker


def test_the_brokers_files_are_those_the_code_would_write():
    """But for where it listens, and as whom it runs."""
    folder, credentials = Path("/etc/perfeds2/mosquitto"), Credentials(Path("/etc/perfeds2/credentials"))
    ours = configuration(credentials, ("0.0.0.0", 8883), folder, Limits())
    shipped = (DEPLOY / "mosquitto" / "mosquitto.conf").read_text(encoding="utf-8")
    assert settings(shipped) | {"listener": ""} == settings(ours) | {"listener": ""}
    assert settings(shipped)["listener"] == "8883"
    assert (DEPLOY / "mosquitto" / "access.txt").read_text(encoding="utf-8") == access_list()


def settings(text):
    pairs = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, value in pairs if name != "user"}


# ---- systemd


def test_there_is_a_unit_for_each_part():
    assert [path.name for path in UNITS] == [
        *("perfeds2-broker.service", "perfeds2-device@.service", "perfeds2-server.service")
    ]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_there_is(path):
    program, *words = shlex.split(
        unit(path)["Service"]["ExecStart"]
        .replace("%i", "3")
        .replace("${PERFEDS2_SERVER}", "fl.example.org:8883")
        .replace("$PERFEDS2_OPTIONS", "--data /srv/my-data --app-module /etc/perfeds2/my_task.py")
    )
    if program == "/opt/perfeds2/bin/perfeds2":
        parse(words)
    else:
        assert [program, *words] == ["/usr/sbin/mosquitto", "-c", "/etc/perfeds2/mosquitto/mosquitto.conf"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_one_for_systemd_and_gives_little_away(path, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for each in UNITS:  # the programs are not installed here
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", each.read_text(encoding="utf-8"), flags=re.MULTILINE)
        (tmp_path / each.name).write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    said = subprocess.run(verify, capture_output=True, text=True, check=False)
    ours = [line for line in (said.stdout + said.stderr).splitlines() if "perfeds2" in line]
    assert (said.returncode, ours) == (0, [])
    rate = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / path.name)]
    rated = subprocess.run(rate, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", rated)
    assert found, rated
    assert float(found[1]) <= 1.5


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_that_dies_is_started_again_and_takes_all_its_processes_along(path):
    service = unit(path)["Service"]
    assert service["Restart"] == "always"
    assert service.get("KillMode", "control-group") == "control-group"
    assert ("MemoryDenyWriteExecute" in service) == ("broker" in path.name)  # JAX compiles


# ---- compose


def test_a_service_of_ours_runs_a_command_there_is():
    assert {"server", "device-0", "device-1"} == OURS.keys()
    for service in OURS.values():
        parse(shlex.split(service["command"]))


def test_no_service_may_more_than_it_needs():
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].startswith("${PERFEDS2_USER"), name  # not root
        assert not {"privileged", "network_mode", "pid", "cap_add"} & service.keys(), name
        assert ("ports" in service) == (name == "broker"), name


def test_each_service_is_handed_its_own_keys_and_they_are_files_that_are_made(tmp_path):
    make_credentials(tmp_path / "credentials", 2, ["broker"])
    server, device = {"ca.crt", "server.crt", "server.key"}, lambda n: {"ca.crt", f"device-{n}.crt", f"device-{n}.key"}
    expected = {"broker": server | {"revoked.crl"}, "server": server, "device-0": device(0), "device-1": device(1)}
    for name, service in COMPOSE["services"].items():
        mounts = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
        files = {Path(there).name: (here, there, mode) for here, there, mode in mounts if "credentials" in here}
        assert files.keys() == expected[name], name
        for here, there, mode in files.values():
            assert (tmp_path / here).is_file(), here
            assert (there, mode) == (f"/etc/perfeds2/{here.removeprefix('./')}", "ro")
    named = {volume.split(":")[0] for each in OURS.values() for volume in each["volumes"] if volume[0] != "."}
    assert named == COMPOSE["volumes"].keys()


@pytest.mark.parametrize(("code", "well"), [(200, True), (503, False), (None, True)])
def test_the_servers_health_check_fails_below_the_quorum_and_not_between_runs(code, well):
    """As it stands in the file, but for the port."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"below the quorum")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        port = listener.server_port
        if code is None:
            listener.server_close()
        else:
            thread.start()
        word, program, flag, text = COMPOSE["services"]["server"]["healthcheck"]["test"]
        assert (word, program, flag) == ("CMD", "python", "-c")
        done = subprocess.run([sys.executable, "-c", text.replace("9100", str(port))], capture_output=True, check=False)
        if code is not None:
            listener.shutdown()
            thread.join()
    assert (done.returncode == 0) is well
    assert well or b"below the quorum" in done.stderr


# ---- words


def said(path):
    """Commands of ours in a text: alone on a line, after sudo, inside a container, in a comment, or in the middle of a sentence."""
    text = path.read_text(encoding="utf-8")
    found = commands(path, in_a_line=False) + commands(path, in_a_line=True)
    found += re.findall(
        r"^(?:#  )?.*?(?:exec server |-u perfeds2 /opt/perfeds2/bin/|#   )(perfeds2 .+)$", text, re.MULTILINE
    )
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(
    "command", [pytest.param(each, id=f"{path.name}: {each}") for path in TEXTS for each in said(path)]
)
def test_a_command_of_the_texts_is_one(command):
    parse(shlex.split(command)[1:])


def test_there_are_such_commands():
    assert all(said(path) for path in TEXTS)
