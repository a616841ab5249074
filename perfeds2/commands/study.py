"""perfeds2 study: a study of one's own."""

import typer

from perfeds2.commands.common import study as asking
from perfeds2.errors import InputError

DEFAULTS = {"algorithms": ["PerFedS2"]}


def study(
    context: typer.Context,
    name: str | None = typer.Argument(
        None, help="Your function, which takes the settings and train().", metavar="FILE.py:NAME", show_default=False
    ),
) -> None:
    """Run your own study: choose trainings and make a table of them.

    Writes a folder with report.html, study.csv, study_metrics.csv and study.json.
    """
    with asking("study", context) as asked:
        from perfeds2.studies.own import make_study

        made = asked.earlier()
        if made is None:
            if name is None:
                raise InputError(
                    "the study is missing; give FILE.py:NAME, as in docs/how-to/study.md, or --resume DIR."
                )
            made = make_study(name, asked.spec(DEFAULTS))
        asked.do(made, made.named.label, [made.spec])
