"""perfeds2 data: download data sets and show where they are."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag, reporting_errors, show_help
from perfeds2.commands.completion import among
from perfeds2.console import say

data_app = typer.Typer(help="Download real data sets and show where they are.")
COMPLETE = among(
    "mnist", "fashion-mnist", "femnist", "cifar10", "cifar100", "har", "shakespeare"
)  # importing datasets.sources() would import JAX
DATA_DIR = flag("--data-dir", "Look here first, then in $PERFEDS2_DATA and the user's cache.", "DIR")


def fetch(
    names: list[str] | None = typer.Argument(
        None, help="Data sets to download. (default: all)", metavar="NAME", autocompletion=COMPLETE
    ),
    data_dir: Path | None = flag(
        "--data-dir", "Put them here. (default: $PERFEDS2_DATA, else the user's cache)", "DIR"
    ),
    quiet: bool = QUIET,
) -> None:
    """Download official files and check them; complete files are kept."""
    from perfeds2.learning import datasets
    from perfeds2.learning.files import sources
    from perfeds2.report.terminal import download

    wanted = datasets.sources() if not names or names == ["all"] else dict.fromkeys(names)
    for source in [datasets.source_of(name) for name in wanted]:
        with download(quiet, source.name) as watch:
            folder = sources.fetch(source, data_dir, watch=watch)
        say(quiet, f"{source.name}: {folder} ({source.terms})")


def status(data_dir: Path | None = DATA_DIR) -> None:
    """Show which data sets are here, where, and whether they are complete."""
    from perfeds2.learning import datasets
    from perfeds2.learning.files.sources import folders, look_for

    for name, source in datasets.sources().items():
        found = look_for(source, data_dir)
        if found.files:
            kind = "official files" if found.official else "differs from the official files"
            typer.echo(f"{name:<13} complete    {found.folder} ({found.form}; {kind})")
        elif found.missing:
            typer.echo(f"{name:<13} incomplete  {', '.join(found.missing)} missing; perfeds2 data fetch {name}")
        else:
            typer.echo(f"{name:<13} not found   perfeds2 data fetch {name}")
    typer.echo(f"Looked in {', '.join(map(str, folders(data_dir)))}.")


data_app.callback(invoke_without_command=True)(show_help)
for command in (fetch, status):
    data_app.command()(reporting_errors(command, f"data {command.__name__}"))
