"""perfeds2 reproduce: the paper's figures again."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import typer

from perfeds2.commands.common import QUIET, WORKERS, flag, followed
from perfeds2.commands.completion import among
from perfeds2.commands.jax_setup import prepare_to_train
from perfeds2.console import guarded, say
from perfeds2.errors import InputError
from perfeds2.spec.names import Values


def reproduce(
    names: list[str] | None = typer.Argument(
        None,
        help="Figures to run: exp_1 to exp_8, or all.",
        metavar="FIGURE",
        show_default=False,
        autocompletion=among(*(f"exp_{n}" for n in range(1, 9)), "all"),
    ),
    scale: Literal["quick", "paper"] = flag(
        "--scale", "quick runs 10 to 150 simulated seconds, paper 600 to 2,000.", default="quick"
    ),
    seeds: str | None = flag("--seeds", "How many (5 is 0..4), or which: 0,3,7. (default: 5; quick: 3)", "SEEDS"),
    data_dir: Path | None = flag(
        "--data-dir", "Folder of the data sets. (default: $PERFEDS2_DATA, else the cache)", "DIR"
    ),
    task: list[str] | None = flag(
        "--task",
        "Only panels on mnist, cifar100 or shakespeare. Repeatable.",
        "NAME",
        autocompletion=among("mnist", "cifar100", "shakespeare"),
    ),
    out: Path | None = flag("--out", "Folder for the results. (default: runs/reproduce-SCALE)", "DIR"),
    changes: list[str] | None = flag(
        "--set", "Change a setting of the paper, such as learning.beta=0.02. Repeatable.", "SECTION.KEY=VALUE"
    ),
    specs: list[Path] | None = flag(
        "--spec", "Tuned step sizes of a task, written by perfeds2 tune. Repeatable.", "FILE"
    ),
    claims: bool = flag("--claims", "Print which claims of Section VI hold, by the results in --out.", default=False),
    beside: Path | None = flag(
        "--beside", "Also judge the claims by another folder, side by side. Implies --claims.", "DIR"
    ),
    workers: int | None = WORKERS,
    quiet: bool = QUIET,
) -> None:
    """Run the paper's figures again and check its claims.

    Writes every figure as CSV, PDF and PNG, and reproduction.html with the ledger of claims. The same command continues after
    an interruption.
    """
    place: list[Path] = []
    with guarded("reproduce", place, go_on=f"perfeds2 {shlex.join(sys.argv[1:])}"):
        from perfeds2.paper.figures import TASK, command_of, load_figures
        from perfeds2.report.ledger import check_beside, open_ledgers, print_ledger, write_ledger
        from perfeds2.report.live import progress
        from perfeds2.runs.pool import WorkerChoice
        from perfeds2.runs.session import Execution
        from perfeds2.spec.resolve import put_text, resolve
        from perfeds2.studies.figure import merged
        from perfeds2.studies.reproduce import open_set, plan_curves, read_tuned
        from perfeds2.studies.reproduce import reproduce as run_figures

        if not names and not (claims or beside):
            raise InputError("give figures (exp_1 to exp_8, or all), or --claims to judge earlier results.")
        path = out or Path("runs") / f"reproduce-{scale}"
        written: list[Path] = []

        def draw(path: Path) -> None:
            from perfeds2.report.reproduction import write_page

            ledgers = open_ledgers(path, beside)
            written.extend(write_ledger(ledgers, path))
            written.append(write_page(load_figures(["all"]), path, command_of(path), ledgers))

        if names:
            from perfeds2.report.reproduction import write_figure

            seeds = seeds or ("3" if scale == "quick" else "5")
            figures, all_seeds = load_figures(names), resolve({"run": {"seeds": seeds}}).run.seeds
            prepare_to_train(len(all_seeds), workers)
            changed: Values = {}
            for assignment in changes or ():
                put_text(changed, assignment)
            tuned = read_tuned(specs or [], TASK)
            data = {} if data_dir is None else {"task": {"data_dir": str(data_dir)}}
            curves = plan_curves(figures, all_seeds, scale, task, merged(changed, data), tuned)
            check_beside(beside, scale)
            place.append(path)
            with followed(path, "reproduction.html") as followers, progress(quiet, "reproduce") as watch:
                how = Execution(WorkerChoice(workers), watch=watch, followers=followers, page=draw)
                asked = partial(open_set, scale=scale, changes=changed, tuned=tuned)
                for figure, table in run_figures(figures, curves, path, how, asked):
                    written += [table, *write_figure(figure, table, path)]
        elif beside is not None:
            draw(path)
        if names or beside is not None:
            say(quiet, "\n".join(f"Wrote: {file}" for file in written))
        if (claims or beside is not None) and not quiet:
            print_ledger(open_ledgers(path, beside))
