"""perfeds2 bench: how fast is it?"""

from pathlib import Path

import typer

from perfeds2.commands.common import flag, new_folder
from perfeds2.commands.completion import of_kind
from perfeds2.console import guarded


def bench(
    only: list[str] | None = flag(
        "--only",
        "Just this group: replay, methods, clock, start-up, waiting, jobs, allocation or joint. Repeatable.",
        "GROUP",
        autocompletion=of_kind("benchmark"),
    ),
    seed: int = flag("--seed", "Of the random data and cells.", "SEED", 0, min=0),
    out: Path | None = flag("--out", "Where bench.json goes. (default: a new folder in runs/)", "DIR"),
    as_json: bool = flag("--json", "Print the JSON instead of the table.", default=False),
    quiet: bool = flag("--quiet", "No progress, no table.", default=False),
) -> None:
    """Measure how fast this is, against bare NumPy and JAX loops, SimPy and a convex solver; a few minutes.

    Rivals take turns in one run and ratios are medians. A target that is missed is shown as missed. The group 'joint'
    asks whether planning the rounds and sharing the band for them pays in seconds to an accuracy.
    """
    with guarded("bench", []):
        from perfeds2.bench.bench import bench as measure
        from perfeds2.bench.bench import print_results, to_json
        from perfeds2.files import write_text

        tell = None if quiet else lambda line: typer.echo(line, err=True)
        results = measure(only, seed=seed, tell=tell)
        path = new_folder(out, "bench")
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "bench.json", to_json(results))
        if as_json:
            typer.echo(to_json(results), nl=False)
        elif not quiet:
            print_results(results)
            typer.echo(f"Results: {path / 'bench.json'}")
