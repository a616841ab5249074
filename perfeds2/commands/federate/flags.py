"""What can be said to ``perfeds2 federate``? The settings' flags come from their fields; the others are here."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfeds2.commands.common import SettingsCommand, flag, setting_flags
from perfeds2.console import guarded
from perfeds2.deployment.fields import FOLLOWED
from perfeds2.errors import InputError

if TYPE_CHECKING:
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.setup import Setup

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
RunDir = Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="DIR")]
CREDENTIALS: dict[str, tuple[Any, Any]] = {
    "credentials": (
        Path,
        flag("--credentials", "The folder with ca.crt and what else this machine has.", "DIR", Path("credentials")),
    ),
    "state": (Path, flag("--state", "Where Flower keeps its own files.", "DIR", Path("flower"))),
}
SITE = {"server": (str, flag("--server", "Where the server is.", "HOST:PORT", ...)), **CREDENTIALS}
TOLD = [each for each in FOLLOWED if each.name != "out"]  # the folder is each command's own affair
SETTINGS = setting_flags(TOLD)
SETTINGS["slow"] = (list[str] | None, SETTINGS["slow"][1])  # as often as one likes
CELL = {each.keyword for each in TOLD if each.section == "cell" and each.name != "devices"}  # for --shape only


class FederationCommand(SettingsCommand):
    """A command that has the settings of a federation."""

    settings = TOLD


def make_setup(given: dict[str, Any]) -> "Setup":
    """From flags. Files are found from here, wherever the server and the devices run."""
    from perfeds2.deployment.setup import Setup

    given = given | {name: str(Path(given[name]).resolve()) for name in ("data_dir", "app_module") if given[name]}
    given["slow"] = ",".join(given["slow"] or [])
    return Setup.from_texts({name.replace("_", "-"): value for name, value in given.items()})


def open_site(server: str, credentials: Path, state: Path) -> "Site":
    need_flower()
    from perfeds2.deployment.flower.credentials import Credentials
    from perfeds2.deployment.flower.site import Site

    host, colon, port = server.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise InputError(f"--server takes HOST:PORT, got {server!r}.")
    if not (credentials / "ca.crt").exists():
        raise InputError(f"--credentials {credentials} holds no ca.crt; see perfeds2 federate credentials.")
    return Site(server, Credentials(credentials.resolve()), state.resolve())


def need_flower() -> None:
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise InputError(f"a federation needs Flower: {Path(sys.executable).name} -m pip install 'perfeds2[flower]'.")


def in_one_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong in a command is said in one sentence."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        with guarded(f"federate {command.__name__}", []):
            command(**given)

    return called
