"""perfeds2 report: draw folders again, one by itself or several together."""

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from perfeds2.commands.common import flag
from perfeds2.commands.completion import among
from perfeds2.console import guarded, say
from perfeds2.errors import InputError

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


def _mark(folder: Path) -> str:
    """Return the file by which a folder is recognised. Refuse one that perfeds2 did not write or has not finished."""
    found = next((name for name in DRAWN if (folder / name).exists()), None)
    if found is not None:
        return found
    begun = next((how for name, how in BEGUN.items() if (folder / name).exists()), None)
    if begun is not None:
        raise InputError(
            f"{folder} holds {begun} that has not come to its end; its command with --resume {folder} goes on."
        )
    raise InputError(f"{folder} holds no finished run (no summary.json); expected a folder that perfeds2 wrote.")


def _draw_one(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    return DRAWN[_mark(folder)](folder, paper, out, axis)


def _draw_several(folders: Sequence[Path], paper: bool, out: Path | None, axis: str) -> list[Path]:
    """Compare folders that all hold runs, or that are all of one kind."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a folder is given twice; expected different ones.")
    marks = {_mark(folder) for folder in folders}
    together = Path("runs", "-and-".join(folder.resolve().name for folder in folders)) if out is None else out
    if together.resolve() in [folder.resolve() for folder in folders]:
        raise InputError(f"--out {together} is one of the folders to compare; give another.")
    if marks <= RUNS:
        from perfeds2.report.together import write_together

        return write_together(folders, together, axis, paper=paper)
    if len(marks) == 1:
        return TOGETHER[marks.pop()](folders, together, axis, paper)
    raise InputError(
        "these folders have no runs in common; expected several of runs, federations, sweeps and arenas, or several tunings, several plans or "
        "two reproductions."
    )


# ---- one folder


def _draw_run(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.run import write_paper_figures, write_report

    return [write_report(folder, axis), *(write_paper_figures(folder, out, axis) if paper else [])]


def _draw_set(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.paper.figures import command_of, load_figures
    from perfeds2.report.reproduction import write_claims_latex, write_figure, write_page

    figures = load_figures(["all"])
    written = [write_page(figures, folder, command_of(folder), axis=axis)]
    for figure in figures:
        if paper and (csv := folder / f"{figure.name}.csv").exists():
            written += write_figure(figure, csv, out or folder, axis)
    return [*written, write_claims_latex(folder, out or folder)] if paper else written


def _draw_arena(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.arena import write_arena

    return write_arena(folder, axis, (out or folder / "figures") if paper else None)


def _draw_sweep(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.sweep import write_sweep

    return write_sweep(folder, axis, (out or folder) if paper else None)


def _draw_tuning(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.tuning import write_tuning
    from perfeds2.studies.tune import load_tuning

    _refuse_curves(axis)
    return write_tuning(load_tuning(folder), (out or folder) if paper else None)


def _refuse_curves(axis: str) -> None:
    if axis != "seconds":
        raise InputError(
            f"--x {axis}: a tuning keeps one number of each training, its mean over seconds, and no curves."
        )


def _draw_plan(folder: Path, paper: bool, out: Path | None, axis: str) -> list[Path]:
    from perfeds2.report.plan import load_plan, write_plan

    return write_plan(load_plan(folder), folder, axis, (out or folder) if paper else None)


DRAWN: dict[str, Callable[[Path, bool, Path | None, str], list[Path]]] = {  # by what a folder has
    "reproduce.toml": _draw_set,
    "arena.json": _draw_arena,
    "sweep_summary.csv": _draw_sweep,
    "tuned.toml": _draw_tuning,
    "plan.json": _draw_plan,
    "summary.json": _draw_run,
}
BEGUN = {  # what is begun, by what its folder has from the beginning
    "arena.toml": "an arena",
    "sweep.toml": "a sweep",
    "tune.toml": "a tuning",
    "plan.toml": "a plan",
    "spec.toml": "a run",
}


# ---- several


def _tunings(folders: Sequence[Path], out: Path, axis: str, paper: bool) -> list[Path]:
    from perfeds2.report.together import write_tunings
    from perfeds2.studies.tune import load_tuning

    _refuse_curves(axis)
    return write_tunings([load_tuning(folder) for folder in folders], out, paper=paper)


def _plans(folders: Sequence[Path], out: Path, axis: str, paper: bool) -> list[Path]:
    from perfeds2.report.together import write_plans

    if axis not in ("seconds", "joules"):
        raise InputError(f"--x {axis}: a plan knows seconds and joules to the target; its trainings keep no {axis}.")
    return write_plans(folders, out, paper=paper)


def _sets(folders: Sequence[Path], out: Path, axis: str, paper: bool) -> list[Path]:
    from perfeds2.report.reproduction import write_beside

    if len(folders) > 2:
        raise InputError(f"{len(folders)} reproductions are given; two fit beside each other.")
    return write_beside(folders[0], folders[1], out, axis, paper=paper)


RUNS = {"arena.json", "sweep_summary.csv", "summary.json"}  # what these hold can be compared with each other
TOGETHER: dict[str, Callable[[Sequence[Path], Path, str, bool], list[Path]]] = {
    "tuned.toml": _tunings,
    "plan.json": _plans,
    "reproduce.toml": _sets,
}
