"""What can be said to ``perfeds2 federate``? The settings' flags come from their fields; the others are here."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perfeds2.commands.spec_flags import SETTINGS as SPEC_FLAGS
from perfeds2.console import guarded
from perfeds2.deployment.fields import RENAMED, SETTINGS, DeploymentSpec

if TYPE_CHECKING:
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.setup import Setup

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
RunDir = Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="DIR")]
Server = Annotated[str, typer.Option("--server", help="Where the server is.", metavar="HOST:PORT")]
CredentialsDir = Annotated[
    Path, typer.Option("--credentials", help="The folder with ca.crt and what else this machine has.", metavar="DIR")
]
StateDir = Annotated[Path, typer.Option("--state", help="Where Flower keeps its own files.", metavar="DIR")]


class Flag(NamedTuple):
    name: str  # without dashes
    help: str
    metavar: str
    panel: str
    repeatable: bool = False


def simulator_flags() -> Iterator[tuple[tuple[str, str], Flag]]:
    """What the spec's fields say of their flags, by section and key."""
    for name, (section, key, metavar, panel, text) in SPEC_FLAGS.items():
        yield (section, key), Flag(name, text, metavar, panel)


def setting_flags() -> list[Flag]:
    """Every setting of a federation that has a flag."""
    flags = {}
    for place, flag in simulator_flags():
        if place in RENAMED:
            name, default, text = RENAMED[place]
            flags[name] = Flag(name, f"{text} (default: {default})", flag.metavar, flag.panel)
        elif place in SETTINGS.values():
            flags[flag.name] = flag
    for key, field in DeploymentSpec.model_fields.items():
        if isinstance(extra := field.json_schema_extra, dict):
            name, default = key.replace("_", "-"), f" (default: {field.default})" if field.default else ""
            flags[name] = Flag(name, f"{field.description}{default}", **extra)  # type: ignore[arg-type]  # fields.py made it
    return list(flags.values())


def make_setup(given: dict[str, Any]) -> "Setup":
    """From flags, by their names. Files are found from here, wherever the server and the devices run."""
    from perfeds2.deployment.setup import Setup

    texts = {name.replace("_", "-"): ",".join(v) if isinstance(v, list) else v for name, v in given.items()}
    for name in ("data-dir", "app-module"):
        if texts.get(name):
            texts[name] = str(Path(texts[name]).resolve())
    file, colon, what = (texts.get("task") or "").rpartition(":")
    if colon and file.endswith(".py"):
        texts["task"] = f"{Path(file).resolve()}:{what}"
    return Setup.from_texts(texts)


def open_site(
    server: Server, credentials: CredentialsDir = Path("credentials"), state: StateDir = Path("flower")
) -> "Site":
    from perfeds2.spec.fields import InputError

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

    from perfeds2.spec.fields import InputError

    if importlib.util.find_spec("flwr") is None:
        raise InputError(f"a federation needs Flower: {Path(sys.executable).name} -m pip install 'perfeds2[flower]'.")


Command = Callable[..., None]


def with_settings(*leave_out: str) -> Callable[[Command], Command]:
    """Give a command the flags of the settings; it takes them together, as ``given``."""
    flags = [flag for flag in setting_flags() if flag.name not in leave_out]
    return lambda command: _instead(command, "given", [_parameter(flag) for flag in flags], dict)


def _parameter(flag: Flag) -> Parameter:
    option = typer.Option(f"--{flag.name}", help=flag.help, metavar=flag.metavar, rich_help_panel=flag.panel)
    kind = Annotated[list[str] | None if flag.repeatable else str | None, option]
    return Parameter(flag.name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def at_site(command: Command) -> Command:
    """Give a command the flags that say where the server is; it takes them together, as ``site``."""
    return _instead(command, "site", list(inspect.signature(open_site).parameters.values()), open_site)


def _instead(command: Command, name: str, others: list[Parameter], make: Callable[..., Any]) -> Command:
    """The command, asking for other parameters instead of one that is made of them."""
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != name]
    asked = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*own, *others)]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = make(**{other.name: given.pop(other.name) for other in others})
        command(**{name: made}, **given)

    called.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]  # functions take attributes
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in asked}
    return called


def in_one_sentence(command: Command) -> Command:
    """What goes wrong in a command is said in one sentence."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        with guarded(f"federate {command.__name__}", []):
            command(**given)

    return called
