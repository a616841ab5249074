"""Read the folder of a sweep as one run, and that of an arena as a run per bout."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from perfeds2.files import Json, read_json
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.read import AlgorithmResult, RunResults, estimates, over, read_csv
from perfeds2.report.style import ACCURACY, GLOBAL, ordered_styles
from perfeds2.runs.costs import IN_ARENA
from perfeds2.runs.statistics import statistic
from perfeds2.runs.table import learning_part
from perfeds2.spec.settings import value_text

Item = TypeVar("Item")


# ---- a sweep


@dataclass(frozen=True)
class SweepFolder:
    """The contents of a sweep's folder."""

    folder: Path
    axes: list[str]  # settings that the grid varies
    summary: pd.DataFrame
    evaluations: pd.DataFrame
    front: pd.DataFrame  # empty if nothing reached the target
    failed: pd.DataFrame
    axis: str = "seconds"  # of the curves, and what the target costs

    @property
    def score(self) -> Score:
        """Return the metric that is called accuracy; a generic one if it differs between points."""
        names = set(self.summary["metric"]) if "metric" in self.summary else {"accuracy"}
        return score_of(names.pop()) if len(names) == 1 else Score("metric")

    def point(self, row: Mapping[Hashable, object]) -> str:
        """Name a grid point by its settings."""
        return ", ".join(f"{axis}={value_text(row[axis])}" for axis in self.axes)

    def label(self, row: Mapping[Hashable, object]) -> str:
        """Name an algorithm at a grid point."""
        return ", ".join(filter(None, (str(row["algorithm"]), self.point(row))))

    @cached_property
    def run(self) -> RunResults:
        """Return the whole sweep as one run with a line for every point and algorithm.

        A seed's last evaluation gives its final values.
        """
        table = self.evaluations.assign(algorithm=list(map(self.label, self.evaluations.to_dict("records"))))
        labels = map(self.label, self.summary.to_dict("records"))
        targets = dict(zip(labels, self.summary["target_accuracy"], strict=True))
        outcomes = []
        for name, own in table.groupby("algorithm", sort=False):
            label, by_seed = str(name), [each.to_dict("records") for _, each in own.groupby("seed")]
            row: dict[str, Any] = learning_part(targets[label], by_seed) | {
                "rounds": statistic([rows[-1]["round"] for rows in by_seed])
            }
            outcomes.append(AlgorithmResult(label, estimates(row), label, diverged=row["diverged"]))
        run = RunResults(
            "sweep",
            seeds=tuple(sorted(map(int, set(table["seed"])))),
            target_accuracy=only(targets.values()),
            score=self.score,
            algorithms=tuple(outcomes),
            metrics=table,
            looks=ordered_styles([each.name for each in outcomes]),
        )
        return over(run, self.axis, "sweep.csv")


def load_sweep_folder(folder: Path, axis: str = "seconds") -> SweepFolder:
    """Read a sweep's folder. The columns before "algorithm" are the grid's settings."""
    names = ("sweep_summary.csv", "sweep.csv", "sweep_front.csv", "failed.csv")
    summary, evaluations, front, failed = (read_csv(folder / name) for name in names)
    if summary is None or evaluations is None:
        raise ValueError(f"no run of this sweep is done; continue with perfeds2 sweep --resume {folder}.")
    axes = [str(name) for name in summary.columns[: list(summary.columns).index("algorithm")]]
    others = (pd.DataFrame() if table is None else table for table in (front, failed))
    return SweepFolder(folder, axes, summary, evaluations, *others, axis=axis)


def only(values: Iterable[Item]) -> Item | None:
    """Return the common value, or None if the values differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def spans_decade(values: Sequence[float] | pd.Series) -> bool:
    """Return whether the values suit a logarithmic axis."""
    return min(values) > 0 and max(values) >= 10 * min(values)


# ---- an arena


@dataclass(frozen=True)
class PairDifference:
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
    missing: Sequence[str]  # methods that failed
    compared: Mapping[str, tuple[PairDifference, ...]]  # by measure; empty with fewer than three seeds

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
    mine: Sequence[str]  # the user's own methods
    bouts: tuple[BoutFound, ...]
    suite: str = ""  # the benchmark it ran
    submissions: Sequence[Mapping[str, str]] = ()  # in a leaderboard: who signed which method's results


NAMES = {  # by name in arena.json
    name: cost.to_target for name, cost in IN_ARENA.items()
} | {"accuracy": ACCURACY, "accuracy_global": GLOBAL}


def load_arena(folder: Path, axis: str = "seconds") -> ArenaFolder:
    """Read an arena's folder. Only arena.json is required."""
    said = read_json(folder / "arena.json")
    metrics = read_csv(folder / "arena_metrics.csv", "task", "cell", "method")
    seeds, bouts = tuple(said["seeds"]), []
    for each in said["bouts"]:
        task, cell = each["task"], each["cell"]
        rows = None if metrics is None else metrics[(metrics["task"] == task) & (metrics["cell"] == cell)]
        run = RunResults(
            version=said["perfeds2"],
            command="arena",
            task=task,
            ues=each["ues"],
            horizon_s=each["horizon_s"],
            seeds=seeds,
            target_accuracy=each["target_accuracy"],
            score=score_of(each["metric"]),
            algorithms=tuple(map(_method, each["methods"])),
            metrics=None if rows is None else rows.rename(columns={"method": "algorithm"}),  # type: ignore[call-overload]  # a data frame
        )
        verdicts = {
            str(NAMES.get(name, name)): tuple(PairDifference(**v) for v in found)
            for name, found in each["compared"].items()
        }
        run = over(run, axis, "arena_metrics.csv")
        bouts.append(BoutFound(run, cell, each["eval_every_s"], bool(each["tuning"]), each["missing"], verdicts))
    own = {name: said[name] for name in ("suite", "submissions") if name in said}
    return ArenaFolder(folder, said["perfeds2"], seeds, said["tune"], said["mine"], tuple(bouts), **own)


def _method(said: Json) -> AlgorithmResult:
    known = {NAMES.get(name, name): found for name, found in estimates(said).items()}
    found = {name: said[name] for name in ("settings", "edges", "tried")}
    return AlgorithmResult(said["method"], known, said["method"], diverged=int(said["diverged"]), **found)
