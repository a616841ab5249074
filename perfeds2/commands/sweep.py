"""perfeds2 sweep: a setting varied."""

import shlex
from pathlib import Path
from typing import Any

import typer

from perfeds2.commands.common import (
    ON,
    RETRIES,
    REUSE,
    TRACK,
    WORKERS,
    flag,
    followed,
    nested_values,
    new_folder,
    refuse_unused_flags,
    take_settings,
)
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

PANEL = {"rich_help_panel": "Sweep"}


DEFAULTS = {"algorithms": ["PerFedS2"]}


def sweep(
    file: Path | None = typer.Argument(
        None,
        help="A TOML file that stands for all flags; flags and the grid go over it.",
        metavar="[SPEC]",
        show_default=False,
    ),
    grid: list[str] | None = flag(
        "--grid",
        "A setting and its values, quorum=1,2,5 or seed=0..19; a flag's name or section.key. Repeatable; all combinations are run.",
        "NAME=VALUES",
        **PANEL,
    ),
    on: str = ON,
    workers: int | None = WORKERS,
    retries: int = RETRIES,
    reuse: list[Path] | None = REUSE,
    track: list[str] | None = TRACK,
    **given: Any,
) -> None:
    """Vary settings over a grid: perfeds2 sweep SPEC --grid quorum=1,2,5,10,20 --grid seed=0..19

    Runs on all cores (or GPUs) of this machine, or on a Ray cluster. The output folder gets sweep.csv (a row per point,
    algorithm, seed and evaluation), sweep_summary.csv, sweep_front.csv (seconds and joules to the target), charts and report.html. What is finished is never lost: the same command with
    --out, or --resume DIR, goes on.
    """
    quiet, yes, resume, out = (given.pop(name) for name in ("quiet", "yes", "resume", "out"))
    place: list[Path] = []
    failures = 0
    with guarded("sweep", place):
        from perfeds2.report.live import print_failures, progress
        from perfeds2.report.sweep import print_sweep, write_sweep
        from perfeds2.runs.pool import Workers
        from perfeds2.studies.grid import grid_from_flags, read_sweep
        from perfeds2.studies.sweep import run_sweep

        also, assignments, flags = take_settings(given)
        if resume is not None:
            if file or also or grid or assignments or flags or out:
                raise InputError(
                    "--resume takes everything from the folder's sweep.toml; give it without other settings."
                )
            points = read_sweep(resume)
        else:
            if file and also:
                raise InputError(f"the spec is given twice: {file} and --spec {also}; give one of them.")
            values = nested_values(file or also, flags, assignments, DEFAULTS)
            points = grid_from_flags(values, grid or [], flags)
            algorithms = {each: None for point in points.points for each in point.spec.algorithms}
            merges = [each for point in points.points for each in point.spec.merges]
            refuse_unused_flags(flags, assignments, algorithms, merges)
        path = resume or new_folder(out, "sweep")
        place.append(path)
        with followed(path, track) as followers:
            with progress(quiet) as watch:
                who = Workers(workers, on, retries)
                swept = run_sweep(points, path, who, watch, yes=yes, followers=followers, reuse=reuse or ())
            if reuse:
                say(quiet, f"Reused {swept.reused} of {points.trainings} trainings.")
            drawn = write_sweep(path) if len(swept.summary) else []
        failures = len(swept.failures)
        print_failures(swept.failures)
        if not quiet:
            if drawn:
                print_sweep(path)
            written = (path / "sweep.csv", path / "sweep_summary.csv", path / "sweep_front.csv", *drawn)
            typer.echo("\n".join(f"Wrote: {each}" for each in written))
        if failures:
            typer.echo(f"Try what failed again with: perfeds2 sweep --resume {shlex.quote(str(path))}", err=True)
    if failures:
        raise typer.Exit(1)
