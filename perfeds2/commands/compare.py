"""perfeds2 compare: who learns fastest?"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from perfeds2.commands.common import JOBS, TRACK, followed, new_folder, prepare_to_train, read_spec, watching
from perfeds2.console import guarded, say


def compare(jobs: int | None = JOBS, track: list[str] | None = TRACK, **given: Any) -> None:
    """Run algorithms side by side on the same cell, data, fading and initial weights, and see who learns fastest.

    The terminal shows a table, the output folder gets everything: metrics.csv, timeline.npz, model.safetensors,
    summary.json and report.html, which opens offline. The same spec gives the same bytes of metrics. Wherever a name is
    taken, your own goes as FILE.py:NAME.
    """
    do_spec("compare", given, jobs=jobs, track=track)


def do_spec(
    command: str,
    given: dict[str, Any],
    defaults: dict[str, Any] | None = None,
    jobs: int | None = None,
    track: list[str] | None = None,
) -> None:
    """What compare, run and simulate do: a folder, the work, the page, the table."""
    quiet, yes, resume, out = (given.pop(name) for name in ("quiet", "yes", "resume", "out"))
    trains, place = command != "simulate", list[Path]()
    with guarded(command, place), ExitStack() as stack:
        from perfeds2.report.live import is_live
        from perfeds2.runs.folder import Folder, alone, open_folder

        spec = read_spec(given, defaults or {}, resume)
        path = resume or new_folder(out, f"{command}-{spec.task.name.label}")
        followers = stack.enter_context(followed(path, track))
        if not Folder(path).finished:
            from perfeds2.runs.estimate import refuse_days
            from perfeds2.runs.pool import Workers
            from perfeds2.runs.training import trainings_of
            from perfeds2.spec.build import check
            from perfeds2.studies.compare import simulate_spec, train_spec

            if trains:
                prepare_to_train(len(spec.algorithms) * len(spec.run.seeds), jobs)
            check(spec, trains=trains)
            refuse_days(trainings_of(spec), yes=yes, trains=trains)
        folder = open_folder(path, spec)
        place.append(path)
        if folder.finished:
            say(quiet, f"{path} already holds this finished run.")
        else:
            with alone(path), watching(quiet, command) as watch:
                folder.log(f"started: perfeds2 {' '.join(sys.argv[1:])}")
                if trains:
                    train_spec(spec, command, folder, Workers(jobs), watch, followers)
                else:
                    simulate_spec(spec, command, folder, watch, followers)
        if not (path / "report.html").exists() or is_live(path / "report.html"):
            from perfeds2.report.run import write_report

            write_report(path)
        if not quiet:
            from perfeds2.report.run import print_summary

            print_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")))
            typer.echo(f"Results: {path}    Report: {path / 'report.html'}")
