"""perfeds2 report: draw folders again, one by itself or several together."""

from collections.abc import Sequence
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
    folders: list[Path] = typer.Argument(
        help="Folders that perfeds2 wrote. Several are compared on one page.", metavar="DIR"
    ),
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
    """Draw a folder's report again, or compare several folders on one page."""
    if x not in COSTS:
        raise InputError(f"--x {x!r} is not known; expected one of {', '.join(COSTS)}.")
    names = ", ".join(map(str, folders))
    try:
        with refusing_code():
            several = len(folders) > 1
            drawn = _draw_several(folders, paper, out, x) if several else _draw_one(folders[0], paper, out, x)
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:  # a missing or modified file
        said = " ".join(str(error).split())
        raise InputError(f"{names} cannot be read or drawn ({type(error).__name__}: {said}).") from None
    for path in drawn:
        say(quiet, f"{WORDS.get(path.suffix, 'Figure')}: {path}")


def _draw_one(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Draw a folder's page, and with ``paper`` its figures and tables."""
    from perfeds2.kinds import kind_of

    kind = kind_of(folder)
    return kind.draw(folder, axis, (out or folder / kind.figures) if paper else None, out)


def _draw_several(folders: Sequence[Path], paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Compare runs."""
    from perfeds2.kinds import kind_of
    from perfeds2.report.together import write_together
    from perfeds2.runs.folder import RUN

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a folder is given twice; expected different ones.")
    place = Path("runs", "-and-".join(folder.resolve().name for folder in folders)) if out is None else out
    if place.resolve() in [folder.resolve() for folder in folders]:
        raise InputError(f"--out {place} is one of the folders to compare; give another.")
    for folder in folders:
        if (what := kind_of(folder).folder).result != RUN.result:
            raise InputError(
                f"{folder} holds a {what.holds}, which cannot be compared; give folders of runs or federations."
            )
    return write_together(folders, place, axis, paper=paper)
