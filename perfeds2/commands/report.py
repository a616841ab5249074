"""perfeds2 report: draw a folder again."""

from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.commands.completion import among
from perfeds2.console import say
from perfeds2.errors import InputError
from perfeds2.runs.costs import COSTS
from perfeds2.spec.names import refusing_code

WORDS = {".html": "Report", ".tex": "Table"}  # by file extension


def report(
    folder: Path = typer.Argument(help="Folder that perfeds2 wrote.", metavar="DIR"),
    paper: bool = flag("--paper", "Also write PDF and PNG figures and LaTeX tables.", default=False),
    out: Path | None = flag(
        "--out",
        "Folder to write to. (default: beside the results)",
        "DIR",
    ),
    x: str = flag(
        "--x",
        "Draw curves and costs over seconds, rounds, joules, bits or epsilon.",
        "WHAT",
        "seconds",
        autocompletion=among(*COSTS),
    ),
    quiet: bool = QUIET,
) -> None:
    """Draw a folder's report again."""
    from perfeds2.kinds import kind_of

    if x not in COSTS:
        raise InputError(f"--x {x!r} is not known; expected one of {', '.join(COSTS)}.")
    try:
        with refusing_code():
            kind = kind_of(folder)
            drawn = kind.draw(folder, x, (out or folder / kind.figures) if paper else None, out)
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:  # a missing or modified file
        said = " ".join(str(error).split())
        raise InputError(f"{folder} cannot be read or drawn ({type(error).__name__}: {said}).") from None
    for path in drawn:
        say(quiet, f"{WORDS.get(path.suffix, 'Figure')}: {path}")
