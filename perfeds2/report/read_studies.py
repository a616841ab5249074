"""Read the folders of sweeps and arenas as runs: one per grid point, one per bout."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfeds2.errors import InputError
from perfeds2.learning.metrics import METRICS, Score, score_of
from perfeds2.report.read import (
    AXES,
    TIME,
    AlgorithmResult,
    RunResults,
    estimates,
    finite,
    load_run,
    read_csv,
)
from perfeds2.report.style import ACCURACY, GLOBAL, ordered_styles
from perfeds2.runs.statistics import INTERVAL_SEEDS, censored_median, statistic, time_to_target

Settings = Mapping[str, str]  # by section.key


# ---- a sweep


@dataclass(frozen=True)
class SweepFolder:
    """The contents of a sweep's folder."""

    folder: Path
    axes: list[str]  # settings that the grid varies
    summary: Any  # data frames, whose types are too broad to be useful
    evaluations: Any
    front: Any
    failed: Any

    @property
    def score(self) -> Score:
        """Return the metric that is called accuracy; a generic one if it differs between points."""
        names = set(self.summary["metric"]) if "metric" in self.summary else {"accuracy"}
        return score_of(names.pop()) if len(names) == 1 else Score("metric")

    @property
    def targets(self) -> dict[str, float]:
        """Return the target of each algorithm at each point, by label."""
        labels = map(self.label, self.summary.to_dict("records"))
        return dict(zip(labels, self.summary["target_accuracy"], strict=True))

    def point(self, row: Mapping[Any, Any]) -> str:
        """Name a grid point by its settings."""
        return ", ".join(f"{axis}={value_text(row[axis])}" for axis in self.axes)

    def label(self, row: Mapping[Any, Any]) -> str:
        """Name an algorithm at a grid point."""
        return ", ".join(filter(None, (str(row["algorithm"]), self.point(row))))

    @cached_property
    def run(self) -> RunResults:
        """Return the whole sweep as one run with a line for every point and algorithm."""
        table = self.evaluations.assign(algorithm=list(map(self.label, self.evaluations.to_dict("records"))))
        run = _run_of_rows(self, table, self.targets, {})
        return replace(run, looks=ordered_styles([each.name for each in run.algorithms]))

    @cached_property
    def members(self) -> list["Member"]:
        """Return a run for every grid point."""
        from perfeds2.studies.grid import read_sweep

        specs = _specs(lambda: [point.spec for point in read_sweep(self.folder).points])
        points = self.evaluations.groupby(self.axes or (lambda _: 0), sort=False, dropna=False)
        made = []
        for (_, rows), settings in zip(points, [*specs, *[{}] * len(points)], strict=False):
            own = self.summary.merge(rows[self.axes].drop_duplicates()) if self.axes else self.summary
            targets = dict.fromkeys(rows["algorithm"], float(own["target_accuracy"].iloc[0]))
            run = _run_of_rows(self, rows, targets, settings)
            made.append(Member("", self.point(rows.iloc[0].to_dict()), run, settings))
        return made


def load_sweep_folder(folder: Path) -> SweepFolder:
    """Read a sweep's folder. The columns before "algorithm" are the grid's settings."""
    names = ("sweep_summary.csv", "sweep.csv", "sweep_front.csv", "failed.csv")
    summary, evaluations, front, failed = (read_csv(folder / name) for name in names)
    if summary is None or evaluations is None:
        raise ValueError(f"no run of this sweep is done; continue with perfeds2 sweep --resume {folder}.")
    axes = [str(name) for name in summary.columns[: list(summary.columns).index("algorithm")]]
    return SweepFolder(folder, axes, summary, evaluations, front, failed)


def _run_of_rows(
    sweep: SweepFolder, rows: pd.DataFrame, targets: Mapping[str, float], settings: Settings
) -> RunResults:
    """Aggregate evaluations into a run. A seed's last evaluation gives its final values."""
    seeds = tuple(sorted({int(seed) for seed in rows["seed"]}))
    outcomes = []
    for name, own in rows.groupby("algorithm", sort=False):
        by_seed = [each.to_dict("records") for _, each in own.groupby("seed")]
        ends = {key: statistic([each[-1][key] for each in by_seed]) for key in (*METRICS, "round")}
        ends["rounds"] = ends.pop("round")
        for cost in AXES.values():
            spent = [finite(time_to_target(each, targets[str(name)], cost.column)) for each in by_seed]
            ends[cost.to_target] = statistic(spent) | {"median": censored_median(spent)}
        diverged = sum(value is None for value in ends["train_loss"]["values"])
        outcomes.append(AlgorithmResult(str(name), estimates(ends), str(name), diverged=diverged))
    horizon = settings.get("run.horizon_s")
    return RunResults(
        version="",
        command="sweep",
        task=settings.get("task.name"),
        ues=int(settings.get("cell.ues", 0)),
        horizon_s=None if horizon is None else float(horizon),
        rounds=None,
        seeds=seeds,
        target_accuracy=only(targets.values()),
        score=sweep.score,
        algorithms=tuple(outcomes),
        metrics=rows,
    )


def only(values: Iterable[Any]) -> Any:
    """Return the common value, or None if the values differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def value_text(value: Any) -> str:
    """Format the value of a setting."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- an arena


@dataclass(frozen=True)
class Verdict:
    """The comparison of two methods by one measure."""

    better: str  # by mean over seeds
    worse: str
    difference: float
    p: float  # adjusted by Holm's method

    @property
    def is_significant(self) -> bool:
        return self.p < 0.05


@dataclass(frozen=True)
class BoutFound:
    """The results of one task and cell."""

    run: RunResults
    cell: str
    eval_every_s: float
    is_tuned: bool
    missing: tuple[str, ...]  # methods that failed
    compared: Mapping[str, tuple[Verdict, ...]]  # by measure; empty with fewer than three seeds

    @property
    def title(self) -> str:
        return str(self.run.task) if self.cell == "paper" else f"{self.run.task} ({self.cell})"

    @property
    def ranked(self) -> list[AlgorithmResult]:
        """Sort the methods by time to the target; break ties by final accuracy."""
        return sorted(self.run.algorithms, key=lambda each: (*each.lateness(), -each.mean(ACCURACY)))


@dataclass(frozen=True)
class ArenaFolder:
    """The contents of an arena's folder."""

    folder: Path
    version: str
    seeds: tuple[int, ...]
    tries: int
    mine: tuple[str, ...]  # the user's own methods
    bouts: tuple[BoutFound, ...]

    @property
    def has_tests(self) -> bool:
        return len(self.seeds) >= INTERVAL_SEEDS

    @cached_property
    def members(self) -> list["Member"]:
        """Return a run for every bout."""
        from perfeds2.studies.arena_plan import read_plan

        specs = _specs(lambda: [bout.spec for bout in read_plan(self.folder).bouts])
        made = []
        for bout, settings in zip(self.bouts, [*specs, *[{}] * len(self.bouts)], strict=False):
            tuned = flat({each.name: each.settings for each in bout.run.algorithms}, "each.")
            made.append(Member("", bout.title if len(self.bouts) > 1 else "", bout.run, {**settings, **tuned}))
        return made


IN_ARENA = {"seconds_to_target": TIME, "accuracy": ACCURACY, "accuracy_global": GLOBAL}  # from the names in arena.json


def load_arena(folder: Path) -> ArenaFolder:
    """Read an arena's folder. Only arena.json is required."""
    said = json.loads((folder / "arena.json").read_text(encoding="utf-8"))
    metrics = read_csv(folder / "arena_metrics.csv", "task", "cell", "method")
    seeds = tuple(map(int, said["seeds"]))
    bouts = []
    for each in said["bouts"]:
        task, cell = str(each["task"]), str(each["cell"])
        rows = None if metrics is None else metrics[(metrics["task"] == task) & (metrics["cell"] == cell)]
        run = RunResults(
            version=str(said["perfeds2"]),
            command="arena",
            task=task,
            ues=int(each["ues"]),
            horizon_s=float(each["horizon_s"]),
            rounds=None,
            seeds=seeds,
            target_accuracy=float(each["target_accuracy"]),
            score=score_of(str(each["metric"])),
            algorithms=tuple(map(_method, each["methods"])),
            metrics=None if rows is None else rows.rename(columns={"method": "algorithm"}),  # type: ignore[call-overload]  # a data frame
        )
        verdicts = {
            str(IN_ARENA.get(name, name)): tuple(Verdict(**v) for v in found)
            for name, found in each["compared"].items()
        }
        missing = tuple(map(str, each["missing"]))
        bouts.append(BoutFound(run, cell, float(each["eval_every_s"]), bool(each["tuning"]), missing, verdicts))
    return ArenaFolder(
        folder, str(said["perfeds2"]), seeds, int(said["tune"]), tuple(map(str, said["mine"])), tuple(bouts)
    )


def _method(said: Mapping[str, Any]) -> AlgorithmResult:
    return AlgorithmResult(
        str(said["method"]),
        {IN_ARENA.get(name, name): found for name, found in estimates(said).items()},
        objective=str(said["method"]),
        diverged=int(said["diverged"]),
        settings=dict(said["settings"]),
        edges=tuple(map(str, said["edges"])),
        tried=int(said["tried"]),
    )


# ---- several folders


@dataclass(frozen=True)
class Member:
    """One of several runs that are compared."""

    folder: str  # label of the folder
    part: str  # which run of the folder; empty if it has only one
    run: RunResults
    settings: Settings

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.folder, self.part)))


def load_members(folders: Sequence[Path]) -> list[Member]:
    """Read all runs in the folders."""
    members: list[Member] = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        if (folder / "arena.json").exists():
            found = load_arena(folder).members
        elif (folder / "sweep_summary.csv").exists():
            found = load_sweep_folder(folder).members
        elif (folder / "summary.json").exists():
            run = load_run(folder)
            found = [Member("", "", run, _settings(run.spec))]
        else:
            raise InputError(
                f"{folder} holds no runs; expected the folder of a run, a federation, a sweep or an arena."
            )
        members += [replace(member, folder=label) for member in found]
    return members


def folder_labels(folders: Sequence[Path]) -> list[str]:
    """Label folders by name, or by path if two names are equal."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _settings(toml: str) -> Settings:
    try:
        return flat(tomllib.loads(toml))
    except ValueError:
        return {}


def _specs(read: Callable[[], Iterable[Any]]) -> list[Settings]:
    """Return the settings with defaults filled in; nothing if a file they refer to is missing."""
    try:
        return [flat(spec.values()) for spec in read()]
    except InputError:
        return []


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Flatten nested settings to section.key."""
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": _text(value)}
    return found


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def differing(settings: Sequence[Settings]) -> dict[str, list[str]]:
    """Return the settings that are not the same everywhere, each with all of its values."""
    keys = dict.fromkeys(key for each in settings for key in each)
    found = {key: [each.get(key, "–") for each in settings] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}
