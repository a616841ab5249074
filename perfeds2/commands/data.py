"""perfeds2 data: the real data sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from perfeds2.commands.common import flag
from perfeds2.commands.completion import among
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

data_app = typer.Typer(
    help="The real data sets: fetch them, see what is there, where. Public traces of uplinks and phones are turned into fleets by docs/fleets.md."
)
NAMES = "mnist, cifar100 or shakespeare"
COMPLETE = among("mnist", "cifar100", "shakespeare")
DATA_DIR = flag("--data-dir", "Look here first; else $PERFEDS2_DATA, then the user's cache.", "DIR")


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.command()
def fetch(
    names: list[str] | None = typer.Argument(
        None, help=f"Which: {NAMES}. (default: all)", metavar="[NAME]...", autocompletion=COMPLETE
    ),
    data_dir: Path | None = flag(
        "--data-dir", "Put them here. (default: $PERFEDS2_DATA, else the user's cache)", "DIR"
    ),
    quiet: bool = flag("--quiet", "No progress, print nothing.", default=False),
) -> None:
    """Download official files over HTTPS and check them. What is already there and right stays as it is."""
    with guarded("data fetch", []), _data_errors():
        from perfeds2.learning.datasets.sources import SOURCES, source
        from perfeds2.learning.datasets.sources import fetch as fetch_files
        from perfeds2.report.terminal import download

        wanted = [source(name) for name in (SOURCES if not names or names == ["all"] else dict.fromkeys(names))]
        for each in wanted:
            with download(quiet, each.name) as watch:
                folder = fetch_files(each.name, data_dir, watch=watch)
            say(quiet, f"{each.name}: {folder} ({each.terms})")


@data_app.command()
def status(data_dir: Path | None = DATA_DIR) -> None:
    """What is there of each data set, where, and whether it is complete."""
    with guarded("data status", []), _data_errors():
        from perfeds2.learning.datasets.sources import status as look

        every = look(data_dir)
        for each in every:
            if each.found is not None:
                kind = "official files" if each.official else "not the official files' bytes"
                typer.echo(f"{each.name:<12} complete    {each.found.folder} ({each.found.form}; {kind})")
            elif each.missing:
                typer.echo(
                    f"{each.name:<12} incomplete  {', '.join(each.missing)} missing; perfeds2 data fetch {each.name}"
                )
            else:
                typer.echo(f"{each.name:<12} not found   perfeds2 data fetch {each.name}")
        typer.echo(f"Looked in {', '.join(map(str, every[0].looked_in))}.")


@data_app.command()
def path(
    name: str | None = typer.Argument(None, help=f"Which: {NAMES}.", metavar="[NAME]", autocompletion=COMPLETE),
    data_dir: Path | None = DATA_DIR,
) -> None:
    """Where a data set is; without a name, where data sets are looked for first."""
    with guarded("data path", []), _data_errors():
        from perfeds2.learning.datasets.sources import find, folders

        typer.echo(folders(data_dir)[0] if name is None else find(name, data_dir).folder)


@contextmanager
def _data_errors() -> Iterator[None]:
    """What is wrong with the data is for the user to put right."""
    from perfeds2.learning.datasets.sources import DataMissing, FetchFailed

    try:
        yield
    except (DataMissing, FetchFailed) as error:
        raise InputError(str(error)) from None
