"""perfeds2 sweep: a setting varied."""

from pathlib import Path

import typer

from perfeds2.commands.common import flag, study
from perfeds2.errors import InputError

DEFAULTS = {"algorithms": ["PerFedS2"]}


def sweep(
    context: typer.Context,
    file: Path | None = typer.Argument(
        None, help="Settings as a TOML file; flags and the grid override it.", metavar="SPEC", show_default=False
    ),
    grid: list[str] | None = flag(
        "--grid", "A setting and its values: quorum=1,2,5 or seed=0..19. Repeatable.", "NAME=VALUES"
    ),
) -> None:
    """Vary settings over a grid, such as --grid quorum=1,2,5 --grid seed=0..19.

    Writes a folder with report.html, sweep.csv, sweep_summary.csv and sweep_front.csv (seconds and joules to the target).
    """
    with study("sweep", context) as asked:
        from perfeds2.studies.grid import grid_from_flags

        points = asked.earlier()
        if points is None:
            if file and asked.spec_file:
                raise InputError(f"the spec is given twice: {file} and --spec {asked.spec_file}; give one of them.")
            asked.spec_file = file or asked.spec_file
            points = grid_from_flags(asked.values(DEFAULTS), grid or [], asked.flags)
            algorithms = {each: None for point in points.points for each in point.spec.algorithms}
            asked.refuse_unused(algorithms, [each for point in points.points for each in point.spec.merges])
        asked.do(points, specs=[point.spec for point in points.points])
