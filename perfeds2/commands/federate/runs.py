"""perfeds2 federate submit, resume, watch, stop: what runs on a federation's machines."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.commands.federate.flags import SITE, Quiet, RunDir, make_setup, open_site
from perfeds2.console import say
from perfeds2.errors import InputError
from perfeds2.files import write_text

if TYPE_CHECKING:
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.setup import Setup


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
    site.write_connection()
    run_id = str(site.call(site.submit(setup))["run-id"])
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
    site.write_connection()
    file = folder / "run.json"
    if not file.exists():
        raise InputError(f"{folder} was not submitted (no run.json).")
    site.call(site.stop(json.loads(file.read_text(encoding="utf-8"))["run-id"]))
    say(quiet, f"Stopped. Go on with: perfeds2 federate resume {folder} --server {site.address}")
