"""What happens when a setting is varied?

A sweep is a grid of points over one base spec, each with the same seeds. What comes out of one seed of one point is one
file, written atomically as soon as it is there, so a sweep that is interrupted, killed or short of memory goes on where
it was. The tables are made of those files in the order of the grid: who finished first, and where, leaves no trace.
"""

import csv
import difflib
import io
import itertools
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from perfeds2.files import clear_unfinished, write_atomically, write_text
from perfeds2.learning.metrics import METRICS
from perfeds2.runs.crew import Done, Engine, Event, Failed, Job, Line, Moved, Started, open_engine
from perfeds2.runs.folder import alone
from perfeds2.runs.statistics import censored_median, statistic
from perfeds2.spec.fields import OWN_FLAGS, InputError, Spec, put, read_toml, resolve

if TYPE_CHECKING:
    import pandas as pd

MOST_RUNS = 100_000
MOST_TOGETHER = 64  # runs of one job where they are trained at once: what a kill can cost
FLAGS = {flag.removeprefix("--").replace("-", "_"): place for place, flag in OWN_FLAGS.items()}
SEEDS = ("run", "seeds")
FACTS = {  # of a timeline: their names in the summary
    "rounds": "rounds_mean",
    "merges": "merges_mean",
    "staleness_mean": "staleness_mean",
    "seconds_per_round": "seconds_per_round_mean",
    "waiting_share": "waiting_share_mean",
    "wasted_share": "wasted_share_mean",
}


@dataclass(frozen=True)
class Axis:
    """One setting and the values it takes."""

    name: str  # its column in the tables
    place: tuple[str, str]  # section and key of the spec
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    """One place of the grid, with all its seeds."""

    number: int
    values: tuple[Any, ...]  # of each axis, as the spec has it
    label: str
    spec: Spec

    @property
    def folder(self) -> str:
        return f"{self.number:05d}-{re.sub(r'[^A-Za-z0-9._=+-]+', '_', self.label)[:80]}"


@dataclass(frozen=True)
class Grid:
    """All points, and what they are made of."""

    base: dict[str, Any]  # nested values of a spec, only what was given
    axes: tuple[Axis, ...]  # the first varies slowest; the seeds are none of them
    seeds: tuple[int, ...]
    points: tuple[Point, ...]

    @property
    def runs(self) -> int:
        return len(self.points) * len(self.seeds)

    def to_toml(self) -> str:
        grid = {axis.name: list(axis.values) for axis in self.axes}
        return tomli_w.dumps({"grid": {**grid, "seed": list(self.seeds)}, "base": self.base})


@dataclass(frozen=True)
class Failure:
    """A job that was given up."""

    label: str
    attempts: int
    error: str


@dataclass(frozen=True)
class Standing:
    """How far a sweep is: for a table, nothing else."""

    total: int  # runs: seeds of points
    done: int
    found: int  # of those done, how many were there before
    failed: int
    retried: int
    elapsed_s: float
    workers: Mapping[int, tuple[str, float]]  # what each is at, and how far
    event: Event | None

    @property
    def left_s(self) -> float | None:
        """How long the rest will take, by what has been done so far."""
        fresh = self.done - self.found
        return None if fresh == 0 else self.elapsed_s / fresh * (self.total - self.done - self.failed)


Watch = Callable[[Standing], None]


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


def sweep(
    base: Mapping[str, Any] | Path | str,
    grid: Mapping[str, Iterable[Any]],
    *,
    out: Path | str,
    on: str = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: Watch | None = None,
) -> Sweep:
    """Train every point of a grid: ``sweep({"ues": 20}, {"quorum": [1, 5, 20], "seed": range(3)}, out="runs/a")``.

    The base is a spec file, or settings as ``compare`` takes them; grid names are such settings too, or
    ``section.key``. ``on`` is processes, ray or ray://HOST:PORT. A folder that holds part of this sweep is completed.
    """
    values = read_toml(Path(base)) if isinstance(base, Path | str) else nested(base)
    return run_sweep(make_grid(values, grid), Path(out), on=on, workers=workers, retries=retries, watch=watch)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by flag, or whole sections, as a spec's nested values."""
    values: dict[str, Any] = {name: dict(value) for name, value in settings.items() if isinstance(value, Mapping)}
    for name, value in settings.items():
        if not isinstance(value, Mapping):
            section, key = _place(name, "a setting")
            many = isinstance(value, Iterable) and not isinstance(value, str)
            put(values, section, key, list(value) if many else value)
    return values


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``quorum=1,2,5`` and ``seed=0..19`` as names and values."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        if not (name and equals):
            raise InputError(f"--grid takes NAME=VALUES, such as quorum=1,2,5 or seed=0..19; got {text!r}.")
        if name in grid:
            raise InputError(f"--grid {name} is given twice; put all its values into one.")
        grid[name] = [value for part in listed.split(",") for value in _parse_values(name, part.strip())]
    return grid


def grid_from_flags(values: dict[str, Any], texts: Sequence[str], flags: Sequence[str]) -> Grid:
    """The grid of a command line: nested values, --grid texts, and which flags were given besides."""
    if not texts:
        raise InputError("give at least one --grid NAME=VALUES, such as --grid quorum=1,2,5,10,20 --grid seed=0..19.")
    grid = parse_grid(texts)
    fixed = {_place(flag, "a setting"): flag for flag in flags}
    for name in grid:
        if (place := _place(name, "something a grid can vary")) in fixed:
            raise InputError(f"--{fixed[place].replace('_', '-')} and --grid {name} were both given; give one of them.")
    return make_grid(values, grid)


def _parse_values(name: str, part: str) -> Sequence[Any]:
    if not part:
        raise InputError(f"--grid {name} has an empty value; expected values between commas, such as {name}=1,2,5.")
    span = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if span is None:
        return [part]
    first, last = int(span[1]), int(span[2])
    if last < first:
        raise InputError(f"--grid {name}={part} is empty; write the smaller number first.")
    if last - first >= MOST_RUNS:
        raise InputError(f"--grid {name}={part} has {last - first + 1:,} values; a sweep takes at most {MOST_RUNS:,}.")
    return range(first, last + 1)


def make_grid(base: dict[str, Any], grid: Mapping[str, Iterable[Any]]) -> Grid:
    """Every point, checked: what a spec refuses is refused here, before anything runs."""
    values, axes, seeds = json.loads(json.dumps(base, default=lambda v: str(_plain(v)))), [], None
    for name, given in grid.items():
        place = _place(name, "something a grid can vary")
        if place == ("run", "algorithms"):
            raise InputError("--grid algorithms: every point runs all algorithms; name them with --algorithms instead.")
        listed = tuple(map(_plain, [given] if isinstance(given, str) or not isinstance(given, Iterable) else given))
        if not listed or any(value is None for value in listed):
            raise InputError(f"--grid {name} is empty or has an empty value; give at least one value.")
        if isinstance(inner := values.get(place[0]), dict):
            inner.pop(place[1], None)  # the grid goes over the base
        if place == SEEDS:
            if seeds is not None:
                raise InputError("--grid seed and --grid seeds are the same setting; give one of them.")
            seeds = listed
            continue
        if place in [axis.place for axis in axes]:
            raise InputError(f"--grid {name} is given twice; put all its values into one.")
        axes.append(Axis(_column(place), place, listed))
    if seeds is not None:
        put(values, *SEEDS, list(seeds))
    count = math.prod(len(axis.values) for axis in axes) * len(seeds or ())
    if count > MOST_RUNS:
        raise InputError(f"this grid has {count:,} runs; a sweep takes at most {MOST_RUNS:,}, so split it.")
    return _resolve_points(values, axes)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _resolve_points(values: dict[str, Any], axes: list[Axis]) -> Grid:
    points: list[Point] = []
    for number, combination in enumerate(itertools.product(*(axis.values for axis in axes))):
        of_point = {section: dict(inner) if isinstance(inner, dict) else inner for section, inner in values.items()}
        for axis, value in zip(axes, combination, strict=True):
            put(of_point, *axis.place, value)
        spec = resolve(of_point)
        dumped = spec.model_dump(mode="json")
        used = tuple(dumped[section][key] for section, key in (axis.place for axis in axes))
        label = ", ".join(f"{axis.name}={value}" for axis, value in zip(axes, used, strict=True)) or "base"
        points.append(Point(number, used, label, spec))
    for place, axis in enumerate(axes):
        used = list(dict.fromkeys(json.dumps(point.values[place]) for point in points))
        if len(used) < len(axis.values):  # what looks different may be the same number
            raise InputError(f"--grid {axis.name} has a value twice; give each once: {', '.join(used)}.")
        axes[place] = replace(axis, values=tuple(json.loads(value) for value in used))
    first = points[0].spec.model_dump(mode="json")
    base = {  # as the spec reads it: a flag's text becomes a number
        section: {
            key: first[section][key] for key in inner if (section, key) != SEEDS and first[section][key] is not None
        }
        for section, inner in values.items()
    }
    return Grid({k: v for k, v in base.items() if v}, tuple(axes), points[0].spec.run.seeds, tuple(points))


def _place(name: str, what: str) -> tuple[str, str]:
    """Section and key of a setting, by its flag or as section.key."""
    section, dot, key = name.partition(".")
    plain = name.replace("-", "_")
    if plain == "seed":
        return SEEDS
    if plain in FLAGS:
        return FLAGS[plain]
    known = {s: list(field.annotation.model_fields) for s, field in Spec.model_fields.items()}  # type: ignore[union-attr]  # sections are models
    if dot and key in known.get(section, ()):
        return section, key
    names = [flag.removeprefix("--") for flag in OWN_FLAGS.values()] + [f"{s}.{k}" for s in known for k in known[s]]
    near = difflib.get_close_matches(name, ["seed", *names], 1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "expected a flag's name, such as quorum, or section.key."
    raise InputError(f"{name} is not {what}; {hint}")


def _column(place: tuple[str, str]) -> str:
    return OWN_FLAGS[place].removeprefix("--").replace("-", "_") if place in OWN_FLAGS else ".".join(place)


def open_sweep(path: Path, grid: Grid) -> None:
    """Make a folder for a sweep, or find it again. Refuses one that holds something else."""
    known, text = path / "sweep.toml", grid.to_toml()
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"--out {path} is a file; expected a folder.")
        if known.exists():
            if known.read_text(encoding="utf-8") != text:
                raise InputError(
                    f"--out {path} already holds a different sweep (see {known}); choose another folder, or delete it."
                )
        elif path.exists() and any(entry for entry in path.iterdir() if not entry.name.startswith(".sweep.toml.")):
            raise InputError(f"--out {path} holds other files and no sweep.toml; choose an empty or new folder.")
        path.mkdir(parents=True, exist_ok=True)
        if not known.exists():
            write_text(known, text)
        for folder in (path, *(path / "points").glob("*")):
            clear_unfinished(folder)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {os.strerror(error.errno or 0)}.") from None


def read_sweep(path: Path) -> Grid:
    """The grid of a folder that was started."""
    known = path / "sweep.toml"
    if not known.exists():
        raise InputError(f"{path} holds no sweep (no sweep.toml); give the folder of a sweep that was started.")
    values = read_toml(known)
    return make_grid(values.get("base", {}), values.get("grid", {}))


def run_sweep(
    grid: Grid,
    path: Path,
    *,
    on: str | Callable[[Path], Engine] = "processes",
    workers: int | None = None,
    retries: int = 2,
    watch: Watch | None = None,
) -> Sweep:
    """Do what the folder does not have yet, and write the tables. A job that fails is tried again ``retries`` times."""
    if retries < 0:
        raise InputError(f"--retries must be 0 or more, got {retries}.")
    open_sweep(path, grid)
    with alone(path):
        missing = {
            point.number: [s for s in grid.seeds if load_result(path, point, s) is None] for point in grid.points
        }
        failures: list[Failure] = []
        if any(missing.values()):
            log = path / "workers.log"
            engine = open_engine(on, workers, log) if isinstance(on, str) else on(log)
            try:
                failures = _do(grid, missing, path, engine, retries, watch)
            finally:
                write_tables(grid, path)  # whatever is there by now
            if log.exists() and log.stat().st_size == 0:
                log.unlink()
        else:
            write_tables(grid, path)
        _write_failures(path, failures)
        return Sweep(path, grid, tuple(failures))


def make_jobs(grid: Grid, missing: Mapping[int, Sequence[int]], together: bool) -> list[Job]:
    """A job per missing seed of a point. Or, for a GPU, of as many whole points as may go together.

    What is trained together is decided by the grid alone, not by what is missing: company changes the last digits.
    """
    if not together:
        return [
            Job(number, (point.number,), 1, f"{point.label}, seed={seed}", _shape(point.spec), [_values(point, [seed])])
            for number, (point, seed) in enumerate(
                (point, seed) for point in grid.points for seed in missing[point.number]
            )
        ]
    alike: dict[Any, list[Point]] = {}
    for point in grid.points:
        spec = point.spec
        key = (_shape(spec), spec.protocol.quorum, spec.learning.alpha, spec.run.stop_when_diverged)
        alike.setdefault(key, []).append(point)
    jobs: list[Job] = []
    most = max(1, MOST_TOGETHER // len(grid.seeds))
    for points in alike.values():
        for first in range(0, len(points), most):
            own = points[first : first + most]
            if any(missing[point.number] for point in own):
                more = f" and {len(own) - 1} more" if len(own) > 1 else ""
                label = f"{own[0].label}{more}, {len(grid.seeds)} seeds"
                specs = [_values(point, grid.seeds) for point in own]
                numbers = tuple(point.number for point in own)
                jobs.append(Job(len(jobs), numbers, len(own) * len(grid.seeds), label, _shape(own[0].spec), specs))
    return jobs


def _values(point: Point, seeds: Sequence[int]) -> dict[str, Any]:
    values = point.spec.model_dump(mode="json", exclude_none=True)
    values["run"]["seeds"] = list(seeds)
    return values


def _shape(spec: Spec) -> str:
    """What decides the sizes of a run's arrays. Quorum, step sizes and seeds are numbers to the compiled program."""
    learning = spec.learning
    return json.dumps(
        [
            spec.task.model_dump(),
            spec.cell.ues,
            learning.batch,
            learning.local_steps,
            learning.hessian,
            spec.run.algorithms,
        ]
    )


def _do(
    grid: Grid, missing: Mapping[int, Sequence[int]], path: Path, engine: Engine, retries: int, watch: Watch | None
) -> list[Failure]:
    """Let an engine do all jobs; keep each result the moment it comes. Returns what was given up."""
    jobs = make_jobs(grid, missing, engine.together)
    line, found = Line(jobs), grid.runs - sum(job.runs for job in jobs)
    done, failed, attempts, started_s = found, 0, Counter[int](), time.monotonic()
    failures: list[tuple[Job, Failure, bool]] = []
    at: dict[int, tuple[str, float]] = {}
    with closing(engine.events(line)) as events:  # type: ignore[type-var]  # a generator
        for event in events:
            job = event.job
            match event:
                case Started():
                    at[event.worker] = (job.label, 0.0)
                case Moved():
                    at[event.worker] = (job.label, event.share)
                case Done():
                    at.pop(event.worker, None)
                    for number, results in zip(job.points, event.results, strict=True):
                        for result in results:
                            _save_result(path, grid.points[number], result)
                    done += job.runs
                case Failed():
                    at.pop(event.worker, None)
                    attempts[job.number] += 1
                    if event.again and attempts[job.number] <= retries:
                        line.put(job)
                    else:
                        failures.append((job, Failure(job.label, attempts[job.number], event.error), event.again))
                        failed += job.runs
            if watch is not None:
                retried = attempts.total() - len(failures)
                elapsed_s = time.monotonic() - started_s
                watch(Standing(grid.runs, done, found, failed, retried, elapsed_s, dict(at), event))
    if done == 0 and failures and not any(again for _, _, again in failures):
        raise InputError(failures[0][1].error)  # nothing could be run, and it is for the user to put right
    return [failure for _, failure, _ in sorted(failures, key=lambda each: each[0].number)]


def _result_file(path: Path, point: Point, seed: int) -> Path:
    return path / "points" / point.folder / f"seed-{seed}.json"


def _save_result(path: Path, point: Point, result: dict[str, Any]) -> None:
    file = _result_file(path, point, result["seed"])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(result) + "\n")


def load_result(path: Path, point: Point, seed: int) -> dict[str, Any] | None:
    """What came out of one seed of one point; None if it has not been run, or its file is damaged."""
    try:
        result = json.loads(_result_file(path, point, seed).read_text(encoding="utf-8"))
        whole = isinstance(result, dict) and result.get("seed") == seed and bool(result.get("algorithms"))
        return result if whole else None
    except (OSError, ValueError):
        return None


def write_tables(grid: Grid, path: Path) -> None:
    """sweep.csv and sweep_summary.csv, of what is there."""
    tidy = [*(axis.name for axis in grid.axes), "algorithm", "seed", "round", "time_s", *METRICS]
    with write_atomically(path / "sweep.csv") as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.DictWriter(text, tidy, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        summary: list[dict[str, Any]] = []
        for point in grid.points:
            results = [result for seed in grid.seeds if (result := load_result(path, point, seed)) is not None]
            values = {axis.name: _cell(value) for axis, value in zip(grid.axes, point.values, strict=True)}
            for name in point.spec.run.algorithms:
                of_seeds = [(result["seed"], _of(result, name)) for result in results]
                for seed, found in of_seeds:
                    table.writerows({**values, "algorithm": name, "seed": seed, **row} for row in found["metrics"])
                if of_seeds:
                    summary.append({**values, "algorithm": name, **summarise(point.spec, [f for _, f in of_seeds])})
        text.flush()
        text.detach()
    heads = list(summary[0]) if summary else [*(axis.name for axis in grid.axes), "algorithm"]
    lines = io.StringIO(newline="")
    table = csv.DictWriter(lines, heads, lineterminator="\n")
    table.writeheader()
    table.writerows(summary)
    write_text(path / "sweep_summary.csv", lines.getvalue())


def _of(result: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    return next(found for found in result["algorithms"] if found["algorithm"] == algorithm)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value


def summarise(spec: Spec, of_seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One point and algorithm: means over seeds with their 95 % intervals at the end, and when the target was met.

    A seed that never met the target counts as later than all others in the median, and leaves no mean.
    """
    times = [found["time_to_target_s"] for found in of_seeds]
    last = [found["metrics"][-1] for found in of_seeds]
    row: dict[str, Any] = {
        "seeds": len(of_seeds),
        "diverged": sum(not math.isfinite(each["train_loss"]) for each in last),
        "target_accuracy": spec.run.target_accuracy,
        "censored": times.count(None),  # seeds that never met the target
        "time_to_target_s_median": censored_median(times),
        **_interval("time_to_target_s", statistic(times)),
    }
    for name in METRICS:
        row |= _interval(name, statistic([each[name] for each in last]))
    return row | {head: statistic([found[fact] for found in of_seeds])["mean"] for fact, head in FACTS.items()}


def _interval(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_{part}": found[part] for part in ("mean", "low", "high")}


def _write_failures(path: Path, failures: Sequence[Failure]) -> None:
    """failed.csv, as long as something is."""
    file = path / "failed.csv"
    if not failures:
        file.unlink(missing_ok=True)
        return
    lines = io.StringIO(newline="")
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(("run", "attempts", "error"))
    table.writerows((failure.label, failure.attempts, failure.error) for failure in failures)
    write_text(file, lines.getvalue())


def load_sweep(folder: Path | str) -> "pd.DataFrame":
    """A sweep's metrics, tidy: the grid's columns, algorithm, seed, round, time_s and the metrics."""
    return _read_table(Path(folder), "sweep.csv")


def load_summary(folder: Path | str) -> "pd.DataFrame":
    """A sweep's summary: a row per point and algorithm."""
    return _read_table(Path(folder), "sweep_summary.csv")


def _read_table(folder: Path, name: str) -> "pd.DataFrame":
    import pandas as pd

    if not (folder / name).exists():
        raise InputError(f"{folder} holds no {name}; run or resume a sweep there: perfeds2 sweep --resume {folder}")
    return pd.read_csv(folder / name)
