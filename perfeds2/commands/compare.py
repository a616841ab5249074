"""perfeds2 compare: train several algorithms on equal terms."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from perfeds2.commands.common import followed, prepare_to_train, study
from perfeds2.console import say
from perfeds2.errors import InputError
from perfeds2.spec.names import Value, Values

if TYPE_CHECKING:
    from perfeds2.spec.fields import Spec


def compare(**given: Value) -> None:
    """Compare algorithms on the same cell, data, fading and initial weights.

    Writes a folder with report.html, summary.json, metrics.csv and more files.
    """
    do_spec("compare", given, {})


def do_spec(command: str, given: Values, defaults: Mapping[str, Value]) -> None:
    """Do compare, run or simulate: open the folder, train or simulate, write the report, print the table."""
    trains = command != "simulate"
    with study(command, given) as asked:
        from perfeds2.report.live import progress
        from perfeds2.report.run import finish_report, print_summary
        from perfeds2.runs.folder import Folder, claimed

        spec = asked.spec(defaults) if asked.resume is None else _resumed(asked.resume)
        path, workers = asked.folder(f"{command}-{spec.task.name.label}"), given.get("workers")
        trainings = None
        with followed(path, given.get("track")) as followers:
            if not Folder(path).finished:
                if trains:
                    prepare_to_train(len(spec.algorithms) * len(spec.run.seeds), workers)
                from perfeds2.studies.compare import prepare

                trainings = prepare(spec, yes=given["yes"], trains=trains)
            with claimed(path, spec) as folder:
                if folder.finished:
                    say(asked.quiet, f"{path} already holds this finished run.")
                else:
                    from perfeds2.runs.pool import Workers
                    from perfeds2.runs.session import Execution
                    from perfeds2.studies.compare import simulate_spec, train_spec

                    with progress(asked.quiet, command) as watch:
                        folder.log(f"started: perfeds2 {' '.join(sys.argv[1:])}")
                        execution = Execution(Workers(workers), watch=watch, followers=followers)
                        if trains:
                            train_spec(spec, command, folder, execution, trainings)
                        else:
                            simulate_spec(spec, command, folder, execution)
                finish_report(path)
        if not asked.quiet:
            print_summary(path)


def _resumed(path: Path) -> "Spec":
    from perfeds2.runs.folder import read_run

    if not (path / "spec.toml").exists():
        raise InputError(f"--resume {path} holds no run (no spec.toml); give the folder of a run that was started.")
    return read_run(path)
