"""Measure the speed of perfeds2 against the plainest way to do the same work.

Rivals take turns in one run, so a busy machine slows all of them, and a ratio is the median of the ratios per turn.
The rivals are short enough to read: a bare NumPy loop, a bare compiled JAX loop, a process-per-UE model, a convex
solver. A missed target is shown as missed.
"""

import argparse
import ast
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.speed.allocation import allocation_group
from benchmarks.speed.cells import cells_group
from benchmarks.speed.clock import clock_group
from benchmarks.speed.jobs import jobs_group
from benchmarks.speed.joint import joint_group
from benchmarks.speed.methods import methods_group
from benchmarks.speed.products import products_group
from benchmarks.speed.replay import replay_group
from benchmarks.speed.start_up import start_up_group
from benchmarks.speed.timing import Announce, Group, Measurement
from benchmarks.speed.waiting import waiting_group
from perfeds2 import __version__
from perfeds2.files import write_text

FOLDER = Path(__file__).parent
GROUPS: dict[str, Group] = {
    "replay": replay_group,
    "products": products_group,
    "methods": methods_group,
    "clock": clock_group,
    "cells": cells_group,
    "start-up": start_up_group,
    "waiting": waiting_group,
    "jobs": jobs_group,
    "allocation": allocation_group,
    "joint": joint_group,
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    announce = None if given.quiet else lambda line: print(line, file=sys.stderr, flush=True)
    results = measure(given.only, given.repeats, seed=given.seed, announce=announce)
    folder = given.out or Path("runs") / f"bench-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "bench.json", to_json(results))
    if given.json:
        print(to_json(results), end="")
    elif not given.quiet:
        print_results(results)
        print(f"Results: {folder / 'bench.json'}")
    return 0


def parser() -> argparse.ArgumentParser:
    others = "\n".join(f"  python {path.relative_to(FOLDER.parent)}\n      {question}" for path, question in scripts())
    made = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        epilog=f"Other benchmarks:\n{others}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", action="append", choices=GROUPS, help="Run this group only. Repeatable.")
    made.add_argument("--repeats", type=int, default=5, help="Turns of every rival.")
    made.add_argument("--seed", type=int, default=0, help="Seed of the random data and cells.")
    made.add_argument("--out", type=Path, metavar="DIR", help="Folder for bench.json (default: a new one in runs/).")
    made.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    made.add_argument("--quiet", action="store_true", help="Print no progress and no table.")
    return made


def scripts() -> list[tuple[Path, str]]:
    """Return the path of each other benchmark script and the first line of its docstring."""
    found = []
    for path in [*sorted(FOLDER.glob("[!_]*.py")), FOLDER / "peers" / "run.py", FOLDER / "peers" / "whole.py"]:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        found.append((path, docstring.partition("\n")[0]))
    return found


def measure(
    only: Sequence[str] | None = None, repeats: int = 5, *, seed: int = 0, announce: Announce | None = None
) -> list[Measurement]:
    """Measure the given groups, or all of them.

    Args:
        only: Names in `GROUPS`; None measures all.
        repeats: Turns of every rival.
        seed: Seed of the random data and cells.
        announce: Called with a line before each part that takes a while.

    Returns:
        The measurements, group by group.
    """
    announce = announce or (lambda _: None)
    return [row for name, group in GROUPS.items() if not only or name in only for row in group(repeats, seed, announce)]


def to_json(results: Sequence[Measurement]) -> str:
    """Return the results and a description of the machine as JSON."""
    machine = {
        "perfeds2": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__,
        "device": jax.default_backend(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
    return json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=1, allow_nan=False) + "\n"


def print_results(results: Sequence[Measurement]) -> None:
    """Print one row per result, with missed targets in red."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    caption = "Median of the turns and their range; for joint, the mean over seeds and its 95 % interval."
    table = Table(box=None, header_style="bold", pad_edge=False, caption=caption)
    table.add_column("what")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    for result in results:
        mark = {None: "", True: " ✓", False: " [red]missed[/red]"}[result.ok]
        spread = "" if result.low is None or result.high is None else f"{result.low:.3g} to {result.high:.3g}"
        target = (result.target or "") + mark
        table.add_row(f"[dim]{result.name}[/dim] {result.what}", _number(result.value), result.unit, spread, target)
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
