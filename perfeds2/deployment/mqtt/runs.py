"""The process that serves a run over MQTT: ``python -m perfeds2.deployment.mqtt.runs FOLDER HOST:PORT CREDENTIALS``.

``all`` or the server's lease may follow. The process may be killed at any time; the supervisor starts it again.
"""

import os
import re
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from perfeds2.deployment.authority import read_certificates, read_lists
from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.lease import Lease, LeaseLostError
from perfeds2.deployment.masking import check_key, trusted_lists
from perfeds2.deployment.mqtt.backhaul import CloudLink
from perfeds2.deployment.mqtt.link import Link
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.mqtt.wire import Topics
from perfeds2.deployment.preparation import travelling
from perfeds2.deployment.server import serve
from perfeds2.deployment.setup import Setup
from perfeds2.deployment.site import Site
from perfeds2.deployment.supervisor import ALL, BAD_INPUT
from perfeds2.deployment.transport import SignedKey
from perfeds2.errors import InputError
from perfeds2.files import retry_while_full, write_text
from perfeds2.learning.compiled import collect_rarely

KEY_NOTE = (  # with secure aggregation
    "this server has clients.key, so it could invent devices and read updates; enrol devices on another machine "
    "(perfeds2 federate enrolment)"
)


def serve_run(folder: Path, site: Site, *, wait_for_all: bool = False, lease: Lease | None = None) -> None:
    """Serve a run from its first round, or from its checkpoint, to the report. May be killed at any time."""

    def barred() -> dict[int, str]:
        revoked = site.credentials.devices(revoked=True)
        return dict.fromkeys(revoked, "was revoked (perfeds2 federate rotate lets it in again)")

    setup = Setup.read(folder)
    run_id, since_s = retry_while_full(lambda: _run_id(folder))
    clients = site.credentials.clients
    run = travelling(setup, run_id, since_s, clients)
    notes = [] if wait_for_all else key_notes(setup, site.credentials)
    topics, days_left = Topics(site.federation), site.credentials.days_left
    with (
        _backhaul(setup, folder) as backhaul,
        MqttTransport(
            Link(site),
            run,
            setup.ues,
            topics,
            setup.is_cloud,
            barred=barred,
            check_key=key_check(site.credentials, run_id),
            authority=clients.trust,
        ) as transport,
    ):
        try:
            serve(setup, transport, folder, backhaul, lease, days_left, wait_for_all=wait_for_all, notes=notes)
        except LeaseLostError as error:
            print(error, flush=True)
            os._exit(BAD_INPUT)  # without telling devices that the run is over


def key_notes(setup: Setup, credentials: Credentials) -> list[str]:
    """Return what to log if the server could invent members of secure sums."""
    return [KEY_NOTE] if setup.spec.privacy.secure_aggregation and credentials.clients.key.exists() else []


def key_check(credentials: Credentials, run: str) -> Callable[[int, SignedKey], None]:
    """Return what checks the keys for masks that devices announce."""

    def check(ue: int, signed: SignedKey) -> None:
        issuers = tuple(read_certificates(credentials.clients.certificate))
        trusted = trusted_lists(issuers, read_lists(credentials.clients.revocations))
        check_key(credentials.federation, run, ue, signed, trusted)

    return check


def _backhaul(setup: Setup, folder: Path) -> AbstractContextManager[CloudLink | None]:
    """Return the connection of an edge to the cloud; None for any other server."""
    if setup.own.edge is None:
        return nullcontext()

    if setup.own.cloud is None or setup.own.cloud_credentials is None:
        raise InputError(
            "--edge needs --cloud HOST:PORT and --cloud-credentials DIR, to reach the cloud as its device."
        )
    cloud = Site.read(setup.own.cloud, "--cloud", Credentials(setup.own.cloud_credentials))
    return CloudLink.to(cloud, setup, folder)


def _run_id(folder: Path) -> tuple[str, float]:
    """Return the run's unique ID, which it keeps when it is resumed, and the Unix time at which it got it."""
    file = folder / "run-id"
    if not file.exists():
        write_text(file, uuid.uuid4().hex)
    if re.fullmatch("[0-9a-f]{32}", run_id := file.read_text(encoding="utf-8", errors="replace")) is None:
        raise InputError(f"{file} is corrupt; restore it from a backup, or start a new run in another folder.")
    return run_id, file.stat().st_mtime


def main() -> int:
    collect_rarely()
    folder, address, credentials, *more = sys.argv[1:]
    lease = Lease(Path(more[0]), int(more[1]), more[2] == "1") if len(more) == 3 else None
    try:
        site = Site.read(address, "the broker", Credentials(Path(credentials)))
        serve_run(Path(folder), site, wait_for_all=ALL in more, lease=lease)
    except InputError as error:
        print(error, flush=True)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
