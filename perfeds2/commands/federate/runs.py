"""perfeds2 federate submit, resume, watch, stop: what runs on a federation's machines."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfeds2.commands.federate.flags import Quiet, RunDir, at_site, make_setup, with_settings
from perfeds2.console import say
from perfeds2.files import write_text

if TYPE_CHECKING:
    from perfeds2.deployment.flower.site import Site
    from perfeds2.deployment.setup import Setup


@at_site
@with_settings("bandwidth-hz")
def submit(out: RunDir, site: "Site", given: dict[str, Any], quiet: Quiet = False) -> None:
    """Start a federation on a server that runs. DIR is made on the server; run this there."""
    from perfeds2.runs.folder import open_folder

    setup = make_setup(given)
    setup = replace(setup, own=setup.own.model_copy(update={"out": out.resolve()}))
    open_folder(out, setup.spec)
    setup.write(out)
    _submit(setup, out, site, quiet)


@at_site
def resume(folder: RunDir, site: "Site", quiet: Quiet = False) -> None:
    """Go on with a federation that was killed or stopped, from its last round."""
    from perfeds2.deployment.setup import Setup

    _submit(Setup.read(folder), folder, site, quiet)


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
            if (status := read_status(folder)) is not None:
                show(status)
            time.sleep(0.5)


@at_site
def stop(folder: RunDir, site: "Site", quiet: Quiet = False) -> None:
    """Stop a federation. What was merged is kept: resume goes on from there."""
    from perfeds2.spec.fields import InputError

    site.write_connection()
    file = folder / "run.json"
    if not file.exists():
        raise InputError(f"{folder} was not submitted (no run.json).")
    site.call(site.stop(json.loads(file.read_text(encoding="utf-8"))["run-id"]))
    say(quiet, f"Stopped. Go on with: perfeds2 federate resume {folder} --server {site.address}")
