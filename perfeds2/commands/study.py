"""perfeds2 study: a study of one's own."""

import typer

from perfeds2.commands.common import study as asking
from perfeds2.errors import InputError
from perfeds2.spec.names import Value

DEFAULTS = {"algorithms": ["PerFedS2"]}


def study(
    name: str | None = typer.Argument(
        None, help="Your function, which takes the settings and train().", metavar="FILE.py:NAME", show_default=False
    ),
    **given: Value,
) -> None:
    """Run a study of your own: a function that chooses trainings and makes a table.

    Writes a folder with report.html, study.csv, study_metrics.csv and study.json.
    """
    with asking("study", given) as asked:
        from perfeds2.report.own import print_study, write_study
        from perfeds2.studies.own import make_study, read_study, run_study

        if asked.resume is not None:
            made = read_study(asked.resume)
        elif name is None:
            raise InputError("the study is missing; give FILE.py:NAME, as in docs/how-to/study.md, or --resume DIR.")
        else:
            made = make_study(name, asked.spec(DEFAULTS))
        name = f"study-{made.named.label}"
        with asked.executing(name, [made.spec], lambda _, path: write_study(path)) as (path, execution):
            run_study(made, path, execution)
        if not asked.quiet:
            print_study(path)
        asked.say_written(path / "study.csv", *asked.drawn)
