"""What does an operator say to a server on Flower? Who may take part, and what runs.

The server asks for ``operator.key`` (``superlink.py``), which lies in its own folder and is readable by its user only.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from perfeds2.deployment.credentials import device_name
from perfeds2.deployment.flower.site import OPERATOR_HEADER, Site, app_folder
from perfeds2.deployment.setup import Setup, refuse_memory
from perfeds2.errors import InputError


class ShowKey:
    """Puts the operator's key on every call."""

    def __init__(self, key: str) -> None:
        self._key = key

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[OPERATOR_HEADER] = self._key
        return call_next(context)


class Operator:
    """Calls to one server. A call that is refused is an ``InputError`` that says why."""

    def __init__(self, site: Site) -> None:
        self._site = site
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), ShowKey(site.read_operator_key())]
        authority = site.credentials.authority.read_bytes()
        self._client = ControlHttpClient.from_server_address(site.address, False, authority, interceptors)

    def close(self) -> None:
        self._client.close()

    def register(self, device: int) -> bool:
        """Let a device take part under its name. False if it may already."""
        key = self._public_key(device)
        for node in self._named(device):
            if node.public_key == key:
                return False
            name = device_name(device)
            raise InputError(
                f"{name} is registered with another key; first: perfeds2 federate unregister --number {device}."
            )
        with _said_plainly():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=device_name(device)))
        return True

    def unregister(self, device: int) -> None:
        """A device may no longer take part; if it is connected, its next call is refused."""
        nodes = self._named(device)
        if not nodes:
            raise InputError(f"{device_name(device)} is not registered.")
        for node in nodes:
            with _said_plainly():
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))

    def _named(self, device: int) -> list[NodeInfo]:
        with _said_plainly():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        name = device_name(device)
        return [node for node in nodes if node.name == name and node.status != NodeStatus.UNREGISTERED]

    def _public_key(self, device: int) -> bytes:
        key = load_ssh_public_key(self._site.credentials.device_public_key(device).read_bytes())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return public_key_to_bytes(key)

    def start(self, setup: Setup) -> str:
        """Start a federation. Returns the run's number."""
        refuse_memory(setup.algorithm)
        app = build_fab_from_disk(app_folder())
        fab = Fab(hashlib.sha256(app).hexdigest(), app, {})
        settings = user_config_to_proto({"settings": setup.to_toml()})
        with _said_plainly():
            return str(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=settings)).run_id)

    def stop(self, run_id: str) -> None:
        with _said_plainly():
            self._client.StopRun(StopRunRequest(run_id=int(run_id)))

    def how_it_ended(self, run_id: str) -> str | None:
        """In words; None while a run has not ended."""
        with _said_plainly():
            status = self._client.ListRuns(ListRunsRequest(run_id=int(run_id))).run_dict[int(run_id)].status
        return f"{status.sub_status} {status.details}".strip() if status.status == "finished" else None


@contextmanager
def _said_plainly() -> Iterator[None]:
    """What Flower refuses, in one sentence."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        why = " ".join([said.message, said.public_details or ""]) if said else error.response.text
        raise InputError(f"the server refused: {' '.join(why.split())}") from None
    except httpx.HTTPError as error:
        raise InputError(f"the server does not answer: {error}.") from None
