"""How fast is it, against the plainest way to do the same work?

Rivals take turns in one run, so a busy machine slows all of them, and a ratio is the median of the turns' ratios. The
rivals are here to be read: a bare NumPy loop, a bare compiled JAX loop, a process-per-UE model, a convex solver. A
target that is missed is shown as missed.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict

import jax
import numpy as np

from perfeds2 import __version__
from perfeds2.bench.allocation import allocation_group
from perfeds2.bench.clock import clock_group
from perfeds2.bench.jobs import jobs_group
from perfeds2.bench.joint import joint_group
from perfeds2.bench.methods import methods_group
from perfeds2.bench.products import products_group
from perfeds2.bench.replay import replay_group
from perfeds2.bench.start_up import start_up_group
from perfeds2.bench.timing import Group, Hear, Result
from perfeds2.bench.waiting import waiting_group
from perfeds2.errors import InputError

GROUPS: dict[str, Group] = {
    "replay": replay_group,
    "products": products_group,
    "methods": methods_group,
    "clock": clock_group,
    "start-up": start_up_group,
    "waiting": waiting_group,
    "jobs": jobs_group,
    "allocation": allocation_group,
    "joint": joint_group,
}


def bench(
    only: Sequence[str] | None = None, repeats: int = 5, *, seed: int = 0, tell: Hear | None = None
) -> list[Result]:
    """Measure the given groups, or all of them. ``tell`` hears what takes a while before it begins."""
    unknown = [name for name in only or () if name not in GROUPS]
    if unknown:
        raise InputError(f"--only {unknown[0]} is no group of the benchmark; expected one of {', '.join(GROUPS)}.")
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}.")
    tell = tell or (lambda _: None)
    return [row for name, group in GROUPS.items() if not only or name in only for row in group(repeats, seed, tell)]


def to_json(results: Sequence[Result]) -> str:
    """The results, and what they were measured on."""
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


def print_results(results: Sequence[Result]) -> None:
    """A row per result; a missed target is red."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=150)
    table = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        caption="The median of the turns, and their range. Under joint: the mean over seeds and its 95 % interval.",
    )
    for head, side in (("what", "left"), ("value", "right"), ("", "left"), ("range", "right"), ("target", "left")):
        table.add_column(head, justify=side, no_wrap=head != "what")  # type: ignore[arg-type]  # rich wants a literal
    for result in results:
        mark = {None: "", True: " ✓", False: " [red]missed[/red]"}[result.ok]
        spread = "" if result.low is None or result.high is None else f"{result.low:.3g} to {result.high:.3g}"
        value = (
            "–"
            if result.value is None
            else f"{result.value:.3g}"
            if abs(result.value) < 1000
            else f"{result.value:,.0f}"
        )
        table.add_row(
            f"[dim]{result.name}[/dim] {result.what}", value, result.unit, spread, (result.target or "") + mark
        )
    console.print(table)
