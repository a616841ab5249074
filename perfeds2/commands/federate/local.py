"""perfeds2 federate local: a whole federation on this machine."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from perfeds2.commands.federate.flags import Quiet, make_setup, need_flower, with_settings
from perfeds2.console import guarded


@with_settings()
def local(
    given: dict[str, Any],
    device_data: Annotated[str | None, typer.Option("--device-data", help="Each device's own data folder, with {} for its number.", metavar="PATTERN", rich_help_panel="Task")] = None,
    shape: Annotated[bool, typer.Option("--shape", help="Give each device the uplink rate of a radio cell (root, Linux), and compare with the simulator.", rich_help_panel="Federation")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes. (default: a new folder in runs/)", metavar="DIR")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with a federation that was interrupted or killed.", metavar="DIR")] = None,
    quiet: Quiet = False,
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
        from perfeds2.runs.folder import free_folder

        setup = make_setup(given) if resume is None else Setup.read(resume)
        path = resume or out or free_folder(Path("runs"), f"federate-{setup.spec.task.name}")
        place.append(path)
        here = Place(data_folders=device_data)
        with live_table(quiet) as show:
            if shape:
                lines = run_shaped(setup, path, here, lambda place: run_locally(setup, path, place, show))
            else:
                lines = []
                run_locally(setup, path, here, show)
        if not quiet:
            print_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
            typer.echo("\n".join([*lines, f"Results: {path}    Report: {path / 'report.html'}"]))
