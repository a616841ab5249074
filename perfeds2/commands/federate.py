"""perfeds2 federate …: the same protocol on real devices, over MQTT or with Flower.

``local`` runs a whole federation on this machine. ``credentials``, ``rotate``, ``revoke`` and ``unregister`` say who may take part,
``server`` and ``device`` run on the machines of a federation; ``submit``, ``resume``, ``watch`` and ``stop`` say what runs on it.
``register`` and ``proxy`` are for Flower only.
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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfeds2.commands.common import SettingsCommand, flag, new_folder, setting_flags, with_flags
from perfeds2.console import guarded, say
from perfeds2.deployment.fields import FOLLOWED, RENAMED
from perfeds2.errors import InputError
from perfeds2.files import write_text

if TYPE_CHECKING:
    from perfeds2.deployment.flower.operator_calls import Operator
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.mqtt.site import Site as MqttSite
    from perfeds2.deployment.setup import Setup

Engine = Literal["mqtt", "flower"]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
RunDir = Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="DIR")]
ENGINE: tuple[Any, Any] = (Engine, flag("--engine", "What carries the messages.", default="mqtt"))
CREDENTIALS: tuple[Any, Any] = (
    Path,
    flag("--credentials", "The folder with ca.crt and what else this machine has.", "DIR", Path("credentials")),
)
STATE: tuple[Any, Any] = (
    Path | None,
    flag("--state", "Where the server keeps its own files. (default: a folder named as the engine)", "DIR"),
)
KEEPS: tuple[Any, Any] = (
    Path | None,
    flag("--state", "Where this device keeps what it keeps between jobs, in a folder of its own. (default: mqtt/devices; Flower's files: flower)", "DIR"),
)  # fmt: skip
SERVER: tuple[Any, Any] = (str, flag("--server", "Where the server is.", "HOST:PORT", ...))
HERE = {"engine": ENGINE, "credentials": CREDENTIALS, "state": STATE}
FLOWER = {"server": SERVER, "credentials": CREDENTIALS, "state": STATE}
OPERATE = HERE | {"server": (str | None, flag("--server", "Where Flower's server is; with MQTT the server is found by its --state.", "HOST:PORT"))}  # fmt: skip
TOLD = [each for each in FOLLOWED if each.name != "out"]  # the folder is each command's own affair
OWN_DEFAULTS = {each.keyword: [each.default] for each in TOLD if (each.section, each.key) in RENAMED}
SETTINGS = setting_flags(TOLD)
REPEATABLE = ("slow", "uplink_bps")  # as often as one likes
SETTINGS |= {name: (list[str] | None, SETTINGS[name][1]) for name in REPEATABLE}
SETTINGS |= {
    "set_": (list[str] | None, flag("--set", "A method's setting: Method.key=value. Repeatable.", "KEY=VALUE"))
}
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
    given |= {name: ",".join(given[name] or []) for name in REPEATABLE}
    if given["model"] and given["app_module"]:
        raise InputError(
            f"--model {given['model']} and --app-module were both given; the module has a model of its own."
        )
    assigned = [text.partition("=") for text in given.pop("set_") or []]
    texts = {name.replace("_", "-"): value for name, value in given.items()}
    setup = Setup.from_texts(texts | {name.strip(): value.strip() for name, _, value in assigned})
    check_model(setup.spec)
    return setup


def open_site(server: str | None, credentials: Path, state: Path | None) -> "Site":
    """Of Flower."""
    need_flower()
    from perfeds2.deployment.credentials import Credentials
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.mqtt.site import read_address

    if server is None:
        raise InputError("--server HOST:PORT is missing: where Flower's server is.")
    read_address(server, "--server")
    check_credentials(credentials)
    return Site(server, Credentials(credentials.resolve()), (state or Path("flower")).resolve())


def open_mqtt(address: str, flag_name: str, credentials: Path) -> "MqttSite":
    from perfeds2.deployment.mqtt.link import need_paho

    need_paho()
    from perfeds2.deployment.credentials import Credentials
    from perfeds2.deployment.mqtt.site import Site, read_address

    check_credentials(credentials)
    return Site(*read_address(address, flag_name), Credentials(credentials.resolve()))


def check_credentials(folder: Path) -> None:
    if not (folder / "ca.crt").exists():
        raise InputError(f"--credentials {folder} holds no ca.crt; see perfeds2 federate credentials.")


def open_operator(site: "Site") -> "Operator":
    from perfeds2.deployment.flower.operator_calls import Operator

    return Operator(site)


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        python = Path(sys.executable).name
        raise InputError(f"--engine flower needs Flower: {python} -m pip install 'perfeds2[flower]'.")


def need_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        python = Path(sys.executable).name
        raise InputError(f"credentials need the package cryptography: {python} -m pip install 'perfeds2[mqtt]'.")


# ---- all of it on one machine


def local(
    engine: Annotated[Engine, typer.Option("--engine", help="What carries the messages.", rich_help_panel="Federation")] = "mqtt",
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
        run_locally = local_engine(engine, quiet)
        from perfeds2.deployment.processes import Place
        from perfeds2.deployment.setup import Setup
        from perfeds2.deployment.shape import run_shaped
        from perfeds2.deployment.status import live_table
        from perfeds2.report.run import print_summary

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


def local_engine(engine: Engine, quiet: bool) -> Callable[..., Any]:
    """What runs a whole federation on this machine."""
    if engine == "flower":
        need_flower()
        from perfeds2.deployment.flower.local import run_locally

        return run_locally
    from perfeds2.deployment.mqtt.link import need_paho

    need_paho()
    need_cryptography()
    from perfeds2.deployment.mqtt.local import run_locally as run_over_mqtt

    return functools.partial(run_over_mqtt, say=lambda text: say(quiet, text))


# ---- which machines there are


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where they go.", metavar="DIR")],
    devices: Annotated[int, typer.Option("--devices", help="Keys for devices 0 to N−1; what exists stays.", metavar="N", min=0)],
    host: Annotated[list[str], typer.Option("--host", help="A name or address by which devices reach the server. Repeatable.", metavar="HOST")],
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a certificate authority, a server certificate, and a key and certificate for each device; for both engines."""
    need_cryptography()
    from perfeds2.deployment.credentials import LOOPBACK, make_credentials

    made = make_credentials(folder, devices, [*host, *LOOPBACK])
    server_files = (made.authority, made.certificate, made.certificate_key, made.revocations)
    say(quiet, f"For the server: {', '.join(map(str, server_files))} (Flower: devices/*.pub)")
    say(quiet, f"For device N: {made.authority}, devices/device-N.crt and devices/device-N.key, and nothing else")
    say(quiet, f"Off line: {made.authority_key}")


def rotate(
    number: Annotated[int | None, typer.Option("--number", help="Which device; without it, the server.", metavar="N", min=0)] = None,
    quiet: Quiet = False,
    **here: Any,
) -> None:  # fmt: skip
    """Make a new key and certificate for a device, or for the server; the old one stops counting. Lets a revoked device in again."""
    from perfeds2.deployment.credentials import rotate as rotate_key

    rotate_key(open_credentials(**here), number)
    say(quiet, f"A new key and certificate for {'the server' if number is None else f'device {number}'}. {CARRY}")


def revoke(
    number: Annotated[int, typer.Option("--number", help="Which device.", metavar="N", min=0)],
    quiet: Quiet = False,
    **here: Any,
) -> None:
    """A device's certificate no longer counts, until rotate gives it another."""
    from perfeds2.deployment.credentials import revoke as revoke_certificate

    revoke_certificate(open_credentials(**here), number)
    say(quiet, f"device {number} is revoked. {CARRY}")


CARRY = "If this is not the server's own folder, copy revoked.crl there. It is heeded at once; a broker you started yourself must be restarted."


def open_credentials(credentials: Path) -> Any:
    need_cryptography()
    from perfeds2.deployment.credentials import Credentials

    check_credentials(credentials)
    return Credentials(credentials)


def server(
    address: Annotated[str | None, typer.Option("--listen", help="Where to listen. (default: this machine only, 127.0.0.1:8883; Flower: 127.0.0.1:9092)", metavar="HOST:PORT")] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Join this MQTT broker instead of starting one.", metavar="HOST:PORT")] = None,
    insecure_operator_port: Annotated[bool, typer.Option("--insecure-operator-port", help="Flower: listen where others reach its operator calls too (docs/deploy.md).")] = False,
    **here: Any,
) -> None:  # fmt: skip
    """Start the server, in the foreground: for systemd, or a terminal of its own."""
    engine = here.pop("engine")
    if engine == "flower":
        if broker is not None:
            raise InputError("--broker is for --engine mqtt; Flower has a server of its own.")
        site = open_site(address or "127.0.0.1:9092", **here)
        command = site.server(insecure_operator_port)
        site.make_private()
        _become(site, command)
    elif broker is not None and address is not None:
        raise InputError("--listen and --broker were both given; a broker that runs listens by itself.")
    else:
        serve_mqtt(
            open_mqtt(broker or address or "127.0.0.1:8883", "--broker" if broker else "--listen", here["credentials"]),
            broker is None,
            here["state"],
        )


def serve_mqtt(site: "MqttSite", start_broker: bool, state: Path | None) -> None:
    from contextlib import nullcontext

    from perfeds2.deployment.mqtt.broker import running_broker
    from perfeds2.deployment.mqtt.runs import Queue, serve_queue

    queue = Queue((state or Path("mqtt")).resolve())
    queue.open()
    kind = "mosquitto"  # what is reached by others is not left to the embedded one
    started = (
        running_broker(site.credentials, (site.host, site.port), queue.state / "broker", kind)
        if start_broker
        else nullcontext()
    )
    with started:
        inside = replace(site, host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(site.host, site.host))  # noqa: S104 (not bound here)
        typer.echo(f"{'Listening on' if start_broker else 'Joining'} {site.address}; runs are taken from {queue.state}")
        serve_queue(inside, queue, typer.echo)


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
    """A device may no longer take part, and its number is free for another."""
    if where.pop("engine") == "flower":
        open_operator(open_site(**where)).unregister(number)
        say(quiet, f"device {number} may no longer take part")
        return
    from perfeds2.deployment.credentials import unregister as forget

    forget(open_credentials(where["credentials"]), number)
    say(quiet, f"device {number} may no longer take part. {CARRY}")


def device(
    number: Annotated[int, typer.Option("--number", help="Which device this is.", metavar="N", min=0)],
    data: Annotated[Path | None, typer.Option("--data", help="This device's own data; handed to load_data, never sent.", metavar="DIR")] = None,
    app_module: Annotated[Path | None, typer.Option("--app-module", help="This device's own file with model and load_data (docs/deploy.md).", metavar="FILE")] = None,
    **where: Any,
) -> None:  # fmt: skip
    """Start a device, in the foreground, and take part whenever the server asks. It runs only what is installed here."""
    if where.pop("engine") == "flower":
        site = open_site(**where)
        key = site.credentials.device_key(number)
        if not key.exists():
            raise InputError(f"{key} does not exist; copy it from where perfeds2 federate credentials was run.")
        site.home.mkdir(parents=True, exist_ok=True)
        _become(site, site.device(number, data, app_module))
    joins = open_mqtt(where["server"], "--server", where["credentials"])
    from perfeds2.deployment.credentials import device_name
    from perfeds2.deployment.mqtt.device import Owner
    from perfeds2.deployment.mqtt.many import run_together

    state = (where["state"] or Path("mqtt/devices")).resolve() / device_name(number)
    owner = Owner(None if app_module is None else app_module.resolve(), data, state)
    run_together(joins, [number], lambda _: owner)


def _become(site: "Site", command: list[str]) -> None:
    """This process becomes another."""
    os.environ.update(site.environment())
    os.execv(command[0], command)  # noqa: S606 (our own commands)


# ---- what runs on them


def submit(out: RunDir, quiet: Quiet = False, **given: Any) -> None:
    """Start a federation on a server that runs. DIR is made on the server; run this there, as its user."""
    from perfeds2.deployment.claim import already_runs
    from perfeds2.runs.folder import claimed

    where = {name: given.pop(name) for name in OPERATE}
    setup = make_setup(given).with_own(out=out.resolve())
    if where["engine"] == "mqtt":
        open_queue(where["state"]).check_new(out)  # before anything is written: it waits with the settings it has
    with claimed(out, setup.spec, otherwise=already_runs(out)):
        setup.write(out)
    _start(setup, out, quiet, **where)


def resume(folder: RunDir, quiet: Quiet = False, **where: Any) -> None:
    """Go on with a federation that was killed or stopped, from its last round."""
    from perfeds2.deployment.setup import Setup

    _start(Setup.read(folder), folder, quiet, **where)


def _start(setup: "Setup", folder: Path, quiet: bool, engine: Engine, **where: Any) -> None:
    from perfeds2.deployment.claim import already_runs
    from perfeds2.runs.folder import Folder, alone

    if engine == "flower":
        operator = open_operator(open_site(**where))
        with alone(folder, otherwise=already_runs(folder)):  # the server waits until this one lets go
            run_id = operator.start(setup)
            write_text(folder / "run.json", json.dumps({"run-id": run_id}))
        say(quiet, f"Submitted run {run_id}. Watch it with: perfeds2 federate watch {folder}")
        return
    from perfeds2.deployment.credentials import keep_apart

    keep_apart(where["credentials"], folder)
    if Folder(folder).finished:
        raise InputError(f"{folder} holds a federation that has come to its end; see {folder / 'report.html'}.")
    queue = open_queue(where["state"])
    before = queue.put(folder)
    say(
        quiet,
        f"Submitted{f', after {before} other' if before else ''}. Watch it with: perfeds2 federate watch {folder}",
    )
    if queue.server_process() is None:
        say(quiet, f"No server works on {queue.state} now; start one: perfeds2 federate server --state {queue.state}")


def open_queue(state: Path | None) -> Any:
    from perfeds2.deployment.mqtt.runs import Queue

    return Queue((state or Path("mqtt")).resolve())


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
    if where.pop("engine") == "flower":
        site = open_site(**where)
        file = folder / "run.json"
        if not file.exists():
            raise InputError(f"{folder} was not submitted (no run.json).")
        open_operator(site).stop(json.loads(file.read_text(encoding="utf-8"))["run-id"])
        again = f"perfeds2 federate resume {folder} --engine flower --server {site.address}"
    else:
        open_queue(where["state"]).take_out(folder)
        again = f"perfeds2 federate resume {folder}" + (f" --state {where['state']}" if where["state"] else "")
    say(quiet, f"Stopped. Go on with: {again}")


def in_one_sentence(command: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong in a command is said in one sentence."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        with guarded(f"federate {command.__name__}", []):
            command(**given)

    return called


federate_app = typer.Typer(
    help="The same protocol for real: a federation of devices over MQTT or with Flower, with TLS and a certificate each. Start with: perfeds2 federate local"
)
federate_app.command(cls=FederationCommand)(with_flags(local, SETTINGS))
SUBMITTED = {name: each for name, each in SETTINGS.items() if name not in CELL}
TAKES: dict[Callable[..., None], dict[str, Any]] = {  # in the order help shows them
    credentials: {},
    rotate: {"credentials": CREDENTIALS},
    revoke: {"credentials": CREDENTIALS},
    unregister: OPERATE,
    server: HERE,
    device: {"engine": ENGINE, **FLOWER, "state": KEEPS},
    submit: OPERATE | SUBMITTED,
    resume: OPERATE,
    watch: {},
    stop: OPERATE,
    register: FLOWER,
    proxy: FLOWER,
}
for command, flags in TAKES.items():
    kind = FederationCommand if command is submit else None
    federate_app.command(cls=kind)(in_one_sentence(with_flags(command, flags)))


@federate_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
