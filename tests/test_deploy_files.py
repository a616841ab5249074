"""Do the files in deploy/ say what the code does, as far as can be seen without Docker and systemd?"""

import configparser
import http.server
import json
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from needs import needs
from prometheus_client import generate_latest
from test_docs import commands, parse

from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.metrics import Metrics
from perfeds2.deployment.mqtt.broker import Limits, access_list, configuration
from perfeds2.deployment.record import MergedUpdate, Record
from perfeds2.deployment.status import STATES, ClosedRound, Status

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
@needs("systemd")
def test_a_unit_is_one_for_systemd_and_gives_little_away(path, tmp_path):
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
    broker = {"clients.crt", "clients.crl", "broker.crt", "broker.key"}
    expected = {
        name: {"ca.crt", "ca.crl", f"{name}.crt", f"{name}.key"} for name in ("server", "device-0", "device-1")
    } | {"broker": broker}
    for name, service in COMPOSE["services"].items():
        mounts = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
        files = {Path(there).name: (here, there, mode) for here, there, mode in mounts if "credentials" in here}
        assert files.keys() == expected[name], name
        for here, there, mode in files.values():
            assert (tmp_path / here).is_file(), here
            assert (there, mode) == (f"/etc/perfeds2/{here.removeprefix('./')}", "ro")
    named = {volume.split(":")[0] for each in OURS.values() for volume in each["volumes"] if volume[0] != "."}
    assert named == COMPOSE["volumes"].keys()


@pytest.mark.parametrize(("code", "words"), [(200, b""), (503, b"below the quorum"), (None, b"no run answers on port")])
def test_the_servers_health_check_fails_below_the_quorum_and_if_nothing_listens(code, words):
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
    assert (done.returncode == 0) is (code == 200)
    assert words in done.stderr


# ---- monitoring

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
RULES = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
EXPRESSIONS = [rule["expr"] for rule in RULES]
EXPRESSIONS += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [each["query"] for each in DASHBOARD["templating"]["list"]]


@pytest.fixture(scope="module")
def exposed_names():
    states = dict.fromkeys(STATES, 0)
    closed = ClosedRound(round=0, time_s=1.0, took_s=1.0, ues=[0])
    seen = Status(
        process=1,
        phase="training",
        round=1,
        rounds=2,
        time_s=2.0,
        quorum=1,
        ues=0,
        states=states,
        devices=[],
        recent=[closed],
        reasons={"wrong job": 1},
        accuracy=0.5,
    )
    metrics = Metrics(model_bytes=1, days_left=lambda: {"server.crt": 9.0})
    metrics.tell(seen, Record(merges=[MergedUpdate(0, 0, 0, 0, 1.0)], closed_s=[1.0]))
    return set(re.findall(r"^(perfeds2_\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))


def test_every_metric_of_the_alerts_and_the_dashboard_is_exposed(exposed_names):
    named = {name for text in EXPRESSIONS for name in re.findall(r"perfeds2_\w+", text)}
    assert len(named) >= 19
    assert named <= exposed_names


def test_every_metric_is_documented(exposed_names):
    text = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8").replace("`…", "`perfeds2_updates")
    bare = {re.sub("_(bucket|sum|count)$", "", name) for name in exposed_names}
    assert {name for name in bare if f"`{name}" not in text} == {"perfeds2_build_info"}


def test_the_dashboard_is_one_for_grafana():
    assert [panel["id"] for panel in DASHBOARD["panels"]] == list(range(1, len(DASHBOARD["panels"]) + 1))
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        assert panel["type"] == "timeseries"
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}


def promtool(*words):
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)


@needs("promtool")
def test_prometheus_accepts_the_alerts_and_the_dashboards_expressions(tmp_path):
    shown = [text.replace('"$instance"', '".*"') for text in EXPRESSIONS if "label_values" not in text]
    recorded = [
        {"record": f"panel:{number}", "expr": text} for number, text in enumerate(shown) if text != "prometheus"
    ]
    (tmp_path / "all.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    for file in (ALERTS, tmp_path / "all.yml"):
        done = promtool("check", "rules", str(file))
        assert done.returncode == 0, done.stderr


@needs("promtool")
def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    """Played by promtool: after ten minutes of a federation below its quorum, with a broker that hangs."""
    on = 'instance="a"'
    series = {
        f'perfeds2_devices{{{on},state="idle"}}': "1x20",
        f'perfeds2_devices{{{on},state="away"}}': "5x20",
        f"perfeds2_quorum{{{on}}}": "2x20",
        f"perfeds2_broker_up{{{on}}}": "0x20",
        f"perfeds2_last_round_age_seconds{{{on}}}": "0+60x20",
        f"perfeds2_rounds_total{{{on}}}": "3x20",
        f"perfeds2_rounds_wanted{{{on}}}": "9x20",
        f"perfeds2_alarm{{{on}}}": "0x20",
    }
    fired = {"FederationBrokerDown", "FederationBelowQuorum", "FederationStalled"}
    expected = [
        {"exp_labels": {"instance": "a", **rule["labels"]}, "exp_annotations": rule["annotations"]} for rule in RULES
    ]
    for each in expected:  # as Prometheus fills them in
        words = each["exp_annotations"]["summary"].replace("{{ $value }}", "1")
        each["exp_annotations"] = {"summary": words.replace("{{ $value | humanizeDuration }}", "10m 0s")}
    tests = [
        {"alertname": rule["alert"], "eval_time": "10m", "exp_alerts": [alert] if rule["alert"] in fired else []}
        for rule, alert in zip(RULES, expected, strict=True)
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    case = {
        "rule_files": [str(ALERTS)],
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": tests}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(case))
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_the_page_about_deploying_starts_the_broker_behind_the_front():
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    step = page.partition("### 2. Start the server")[2].partition("### 3")[0]
    backend = re.search(r"server mosquitto (\S+)", (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8"))
    assert backend is not None
    assert f"federate server --listen {backend[1]} " in step
    assert "deploy/haproxy/haproxy.cfg" in step
    assert "NAT" in step
