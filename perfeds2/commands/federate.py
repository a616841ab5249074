"""The command line of a deployment: ``perfeds2 federate …`` and ``perfeds2 replay``. Parses, calls, prints."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfeds2.console import give_up, guarded, say

if TYPE_CHECKING:
    from perfeds2.deployment.flower.engine import Site
    from perfeds2.deployment.settings import Settings

federate_app = typer.Typer(
    help="The same protocol for real: a federation of devices on Flower, with TLS and device keys. Start with: perfeds2 federate local"
)


@federate_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _option(flag: str, text: str, look: str, panel: str = "Federation") -> Any:
    return typer.Option(flag, help=text, metavar=look, rich_help_panel=panel)


Devices = Annotated[int, _option("--devices", "How many devices there are, n.", "N")]
Quorum = Annotated[
    int | None, _option("--quorum", "A round closes on so many updates, A. (default: a quarter of the devices)", "A")
]
MaxStaleness = Annotated[
    str | None,
    _option("--max-staleness", "No merged update is older than so many rounds; or 'unbounded'. (default: 5)", "S"),
]
Stale = Annotated[
    str | None,
    _option("--stale", "A device that would exceed the bound: restart, wait or ignore. (default: restart)", "RULE"),
]
Rounds = Annotated[int, _option("--rounds", "So many rounds.", "K")]
Algorithm = Annotated[str, _option("--algorithm", "Of {FedAvg,FedProx,PerFed}×{-SYN,S2,-ASY}.", "NAME")]
Seed = Annotated[int, _option("--seed", "Of the first weights, the data's division and the batches.", "SEED")]
TaskName = Annotated[str, _option("--task", "digits, synthetic, mnist, cifar100 or shakespeare.", "NAME", "Learning")]
DataDir = Annotated[Path | None, _option("--data-dir", "Where real data sets are.", "DIR", "Learning")]
Labels = Annotated[
    int | None, _option("--labels-per-ue", "How many of the labels each device has. (default: 3)", "N", "Learning")
]
Alpha = Annotated[float | None, _option("--alpha", "Step size of the personal gradient step.", "STEP", "Learning")]
Beta = Annotated[float | None, _option("--beta", "Step size of the server.", "STEP", "Learning")]
Batch = Annotated[int | None, _option("--batch", "Samples a batch.", "N", "Learning")]
LocalSteps = Annotated[int | None, _option("--local-steps", "Gradient steps of one job.", "N", "Learning")]
AppModule = Annotated[
    Path | None,
    _option(
        "--app-module", "Your own model and data: a file with model and load_data (docs/deploy.md).", "FILE", "Learning"
    ),
]
NormBound = Annotated[float | None, _option("--norm-bound", "Refuse updates whose norm is larger.", "NORM", "Safety")]
SetAside = Annotated[
    int, _option("--set-aside-after", "Leave out a device after so many failures in a row.", "N", "Safety")
]
Slow = Annotated[
    list[str] | None,
    _option("--slow", "Let a device sleep in every job, to see what that does: DEVICE=SECONDS. Repeatable.", "D=S"),
]
GatherS = Annotated[float, _option("--gather-s", "Wait so long for all devices before the first round.", "SECONDS")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
Server = Annotated[str, typer.Option("--server", help="Where the server is.", metavar="HOST:PORT")]
CredentialsDir = Annotated[
    Path, typer.Option("--credentials", help="The folder with ca.crt and what else this machine has.", metavar="DIR")
]
StateDir = Annotated[Path, typer.Option("--state", help="Where Flower keeps its own files.", metavar="DIR")]
RunDir = Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="DIR")]


@federate_app.command("local")
def local(
    devices: Devices = 6, quorum: Quorum = None, max_staleness: MaxStaleness = None, stale: Stale = None,
    rounds: Rounds = 10, algorithm: Algorithm = "PerFedS2", seed: Seed = 0, task: TaskName = "digits",
    data_dir: DataDir = None, labels_per_ue: Labels = None, alpha: Alpha = None, beta: Beta = None, batch: Batch = None,
    local_steps: LocalSteps = None, app_module: AppModule = None, norm_bound: NormBound = None,
    set_aside_after: SetAside = 3, slow: Slow = None, gather_s: GatherS = 60.0,
    device_data: Annotated[str | None, _option("--device-data", "Each device's own data folder, with {} for its number.", "PATTERN", "Learning")] = None,
    bandwidth_hz: Annotated[float | None, _option("--bandwidth-hz", "The uplink band --shape shares out equally. (default: 1e6)", "HZ")] = None,
    shape: Annotated[bool, typer.Option("--shape", help="Give each device the uplink rate of a radio cell (root, Linux), and compare with the simulator.", rich_help_panel="Federation")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes. (default: a new folder in runs/)", metavar="DIR")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with a federation that was interrupted or killed.", metavar="DIR")] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run a whole federation on this machine: certificates, keys, a server, devices; then the report.

    What runs is what runs on real machines: every device is a process of its own, behind TLS and with its own key. All
    of them are ended when this command ends, also by Ctrl-C.
    """
    given = dict(locals())
    place: list[Path] = []

    with guarded("federate local", place):
        from perfeds2.runs.folder import free_folder

        _need_flower()
        if resume is not None:
            from perfeds2.deployment.flower.local import read_settings

            settings, path = read_settings(resume), resume
        else:
            settings = _settings(given)
            path = out or free_folder(Path("runs"), f"federate-{settings.spec.task.name}")
        place.append(path)
        _run_locally(settings, path, device_data, shape, quiet)


def _run_locally(settings: "Settings", path: Path, device_data: str | None, shape: bool, quiet: bool) -> None:
    from perfeds2.deployment.console import live
    from perfeds2.deployment.flower.local import run_locally

    folders = {d: Path(device_data.format(d)) for d in range(settings.spec.cell.ues)} if device_data else {}
    with live(quiet) as watch:
        if shape:
            from perfeds2.deployment.shape import run_shaped

            lines = run_shaped(settings, path, watch, folders)
        else:
            run_locally(settings, path, watch, folders)
            lines = []
    if not quiet:
        from perfeds2.report.results import print_summary

        print_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
        for line in lines:
            typer.echo(line)
        typer.echo(f"Results: {path}    Report: {path / 'report.html'}")


@federate_app.command("credentials")
def credentials(
    folder: Annotated[Path, typer.Argument(help="Where they go.", metavar="DIR")],
    devices: Annotated[int, typer.Option("--devices", help="Keys for devices 0 to N−1; what exists stays.", metavar="N", min=0)],
    host: Annotated[list[str], typer.Option("--host", help="A name or address by which devices reach the server. Repeatable.", metavar="HOST")],
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a certificate authority, a server certificate, and a key for each device."""

    with guarded("federate credentials", []):
        _need_flower()
        from perfeds2.deployment.flower.credentials import make_credentials

        made = make_credentials(folder, devices, host)
        say(quiet, f"For the server: {made.authority}, {made.certificate}, {made.certificate_key}, devices/*.pub")
        say(quiet, f"For device N: {made.authority} and devices/device-N.key, and nothing else")
        say(quiet, f"Off line: {made.authority_key}")


@federate_app.command("server")
def server(
    address: Annotated[str, typer.Option("--listen", help="Where to listen.", metavar="HOST:PORT")] = "0.0.0.0:9092",
    credentials: CredentialsDir = Path("credentials"),
    state: StateDir = Path("flower"),
) -> None:
    """Start the server, in the foreground: for systemd, or a terminal of its own."""

    with guarded("federate server", []):
        site = _site(address, credentials, state)
        site.home.mkdir(parents=True, exist_ok=True)
        os.environ.update(site.environment())
        command = site.server()
        os.execv(command[0], command)  # noqa: S606 (the process becomes Flower's)


@federate_app.command("register")
def register(
    server: Server,
    credentials: CredentialsDir = Path("credentials"),
    state: StateDir = Path("flower"),
    quiet: Quiet = False,
) -> None:
    """Tell the server which keys may take part: every devices/device-N.pub, as device N."""
    from perfeds2.errors import InputError

    with guarded("federate register", []):
        site = _site(server, credentials, state)
        site.write_connection()
        numbers = site.credentials.devices()
        if not numbers:
            raise InputError(f"{credentials / 'devices'} holds no device-N.pub; see perfeds2 federate credentials.")
        for number in numbers:
            try:
                _call(site, site.register([number]))
                say(quiet, f"device {number} is registered")
            except InputError as error:
                if "already" not in str(error):
                    raise
                say(quiet, f"device {number} was registered before")


@federate_app.command("device")
def device(
    number: Annotated[int, typer.Option("--number", help="Which device this is.", metavar="N", min=0)],
    server: Server,
    credentials: CredentialsDir = Path("credentials"),
    data: Annotated[Path | None, typer.Option("--data", help="This device's own data; handed to load_data, never sent.", metavar="DIR")] = None,
    port: Annotated[int, typer.Option("--port", help="A port of loopback for Flower's own use.", metavar="PORT")] = 9094,
    state: StateDir = Path("flower"),
) -> None:  # fmt: skip
    """Start a device, in the foreground, and take part whenever the server asks."""
    from perfeds2.errors import InputError

    with guarded("federate device", []):
        site = _site(server, credentials, state)
        for file in (site.credentials.authority, site.credentials.device_key(number)):
            if not file.exists():
                raise InputError(f"{file} does not exist; copy it from where perfeds2 federate credentials was run.")
        site.home.mkdir(parents=True, exist_ok=True)
        os.environ.update(site.environment())
        command = site.device(number, port, data)
        os.execv(command[0], command)  # noqa: S606 (the process becomes Flower's)


@federate_app.command("submit")
def submit(
    out: RunDir, server: Server,
    credentials: CredentialsDir = Path("credentials"), state: StateDir = Path("flower"),
    devices: Devices = 6, quorum: Quorum = None, max_staleness: MaxStaleness = None, stale: Stale = None,
    rounds: Rounds = 10, algorithm: Algorithm = "PerFedS2", seed: Seed = 0, task: TaskName = "digits",
    data_dir: DataDir = None, labels_per_ue: Labels = None, alpha: Alpha = None, beta: Beta = None, batch: Batch = None,
    local_steps: LocalSteps = None, app_module: AppModule = None, norm_bound: NormBound = None,
    set_aside_after: SetAside = 3, slow: Slow = None, gather_s: GatherS = 60.0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Start a federation on a server that runs. DIR is made on the server; run this there."""
    given = dict(locals())

    with guarded("federate submit", []):
        from dataclasses import replace

        from perfeds2.deployment.flower.local import write_settings
        from perfeds2.runs.folder import open_folder

        settings = replace(_settings(given), out=out.resolve())
        open_folder(out, settings.spec)
        write_settings(out, settings)
        _submit(settings, out, _site(server, credentials, state), quiet)


@federate_app.command("resume")
def resume(
    folder: RunDir,
    server: Server,
    credentials: CredentialsDir = Path("credentials"),
    state: StateDir = Path("flower"),
    quiet: Quiet = False,
) -> None:
    """Go on with a federation that was killed or stopped, from its last round."""

    with guarded("federate resume", []):
        from perfeds2.deployment.flower.local import read_settings

        _submit(read_settings(folder), folder, _site(server, credentials, state), quiet)


def _submit(settings: "Settings", folder: Path, site: "Site", quiet: bool) -> None:
    from perfeds2.deployment.flower.engine import read_json
    from perfeds2.files import write_text

    site.write_connection()
    run_id = str(read_json(_call(site, site.submit(settings)))["run-id"])
    write_text(folder / "run.json", json.dumps({"run-id": run_id}))
    say(quiet, f"Submitted run {run_id}. Watch it with: perfeds2 federate watch {folder}")


@federate_app.command("watch")
def watch(folder: RunDir) -> None:
    """Follow a federation: devices, rounds. Runs on the server; ends when the federation does."""
    from perfeds2.errors import InputError

    with guarded("federate watch", []):
        import time

        from perfeds2.deployment.console import live
        from perfeds2.deployment.flower.local import read_status
        from perfeds2.runs.folder import Folder

        if not (folder / "federation.toml").exists():
            raise InputError(f"{folder} holds no federation (no federation.toml).")
        with live(quiet=False) as show:
            assert show is not None
            while True:
                finished = Folder(folder).finished
                if (status := read_status(folder)) is not None:
                    show(status)
                if finished:
                    return
                time.sleep(0.5)


@federate_app.command("stop")
def stop(
    folder: RunDir,
    server: Server,
    credentials: CredentialsDir = Path("credentials"),
    state: StateDir = Path("flower"),
    quiet: Quiet = False,
) -> None:
    """Stop a federation. What was merged is kept: resume goes on from there."""
    from perfeds2.errors import InputError

    with guarded("federate stop", []):
        site = _site(server, credentials, state)
        site.write_connection()
        file = folder / "run.json"
        if not file.exists():
            raise InputError(f"{folder} was not submitted (no run.json).")
        _call(site, site.stop(json.loads(file.read_text(encoding="utf-8"))["run-id"]))
        say(quiet, f"Stopped. Go on with: perfeds2 federate resume {folder} --server {server}")


def replay(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation that came to its end.", metavar="DIR")],
    device_data: Annotated[str | None, typer.Option("--device-data", help="Where copies of the devices' own data are, with {} for the number.", metavar="PATTERN")] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train again in the simulator along a federation's recorded timeline, and say how far the weights are apart."""

    with guarded("replay", []):
        from perfeds2.deployment.replay_run import TARGET, replay_run

        agreement = replay_run(folder, device_data)
        say(
            quiet,
            f"{agreement.rounds} rounds, {agreement.merges} merges replayed: largest weight difference {agreement.largest:.3g}, "
            f"relative {agreement.relative:.3g} (in {agreement.where}; target {TARGET:g})",
        )
        if not agreement.holds:
            give_up(1, f"perfeds2 replay: the weights differ by more than {TARGET:g}.")


def _settings(given: dict[str, Any]) -> "Settings":
    """From flags, by their names."""
    from perfeds2.deployment.settings import Settings

    own = ("out", "quiet", "device_data", "shape", "resume", "slow", "server", "credentials", "state")
    known = [name for name in given if name not in own]
    config: dict[str, Any] = {name.replace("_", "-"): given[name] for name in known}
    config["slow"] = ",".join(given["slow"] or [])
    for path in ("data-dir", "app-module"):
        config[path] = "" if config[path] is None else str(config[path].resolve())
    return Settings.from_run_config(config)


def _site(address: str, credentials: Path, state: Path) -> "Site":
    _need_flower()
    from perfeds2.deployment.flower.credentials import Credentials
    from perfeds2.deployment.flower.engine import Site
    from perfeds2.errors import InputError

    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise InputError(f"--server takes HOST:PORT, got {address!r}.")
    if not (credentials / "ca.crt").exists():
        raise InputError(f"--credentials {credentials} holds no ca.crt; see perfeds2 federate credentials.")
    return Site(address, Credentials(credentials.resolve()), state.resolve())


def _call(site: "Site", command: list[str]) -> str:
    import subprocess

    from perfeds2.deployment.flower.engine import read_json
    from perfeds2.errors import InputError

    done = subprocess.run(  # noqa: S603 (Flower's own command line)
        command,
        capture_output=True,
        text=True,
        env=os.environ | site.environment(),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    answer = read_json(done.stdout)
    if done.returncode != 0 or answer.get("success") is False:
        said = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
        why = answer.get("error-message") or (said[-1].strip() if said else "no reason given")
        raise InputError(f"Flower refused: {' '.join(str(why).split())}")
    return done.stdout.strip()


def _need_flower() -> None:
    import importlib.util

    from perfeds2.errors import InputError

    if importlib.util.find_spec("flwr") is None:
        raise InputError(f"a federation needs Flower: {Path(sys.executable).name} -m pip install 'perfeds2[flower]'.")
