"""What is executed for a run on the server? ``python -m perfeds2.deployment.flower.server_task ADDRESS CA``, the token on stdin.

Flower's own ServerApp process would install and run the app that came with the run. This one looks at its hash only.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PullTaskInputResponse, PushTaskOutputRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from perfeds2.deployment.flower.site import app_folder
from perfeds2.deployment.flower.transport import FlowerTransport
from perfeds2.deployment.serve import serve
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError


def main() -> None:
    address, authority = sys.argv[1], Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    grid = HttpGrid(address, False, authority.read_bytes(), token=sys.stdin.readline().strip())
    client = grid._runtime_client
    beats = HeartbeatSender(make_task_heartbeat_fn_http(client))
    beats.start()
    given: PullTaskInputResponse = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    ended, why = SubStatus.FAILED, "stopped"
    try:
        check_app(given.fab.content)
        execute(run_from_proto(given.run), grid)
        ended, why = SubStatus.COMPLETED, ""
    except Exception as error:
        why = str(error)
        print(f"run {given.run.run_id} failed: {why}", flush=True)
        raise
    finally:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=ended, details=why))
        beats.stop()
        grid.close()


def check_app(came: bytes) -> None:
    """What came is not run in any case; but whoever sent another app should know."""
    if hashlib.sha256(came).digest() != hashlib.sha256(build_fab_from_disk(app_folder())).digest():
        raise InputError(
            "the run came with another app than the one installed here, which is the only one this server runs."
        )


def execute(run: Run, grid: HttpGrid) -> None:
    grid.set_run(run)
    setup = Setup.from_toml(str(run.override_config.get("settings", "")))
    path = setup.own.out or Path("runs") / f"federate-{run.run_id}"
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"run folder: {path.resolve()}", flush=True)
    with FlowerTransport(grid, setup.ues) as transport:
        serve(setup, transport, path, str(run.run_id))


def _end_with_parent() -> None:
    """Whoever started this process has died: nobody will end it, and another server may take up its folder."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
