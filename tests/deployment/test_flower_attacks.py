"""Can somebody without a key do anything to a federation on Flower? Every attack that once worked, against what is deployed."""

import contextlib
import hashlib
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from drills import PERFEDS2
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from perfeds2.deployment.credentials import LOOPBACK, Credentials, make_credentials, rotate
from perfeds2.deployment.flower.local import free_port
from perfeds2.deployment.flower.operator_calls import Operator
from perfeds2.deployment.flower.proxy import proxy_command, proxy_config
from perfeds2.deployment.flower.site import Site, app_folder
from perfeds2.deployment.processes import Processes
from perfeds2.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]  # Flower's
PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}
EVIL = "from pathlib import Path\nPath({marker!r}).write_text('mine')\nfrom flwr.{kind}app import {Kind}App\napp = {Kind}App()\n"


class Deployed:
    """A server as ``perfeds2 federate server`` starts it, its proxy where nginx is installed, and one registered device."""

    def __init__(self, folder):
        self.folder = folder
        self.credentials = make_credentials(folder / "credentials", 2, LOOPBACK)
        self.tls = ssl.create_default_context(cafile=str(self.credentials.authority))
        self.site = Site(f"127.0.0.1:{free_port()}", self.credentials, folder / "state")
        self.site.make_private()
        self.processes = Processes(folder / "logs", self.site.environment())
        self.proxy = None
        self.clients = contextlib.ExitStack()

    def __enter__(self):
        self.processes.__enter__()
        self.processes.start("superlink", self.site.server())
        with contextlib.suppress(InputError):
            command = proxy_command(self.folder / "proxy.conf")
            self.proxy = f"127.0.0.1:{free_port()}"
            (self.folder / "proxy.conf").write_text(proxy_config(self.site, self.proxy))
            self.processes.start("proxy", command)
        for address in filter(None, (self.site.address, self.proxy)):
            self.wait_for(lambda address=address: reaches(address), "listen")
        self.operator = self.clients.enter_context(contextlib.closing(Operator(self.site)))
        assert self.operator.register(0)
        return self

    def __exit__(self, *_):
        self.clients.close()
        self.processes.end_all()

    def wait_for(self, what, name, timeout_s=60):
        ends = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < ends, f"never did {name}:\n{self.log()}"
            time.sleep(0.1)

    def log(self, name="superlink"):
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def stranger(self, kind=ControlHttpClient, address=None):
        """Somebody who trusts the server's certificate, and has no key."""
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        authority = self.credentials.authority.read_bytes()
        client = kind.from_server_address(address or self.site.address, False, authority, [version])
        return self.clients.enter_context(client)

    def memory_mb(self):
        status = Path(f"/proc/{self.processes.pid('superlink')}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def reaches(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with Deployed(tmp_path_factory.mktemp("deployed")) as deployed:
        yield deployed


@pytest.fixture(params=["server", "proxy"])
def door(request, deployed):
    """The two ways in: the server itself, which only this machine reaches, and the proxy, which everybody does."""
    if request.param == "proxy" and deployed.proxy is None:
        pytest.skip("nginx is not installed: apt install nginx-light")
    return deployed.site.address if request.param == "server" else deployed.proxy


@contextlib.contextmanager
def refused(*statuses):
    with pytest.raises(httpx.HTTPStatusError) as caught:
        yield
    assert caught.value.response.status_code in statuses, caught.value.response.text


def evil_app(folder):
    """An app that leaves a mark wherever its code is run."""
    app, marker = folder / "app", folder / "it-ran"
    shutil.copytree(app_folder(), app, ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ("server", "client"):
        text = EVIL.format(marker=str(marker), kind=kind, Kind=kind.title())
        (app / "perfeds2_app" / f"{kind}_app.py").write_text(text)
    bundle = build_fab_from_disk(app)
    return fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})), marker


def test_the_server_listens_on_this_machine_only(deployed):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            outside = probe.getsockname()[0]
    except OSError:
        pytest.skip("this machine has no address but loopback")
    assert not reaches(f"{outside}:{deployed.site.port}")
    assert reaches(deployed.site.address)


def test_an_open_port_must_be_asked_for_by_name(tmp_path):
    make_credentials(tmp_path / "credentials", 0, LOOPBACK)
    words = ("--engine", "flower", "--listen", "0.0.0.0:9092", "--credentials", str(tmp_path / "credentials"))
    command = [PERFEDS2, "federate", "server", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "--insecure-operator-port" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for host in ("10.0.0.7", "fl.example.org", "::"):
        with pytest.raises(InputError, match="insecure-operator-port"):
            Site(f"{host}:9092", Credentials(tmp_path), tmp_path).server()
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert Site(f"{host}:9092", Credentials(tmp_path), tmp_path).server()


def test_nobody_starts_a_run_without_the_operators_key(deployed, door, tmp_path):
    app, marker = evil_app(tmp_path)
    with refused(401, 403):
        deployed.stranger(address=door).StartRun(StartRunRequest(fab=app))
    assert not marker.exists()


def test_an_app_that_is_not_the_installed_one_is_not_run_even_for_the_operator(deployed, tmp_path):
    app, marker = evil_app(tmp_path)
    run_id = str(deployed.operator._client.StartRun(StartRunRequest(fab=app)).run_id)
    deployed.wait_for(lambda: deployed.operator.how_it_ended(run_id), "end")
    assert "another app than the one installed here" in deployed.operator.how_it_ended(run_id)
    assert not marker.exists()


def test_nobody_registers_a_key_under_a_taken_name(deployed, door):
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    with refused(401, 403):
        deployed.stranger(address=door).RegisterNode(RegisterNodeRequest(public_key=key, name="device-0"))
    with refused(401, 403):  # nor as devices once could
        deployed.stranger(address=door)._unary_unary(
            path="/v1/fleet/register-node",
            rpc_method="",
            request=RegisterNodeRequest(),
            response_type=RegisterNodeRequest,
        )


def test_the_operator_is_told_that_a_name_is_taken_by_another_key(deployed, tmp_path):
    others = make_credentials(tmp_path / "others", 1, LOOPBACK)
    site = Site(deployed.site.address, others, deployed.site.home)
    with contextlib.closing(Operator(site)) as deceived, pytest.raises(InputError, match="CERTIFICATE_VERIFY_FAILED"):
        deceived.register(0)  # who trusts another authority does not take our server for his
    others.authority.write_bytes(deployed.credentials.authority.read_bytes())
    with contextlib.closing(Operator(site)) as operator, pytest.raises(InputError, match="registered with another key"):
        operator.register(0)


def test_nobody_unregisters_a_device(deployed, door):
    (node,) = deployed.operator._named(0)
    with refused(401, 403):
        deployed.stranger(address=door).UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
    assert [each.node_id for each in deployed.operator._named(0)] == [node.node_id]


def test_nobody_stops_a_run_or_hears_of_one(deployed, door):
    with refused(401, 403):
        deployed.stranger(address=door).StopRun(StopRunRequest(run_id=1))
    with refused(401, 403):
        deployed.stranger(address=door).ListRuns(ListRunsRequest())


def test_nobody_takes_a_run_over_as_its_executor(deployed, door):
    with refused(401, 403):
        deployed.stranger(RuntimeHttpClient, door).AcquireTask(
            AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        )


def test_a_wrong_key_is_no_key(deployed):
    wrong = {"perfeds2-operator": "0" * 64} | PROTOBUF
    for path in ("/v1/control/list-runs", "/docs", "/openapi.json", "//v1/fleet/../control/list-runs", "/v1/responses"):
        done = httpx.post(f"https://{deployed.site.address}{path}", headers=wrong, verify=deployed.tls)
        assert done.status_code == 401, path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/v1/fleet/unregister-node",
        "/v1/fleet/get-fab", "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/docs", "/",
        "/v1/fleet/pull-messages/../../control/list-runs", "/V1/control/list-runs", "/v1/fleet/pull-messages%00",
    ],
)  # fmt: skip
def test_the_proxy_passes_the_calls_of_devices_alone(deployed, path):
    if deployed.proxy is None:
        pytest.skip("nginx is not installed: apt install nginx-light")
    host, _, port = deployed.proxy.rpartition(":")
    answer = raw(deployed, host, int(port), f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert re.match(r"HTTP/1.1 (403|400) ", answer), answer
    answer = raw(deployed, host, int(port), "GET /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403 ")


def raw(deployed, host, port, text):
    """What is answered to a request exactly as it is written: libraries tidy paths up."""
    with (
        socket.create_connection((host, port), 10) as plain,
        deployed.tls.wrap_socket(plain, server_hostname=host) as tls,
    ):
        tls.sendall(text.encode())
        return tls.recv(4096).decode(errors="replace")


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/fleet/activate-node", "/v1/control/start-run"])
def test_a_body_of_400_mb_is_refused_before_it_takes_memory(deployed, door, path, announced):
    before_mb, status = deployed.memory_mb(), None
    head = PROTOBUF | ({"content-length": str(400 * 2**20)} if announced else {})
    body = (b"\0" * 2**20 for _ in range(400))
    with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):  # it hung up while we sent
        done = httpx.post(f"https://{door}{path}", content=body, headers=head, verify=deployed.tls, timeout=30)
        status = done.status_code
    assert status in (None, 401, 403, 413)
    assert deployed.memory_mb() < before_mb + 30


def test_what_is_called_is_not_taken_from_what_the_caller_calls_the_server(deployed, door):
    """Flower decides by an address that is put together from the Host header whether a device must sign."""
    host, _, port = door.rpartition(":")
    for claimed, path in (
        ("x/v1/fleet/", "/v1/control/list-runs"),
        ("x/v1/runtime/pull-object?", "/v1/fleet/pull-object"),
        ("x/v1/fleet/pull-messages?", "/v1/control/list-runs"),
    ):
        head = f"POST {path} HTTP/1.1\r\nHost: {claimed}\r\nContent-Type: {PROTOBUF_MEDIA_TYPE}\r\nContent-Length: 0"
        assert re.match(r"HTTP/1.1 40[013] ", raw(deployed, host, int(port), f"{head}\r\n\r\n")), claimed


def test_somebody_elses_public_key_opens_nothing(deployed, door):
    """Public keys are public: a large body is read only from who can sign with it."""
    from base64 import b64encode

    key = deployed.operator._public_key(0)
    head = {"flwr-public-key": b64encode(key).decode(), "flwr-signature": b64encode(b"x").decode()} | PROTOBUF
    head["flwr-timestamp"] = "2026-01-01T00:00:00+00:00"
    body = PushObjectRequest(object_content=b"\0" * 2**20).SerializeToString()
    done = httpx.post(f"https://{door}/v1/fleet/push-object", content=body, headers=head, verify=deployed.tls)
    assert done.status_code == 413


def test_unknown_revoked_and_connected_devices_are_told_apart(deployed, door):
    key = load_ssh_private_key(deployed.credentials.device_key(1).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert "nobody has registered this key" in activate(deployed, door, key)
    deployed.operator.register(1)
    assert activate(deployed, door, key) == "activated"
    assert "a device with this key is connected already" in activate(deployed, door, key)
    deployed.operator.unregister(1)
    assert "this key was unregistered" in activate(deployed, door, key)
    with pytest.raises(InputError, match="device-1 is not registered"):
        deployed.operator.unregister(1)
    rotate(deployed.credentials, 1)  # for the next door


def activate(deployed, address, key):
    """What a device is answered when it begins."""
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30)
    with FleetHttpClient.from_server_address(
        address, False, deployed.credentials.authority.read_bytes(), [signed]
    ) as client:
        try:
            client.ActivateNode(request)
            return "activated"
        except httpx.HTTPStatusError as error:
            return error.response.text


def test_a_device_that_is_unregistered_while_it_works_says_so_and_ends(deployed):
    deployed.operator.register(1)
    deployed.processes.start("device-1", deployed.site.device(1))
    deployed.wait_for(lambda: "connected to" in deployed.log("device-1"), "connect")
    deployed.operator.unregister(1)
    deployed.wait_for(lambda: "device-1" in deployed.processes.ended(), "end", 30)
    assert "it was unregistered" in deployed.log("device-1")


def test_what_the_server_remembers_is_for_its_user_only(deployed):
    files = [path for path in deployed.site.home.iterdir() if path.name.startswith(("superlink.db", "operator.key"))]
    assert len(files) >= 2
    assert deployed.site.home.stat().st_mode & 0o077 == 0
    for path in files:
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_an_operator_who_cannot_read_the_key_is_told_so(deployed, tmp_path):
    with pytest.raises(InputError, match=r"operators need .*operator\.key"):
        Operator(Site(deployed.site.address, deployed.credentials, tmp_path))
