"""How is Flower's server made to ask who calls? ``python -m perfeds2.deployment.flower.superlink ADDRESS CA KEY FLAGS…``

Flower 1.41 asks devices for a key, but not operators, reads a body of any size before it asks anybody, answers every device it
refuses in the same words, and runs whatever app it is sent. Here its SuperLink runs with a guard in front: who calls what is
decided from a request's head, before its body is read. And what a run executes is the server that is installed, nothing else.
"""

import datetime
import hmac
import subprocess
import sys
import threading
import time
from base64 import b64decode
from pathlib import Path

import httpx
from flwr.common.constant import TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as KEY_HEADER
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER as SIGNATURE_HEADER
from flwr.supercore.constant import TASK_TOKEN_HEADER, NodeStatus, TaskType
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perfeds2.deployment.flower.site import OPERATOR_HEADER

OBJECTS = "/push-object"  # the calls that bring much
LITTLE_BYTES = 64 * 1024  # is read from anybody
MUCH_BYTES = 8 * 1024**2  # is read from a known device or a running server; Flower sends arrays in pieces of 5 MiB
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
TASK_EVERY_S = 1.0  # ask for a run to execute


class Guard:
    """Stands before everything else in the SuperLink."""

    def __init__(self, app: ASGIApp, operator_key: str) -> None:
        self._app, self._operator_key = app, operator_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        request = Request(scope)
        if request.url.path != scope["path"]:  # Flower goes by the one, its routes by the other
            await _refuse(400, "a malformed Host header")(scope, receive, send)
            return
        if not self._may_call(request):
            await _refuse(401, "operators need the server's operator.key")(scope, receive, send)
            return
        limit = LITTLE_BYTES
        if request.url.path.endswith(OBJECTS) or _announced_bytes(request) > LITTLE_BYTES:
            limit = MUCH_BYTES if await run_in_threadpool(_is_known, request) else 0
        body = await _read(receive, limit) if _announced_bytes(request) <= limit else None
        if body is None:
            await _refuse(413, f"more than {limit} bytes")(scope, receive, send)
            return
        await self._app(scope, _handed_on(body, receive), send)

    def _may_call(self, request: Request) -> bool:
        """Devices and running servers show what they have to Flower. Everything else is the operator's."""
        if request.url.path.startswith(("/v1/fleet/", "/v1/runtime/")):
            return True
        return hmac.compare_digest(request.headers.get(OPERATOR_HEADER, "").encode(), self._operator_key.encode())


def _announced_bytes(request: Request) -> float:
    """What a request says of its body; one that does not say is not read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20:
        return int(length)
    return float("inf") if length or "transfer-encoding" in request.headers else 0


def _is_known(request: Request) -> bool:
    """Whether the head of a request is that of a task that runs, or signed just now by a device that is registered."""
    state: LinkState = request.app.state.linkstate_factory.state()
    head = request.headers
    if token := head.get(TASK_TOKEN_HEADER):
        return state.get_task_by_token(token) is not None
    try:
        key, signature = (b64decode(head[name], validate=True) for name in (KEY_HEADER, SIGNATURE_HEADER))
        signed_at = head[TIMESTAMP_HEADER]
        age_s = abs((now() - datetime.datetime.fromisoformat(signed_at)).total_seconds())
        signed = age_s < TIMESTAMP_TOLERANCE and verify_signature(
            bytes_to_public_key(key), signed_at.encode(), signature
        )
    except (KeyError, ValueError, TypeError):
        return False
    return signed and state.get_node_id_by_public_key(key) is not None


async def _read(receive: Receive, limit: int) -> bytes | None:
    """A body, or None once it is longer than allowed: the rest stays where it is."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        more = message["type"] == "http.request" and message.get("more_body", False)
    return bytes(body)


def _handed_on(body: bytes, receive: Receive) -> Receive:
    """What Flower reads: the body that was read already, then whatever comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return first.pop() if first else await receive()

    return received


def _refuse(status: int, why: str) -> JSONResponse:
    return JSONResponse({"detail": f"Refused: {why}."}, status, headers={"connection": "close"})


def say_why(request: ActivateNodeRequest, state: LinkState) -> ActivateNodeResponse:
    """Flower's own, but a device that has proved which key it has is told why it may not take part."""
    try:
        return activate_node(request, state)
    except FlowerError as error:
        gone = state.get_node_info(statuses=[NodeStatus.UNREGISTERED])
        if state.get_node_id_by_public_key(request.public_key) is not None:
            why = "a device with this key is connected already, or was a minute ago"
        elif any(node.public_key == request.public_key for node in gone):
            why = "this key was unregistered"
        else:
            why = "nobody has registered this key"
        raise FlowerError(error.code, error.message, why) from error


activate_node = fleet_handlers.activate_node


def execute_runs(address: str, authority: Path, key: Path) -> None:
    """Start the installed server for every run; Flower's own executor would start the app that came with it."""
    signed = SuperExecAuthHttpInterceptor(master_secret=key.read_bytes(), protected_methods={ACQUIRE})
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = RuntimeHttpClient.from_server_address(address, False, authority.read_bytes(), [version, signed])
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    command = [sys.executable, "-m", "perfeds2.deployment.flower.server_task", address, str(authority)]
    running: list[subprocess.Popen[str]] = []
    while True:
        time.sleep(TASK_EVERY_S)
        running = [process for process in running if process.poll() is None]
        try:
            acquired = client.AcquireTask(wanted)
        except httpx.HTTPError as error:  # it has not started yet, or is ending
            print(f"no runs yet: {error}", flush=True)
            continue
        if acquired.token:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 (our own command)
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(acquired.token)  # others can read a command line, not this
            running.append(process)


def main() -> None:
    address, authority, key = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    sys.argv = ["flower-superlink", *sys.argv[4:]]
    operator_key = key.read_text(encoding="utf-8")
    extensions.get_middleware = lambda: (Middleware(Guard, operator_key=operator_key),)
    fleet_handlers.activate_node = say_why
    threading.Thread(target=execute_runs, args=(address, authority, key), daemon=True).start()
    flower_superlink()


if __name__ == "__main__":
    main()
