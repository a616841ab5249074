"""The process that has the model of a run: ``python -m perfeds2.deployment.mqtt.serving FOLDER HOST:PORT CREDENTIALS``.

It can be killed at any moment and started again: it goes on from the last closed round.
"""

import json
import sys
import uuid
from pathlib import Path

from perfeds2.deployment.credentials import Credentials
from perfeds2.deployment.mqtt.device import travelling
from perfeds2.deployment.mqtt.site import BAD_INPUT, Site, read_address
from perfeds2.deployment.mqtt.transport import MqttTransport
from perfeds2.deployment.serve import serve
from perfeds2.deployment.setup import Setup
from perfeds2.errors import InputError
from perfeds2.files import write_text
from perfeds2.runs.folder import Folder


def serve_run(folder: Path, site: Site) -> Folder:
    """From the first round, or the last that closed, to the report."""
    setup = Setup.read(folder)
    with MqttTransport(
        site.link(), travelling(setup, run_id(folder)), setup.ues, barred=lambda: barred(site.credentials)
    ) as transport:
        return serve(setup, transport, folder)


def barred(credentials: Credentials) -> dict[int, str]:
    """Whom the broker does not let in, as far as that is known here."""
    return dict.fromkeys(credentials.revoked_devices(), "was revoked (perfeds2 federate rotate lets it in again)")


def run_id(folder: Path) -> str:
    """A name no other run has; a run that is taken up again keeps it."""
    file = folder / "run.json"
    if not file.exists():
        write_text(file, json.dumps({"run-id": uuid.uuid4().hex}))
    return str(json.loads(file.read_text(encoding="utf-8"))["run-id"])


def main() -> int:
    folder, address, credentials = sys.argv[1:]
    try:
        serve_run(Path(folder), Site(*read_address(address, "the broker"), Credentials(Path(credentials))))
    except InputError as error:
        print(error, flush=True)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
