"""perfeds2 report: draw folders again, one by itself or several together."""

from collections.abc import Sequence
from pathlib import Path

import typer

from perfeds2.commands.common import QUIET, flag
from perfeds2.commands.completion import among
from perfeds2.console import guarded, say
from perfeds2.errors import InputError
from perfeds2.runs.costs import COSTS

WORDS = {".html": "Report", ".tex": "Table"}  # by file extension


def report(
    folders: list[Path] = typer.Argument(
        help="Folders that perfeds2 wrote. Several are compared on one page.", metavar="DIR"
    ),
    leaderboard: bool = flag("--leaderboard", "Check and merge the submissions in DIR.", default=False),
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
    with guarded("report", []):
        if x not in COSTS:
            raise InputError(f"--x {x!r} is not known; expected one of {', '.join(COSTS)}.")
        names = ", ".join(map(str, folders))
        try:
            if leaderboard:
                folders, out = [_merged(folders, out)], None
            drawn = _draw_one(folders[0], paper, out, x) if len(folders) == 1 else _draw_several(folders, paper, out, x)
        except InputError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:  # a missing or modified file
            said = " ".join(str(error).split())
            raise InputError(f"{names} cannot be read or drawn ({type(error).__name__}: {said}).") from None
        for path in drawn:
            say(quiet, f"{WORDS.get(path.suffix, 'Figure')}: {path}")


def _merged(folders: Sequence[Path], out: Path | None) -> Path:
    """Merge the submissions in a folder into an arena. Return its folder."""
    from perfeds2.studies.suite import merge_submissions

    if len(folders) != 1:
        raise InputError("--leaderboard takes one folder of submissions.")
    place = out or folders[0] / "leaderboard"
    merge_submissions(folders[0], place)
    return place


def _kind(folder: Path) -> str:
    """Return what a folder holds. Refuse one that perfeds2 did not write or has not finished."""
    from perfeds2.runs.folder import FILES, RESULTS

    for what, file in (RESULTS | {"reproduction": FILES["reproduction"]}).items():
        if (folder / file).exists():
            return what
    for what, file in FILES.items():
        if (folder / file).exists():
            raise InputError(
                f"{folder} holds an unfinished {what}; continue it by adding --resume {folder} to its command."
            )
    raise InputError(f"{folder} holds no finished run (no summary.json); expected a folder that perfeds2 wrote.")


def _draw_one(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Draw a folder's page, and with ``paper`` its figures and tables."""
    from perfeds2.report import arena, plan, reproduction, run, sweep, tuning

    what = _kind(folder)
    usual = folder / "figures" if what in ("run", "arena") else folder
    place = (out or usual) if paper else None
    if what == "plan":
        return plan.write_plan(plan.load_plan(folder), folder, axis, place, out)
    if what == "tuning":
        from perfeds2.studies.tune import load_tuning  # imports JAX

        if axis != "seconds":
            raise InputError(f"--x {axis}: a tuning stores one number per training, its mean over time, and no curves.")
        return tuning.write_tuning(load_tuning(folder), place, out)
    write = {"arena": arena.write_arena, "sweep": sweep.write_sweep, "reproduction": reproduction.write_reproduction}
    return write.get(what, run.write_run)(folder, axis, place, out)


def _draw_several(folders: Sequence[Path], paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Compare runs."""
    from perfeds2.report.together import write_together

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a folder is given twice; expected different ones.")
    place = Path("runs", "-and-".join(folder.resolve().name for folder in folders)) if out is None else out
    if place.resolve() in [folder.resolve() for folder in folders]:
        raise InputError(f"--out {place} is one of the folders to compare; give another.")
    for folder in folders:
        if (what := _kind(folder)) != "run":
            raise InputError(f"{folder} holds a {what}, which cannot be compared; give folders of runs or federations.")
    return write_together(folders, place, axis, paper=paper)
