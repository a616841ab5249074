"""perfeds2 federate …: the same protocol on real devices.

``local`` runs a whole federation on this machine. ``credentials``, ``server``, ``proxy``, ``register``, ``unregister`` and
``device`` make machines a federation; ``submit``, ``resume``, ``watch`` and ``stop`` say what runs on it.
"""

import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfeds2.commands.common import SettingsCommand, flag, new_folder, setting_flags, with_flags
from perfeds2.console import guarded, say
from perfeds2.deployment.fields import FOLLOWED, RENAMED
from perfeds2.errors import InputError
from perfeds2.files import write_text

if TYPE_CHECKING:
    from perfeds2.deployment.flower.operator_calls import Operator
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.setup import Setup

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
RunDir = Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="DIR")]
HERE: dict[str, tuple[Any, Any]] = {
    "credentials": (Path, flag("--credentials", "The folder with ca.crt and what else this machine has.", "DIR", Path("credentials"))),
    "state": (Path, flag("--state", "Where Flower keeps its own files.", "DIR", Path("flower"))),
}  # fmt: skip
SITE = {"server": (str, flag("--server", "Where the server is.", "HOST:PORT", ...)), **HERE}
TOLD = [each for each in FOLLOWED if each.name != "out"]  # the folder is each command's own affair
OWN_DEFAULTS = {each.keyword: [each.default] for each in TOLD if (each.section, each.key) in RENAMED}
SETTINGS = setting_flags(TOLD)
SETTINGS["slow"] = (list[str] | None, SETTINGS["slow"][1])  # as often as one likes
CELL = {each.keyword for each in TOLD if each.section == "cell" and each.name != "devices"}  # for --shape only


class FederationCommand(SettingsCommand):
    """A command that has the settings of a federation."""

    settings = TOLD
    own_defaults = OWN_DEFAULTS


def make_setup(given: dict[str, Any]) -> "Setup":
    """From flags. Files are found from here, wherever the server and the devices run."""
    from perfeds2.deployment.setup import Setup
    from perfeds2.spec.build import check_model

    given = given | {name: str(Path(given[name]).resolve()) for name in ("data_dir", "app_module") if given[name]}
    given["slow"] = ",".join(given["slow"] or [])
    if given["model"] and given["app_module"]:
        raise InputError(
            f"--model {given['model']} and --app-module were both given; the module has a model of its own."
        )
    setup = Setup.from_texts({name.replace("_", "-"): value for name, value in given.items()})
    check_model(setup.spec)
    return setup


def open_site(server: str, credentials: Path, state: Path) -> "Site":
    need_flower()
    from perfeds2.deployment.credentials import Credentials
    from perfeds2.deployment.flower.site import Site

    host, colon, port = server.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise InputError(f"--server takes HOST:PORT, got {server!r}.")
    if not (credentials / "ca.crt").exists():
        raise InputError(f"--credentials {credentials} holds no ca.crt; see perfeds2 federate credentials.")
    return Site(server, Credentials(credentials.resolve()), state.resolve())


def open_operator(site: "Site") -> "Operator":
    from perfeds2.deployment.flower.operator_calls import Operator

    return Operator(site)


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise InputError(f"a federation needs Flower: {Path(sys.executable).name} -m pip install 'perfeds2[flower]'.")


# ---- all of it on one machine


def local(
    device_data: Annotated[str | None, typer.Option("--device-data", help="Each device's own data folder, with {} for its number.", metavar="PATTERN", rich_help_panel="Federation")] = None,
    shape: Annotated[bool, typer.Option("--shape", help="Give each device the uplink rate of a radio cell (root, Linux), and compare with the simulator.", rich_help_panel="Federation")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes. (default: a new folder in runs/)", metavar="DIR")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with a federation that was interrupted or killed.", metavar="DIR")] = None,
    quiet: Quiet = False,
    **given: Any,
) -> None:  # fmt: skip
    """Run a whole federation on this machine: certificates, keys, a server, devices; then the report.

    What runs is what runs on real machines: every device is a process of its own, behind TLS and with its own key. All
    of them are ended when this command ends, also by Ctrl-C.
    """
    place: list[Path] = []
    with guarded("federate local", place):
        need_flower()
        from perfeds2.deployment.flower.local import run_locally
        from perfeds2.deployment.processes import Place
        from perfeds2.deployment.setup import Setup
        from perfeds2.deployment.shape import run_shaped
        from perfeds2.deployment.status import live_table
        from perfeds2.report.results import print_summary

        setup = make_setup(given) if resume is None else Setup.read(resume)
        path = resume or new_folder(out, f"federate-{setup.spec.task.name}")
        place.append(path)
        here, lines = Place(data_folders=device_data), list[str]()
        with live_table(quiet) as show:
            if shape:
                lines = run_shaped(setup, path, here, lambda place: run_locally(setup, path, place, show))
            else:
                run_locally(setup, path, here, show)
        if not quiet:
            print_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
            typer.echo("\n".join([*lines, f"Results: {path}    Report: {path / 'report.html'}"]))


# ---- which machines there are


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where they go.", metavar="DIR")],
    devices: Annotated[int, typer.Option("--devices", help="Keys for devices 0 to N−1; what exists stays.", metavar="N", min=0)],
    host: Annotated[list[str], typer.Option("--host", help="A name or address by which devices reach the server. Repeatable.", metavar="HOST")],
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a certificate authority, a server certificate, and a key for each device."""
    need_flower()
    from perfeds2.deployment.credentials import LOOPBACK, make_credentials

    made = make_credentials(folder, devices, [*host, *LOOPBACK])
    say(quiet, f"For the server: {made.authority}, {made.certificate}, {made.certificate_key}, devices/*.pub")
    say(quiet, f"For device N: {made.authority} and devices/device-N.key, and nothing else")
    say(quiet, f"Off line: {made.authority_key}")


def server(
    address: Annotated[str, typer.Option("--listen", help="Where to listen: on this machine only, see proxy.", metavar="HOST:PORT")] = "127.0.0.1:9092",
    insecure_operator_port: Annotated[bool, typer.Option("--insecure-operator-port", help="Listen where others reach Flower's operator calls too (docs/deploy.md).")] = False,
    **here: Any,
) -> None:  # fmt: skip
    """Start the server, in the foreground: for systemd, or a terminal of its own."""
    site = open_site(address, **here)
    command = site.server(insecure_operator_port)
    site.make_private()
    _become(site, command)


def proxy(
    listen: Annotated[str, typer.Option("--listen", help="Where devices call.", metavar="HOST:PORT")] = "0.0.0.0:9443",
    show: Annotated[bool, typer.Option("--print", help="Print the configuration of nginx instead of starting it.")] = False,
    **where: Any,
) -> None:  # fmt: skip
    """Start a reverse proxy (nginx), in the foreground: devices reach the server through it, and only with a device's calls."""
    site = open_site(**where)
    from perfeds2.deployment.flower.proxy import proxy_command, proxy_config

    config = proxy_config(site, listen)
    if show:
        typer.echo(config, nl=False)
        return
    command = proxy_command(site.home / "proxy.conf")
    site.home.mkdir(parents=True, exist_ok=True)
    write_text(site.home / "proxy.conf", config)
    _become(site, command)


def register(quiet: Quiet = False, **where: Any) -> None:
    """Tell the server which keys may take part: every devices/device-N.pub, as device N."""
    site = open_site(**where)
    numbers = site.credentials.devices()
    if not numbers:
        folder = site.credentials.folder / "devices"
        raise InputError(f"{folder} holds no device-N.pub; see perfeds2 federate credentials.")
    operator = open_operator(site)
    for number in numbers:
        is_new = operator.register(number)
        say(quiet, f"device {number} {'is' if is_new else 'was'} registered{'' if is_new else ' before'}")


def unregister(
    number: Annotated[int, typer.Option("--number", help="Which device.", metavar="N", min=0)],
    quiet: Quiet = False,
    **where: Any,
) -> None:
    """Tell the server that a device may no longer take part."""
    open_operator(open_site(**where)).unregister(number)
    say(quiet, f"device {number} may no longer take part")


def device(
    number: Annotated[int, typer.Option("--number", help="Which device this is.", metavar="N", min=0)],
    data: Annotated[Path | None, typer.Option("--data", help="This device's own data; handed to load_data, never sent.", metavar="DIR")] = None,
    app_module: Annotated[Path | None, typer.Option("--app-module", help="This device's own file with model and load_data (docs/deploy.md).", metavar="FILE")] = None,
    **where: Any,
) -> None:  # fmt: skip
    """Start a device, in the foreground, and take part whenever the server asks."""
    site = open_site(**where)
    key = site.credentials.device_key(number)
    if not key.exists():
        raise InputError(f"{key} does not exist; copy it from where perfeds2 federate credentials was run.")
    site.home.mkdir(parents=True, exist_ok=True)
    _become(site, site.device(number, data, app_module))


def _become(site: "Site", command: list[str]) -> None:
    """This process becomes another."""
    os.environ.update(site.environment())
    os.execv(command[0], command)  # noqa: S606 (our own commands)


# ---- what runs on them


def submit(out: RunDir, quiet: Quiet = False, **given: Any) -> None:
    """Start a federation on a server that runs. DIR is made on the server; run this there."""
    from perfeds2.runs.folder import open_folder

    site = open_site(**{name: given.pop(name) for name in SITE})
    setup = make_setup(given)
    setup = replace(setup, own=setup.own.model_copy(update={"out": out.resolve()}))
    open_folder(out, setup.spec)
    setup.write(out)
    _submit(setup, out, site, quiet)


def resume(folder: RunDir, quiet: Quiet = False, **where: Any) -> None:
    """Go on with a federation that was killed or stopped, from its last round."""
    from perfeds2.deployment.setup import Setup

    _submit(Setup.read(folder), folder, open_site(**where), quiet)


def _submit(setup: "Setup", folder: Path, site: "Site", quiet: bool) -> None:
    run_id = open_operator(site).start(setup)
    write_text(folder / "run.json", json.dumps({"run-id": run_id}))
    say(quiet, f"Submitted run {run_id}. Watch it with: perfeds2 federate watch {folder}")


def watch(folder: RunDir) -> None:
    """Follow a federation: devices, rounds. Runs on the server; ends when the federation does."""
    from perfeds2.deployment.setup import Setup
    from perfeds2.deployment.status import live_table, read_status
    from perfeds2.runs.folder import Folder

    Setup.read(folder)
    with live_table(quiet=False) as show:
        finished = False
        while not finished:
            finished = Folder(folder).finished
            if show is not None and (status := read_status(folder)) is not None:
                show(status)
            time.sleep(0.5)


def stop(folder: RunDir, quiet: Quiet = False, **where: Any) -> None:
    """Stop a federation. What was merged is kept: resume goes on from there."""
    site = open_site(**where)
    file = folder / "run.json"
    if not file.exists():
        raise InputError(f"{folder} was not submitted (no run.json).")
    open_operator(site).stop(json.loads(file.read_text(encoding="utf-8"))["run-id"])
    say(quiet, f"Stopped. Go on with: perfeds2 federate resume {folder} --server {site.address}")


def in_one_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong in a command is said in one sentence."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        with guarded(f"federate {command.__name__}", []):
            command(**given)

    return called


federate_app = typer.Typer(
    help="The same protocol for real: a federation of devices on Flower, with TLS and device keys. Start with: perfeds2 federate local"
)
federate_app.command(cls=FederationCommand)(with_flags(local, SETTINGS))
SUBMITTED = {name: each for name, each in SETTINGS.items() if name not in CELL}
TAKES = {credentials: {}, server: HERE, submit: SITE | SUBMITTED, watch: {}}
for command in (credentials, server, proxy, register, unregister, device, submit, resume, watch, stop):
    flags = TAKES.get(command, SITE)
    kind = FederationCommand if command is submit else None
    federate_app.command(cls=kind)(in_one_sentence(with_flags(command, flags)))


@federate_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
