"""List the kinds of studies: what identifies a folder of each, and what draws it.

The functions import what they need when they are called: ``watch`` reads this table and must not wait for JAX. None of them
executes code that a folder names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfeds2.errors import InputError
from perfeds2.runs.folder import ARENA, OWN, PLAN, REPRODUCTION, RUN, SWEEP, TUNING, FolderKind

Place = Path | None
Draw = Callable[[Path, str, Place, Place], list[Path]]  # folder, x axis, and where figures for papers and the page go


@dataclass(frozen=True)
class StudyKind:
    """A kind of study: its folders, and the page that is made of a finished one."""

    folder: FolderKind
    draw: Draw  # writes the page, and with a place, figures for papers; returns the files
    figures: str = ""  # where in the folder figures for papers are written by default


def _draw_run(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.run import write_run

    return write_run(folder, axis, paper, out)


def _draw_sweep(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.sweep import write_sweep

    return write_sweep(folder, axis, paper, out)


def _draw_arena(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.arena import write_arena

    return write_arena(folder, axis, paper, out)


def _draw_plan(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.plan import load_plan, write_plan

    return write_plan(load_plan(folder), folder, axis, paper, out)


def _draw_tuning(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.tuning import write_tuning
    from perfeds2.studies.tune import load_tuning

    if axis != "seconds":
        raise InputError(f"--x {axis}: a tuning stores one number per training, its mean over time, and no curves.")
    return write_tuning(load_tuning(folder), paper, out)


def _draw_own(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.own import write_study

    return write_study(folder, axis, paper, out)


def _draw_reproduction(folder: Path, axis: str, paper: Place, out: Place) -> list[Path]:
    from perfeds2.report.reproduction import write_reproduction

    return write_reproduction(folder, axis, paper, out)


KINDS = (  # a plan's folder also has the files of a run, which is therefore the last
    StudyKind(REPRODUCTION, _draw_reproduction),
    StudyKind(ARENA, _draw_arena, "figures"),
    StudyKind(SWEEP, _draw_sweep),
    StudyKind(TUNING, _draw_tuning),
    StudyKind(PLAN, _draw_plan),
    StudyKind(OWN, _draw_own, "figures"),
    StudyKind(RUN, _draw_run, "figures"),
)


def kind_of(folder: Path) -> StudyKind:
    """Return the kind of a finished study.

    Raises:
        InputError: If perfeds2 did not write the folder, or the study is unfinished.
    """
    for kind in KINDS:  # a leaderboard has a result and no request; a reproduction is drawn as far as it is
        if (folder / kind.folder.result).exists() or (kind.folder is REPRODUCTION and REPRODUCTION.is_in(folder)):
            return kind
    for kind in KINDS:
        if kind.folder.is_in(folder):
            raise InputError(
                f"{folder} holds an unfinished {kind.folder.holds}; "
                f"continue it by adding --resume {folder} to its command."
            )
    raise InputError(f"{folder} holds no finished run (no {RUN.result}); expected a folder that perfeds2 wrote.")
