"""perfeds2 federate credentials, server, register, device: what makes machines a federation."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfeds2.commands.federate.flags import Quiet, need_flower, open_site
from perfeds2.console import say
from perfeds2.errors import InputError

if TYPE_CHECKING:
    from perfeds2.deployment.flower.site import Site


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where they go.", metavar="DIR")],
    devices: Annotated[int, typer.Option("--devices", help="Keys for devices 0 to N−1; what exists stays.", metavar="N", min=0)],
    host: Annotated[list[str], typer.Option("--host", help="A name or address by which devices reach the server. Repeatable.", metavar="HOST")],
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a certificate authority, a server certificate, and a key for each device."""
    need_flower()
    from perfeds2.deployment.flower.credentials import make_credentials

    made = make_credentials(folder, devices, host)
    say(quiet, f"For the server: {made.authority}, {made.certificate}, {made.certificate_key}, devices/*.pub")
    say(quiet, f"For device N: {made.authority} and devices/device-N.key, and nothing else")
    say(quiet, f"Off line: {made.authority_key}")


def server(
    address: Annotated[str, typer.Option("--listen", help="Where to listen.", metavar="HOST:PORT")] = "0.0.0.0:9092",
    **where: Any,
) -> None:
    """Start the server, in the foreground: for systemd, or a terminal of its own."""
    site = open_site(address, **where)
    _become(site, site.server())


def register(quiet: Quiet = False, **where: Any) -> None:
    """Tell the server which keys may take part: every devices/device-N.pub, as device N."""
    site = open_site(**where)
    site.write_connection()
    numbers = site.credentials.devices()
    if not numbers:
        raise InputError(
            f"{site.credentials.folder / 'devices'} holds no device-N.pub; see perfeds2 federate credentials."
        )
    for number in numbers:
        try:
            site.call(site.register([number]))
            say(quiet, f"device {number} is registered")
        except InputError as error:
            if "already" not in str(error):
                raise
            say(quiet, f"device {number} was registered before")


def device(
    number: Annotated[int, typer.Option("--number", help="Which device this is.", metavar="N", min=0)],
    data: Annotated[Path | None, typer.Option("--data", help="This device's own data; handed to load_data, never sent.", metavar="DIR")] = None,
    port: Annotated[int, typer.Option("--port", help="A port of loopback for Flower's own use.", metavar="PORT")] = 9094,
    **where: Any,
) -> None:  # fmt: skip
    """Start a device, in the foreground, and take part whenever the server asks."""
    site = open_site(**where)
    key = site.credentials.device_key(number)
    if not key.exists():
        raise InputError(f"{key} does not exist; copy it from where perfeds2 federate credentials was run.")
    _become(site, site.device(number, port, data))


def _become(site: "Site", command: list[str]) -> None:
    """This process becomes Flower's."""
    site.home.mkdir(parents=True, exist_ok=True)
    os.environ.update(site.environment())
    os.execv(command[0], command)  # noqa: S606 (our own commands)
