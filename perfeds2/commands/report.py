"""perfeds2 report: draw folders again, one by itself or several together."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfeds2.commands.common import flag
from perfeds2.commands.completion import among
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

if TYPE_CHECKING:
    from perfeds2.studies.tune import Tuning

AXES = ("seconds", "rounds", "joules", "bits")  # those of report.read, which is slow to import; a test compares them
WORDS = {".html": "Report", ".tex": "Table", ".json": "Plan"}  # what a file is, by its ending


def report(
    folders: list[Path] = typer.Argument(
        help="Folders that perfeds2 wrote. Several are compared on one page.",
        metavar="DIR...",
    ),
    paper: bool = flag("--paper", "Also write PDF and PNG figures and LaTeX tables.", default=False),
    out: Path | None = flag(
        "--out",
        "Folder of the paper's figures, or of a comparison. (default: DIR/figures or DIR; runs/A-and-B)",
        "DIR",
    ),
    x: str = flag(
        "--x",
        "Draw curves and costs over seconds, rounds, joules or bits.",
        "WHAT",
        "seconds",
        autocompletion=among(*AXES),
    ),
    quiet: bool = flag("--quiet", "Print nothing.", default=False),
) -> None:
    """Draw a folder again: its page, and with --paper the figures for a paper. Several folders are compared on one page."""
    with guarded("report", []):
        if x not in AXES:
            raise InputError(f"--x {x!r} is not known; expected one of {', '.join(AXES)}.")
        names = ", ".join(map(str, folders))
        try:
            drawn = _draw_one(folders[0], paper, out, x) if len(folders) == 1 else _draw_several(folders, paper, out, x)
        except (LookupError, TypeError, AttributeError) as error:  # valid JSON or TOML with other contents
            raise InputError(f"{names} does not hold what perfeds2 wrote ({type(error).__name__}: {error}).") from None
        except InputError:
            raise
        except (ValueError, OSError) as error:  # a file of the folder is missing or corrupt, or cannot be written
            raise InputError(f"{names}: {' '.join(str(error).split())}") from None
        for path in drawn:
            say(quiet, f"{WORDS.get(path.suffix, 'Figure')}: {path}")


FINISHED = ("reproduce.toml", "arena.json", "sweep_summary.csv", "tuned.toml", "plan.json", "summary.json")
BEGUN = {
    "arena.toml": "an arena",
    "sweep.toml": "a sweep",
    "tune.toml": "a tuning",
    "plan.toml": "a plan",
    "spec.toml": "a run",
}
RUNS = {"arena.json", "sweep_summary.csv", "summary.json"}  # what these hold can be compared with each other


def _mark(folder: Path) -> str:
    """Return the file by which a folder is recognised. Refuse one that perfeds2 did not write or has not finished."""
    found = next((name for name in FINISHED if (folder / name).exists()), None)
    if found is not None:
        return found
    begun = next((what for name, what in BEGUN.items() if (folder / name).exists()), None)
    if begun is not None:
        raise InputError(
            f"{folder} holds {begun} that has not come to its end; its command with --resume {folder} goes on."
        )
    raise InputError(f"{folder} holds no finished run (no summary.json); expected a folder that perfeds2 wrote.")


def _draw_one(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Draw a folder's page, and with ``paper`` its figures and tables."""
    from perfeds2.report import arena, plan, reproduction, run, sweep, tuning

    mark = _mark(folder)
    usual = folder / "figures" if mark in ("summary.json", "arena.json") else folder
    place = (out or usual) if paper else None
    if mark == "arena.json":
        return arena.write_arena(folder, axis, place)
    if mark == "sweep_summary.csv":
        return sweep.write_sweep(folder, axis, place)
    if mark == "plan.json":
        return plan.write_plan(plan.load_plan(folder), folder, axis, place)
    if mark == "tuned.toml":
        return tuning.write_tuning(_tunings([folder], axis)[0], place)
    if mark == "reproduce.toml":
        return reproduction.write_reproduction(folder, axis, place)
    written = [run.write_report(folder, axis)]
    return written if place is None else [*written, *run.write_paper_figures(folder, place, axis)]


def _draw_several(folders: Sequence[Path], paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Compare folders that all hold runs, or that are all of one kind."""
    from perfeds2.report import reproduction, together

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a folder is given twice; expected different ones.")
    marks = {_mark(folder) for folder in folders}
    place = Path("runs", "-and-".join(folder.resolve().name for folder in folders)) if out is None else out
    if place.resolve() in [folder.resolve() for folder in folders]:
        raise InputError(f"--out {place} is one of the folders to compare; give another.")
    if marks <= RUNS:
        return together.write_together(folders, place, axis, paper=paper)
    if marks == {"tuned.toml"}:
        return together.write_tunings(_tunings(folders, axis), place, paper=paper)
    if marks == {"plan.json"}:
        return together.write_plans(folders, place, axis, paper=paper)
    if marks == {"reproduce.toml"}:
        if len(folders) > 2:
            raise InputError(f"{len(folders)} reproductions are given; two can be compared.")
        return reproduction.write_beside(folders[0], folders[1], place, axis, paper=paper)
    kinds = "several of runs, federations, sweeps and arenas, or several tunings, several plans or two reproductions"
    raise InputError(f"these folders have no runs in common; expected {kinds}.")


def _tunings(folders: Sequence[Path], axis: str) -> "list[Tuning]":
    from perfeds2.studies.tune import load_tuning  # it imports JAX

    if axis != "seconds":
        raise InputError(
            f"--x {axis}: a tuning keeps one number of each training, its mean over seconds, and no curves."
        )
    return [load_tuning(folder) for folder in folders]
