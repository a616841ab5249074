"""perfeds2 federate: run the protocol on real devices, over MQTT.

``local`` runs a whole federation on this machine. The commands in ``certificates.py`` manage certificates.
``server`` and ``device`` run on the machines of a federation. ``submit``, ``resume``, ``watch``, ``stop`` and ``verify``
manage its runs.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfeds2.commands.certificates import CERTIFICATE_COMMANDS, CREDENTIALS, open_credentials
from perfeds2.commands.common import (
    QUIET,
    SettingsCommand,
    flag,
    new_folder,
    reporting_errors,
    setting_flags,
    show_help,
)
from perfeds2.commands.watch import watch
from perfeds2.console import give_up, guarded, say
from perfeds2.deployment.fields import FILES, FOLLOWED, RENAMED
from perfeds2.errors import InputError, need_extra
from perfeds2.spec.names import Value, Values

if TYPE_CHECKING:
    from perfeds2.deployment.run_queue import Queue
    from perfeds2.deployment.setup import Setup
    from perfeds2.deployment.site import Site

EXTRA = ("paho", "cryptography", "prometheus_client")  # modules of the extra [mqtt]
RUN = typer.Argument(help="Run folder on the server.", metavar="DIR")
STATE = flag("--state", "Folder with the server's own files.", "DIR", Path("mqtt"))
PATHS = ("data_dir", "app_module", "cloud_credentials")
FLAGS = setting_flags(FOLLOWED)
FLAGS["set_"] = (list[str] | None, flag("--set", "A method's setting: Method.key=value. Repeatable.", "KEY=VALUE"))
OWN_DEFAULTS = {each.keyword: [each.default] for each in FOLLOWED if (each.section, each.key) in RENAMED}
WITH_SETTINGS: Value = partial(SettingsCommand, FLAGS, settings=FOLLOWED, own_defaults=OWN_DEFAULTS)


def make_setup(given: Values) -> "Setup":
    """Return the setup that flags describe. Paths are made absolute, because server and devices run elsewhere."""
    from perfeds2.deployment.setup import Setup
    from perfeds2.spec.tasks import check_model

    given = given | {name: str(Path(given[name]).resolve()) for name in PATHS if given[name]}
    if given["model"] and given["app_module"]:
        raise InputError(
            f"--model {given['model']} and --app-module were both given; the module defines its own model. Give one of them."
        )
    files = own_files({name: given.pop(name) for name in FILES})
    assigned = [text.partition("=") for text in given.pop("set_") or []]
    texts = {name.replace("_", "-"): value for name, value in given.items()}
    setup = Setup.from_texts(texts | {name.strip(): value.strip() for name, _, value in assigned}, files)
    check_model(setup.spec)
    setup = setup.with_robust_merge()
    _ = setup.losses, setup.schedule, setup.encoding  # refuse settings that do not fit
    return setup


def own_files(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return settings that may name files, with the whole paths of those files."""
    found = {}
    for name, text in given.items():
        if text is not None:
            file, colon, rest = text.rpartition(":") if ".py:" in text else (text, "", "")
            found[name] = f"{Path(file).resolve()}{colon}{rest}" if file.endswith((".py", ".safetensors")) else text
    return found


def open_site(address: str, flag_name: str, credentials: Path) -> "Site":
    held = open_credentials(credentials)
    from perfeds2.deployment.site import Site

    return Site.read(address, flag_name, held)


def open_queue(state: Path) -> "Queue":
    from perfeds2.deployment.run_queue import Queue

    return Queue(state.resolve())


# ---- everything on one machine


def local(
    context: typer.Context,
    device_data: str | None = flag(
        "--device-data", "Data folder of each device; {} is the device number.", "PATTERN", rich_help_panel="Federation"
    ),
    out: Path | None = flag("--out", "Result folder. (default: a new one in runs/)", "DIR"),
    resume: Path | None = flag("--resume", "Continue an interrupted federation.", "DIR"),
    quiet: bool = QUIET,
) -> None:
    """Run a whole federation on this machine: certificates, broker, server, devices, report.

    It runs the same code as real machines do: every device is a process with its own key behind TLS. All processes end
    when this command ends, also after Ctrl-C.
    """
    place: list[Path] = []
    with guarded("federate local", place):
        need_extra("a federation", "mqtt", *EXTRA)
        from perfeds2.deployment.mqtt.local import run_locally
        from perfeds2.deployment.setup import Setup
        from perfeds2.deployment.status import live_table
        from perfeds2.report.run import print_summary

        setup = make_setup(context.obj) if resume is None else Setup.read(resume)
        path = resume or new_folder(out, f"federate-{setup.name}")
        place.append(path)
        with live_table(quiet) as show:
            run_locally(setup, path, device_data, show, say=partial(say, quiet))
        if not quiet:
            print_summary(path)


# ---- machines


def server(
    listen: str | None = flag("--listen", "Address to listen on. (default: 127.0.0.1:8883)", "HOST:PORT"),
    broker: str | None = flag("--broker", "Use a running MQTT broker instead of starting one.", "HOST:PORT"),
    enrol: str | None = flag("--enrol", "Address where devices enrol. (default: none)", "HOST:PORT"),
    credentials: Path = CREDENTIALS,
    state: Path = STATE,
    standby: bool = flag("--standby", "Wait, and take over when the active server stops.", default=False),
) -> None:
    """Run the server in the foreground, in a terminal or under systemd."""
    if broker is not None and listen is not None:
        raise InputError(
            "--listen and --broker were both given; leave out --listen, because a running broker has its own address."
        )
    site = open_site(broker or listen or "127.0.0.1:8883", "--broker" if broker else "--listen", credentials)
    from perfeds2.deployment.enrolment import enrolling
    from perfeds2.deployment.lease import leased
    from perfeds2.deployment.mqtt.broker import running_broker
    from perfeds2.deployment.processes import repeating
    from perfeds2.deployment.run_queue import serve_queue

    queue = open_queue(state)
    queue.open()
    if standby:
        typer.echo(f"Standing by; {queue.state} is taken over when its server stops")
    started = nullcontext()
    if broker is None:  # the embedded broker is for one machine; only Mosquitto may face a network
        started = running_broker(site.credentials, (site.host, site.port), queue.state / "broker", "mosquitto")
    enrolment = nullcontext()
    if enrol is not None:
        port = open_site(enrol, "--enrol", credentials)
        enrolment = enrolling(site.credentials, (port.host, port.port))

    def look_after() -> None:
        site.credentials.renew_lists()
        for warning in site.credentials.warnings():
            typer.echo(warning)

    warn = repeating(look_after)
    with leased(queue.state, standby) as lease, started, enrolment as enrolling_at, warn:
        inside = replace(site, host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(site.host, site.host))  # noqa: S104 (not bound here)
        typer.echo(f"{'Joining' if broker else 'Listening on'} {site.address}; runs are taken from {queue.state}")
        if enrolling_at is not None:
            typer.echo(f"Devices enrol on port {enrolling_at}")
        serve_queue(inside, queue, lease, typer.echo)


def device(
    number: str = flag("--number", "Device number, or several: 0-5 or 0,2,4-6.", "N", ...),
    server: str = flag("--server", "Address of the server.", "HOST:PORT", ...),
    data: str | None = flag("--data", "Data folder; {} is the device number. Data never leave it.", "DIR"),
    app_module: Path | None = flag("--app-module", "File with model and load_data (docs/how-to/deploy.md).", "FILE"),
    model: str | None = flag("--model", "Your own PyTorch or JAX model.", "FILE.py:NAME"),
    compress: str | None = flag("--compress", "Your own compression of uploads.", "FILE.py:NAME"),
    init: str | None = flag("--init", "Weights to start from, as on the server.", "FILE.safetensors"),
    credentials: Path = CREDENTIALS,
    state: Path = flag("--state", "Folder for the state of devices between jobs.", "DIR", Path("mqtt/devices")),
    job_s: float = flag("--job-s", "Time limit of a job; 0 is no limit.", "SECONDS", 3600.0, min=0),
    memory_mb: float = flag("--memory-mb", "Largest model that is accepted.", "MB", 1024.0, min=0),
    secure_only: bool = flag("--require-secure-aggregation", "Refuse runs without secure aggregation.", default=False),
    least_quorum: int = flag("--least-quorum", "Refuse runs with fewer updates in a round.", "A", 1, min=1),
    clip_at_most: float = flag(
        "--clip-at-most", "Refuse runs that clip to a larger norm, or not at all.", "NORM", math.inf
    ),
    together: bool = flag("--together", "Run many devices in one process, for load tests.", default=False),
) -> None:
    """Run a device in the foreground, or many in their own processes.

    A device runs only code that is installed on its machine.
    """
    site = open_site(server, "--server", credentials)
    from perfeds2.deployment.credentials import name_of
    from perfeds2.deployment.mqtt.many import read_numbers, run_apart, run_together
    from perfeds2.deployment.preparation import Owner
    from perfeds2.deployment.setup import data_folder

    module = None if app_module is None else app_module.resolve()
    numbers, files = read_numbers(number), own_files({"model": model, "compress": compress, "init": init})
    folders, states = {one: data_folder("--data", data, one) for one in numbers}, state.resolve()

    def owner(one: int) -> Owner:
        memory_bytes = round(memory_mb * 2**20)
        required = (secure_only, least_quorum, clip_at_most)
        return Owner(module, files, folders[one], states / name_of(one), job_s, memory_bytes, *required)

    (run_together if together or len(numbers) == 1 else run_apart)(site, numbers, owner)


def status(credentials: Path = CREDENTIALS, state: Path = STATE) -> None:
    """Show the server's runs, and which certificates expire soon."""
    from perfeds2.deployment.status import read_status

    held, queue = open_credentials(credentials), open_queue(state)
    typer.echo(f"{'A' if queue.is_served() else 'No'} server uses {queue.state}.")
    for run in queue.runs().values():
        now = read_status(run)
        typer.echo(f"{run}: {'waiting' if now is None else now.line}")
    for warning in held.warnings():
        typer.echo(f"warning: {warning}")


# ---- runs


def submit(
    context: typer.Context,
    out: Path = RUN,
    credentials: Path = CREDENTIALS,
    state: Path = STATE,
    quiet: bool = QUIET,
) -> None:
    """Start a federation on a running server.

    Run this on the server, as its user.
    """
    from perfeds2.deployment.supervisor import already_runs
    from perfeds2.runs.folder import claimed

    setup = make_setup(context.obj)
    open_queue(state).check_new(out)  # a queued run keeps its settings
    with claimed(out, setup.server_spec, otherwise=already_runs(out)):
        setup.write(out)
    enqueue(out, credentials, state, quiet)


def resume(folder: Path = RUN, credentials: Path = CREDENTIALS, state: Path = STATE, quiet: bool = QUIET) -> None:
    """Continue a federation that was killed or stopped, from its last round."""
    from perfeds2.deployment.setup import Setup

    Setup.read(folder)
    enqueue(folder, credentials, state, quiet)


def enqueue(folder: Path, credentials: Path, state: Path, quiet: bool) -> None:
    from perfeds2.deployment.credentials import keep_apart
    from perfeds2.runs.folder import Folder

    keep_apart(credentials, folder)
    if Folder(folder).finished:
        raise InputError(f"{folder} has a finished federation; see {folder / 'report.html'}.")
    queue = open_queue(state)
    before = queue.put(folder)
    after = f", after {before} other" if before else ""
    say(quiet, f"Submitted{after}. Watch it with: perfeds2 federate watch {folder}")
    if not queue.is_served():
        say(quiet, f"No server uses {queue.state} now; start one: perfeds2 federate server --state {queue.state}")


def stop(folder: Path = RUN, state: Path = STATE, quiet: bool = QUIET) -> None:
    """Stop a federation. It can be resumed from its last closed round."""
    open_queue(state).take_out(folder)
    say(quiet, f"Stopped. Continue with: perfeds2 federate resume {folder} --state {state}")


def verify(folder: Path = RUN, quiet: bool = QUIET) -> None:
    """Check that a federation's events.log is complete and unchanged."""
    from perfeds2.deployment.audit import LogError, verify_log

    try:
        say(quiet, verify_log(folder))
    except LogError as error:
        give_up(1, f"perfeds2 federate verify: {folder / 'events.log'}: {error}")


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Print an error of a command as one sentence, and name the extra that it needs."""
    return reporting_errors(
        command, f"federate {command.__name__}", partial(need_extra, "a federation", "mqtt", *EXTRA)
    )


federate_app = typer.Typer(help="Run the protocol on real devices over MQTT.\n\nStart with: perfeds2 federate local")
federate_app.command(cls=WITH_SETTINGS)(local)
for command in (*CERTIFICATE_COMMANDS, server, device, status):
    federate_app.command()(reporting(command))
federate_app.command(cls=WITH_SETTINGS)(reporting(submit))
for command in (resume, stop, verify):
    federate_app.command()(reporting(command))
federate_app.command()(watch)
federate_app.callback(invoke_without_command=True)(show_help)
