"""perfeds2 federate credentials, token, enrolment, enrol, rotate, revoke, rollover: who may take part in a federation."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.console import say
from perfeds2.errors import InputError

if TYPE_CHECKING:
    from perfeds2.deployment.credentials import Credentials

COPY_LIST = (
    "If this is not the server's own folder, copy {} there. The server restarts its broker at once; "
    "restart a broker that you started yourself."
)
NUMBER = flag("--number", "Device number.", "N", ..., min=0)
CREDENTIALS = flag("--credentials", "Folder with ca.crt and this machine's keys.", "DIR", Path("credentials"))


def open_credentials(folder: Path) -> "Credentials":
    from perfeds2.deployment.credentials import Credentials

    if not (folder / "ca.crt").exists():
        raise InputError(f"--credentials {folder} has no ca.crt; make it with perfeds2 federate credentials.")
    return Credentials(folder.resolve())


def credentials(
    folder: Path = typer.Argument(help="Folder for the files.", metavar="DIR"),
    devices: int = flag("--devices", "Number of devices; existing files stay.", "N", 0, min=0),
    host: list[str] = flag("--host", "Broker name or address. Repeatable.", "HOST", ...),
    federation: str | None = flag("--federation", "Name of the federation. (default: perfeds2)", "NAME"),
    quiet: bool = QUIET,
) -> None:
    """Make authorities, and certificates for broker, server and devices."""
    from perfeds2.deployment.credentials import LOOPBACK, make_credentials

    made = make_credentials(folder, devices, [*host, *LOOPBACK], federation)
    say(quiet, f"In {made.folder}, for every machine: ca.crt, ca.crl")
    say(quiet, "For the broker: broker.crt, broker.key, clients.crt, clients.crl")
    say(quiet, "For the server: server.crt, server.key; to enrol devices also clients.* and enrolment.*")
    say(quiet, "For device N: devices/device-N.crt and devices/device-N.key, and nothing else")
    say(quiet, "Keep offline: ca.key; without enrolment also clients.key")


def rotate(
    number: int | None = flag("--number", "Device number. (default: the server)", "N", min=0),
    broker: bool = flag("--broker", "Rotate the broker's key instead.", default=False),
    credentials: Path = CREDENTIALS,
    quiet: bool = QUIET,
) -> None:
    """Replace and revoke the key of a device, server or broker."""
    from perfeds2.deployment.credentials import BROKER, name_of

    if broker and number is not None:
        raise InputError("--number and --broker were both given; give one of them.")
    party = BROKER if broker else number
    held = open_credentials(credentials)
    held.rotate(party)
    say(quiet, f"A new key and certificate for {name_of(party)}; install them on its machine.")
    say(quiet, COPY_LIST.format(held.authority_of(party).revocations.name))
    if broker:
        say(quiet, "A device refuses the old key once it has received the list, and accepts it until then.")


def revoke(number: int = NUMBER, credentials: Path = CREDENTIALS, quiet: bool = QUIET) -> None:
    """Revoke a device's certificate. The command rotate lets it in again."""
    open_credentials(credentials).revoke(number)
    say(quiet, f"device {number} is revoked. {COPY_LIST.format('clients.crl')}")


def rollover(
    finish: bool = flag("--finish", "Trust the new authorities only.", default=False),
    credentials: Path = CREDENTIALS,
    quiet: bool = QUIET,
) -> None:
    """Replace both authorities; the old ones stay trusted until --finish."""
    held = open_credentials(credentials)
    held.roll(finish)
    if finish:
        say(quiet, "The old authorities are gone. A device that did not renew meanwhile needs a new token.")
    else:
        say(quiet, "Old and new authorities are trusted. Devices that enrolled renew within a day; then use --finish.")


# ---- enrolment


def token(
    devices: int = flag("--devices", "Make tokens for devices 0 to N-1 without a certificate.", "N", 0, min=0),
    number: int | None = flag("--number", "Make a token for this device.", "N", min=0),
    days: float = flag("--days", "Days until the tokens expire.", "DAYS", 7.0, min=0),
    credentials: Path = CREDENTIALS,
) -> None:
    """Print one-time tokens with which devices enrol."""
    from perfeds2.deployment.enrolment import make_tokens

    held = open_credentials(credentials)
    wanted = [each for each in range(devices) if not held.file(each, "crt").exists()]
    if number is not None:
        wanted.append(number)
    for each in make_tokens(held, wanted, days):
        typer.echo(each)


def enrol(
    server: str = typer.Argument(help="Enrolment address of the server.", metavar="HOST:PORT"),
    token: str = flag("--token", "Token from perfeds2 federate token.", "TOKEN", ...),
    credentials: Path = CREDENTIALS,
    quiet: bool = QUIET,
) -> None:
    """Make a key on this device and get a certificate for it."""
    from perfeds2.deployment.credentials import Credentials
    from perfeds2.deployment.enrolment import enrol
    from perfeds2.deployment.site import Site

    site = Site.read(server, "HOST:PORT", Credentials(credentials.resolve()))
    device = enrol(site.credentials, (site.host, site.port), token)
    say(quiet, f"This is device {device}. Start it: perfeds2 federate device --number {device} --server HOST:PORT")


def enrolment(
    listen: str = flag("--listen", "Address where devices enrol.", "HOST:PORT", ...), credentials: Path = CREDENTIALS
) -> None:
    """Enrol devices on a machine other than the server.

    With secure aggregation, the server should not be able to make certificates of devices.
    """
    from perfeds2.deployment.enrolment import enrolling
    from perfeds2.deployment.processes import repeating
    from perfeds2.deployment.site import Site

    site = Site.read(listen, "--listen", open_credentials(credentials))
    with enrolling(site.credentials, (site.host, site.port)) as port, repeating(site.credentials.renew_lists):
        typer.echo(f"Devices enrol on port {port}")
        threading.Event().wait()


CERTIFICATE_COMMANDS = (credentials, token, enrolment, enrol, rotate, revoke, rollover)
