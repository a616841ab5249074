"""List the kinds of studies: how their folders are known, and what reads, runs, draws and prints each.

Functions are named by module and imported when they are called: ``watch`` reads this table and must not wait for JAX.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError
from perfeds2.runs.folder import (
    ARENA,
    FEDERATION,
    OWN,
    PLAN,
    REPRODUCTION,
    RUN,
    SWEEP,
    TUNING,
    FolderKind,
)


@dataclass(frozen=True)
class Late:
    """A function that is imported when it is called."""

    place: str = ""  # module:NAME; empty: there is none

    def __bool__(self) -> bool:
        return bool(self.place)

    @property
    def function(self) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(import_module(f"perfeds2.{module}"), name)

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.function(*given, **more)


@dataclass(frozen=True)
class StudyKind:
    """A kind of study: its folders, and its functions."""

    command: str
    folder: FolderKind
    draw: Late  # (folder, x axis, place of figures for papers, place of the page) -> files; the last three may be None
    read: Late = Late()  # (folder) -> request
    run: Late = Late()  # (request, path=, how=) -> results; empty: the folder is only read
    print: Late = Late()  # (folder)
    finish: Late = Late()  # (folder) -> files: draws a folder once it is complete; empty: ``draw``
    tables: tuple[str, ...] = ()  # files to list at the end
    figures: str = ""  # where in the folder figures for papers are written by default


def _run(command: str) -> StudyKind:
    """Return a kind whose folders are runs: compare, run and simulate differ only in their work."""
    work = "simulate_spec" if command == "simulate" else "train_spec"
    return StudyKind(
        command,
        RUN,
        draw=Late("report.run:write_run"),
        read=Late("runs.folder:read_run"),
        run=Late(f"studies.compare:{work}"),
        print=Late("report.run:print_summary"),
        finish=Late("report.run:finish_report"),
        figures="figures",
    )


KINDS = {  # in the order of looking at a folder: a plan's and a federation's also have the files of a run
    "reproduce": StudyKind(
        "reproduce",
        REPRODUCTION,
        draw=Late("report.reproduction:write_reproduction"),
        run=Late("studies.reproduce:reproduce"),
    ),
    "arena": StudyKind(
        "arena",
        ARENA,
        draw=Late("report.arena:write_arena"),
        read=Late("studies.arena_plan:read_plan"),
        run=Late("studies.arena:run_arena"),
        print=Late("report.arena:print_arena"),
        tables=("arena.csv", "arena_metrics.csv", "arena.json"),
        figures="figures",
    ),
    "sweep": StudyKind(
        "sweep",
        SWEEP,
        draw=Late("report.sweep:write_sweep"),
        read=Late("studies.grid:read_sweep"),
        run=Late("studies.sweep:run_sweep"),
        print=Late("report.sweep:print_sweep"),
        tables=("sweep.csv", "sweep_summary.csv", "sweep_front.csv"),
    ),
    "tune": StudyKind(
        "tune",
        TUNING,
        draw=Late("report.tuning:draw_tuning"),
        read=Late("studies.tune_space:read_search"),
        run=Late("studies.tune:run_search"),
        print=Late("report.tuning:show_tuning"),
        tables=("tuned.toml", "tune.csv"),
    ),
    "plan": StudyKind(
        "plan",
        PLAN,
        draw=Late("report.plan:draw_plan"),
        read=Late("studies.plan:read_question"),
        run=Late("studies.plan:run_plan"),
        print=Late("report.plan:show_plan"),
    ),
    "study": StudyKind(
        "study",
        OWN,
        draw=Late("report.own:write_study"),
        read=Late("studies.own:read_study"),
        run=Late("studies.own:run_study"),
        print=Late("report.own:print_study"),
        tables=("study.csv",),
        figures="figures",
    ),
    "federate": StudyKind(
        "federate", FEDERATION, draw=Late("report.run:write_run"), read=Late("runs.folder:read_run"), figures="figures"
    ),
    **{command: _run(command) for command in ("compare", "run", "simulate")},
}


def kind_of(folder: Path) -> StudyKind:
    """Return the kind of a finished study.

    Raises:
        InputError: If perfeds2 did not write the folder, or the study is unfinished.
    """
    for kind in KINDS.values():  # a leaderboard has a result and no request; a reproduction is drawn as far as it is
        is_done = (folder / kind.folder.result).exists() and (bool(kind.run) or kind.folder.is_in(folder))
        if is_done or (kind.folder is REPRODUCTION and REPRODUCTION.is_in(folder)):
            return kind
    for kind in KINDS.values():
        if kind.folder.is_in(folder):
            raise InputError(
                f"{folder} holds an unfinished {kind.folder.holds}; "
                f"continue it by adding --resume {folder} to its command."
            )
    raise InputError(f"{folder} holds no finished run (no {RUN.result}); expected a folder that perfeds2 wrote.")
