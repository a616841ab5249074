"""perfeds2 tune: which step sizes suit each algorithm?"""

from pathlib import Path
from typing import Any

import typer

from perfeds2.commands.common import (
    ON,
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
from perfeds2.console import guarded
from perfeds2.errors import InputError

PANEL = {"rich_help_panel": "Tuning"}
LEAVES_OUT = ("seeds", "seed", "rounds", "eval_every_s", "held_out", "stop_when_diverged")


def tune(
    search: list[str] | None = flag(
        "--search",
        "A learning setting and the values to try, beta=0.02,0.07,0.2, or of one algorithm, PerFedS2.alpha=0.01,0.03. Repeatable; all combinations are tried. (default: alpha and beta, from a third and a ninth to 27 times what the task has)",
        "NAME=VALUES",
        **PANEL,
    ),
    tuning_seeds: int | None = flag(
        "--tuning-seeds", "On how many seeds; they are none that an evaluation uses. (default: 2)", "N", **PANEL
    ),
    rungs: int | None = flag(
        "--rungs",
        "Trainings start with a third of a third of the horizon, and the better third goes on: so many times. 1 tries everything to the end. (default: 3)",
        "N",
        **PANEL,
    ),
    figure: str | None = flag(
        "--figure",
        "On the cell and with the algorithms of a figure of the paper (exp_1 … exp_8), its first panel on --task.",
        "NAME",
        **PANEL,
    ),
    on: str = ON,
    workers: int | None = WORKERS,
    reuse: list[Path] | None = REUSE,
    track: list[str] | None = TRACK,
    **given: Any,
) -> None:
    """Find the step sizes that suit each algorithm: perfeds2 tune --task digits

    By successive halving over simulated time, on a validation part held out of the UEs' training data, never on the test
    part. The output folder gets tuned.toml, which compare, sweep and reproduce take as --spec; tune.csv has every try and
    tune.png and report.html the landscape. The same command with --out, or --resume DIR, goes on where it was interrupted.
    """
    quiet, yes, resume, out = (given.pop(name) for name in ("quiet", "yes", "resume", "out"))
    place: list[Path] = []
    with guarded("tune", place):
        from perfeds2.report.live import progress
        from perfeds2.report.tuning import print_tuning, write_tuning
        from perfeds2.runs.pool import Workers
        from perfeds2.runs.store import open_others
        from perfeds2.studies.grid import parse_grid
        from perfeds2.studies.tune import run_search
        from perfeds2.studies.tune_space import make_search, read_search

        spec_file, assignments, flags = take_settings(given)
        if resume is not None:
            if any((spec_file, search, figure, assignments, flags, out, tuning_seeds, rungs)):
                raise InputError(
                    "--resume takes everything from the folder's tune.toml; give it without other settings."
                )
            made = read_search(resume)
        else:
            values = nested_values(spec_file, flags, assignments, {})
            if figure is not None:
                values = _of_figure(figure, values)
            made = make_search(values, parse_grid(search or [], "--search"), seeds=tuning_seeds, rungs=rungs)
            refuse_unused_flags(flags, assignments, made.spec.algorithms, made.spec.merges)
        path = resume or new_folder(out, f"tune-{made.spec.task.name.label}")
        place.append(path)
        others = open_others(reuse or ())
        with followed(path, track) as followers:
            with progress(quiet) as watch:
                found = run_search(
                    made, path, Workers(workers, on), reuse=others, watch=watch, yes=yes, followers=followers
                )
            drawn = write_tuning(found)
        say_reused(quiet, others)
        if not quiet:
            print_tuning(found)
            typer.echo("\n".join(f"Wrote: {each}" for each in (path / "tuned.toml", path / "tune.csv", *drawn)))


def _of_figure(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A figure's settings, with what was given over them."""
    from perfeds2.paper.figures import load_figures
    from perfeds2.studies.figure import merged

    (figure,) = load_figures([name])
    for section, inner in values.items():
        if not isinstance(inner, dict):
            raise InputError(f"{section} must be a section, [{section}], got {inner!r}.")
    task = str(values.get("task", {}).get("name", figure.panels[0].task))
    panel = next((panel for panel in figure.panels if panel.task == task), None)
    if panel is None:
        tasks = dict.fromkeys(panel.task for panel in figure.panels)
        raise InputError(f"--figure {name} has no panel on {task}; expected --task {' or '.join(tasks)}.")
    lines = {"run": {"algorithms": list(dict.fromkeys(line.algorithm for line in panel.lines))}}
    return merged(panel.settings["paper"], lines, values)
