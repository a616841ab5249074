"""perfeds2 arena: which method is best, on equal terms?"""

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
    say_reused,
    take_settings,
)
from perfeds2.commands.completion import of_kind
from perfeds2.console import guarded
from perfeds2.errors import InputError
from perfeds2.spec.values import ALGORITHM, TASK

PANEL = {"rich_help_panel": "Arena"}
LEAVES_OUT = ("algorithms", "rounds", "held_out")


def arena(
    methods: str | None = flag(
        "--methods",
        "Who meets, comma-separated: names as compare --algorithms takes them, or all. (default: PerFedS2, FedAvgS2, FedAvg-SYN, FedBuff, FedAsync, CA2FL, FADAS, FedAdam, SCAFFOLD, pFedMe, Ditto, FedRep)",
        "NAMES",
        autocompletion=of_kind(ALGORITHM),
        **PANEL,
    ),
    mine: list[str] | None = flag(
        "--mine",
        "Your own beside them: an objective, a merge, a method or an Algorithm. Repeatable.",
        "FILE.py:NAME",
        **PANEL,
    ),
    tasks: str | None = flag(
        "--tasks",
        "Several tasks, comma-separated, instead of --task.",
        "NAMES",
        autocompletion=of_kind(TASK),
        **PANEL,
    ),
    cells: str | None = flag(
        "--cells",
        "Several cells, comma-separated: paper, settings such as quorum=10 or radius-m=500+layout=equal, a FILE.toml with sections such as cell and protocol, or your own FILE.py:NAME.",
        "CELLS",
        **PANEL,
    ),
    tune: int | None = flag(
        "--tune",
        "How many settings are tried of each method. (default: 20; 0 where a --spec has settings of single methods, as tuned.toml has)",
        "N",
        **PANEL,
    ),
    no_tune: bool = flag(
        "--no-tune", "Tune nothing: the settings are those of the task, the spec and the flags.", default=False, **PANEL
    ),
    search: list[str] | None = flag(
        "--search",
        "What is tried of one method instead: FedBuff.beta=0.02,0.07,0.2. Repeatable.",
        "NAME=VALUES",
        **PANEL,
    ),
    tuning_seeds: int | None = flag(
        "--tuning-seeds", "On how many seeds; they are none that the evaluation uses. (default: 2)", "N", **PANEL
    ),
    rungs: int | None = flag(
        "--rungs",
        "Trainings start with a third of a third of the horizon, and the better third goes on: so many times. (default: 3)",
        "N",
        **PANEL,
    ),
    on: str = ON,
    workers: int | None = WORKERS,
    retries: int = RETRIES,
    reuse: list[Path] | None = REUSE,
    track: list[str] | None = TRACK,
    **given: Any,
) -> None:
    """Let methods meet on equal terms: perfeds2 arena --task mnist

    On every task and cell each method is tuned with the same number of settings, on data and seeds of their own, and then
    trained with fresh seeds on the same cell, fading, data and first weights. The output folder gets arena.csv, arena.json,
    report.html and arena.tex: seconds, rounds and bits to the target, accuracy at the end, fairness, and who is significantly
    better than whom. The same command with --out, or --resume DIR, goes on where it was interrupted.
    """
    quiet, yes, resume, out = (given.pop(name) for name in ("quiet", "yes", "resume", "out"))
    place: list[Path] = []
    failures = 0
    with guarded("arena", place):
        from perfeds2.report.arena import print_arena, write_arena
        from perfeds2.report.live import print_failures, progress
        from perfeds2.runs.pool import Workers
        from perfeds2.runs.store import open_others
        from perfeds2.spec.values import read_list
        from perfeds2.studies.arena import run_arena
        from perfeds2.studies.arena_plan import make_plan, read_plan
        from perfeds2.studies.grid import parse_grid

        spec_file, assignments, flags = take_settings(given)
        if no_tune and tune:
            raise InputError(f"--tune {tune} and --no-tune were both given; give one of them.")
        if resume is not None:
            if any(
                (
                    spec_file,
                    assignments,
                    flags,
                    out,
                    methods,
                    mine,
                    tasks,
                    cells,
                    tune,
                    no_tune,
                    search,
                    tuning_seeds,
                    rungs,
                )
            ):
                raise InputError(
                    "--resume takes everything from the folder's arena.toml; give it without other settings."
                )
            plan = read_plan(resume)
        else:
            plan = make_plan(
                nested_values(spec_file, flags, assignments, {}),
                tasks=read_list(tasks or ""),
                cells=read_list(cells or ""),
                methods=read_list(methods or ""),
                mine=mine or (),
                search=parse_grid(search or [], "--search"),
                tries=0 if no_tune else tune,
                tuning_seeds=tuning_seeds,
                rungs=rungs,
            )
            refuse_unused_flags(flags, assignments, plan.methods, plan.bouts[0].spec.merges, where="--methods")
        path = resume or new_folder(out, f"arena-{plan.bouts[0].task}")
        place.append(path)
        others = open_others(reuse or ())
        with followed(path, track) as followers:
            with progress(quiet) as watch:
                how = Workers(workers, on, retries)
                met = run_arena(plan, path, how, reuse=others, watch=watch, yes=yes, followers=followers)
            written = write_arena(path)
        failures = len(met.failures)
        say_reused(quiet, others)
        if quiet:
            print_failures(met.failures)
        else:
            print_arena(path)
            print_failures(met.failures)
            files = (path / "arena.csv", path / "arena_metrics.csv", path / "arena.json", *written)
            typer.echo("\n".join(f"Wrote: {each}" for each in files))
        if failures:
            typer.echo(f"Try what failed again with: perfeds2 arena --resume {shlex.quote(str(path))}", err=True)
    if failures:
        raise typer.Exit(1)
