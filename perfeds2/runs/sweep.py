"""What happens when a setting is varied?

A sweep is a grid of points over one base spec, each with the same seeds. What comes out of one seed of one point is one
file, written atomically as soon as it is there, so a sweep that is interrupted, killed or short of memory goes on where
it was. The tables are made of those files in the order of the grid: who finished first, and where, leaves no trace.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfeds2.errors import InputError
from perfeds2.files import clear_unfinished, write_atomically, write_text
from perfeds2.learning.metrics import METRICS
from perfeds2.runs.crew import (
    Assignment,
    Crew,
    Failure,
    StandingWatch,
    check_crew,
    crew_for,
    do_all,
)
from perfeds2.runs.execute import refuse_days
from perfeds2.runs.folder import alone, claim_folder
from perfeds2.runs.grid import Grid, GridPoint, make_grid
from perfeds2.runs.live import Follower, open_live
from perfeds2.runs.statistics import censored_median, pareto, statistic, time_to_target
from perfeds2.runs.summary import COSTS
from perfeds2.runs.trackers import trackers
from perfeds2.runs.worker import FACTS, Result
from perfeds2.shown import as_html, axes_for, draw_curves, in_a_line
from perfeds2.spec.build import check_model, metric_of, recipe_of
from perfeds2.spec.fields import LearningSpec, Spec
from perfeds2.spec.names import refuse_while_loading
from perfeds2.spec.resolve import as_it_was, nested, read_toml

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TO_TARGET = {
    "rounds_to_target": "round",
    "joules_to_target": "joules",
    "bits_to_target": "merged_bits",
}  # and the column
FRONT = ("algorithm", "seeds", "censored", "time_to_target_s_median", "joules_to_target_median", "on_front")
MOST_TOGETHER = 64  # runs of one assignment where they are trained at once: what a kill can cost


@dataclass(frozen=True)
class Sweep:
    """What came out of a sweep."""

    path: Path
    grid: Grid
    failures: tuple[Failure, ...]

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row per point, algorithm, seed and evaluation."""
        return load_sweep(self.path)

    @cached_property
    def summary(self) -> "pd.DataFrame":
        """A row per point and algorithm."""
        return load_summary(self.path)

    @cached_property
    def front(self) -> "pd.DataFrame | None":
        """Those that met the target by the seconds and joules it took; None in a folder from before there were joules."""
        path = self.path
        return _read_table(path, "sweep_front.csv") if (path / "sweep_front.csv").exists() else None

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
        """A row per point, algorithm, seed and evaluation."""
        return self.table

    def plot(self, axes: "Axes | None" = None, *, metric: str = "test_accuracy_personal", over: str = "") -> "Axes":
        """Where a metric ends over a setting of the grid (the first, unless told), the mean over all others."""
        names = [axis.name for axis in self.grid.axes]
        over, column = over or (names[0] if names else ""), f"{metric}_mean"
        if over not in names:
            raise InputError(
                f"{over!r} is no setting of this grid; expected one of {', '.join(names) or 'none: it has none'}."
            )
        if column not in self.summary:
            raise InputError(f"there is no {metric!r} in this sweep's summary; see .summary.columns.")
        return draw_curves(axes_for(axes, (6, 3)), self.summary, over, column)


def sweep(
    base: Mapping[str, Any] | Path | str,
    grid: Mapping[str, Iterable[Any]],
    *,
    out: Path | str,
    on: str = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
    track: Any = None,
) -> Sweep:
    """Train every point of a grid: ``sweep({"ues": 20}, {"quorum": [1, 5, 20], "seed": range(3)}, out="runs/a")``.

    The base is a spec file, or settings as ``compare`` takes them; grid names are such settings too, or
    ``section.key``. ``on`` is processes, ray or ray://HOST:PORT; an object of your own that is in no file (a lambda, a
    notebook's) is done in this process. A folder that holds part of this sweep is completed. ``track`` is that of ``compare``.
    """
    refuse_while_loading("sweep")
    values = read_toml(Path(base)) if isinstance(base, Path | str) else nested(base)
    how = {"on": on, "workers": workers, "retries": retries, "watch": watch, "yes": yes}
    return run_sweep(make_grid(values, grid), Path(out), followers=trackers(track, out), **how)


def open_sweep(path: Path, grid: Grid) -> None:
    """Make a folder for a sweep, or find it again. Refuses one that holds something else."""
    claim_folder(path, "sweep", grid.to_toml(), lambda: read_sweep(path).to_toml(), grid.unwritten)
    for folder in (path, *(path / "points").glob("*")):
        clear_unfinished(folder)


def read_sweep(path: Path) -> Grid:
    """The grid of a folder that was started."""
    known = path / "sweep.toml"
    if not known.exists():
        raise InputError(f"{path} holds no sweep (no sweep.toml); give the folder of a sweep that was started.")
    values = read_toml(known)
    grid = values.get("grid", {})
    return make_grid(values.get("base", {}) if "model" in grid else as_it_was(values.get("base", {})), grid)


def check_work(
    specs: Sequence[Spec], on: str | Callable[[Path], Crew], workers: int | None, retries: int, *, yes: bool
) -> None:
    """Refuse what cannot be begun, before anything is written."""
    if retries < 0:
        raise InputError(f"--retries must be 0 or more, got {retries}.")
    if isinstance(on, str):
        check_crew(on, workers)
    known = [spec for spec in specs if recipe_of(spec) is not None]
    for spec in known:  # an own task would have to be made here, and the GPU is for the workers
        check_model(spec)
    refuse_days(known, yes=yes)


def run_sweep(
    grid: Grid,
    path: Path,
    *,
    on: str | Callable[[Path], Crew] = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: StandingWatch | None = None,
    yes: bool = False,
    followers: Sequence[Follower] = (),
) -> Sweep:
    """Do what the folder does not have yet, and write the tables. A job that fails is tried again ``retries`` times."""
    check_work([point.spec for point in grid.points], on, workers, retries, yes=yes)
    open_sweep(path, grid)
    with alone(path), open_live(path, "sweep", followers) as live:
        missing = {
            point.number: [s for s in grid.seeds if load_result(path, point, s) is None] for point in grid.points
        }
        log = path / "workers.log"
        crew = crew_for(grid.unwritten, on, workers, log) if any(missing.values()) else None
        try:
            jobs = [] if crew is None else make_assignments(grid, missing, crew.together)
            shown = {point.number: point.label if grid.axes else "" for point in grid.points}
            jobs = [replace(job, live=live.place([shown[number] for number in job.points])) for job in jobs]
            keep = partial(_save_results, path, grid)
            failures = [] if crew is None else do_all(jobs, crew, grid.runs, retries, keep, live.standing(watch))
        finally:
            write_tables(grid, path)  # whatever is there by now
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
        _write_failures(path, failures)
        return Sweep(path, grid, tuple(failures))


def make_assignments(grid: Grid, missing: Mapping[int, Sequence[int]], together: bool) -> list[Assignment]:
    """One per missing seed of a point. Or, for a GPU, of as many whole points as may go together.

    What is trained together is decided by the grid alone, not by what is missing: company changes the last digits.
    """
    alike: dict[Any, list[tuple[GridPoint, tuple[int, ...]]]] = {}
    for point in grid.points:
        shape = (_shape(point.spec), point.spec.protocol.quorum, point.spec.run.stop_when_diverged)
        if together:
            alike.setdefault(shape, []).append((point, grid.seeds))
        else:
            alike |= {(point.number, seed): [(point, (seed,))] for seed in missing[point.number]}
    most = max(1, MOST_TOGETHER // len(grid.seeds))
    made: list[Assignment] = []
    for pairs in alike.values():
        for first in range(0, len(pairs), most):
            own = pairs[first : first + most]
            if any(missing[point.number] for point, _ in own):
                (point, seeds), more = own[0], f" and {len(own) - 1} more" if len(own) > 1 else ""
                label = f"{point.label}{more}, {f'{len(seeds)} seeds' if together else f'seed={seeds[0]}'}"
                specs = [with_seeds(point.spec, seeds) for point, seeds in own]
                numbers = tuple(point.number for point, _ in own)
                made.append(Assignment(len(made), numbers, len(own) * len(seeds), label, _shape(point.spec), specs))
    return made


def with_seeds(spec: Spec, seeds: Sequence[int]) -> Spec:
    return spec.model_copy(update={"run": spec.run.model_copy(update={"seeds": tuple(seeds)})})


def _shape(spec: Spec) -> str:
    """What decides the sizes of a run's arrays. Quorum, step sizes and seeds are numbers to the compiled program."""
    names = [named.text for named in spec.algorithms]
    return json.dumps([spec.values()["task"], spec.cell.ues, names, [_sizes(spec.learning_of(name)) for name in names]])


def _sizes(learning: LearningSpec) -> list[Any]:
    structure = [learning.hessian.partition(":")[0], learning.hessian_batch, learning.clip is None]
    return [learning.batch, learning.local_steps, *structure, learning.inner_clip is None]


def _result_file(path: Path, point: GridPoint, seed: int) -> Path:
    return path / "points" / point.folder / f"seed-{seed}.json"


def _save_results(path: Path, grid: Grid, job: Assignment, results: Sequence[Sequence[Result]]) -> None:
    for number, of_seeds in zip(job.points, results, strict=True):
        for result in of_seeds:
            file = _result_file(path, grid.points[number], result["seed"])
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(result) + "\n")


def load_result(path: Path, point: GridPoint, seed: int) -> dict[str, Any] | None:
    """What came out of one seed of one point; None if it has not been run, or its file is damaged."""
    try:
        result = json.loads(_result_file(path, point, seed).read_text(encoding="utf-8"))
        whole = isinstance(result, dict) and result.get("seed") == seed and bool(result.get("algorithms"))
        return result if whole else None
    except (OSError, ValueError):
        return None


def write_tables(grid: Grid, path: Path) -> None:
    """sweep.csv and sweep_summary.csv, of what is there."""
    axes, summary = [axis.name for axis in grid.axes], list[dict[str, Any]]()

    def tidy() -> Iterator[dict[str, Any]]:
        """A row per evaluation; what a point says on the whole is summed up on the way."""
        for point in grid.points:
            results = [result for seed in grid.seeds if (result := load_result(path, point, seed)) is not None]
            values = dict(zip(axes, map(_cell, point.values), strict=True))
            for name in [found["algorithm"] for found in results[0]["algorithms"]] if results else []:
                of_seeds = [_of(result, name) for result in results]
                for result, found in zip(results, of_seeds, strict=True):
                    row = {**values, "algorithm": name, "seed": result["seed"]}
                    yield from (row | each for each in found["metrics"])
                summary.append({**values, "algorithm": name, **summarise_point(point.spec, of_seeds)})

    write_csv(path / "sweep.csv", [*axes, "algorithm", "seed", "round", "time_s", *METRICS, *COSTS], tidy())
    write_csv(path / "sweep_summary.csv", list(summary[0]) if summary else [*axes, "algorithm"], summary)
    write_csv(path / "sweep_front.csv", [*axes, *FRONT], front(summary))


def front(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The points that met the target in at least half of the seeds, by the seconds it took; and which are on the front.

    On the time-energy front is what nothing else beats: no other is as soon with fewer joules, or sooner with as few.
    """
    costs = ("time_to_target_s_median", "joules_to_target_median")
    met = [row for row in summary if all(row[cost] is not None for cost in costs)]
    kept = pareto(np.array([[row[cost] for cost in costs] for row in met], float).reshape(-1, 2)).tolist()
    rows = [{**row, "on_front": int(on)} for row, on in zip(met, kept, strict=True)]
    return sorted(rows, key=lambda row: tuple(row[cost] for cost in costs))


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table, row by row; what has no column is left out."""
    with write_atomically(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.DictWriter(text, heads, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
        text.detach()


def _of(result: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    return next(found for found in result["algorithms"] if found["algorithm"] == algorithm)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value


def summarise_point(spec: Spec, of_seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One point and algorithm: means over seeds with their 95 % intervals at the end, and when the target was met.

    A seed that never met the target counts as later than all others in the median, and leaves no mean.
    """
    times = [found["time_to_target_s"] for found in of_seeds]
    last = [found["metrics"][-1] for found in of_seeds]
    row: dict[str, Any] = {
        "seeds": len(of_seeds),
        "diverged": sum(not math.isfinite(each["train_loss"]) for each in last),
        **({} if spec.task.metric is None else {"metric": metric_of(spec)}),
        "target_accuracy": spec.run.target_accuracy,
        "censored": times.count(None),  # seeds that never met the target
        "time_to_target_s_median": censored_median(times),
        **_interval("time_to_target_s", statistic(times)),
    }
    for name, column in TO_TARGET.items():
        spent = [time_to_target(found["metrics"], spec.run.target_accuracy, column) for found in of_seeds]
        row |= {f"{name}_median": censored_median(spent), **_interval(name, statistic(spent))}
    for name in METRICS:
        row |= _interval(name, statistic([each[name] for each in last]))
    means = {fact: statistic([found[fact] for found in of_seeds])["mean"] for fact in FACTS}
    return row | {f"{fact.removesuffix('_mean')}_mean": mean for fact, mean in means.items()}


def _interval(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_{part}": found[part] for part in ("mean", "low", "high")}


def _write_failures(path: Path, failures: Sequence[Failure]) -> None:
    """failed.csv, as long as something is."""
    file = path / "failed.csv"
    if not failures:
        file.unlink(missing_ok=True)
        return
    rows = ({"run": each.label, "attempts": each.attempts, "error": each.error} for each in failures)
    write_csv(file, ("run", "attempts", "error"), rows)


def load_sweep(folder: Path | str) -> "pd.DataFrame":
    """A sweep's metrics, tidy: the grid's columns, algorithm, seed, round, time_s, the metrics, and joules and bits spent."""
    return _read_table(Path(folder), "sweep.csv")


def load_summary(folder: Path | str) -> "pd.DataFrame":
    """A sweep's summary: a row per point and algorithm."""
    return _read_table(Path(folder), "sweep_summary.csv")


def _read_table(folder: Path, name: str) -> "pd.DataFrame":
    import pandas as pd

    if not (folder / name).exists():
        raise InputError(f"{folder} holds no {name}; run or resume a sweep there: perfeds2 sweep --resume {folder}")
    return pd.read_csv(folder / name)
