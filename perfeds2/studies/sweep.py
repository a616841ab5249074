"""Vary settings over a grid.

A sweep is a grid of points over one base spec, each with the same seeds. Its tables are made from the stored results
in the order of the grid, so they do not depend on which training finished first, or where.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfeds2.errors import InputError
from perfeds2.files import read_table
from perfeds2.runs.costs import COSTS, EPSILON, SECONDS
from perfeds2.runs.folder import SWEEP
from perfeds2.runs.pool import Failure, Results, check_work
from perfeds2.runs.session import Base, Execution, Session, base_values
from perfeds2.runs.statistics import pareto
from perfeds2.runs.store import Row
from perfeds2.runs.table import evaluation_heads, summarise_point, write_csv
from perfeds2.runs.training import Training, trainings_of
from perfeds2.shown import as_html, axes_for, draw_curves, in_a_line
from perfeds2.studies.grid import Grid, Listed, make_grid, read_sweep

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

JOULES = COSTS["joules"]
FRONT = ("algorithm", "seeds", "censored", SECONDS.median, JOULES.median, "on_front")


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep."""

    path: Path
    grid: Grid
    failures: tuple[Failure, ...]
    reused: int = 0  # results copied from other folders

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A table with one row per point, algorithm, seed and evaluation."""
        return load_sweep(self.path)

    @cached_property
    def summary(self) -> "pd.DataFrame":
        """A table with one row per point and algorithm."""
        return _read_table(self.path, "sweep_summary.csv")

    @cached_property
    def front(self) -> "pd.DataFrame":
        """The points that reached the target, sorted by the seconds and joules it took."""
        return _read_table(self.path, "sweep_front.csv")

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(axis.values)} {axis.name}" for axis in self.grid.axes) or "1 point"
        seeds, failed = len(self.grid.seeds), len(self.failures)
        return in_a_line(
            self, axes, f"{seeds} seed{'s' * (seeds > 1)}", f"in {self.path}", *([f"{failed} failed"] * (failed > 0))
        )

    def _repr_html_(self) -> str:
        draws = bool(self.grid.axes) and "test_accuracy_personal_mean" in self.summary
        return as_html(repr(self), self.summary, self.plot if draws else None)

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per point, algorithm, seed and evaluation."""
        return self.table

    def plot(self, axes: "Axes | None" = None, *, metric: str = "test_accuracy_personal", over: str = "") -> "Axes":
        """Plot the final value of a metric over one setting of the grid, as the mean over all others.

        Args:
            axes: Where to draw; None makes a new figure.
            metric: A metric, such as ``test_accuracy`` or ``train_loss_personal``.
            over: The setting on the x-axis; by default the first of the grid.

        Returns:
            The axes that were drawn on.

        Raises:
            InputError: If there is no such setting or metric.
        """
        names = [axis.name for axis in self.grid.axes]
        over, column = over or (names[0] if names else ""), f"{metric}_mean"
        if over not in names:
            raise InputError(
                f"{over!r} is not a setting of this grid; expected one of {', '.join(names) or 'none: it has none'}."
            )
        if column not in self.summary:
            raise InputError(f"there is no {metric!r} in this sweep's summary; see .summary.columns.")
        return draw_curves(axes_for(axes, (6, 3)), self.summary, over, column)


def sweep(base: Base, grid: Listed, *, out: Path | str, **execution: Any) -> Sweep:
    """Train every point of a grid: ``sweep({"ues": 20}, {"quorum": [1, 5, 20], "seed": range(3)}, out="runs/a")``.

    Args:
        base: A spec file, or settings as ``compare`` takes them.
        grid: Values by setting, named as ``compare`` names them or as ``section.key``.
        out: The folder of the results. A sweep that was interrupted there is resumed.
        **execution: ``workers``, ``retries``, ``reuse``, ``watch`` and ``yes`` of
        ``Execution.from_python``.

    Returns:
        The tables, and the trainings that failed.

    Raises:
        InputError: If a setting is invalid, the sweep would take over a day, or the folder holds something else.

    Example:
        >>> import tempfile
        >>> from perfeds2 import load_sweep, sweep
        >>> folder = tempfile.mkdtemp() + "/sweep"
        >>> base = {"task": "synthetic", "ues": 4, "rounds": 2, "algorithms": ["PerFedS2"], "seeds": [0]}
        >>> swept = sweep(base, {"quorum": [1, 2]}, out=folder, workers=1)
        >>> sorted(set(load_sweep(folder).quorum))
        [1, 2]
    """
    how = Execution.from_python("sweep", **execution)
    return run_sweep(make_grid(base_values(base), grid), Path(out), how)


def run_sweep(grid: Grid, path: Path, how: Execution = Execution()) -> Sweep:  # noqa: B008 (frozen)
    """Train what the folder lacks, and write the tables."""
    trainings = [trainings_of(point.spec, point.label if grid.axes else "") for point in grid.points]
    every = [one for own in trainings for one in own]
    check_work(every, how.workers, yes=how.yes)
    with Session.open(SWEEP, grid, path, how, read_sweep) as session:
        results = Results(session.store)
        try:
            results = session.train(every)
        finally:
            write_tables(grid, trainings, results, path)  # of the results so far, even after an error
        _write_failures(path, results.failures)
        swept = Sweep(path, grid, results.failures, results.reused)
        session.shows = bool(len(swept.summary))
    return swept


def write_tables(grid: Grid, trainings: Sequence[Sequence[Training]], results: Results, path: Path) -> None:
    """Write sweep.csv, sweep_summary.csv and sweep_front.csv of the available results."""
    axes, summary = [axis.name for axis in grid.axes], list[Row]()

    def tidy() -> Iterator[Row]:
        """Yield a row per evaluation, and append the summary of each point on the way."""
        for point, of_point in zip(grid.points, trainings, strict=True):
            values = {
                axis: json.dumps(v) if isinstance(v, list) else v for axis, v in zip(axes, point.values, strict=True)
            }
            for named in point.spec.algorithms:
                found = results.those_of(one for one in of_point if one.named == named)
                for result in found:
                    yield from (values | row for row in result.rows)
                if found:
                    name = found[0].facts["algorithm"]
                    summary.append({**values, "algorithm": name, **summarise_point(point.spec, found)})

    heads = evaluation_heads([point.spec for point in grid.points])
    write_csv(path / "sweep.csv", [*axes, "algorithm", "seed", *heads], tidy())
    write_csv(path / "sweep_summary.csv", list(max(summary, key=len)) if summary else [*axes, "algorithm"], summary)
    write_csv(
        path / "sweep_front.csv",
        [*axes, *FRONT, *([EPSILON.median] if EPSILON.column in heads else [])],
        front(summary),
    )


def front(summary: Sequence[Row]) -> list[Row]:
    """Return the points that reached the target in at least half of the seeds, sorted by time, and mark the front.

    A point is on the time-energy front if no other needs fewer seconds and no more joules, or fewer joules and no
    more seconds. With noise, the worst UE's ε takes the place of the joules.
    """
    costs = SECONDS.median, (EPSILON if any(EPSILON.median in row for row in summary) else JOULES).median
    met = [row for row in summary if all(row.get(cost) is not None for cost in costs)]
    kept = pareto(np.array([[row[cost] for cost in costs] for row in met], float).reshape(-1, 2)).tolist()
    rows = [{**row, "on_front": int(on)} for row, on in zip(met, kept, strict=True)]
    return sorted(rows, key=lambda row: tuple(row[cost] for cost in costs))


def _write_failures(path: Path, failures: Sequence[Failure]) -> None:
    """Write failed.csv, or delete it if nothing failed."""
    file = path / "failed.csv"
    if not failures:
        file.unlink(missing_ok=True)
        return
    rows = ({"run": each.label, "attempts": each.attempts, "error": each.error} for each in failures)
    write_csv(file, ("run", "attempts", "error"), rows)


def load_sweep(folder: Path | str) -> "pd.DataFrame":
    """Read the metrics of a sweep as a tidy table.

    Args:
        folder: The folder of a sweep.

    Returns:
        One row per point, algorithm, seed and evaluation. The columns are the settings of the grid, algorithm, seed,
        round, time_s, the metrics, joules and merged_bits.

    Example:
        >>> load_sweep("runs/a")  # doctest: +SKIP
    """
    return _read_table(Path(folder), "sweep.csv")


def _read_table(folder: Path, name: str) -> "pd.DataFrame":
    if not (folder / name).exists():
        raise InputError(f"{folder} holds no {name}; run or resume a sweep there: perfeds2 sweep --resume {folder}")
    return read_table(folder / name)
