"""perfeds2 sweep: a setting varied."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfeds2.commands.common import flag, study
from perfeds2.errors import InputError
from perfeds2.spec.names import Value

if TYPE_CHECKING:
    from perfeds2.studies.sweep import Sweep

DEFAULTS = {"algorithms": ["PerFedS2"]}


def sweep(
    file: Path | None = typer.Argument(
        None, help="Settings as a TOML file; flags and the grid override it.", metavar="SPEC", show_default=False
    ),
    grid: list[str] | None = flag(
        "--grid", "A setting and its values: quorum=1,2,5 or seed=0..19. Repeatable.", "NAME=VALUES"
    ),
    **given: Value,
) -> None:
    """Vary settings over a grid, such as --grid quorum=1,2,5 --grid seed=0..19.

    Writes a folder with report.html, sweep.csv, sweep_summary.csv and sweep_front.csv (seconds and joules to the target).
    """
    with study("sweep", given) as asked:
        from perfeds2.report.sweep import print_sweep
        from perfeds2.studies.grid import grid_from_flags, read_sweep
        from perfeds2.studies.sweep import run_sweep

        if asked.resume is not None:
            points = read_sweep(asked.resume)
        else:
            if file and asked.spec_file:
                raise InputError(f"the spec is given twice: {file} and --spec {asked.spec_file}; give one of them.")
            asked.spec_file = file or asked.spec_file
            points = grid_from_flags(asked.values(DEFAULTS), grid or [], asked.flags)
            algorithms = {each: None for point in points.points for each in point.spec.algorithms}
            asked.refuse_unused(algorithms, [each for point in points.points for each in point.spec.merges])
        specs = [point.spec for point in points.points]
        with asked.executing("sweep", specs, _page) as (path, execution):
            asked.failures = run_sweep(points, path, execution).failures
        if asked.drawn and not asked.quiet:
            print_sweep(path)
        asked.say_written(path / "sweep.csv", path / "sweep_summary.csv", path / "sweep_front.csv", *asked.drawn)


def _page(swept: "Sweep", path: Path) -> list[Path]:
    from perfeds2.report.sweep import write_sweep

    return write_sweep(path) if len(swept.summary) else []
