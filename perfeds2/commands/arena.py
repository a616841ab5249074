"""perfeds2 arena: which method is best, on equal terms?"""

import typer

from perfeds2.commands.common import flag, study
from perfeds2.commands.completion import of_kind
from perfeds2.spec.values import ALGORITHM, TASK
from perfeds2.studies.search import RUNGS, TUNING_SEEDS

LEAVES_OUT = ("algorithms", "rounds", "held_out", "cells")  # --cells names several single cells here


def arena(
    context: typer.Context,
    methods: str | None = flag(
        "--methods",
        "Methods to compare, or all. (default: twelve and baselines, see docs/how-to/arena.md)",
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
) -> None:
    """Tune and compare many methods on equal terms.

    Tunes every method with the same number of tries, then trains all with fresh seeds. Writes a folder with report.html,
    arena.csv, arena.json and arena.tex.
    """
    with study("arena", context) as asked:
        from perfeds2.spec.values import read_list
        from perfeds2.studies.arena_plan import make_arena
        from perfeds2.studies.grid import parse_grid

        plan = asked.earlier()
        if plan is None:
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
        asked.do(plan, plan.bouts[0].task, [bout.spec for bout in plan.bouts])
