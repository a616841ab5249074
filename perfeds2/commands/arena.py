"""perfeds2 arena: which method is best, on equal terms?"""

from pathlib import Path

from perfeds2.commands.common import flag, study
from perfeds2.commands.completion import of_kind
from perfeds2.errors import InputError
from perfeds2.spec.names import Value
from perfeds2.spec.values import ALGORITHM, TASK
from perfeds2.studies.search import RUNGS, TUNING_SEEDS

LEAVES_OUT = ("algorithms", "rounds", "held_out", "cells")  # --cells names several single cells here


def arena(
    methods: str | None = flag(
        "--methods",
        "Methods to compare, or all. (default: twelve, see docs/how-to/arena.md)",
        "NAMES",
        autocompletion=of_kind(ALGORITHM),
    ),
    mine: list[str] | None = flag(
        "--mine", "Add your own objective, merge, method or Algorithm. Repeatable.", "FILE.py:NAME"
    ),
    tasks: str | None = flag(
        "--tasks", "Several tasks, comma-separated, instead of --task.", "NAMES", autocompletion=of_kind(TASK)
    ),
    cells: str | None = flag(
        "--cells", "Several cells: paper, radius-m=500+layout=equal, FILE.toml or FILE.py:NAME.", "CELLS"
    ),
    tune: int | None = flag("--tune", "Settings tried per method; 0 tunes nothing. (default: 40)", "N"),
    search: list[str] | None = flag(
        "--search", "Values to try for one method: FedBuff.beta=0.02,0.07. Repeatable.", "NAME=VALUES"
    ),
    tuning_seeds: int = flag(
        "--tuning-seeds", "Number of tuning seeds, separate from evaluation seeds.", "N", TUNING_SEEDS
    ),
    rungs: int = flag("--rungs", "Number of successive-halving rungs (factor 3).", "N", RUNGS),
    suite: str | None = flag("--suite", "Run this benchmark, whose settings are fixed: v1.", "NAME"),
    submit: Path | None = flag("--submit", "Write signed results of a suite: FILE.json or DIR.", "PATH"),
    **given: Value,
) -> None:
    """Tune and compare many methods on equal terms.

    Tunes every method with the same number of tries, then trains all with fresh seeds. Writes a folder with report.html,
    arena.csv, arena.json and arena.tex.
    """
    with study("arena", given) as asked:
        from perfeds2.report.arena import print_arena, write_arena
        from perfeds2.spec.values import read_list
        from perfeds2.studies.arena import run_arena
        from perfeds2.studies.arena_plan import make_arena, read_plan
        from perfeds2.studies.grid import parse_grid
        from perfeds2.studies.suite import need_cryptography, plan_suite, write_submissions

        if asked.resume is not None:
            plan = read_plan(asked.resume)
        elif suite is not None:
            if (cells, tune, search, tuning_seeds, rungs) != (None, None, None, TUNING_SEEDS, RUNGS):
                raise InputError(
                    f"--suite {suite} fixes cells, search and tuning; give only --tasks, --methods and --mine."
                )
            plan = plan_suite(
                suite, asked.values({}), tasks=read_list(tasks or ""), methods=read_list(methods or ""), mine=mine or ()
            )
        else:
            plan = make_arena(
                asked.values({}),
                tasks=read_list(tasks or ""),
                cells=read_list(cells or ""),
                methods=read_list(methods or ""),
                mine=mine or (),
                search=parse_grid(search or [], "--search"),
                tries=tune,
                tuning_seeds=tuning_seeds,
                rungs=rungs,
            )
            asked.refuse_unused(plan.methods, plan.bouts[0].spec.merges, where="--methods")
        if submit is not None:
            need_cryptography()  # before hours of training
            if not plan.suite:
                raise InputError("--submit needs --suite; only results of a suite can be compared with others'.")
        specs = [bout.spec for bout in plan.bouts]
        with asked.executing(f"arena-{plan.bouts[0].task}", specs, lambda _, path: write_arena(path)) as (
            path,
            execution,
        ):
            met = run_arena(plan, path, execution)
        drawn = asked.drawn
        asked.failures = met.failures
        if not asked.quiet:
            print_arena(path)
        if submit is not None and not met.failures:
            drawn += write_submissions(plan, path, submit)
        asked.say_written(path / "arena.csv", path / "arena_metrics.csv", path / "arena.json", *drawn)
