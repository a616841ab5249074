"""List the kinds of studies: how their folders are known, and what reads, runs, draws and prints each.

Functions are named by module and imported when they are called: ``watch`` reads this table and must not wait for JAX.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.runs.folder import ARENA, FEDERATION, OWN, PLAN, REPRODUCTION, RUN, SWEEP, TUNING, FolderKind
from perfeds2.spec.names import imported


@dataclass(frozen=True)
class Late:
    """A function that is imported when it is called."""

    place: str  # module:NAME; empty: there is none

    def __call__(self, *given: Any, **more: Any) -> Any:
        return imported(f"perfeds2.{self.place}")(*given, **more)


@dataclass(frozen=True)
class StudyKind:
    """A kind of study: its folders, and its functions."""

    command: str
    folder: FolderKind
    read: Late  # (folder) -> request
    run: Late  # (request, path=, how=) -> results; none: the folder is only read
    draw: Late  # (folder, x axis, place of figures for papers, place of the page) -> files; the last three may be None
    print: Late  # (folder)
    figures: str = ""  # where in the folder figures for papers are written by default


COMPARED = (
    "runs.folder:read_run",
    "studies.compare:train_spec",
    "report.run:write_run",
    "report.run:print_summary",
    "figures",
)
ROWS = (  # in the order of looking at a folder: a plan's and a federation's also have the files of a run
    ("reproduce", REPRODUCTION, "", "studies.reproduce:reproduce", "report.reproduction:write_reproduction", ""),
    (
        *("arena", ARENA, "studies.arena_plan:read_plan", "studies.arena:run_arena"),
        *("report.arena:write_arena", "report.arena:print_arena", "figures"),
    ),
    (
        *("sweep", SWEEP, "studies.grid:read_sweep", "studies.sweep:run_sweep"),
        *("report.sweep:write_sweep", "report.sweep:print_sweep"),
    ),
    (
        *("tune", TUNING, "studies.tune_space:read_search", "studies.tune:run_search"),
        *("report.tuning:draw_tuning", "report.tuning:show_tuning"),
    ),
    (
        *("plan", PLAN, "studies.plan:read_question", "studies.plan:run_plan"),
        *("report.plan:draw_plan", "report.plan:show_plan"),
    ),
    (
        *("study", OWN, "studies.own:read_study", "studies.own:run_study"),
        *("report.own:write_study", "report.own:print_study", "figures"),
    ),
    ("federate", FEDERATION, COMPARED[0], "", *COMPARED[2:]),
    ("compare", RUN, *COMPARED),
    ("run", RUN, *COMPARED),
    ("simulate", RUN, COMPARED[0], "studies.compare:simulate_spec", *COMPARED[2:]),
)
KINDS = {
    command: StudyKind(command, folder, Late(read), Late(run), Late(draw), Late(print_), *figures)
    for command, folder, read, run, draw, print_, *figures in ROWS
}


def kind_of(folder: Path) -> StudyKind:
    """Return the kind of a finished study.

    Raises:
        InputError: If perfeds2 did not write the folder, or the study is unfinished.
    """
    for kind in KINDS.values():  # a leaderboard has a result and no request; a reproduction is drawn as far as it is
        is_done = (folder / kind.folder.result).exists() and (kind.run.place or kind.folder.is_in(folder))
        if is_done or (kind.folder is REPRODUCTION and REPRODUCTION.is_in(folder)):
            return kind
    for kind in KINDS.values():
        if kind.folder.is_in(folder):
            raise InputError(
                f"{folder} holds an unfinished {kind.folder.holds}; "
                f"continue it by adding --resume {folder} to its command."
            )
    raise InputError(f"{folder} holds no finished run (no {RUN.result}); expected a folder that perfeds2 wrote.")
