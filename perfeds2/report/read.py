"""Read a run's folder.

``read_studies`` reads sweeps and arenas as runs too. Nothing here draws.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from perfeds2.chart import LineStyle
from perfeds2.files import Json, read_json, read_table
from perfeds2.learning.metrics import ACCURACY as ACCURACY_SCORE
from perfeds2.learning.metrics import Score, score_of
from perfeds2.report.style import ACCURACY, algorithm_styles
from perfeds2.runs.costs import COSTS, SECONDS, TIME, Cost
from perfeds2.runs.statistics import INTERVAL_SEEDS, Statistic
from perfeds2.timeline.record import Timeline, load_timelines


@dataclass(frozen=True)
class AlgorithmResult:
    """The results of one algorithm."""

    name: str
    estimates: Mapping[str, Statistic]  # by name in summary.json; costs of the target have a median
    objective: str = ""  # FedAvg, FedProx, PerFed, …
    mode: str = ""  # SYN, S2 or ASY; anything else for a user's own algorithm
    diverged: int = 0  # number of seeds
    p_behind_best: float | None = None  # of a paired test against the algorithm that ends best
    settings: Mapping[str, object] = field(default_factory=dict)  # found by tuning
    edges: Sequence[str] = ()  # settings whose value is the smallest or largest tried
    tried: int = 0  # number of settings tried

    @property
    def seeds(self) -> int:
        return max((len(each["values"]) for each in self.estimates.values()), default=0)

    @property
    def reached(self) -> int:
        """Return how many seeds reached the target."""
        return len(self.finite(TIME))

    def finite(self, name: str) -> list[float]:
        """Return the values of the seeds that have one."""
        return [value for value in self.estimates.get(name, {"values": ()})["values"] if value is not None]

    def median(self, name: str = TIME) -> float:
        """Return the median cost of the target; infinite if half of the seeds never reached it."""
        found = self.estimates.get(name, {}).get("median")
        return math.inf if found is None else found

    def mean(self, name: str) -> float:
        return self.estimates.get(name, {}).get("mean") or 0.0

    def lateness(self, name: str = TIME) -> tuple[int, float]:
        """Return a sort key: more seeds at the target first, then lower cost, because one lucky seed proves nothing."""
        return -self.reached, self.median(name)

    @property
    def starved(self) -> bool:
        """Return whether some UEs were never merged."""
        return any(self.finite("starved"))


@dataclass(frozen=True)
class RunResults:
    """The contents of a run's folder."""

    command: str  # compare, run, simulate, federate, sweep or arena
    seeds: tuple[int, ...]
    algorithms: tuple[AlgorithmResult, ...]
    target_accuracy: float | None  # for test_accuracy_personal
    version: str = ""
    task: str | None = None
    ues: int = 0
    horizon_s: float | None = None
    rounds: int | None = None
    notes: tuple[str, ...] = ()
    took_part: int | None = None  # devices of a federation that were merged and evaluated
    radio: Json | None = None  # quality of the simulated links
    cells: Json | None = None  # map of a run with many cells
    cost: Cost = SECONDS  # x axis of the curves, and what the target costs
    looks: Mapping[str, LineStyle] = field(default_factory=dict)  # by algorithm; empty for the default styles
    score: Score = ACCURACY_SCORE  # the metric that is called accuracy
    spec: str = ""  # text of spec.toml
    metrics: pd.DataFrame | None = None
    ue_metrics: pd.DataFrame | None = None
    timelines: Mapping[tuple[str, int], Timeline] = field(default_factory=dict)  # by algorithm and seed

    @property
    def population(self) -> str:
        """Return how many UEs there are; in a federation, how many of its devices the results cover."""
        return f"{self.ues} UEs" if self.took_part is None else f"{self.took_part} of {self.ues} devices"

    @property
    def clock(self) -> str:
        """Return what to call time: real in a federation, simulated elsewhere."""
        return "time" if self.command == "federate" else "simulated time"

    @property
    def x_words(self) -> str:
        """Return what to call the x axis of the curves in a sentence."""
        return self.clock if self.cost is SECONDS else self.cost.words

    @property
    def time_label(self) -> str:
        return f"{self.clock.capitalize()} (s)"

    @property
    def is_trained(self) -> bool:
        return any(ACCURACY in algorithm.estimates for algorithm in self.algorithms)

    @property
    def has_intervals(self) -> bool:
        return len(self.seeds) >= INTERVAL_SEEDS

    @property
    def target(self) -> str:
        """Return the target as text, such as "95 %" or "R² 0.5"."""
        named = "" if self.score.is_share else f"{self.score.word} "
        return named + self.score.level(self.target_accuracy or 0.0)

    @property
    def winner(self) -> AlgorithmResult:
        """Return the algorithm first at the target; without a target, the one that ends best or waits least."""
        return min(
            self.algorithms,
            key=lambda each: (*each.lateness(self.cost.to_target), -each.mean(ACCURACY), each.mean("waiting_share")),
        )

    @cached_property
    def styles(self) -> Mapping[str, LineStyle]:
        return self.looks or algorithm_styles([(each.name, each.objective, each.mode) for each in self.algorithms])


def over(run: RunResults, axis: str, file: str = "metrics.csv") -> RunResults:
    """Return the run with its curves, and what the target costs, over a cost. ``file`` is named in errors."""
    cost = COSTS[axis]
    if cost is SECONDS or run.metrics is None:
        return run
    return replace(run, metrics=along(run.metrics, cost, file), cost=cost)


def along(metrics: pd.DataFrame, cost: Cost, file: str) -> pd.DataFrame:
    """Return the evaluations with ``cost`` in place of the time."""
    if cost.column not in metrics or np.isnan(metrics[cost.column].to_numpy(float)).any():
        raise ValueError(f"{file} has no complete column {cost.column}. Run it again, or use --x seconds.")
    return metrics.assign(time_s=metrics[cost.column])


def estimates(row: Json) -> dict[str, Statistic]:
    return {name: found for name, found in row.items() if isinstance(found, dict) and "values" in found}


def read_csv(path: Path, *texts: str) -> pd.DataFrame | None:
    """Read a table, with text columns taken literally (a name may be "NA"). Return None if it is missing or empty."""
    if not path.is_file():
        return None
    table = read_table(path, converters=dict.fromkeys(("algorithm", *texts), str))
    return table if len(table) else None


def read_text(path: Path) -> str:
    """Return a file's text; empty if the file does not exist."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# ---- a run


def load_run(folder: Path | str) -> RunResults:
    """Read a run's folder. Only summary.json is required; figures without data are left out later."""
    folder = Path(folder)
    path = folder / "summary.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run's folder: it has no summary.json. Give the --out folder of a run.")
    try:
        run = read_summary(read_json(path))
        tables = {name: read_csv(folder / f"{name}.csv") for name in ("metrics", "ue_metrics")}
        return replace(run, spec=read_text(folder / "spec.toml"), timelines=_timelines(folder, run), **tables)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a summary of perfeds2 ({error!r}); run again to write it anew.") from error


def read_summary(summary: Json) -> RunResults:
    """Return the part of a run that is in summary.json."""
    same = {name: summary[name] for name in ("command", "task", "ues", "horizon_s", "rounds", "target_accuracy")}
    same |= {name: summary[name] for name in ("took_part", "radio", "cells") if name in summary}
    return RunResults(
        **same,
        version=summary["perfeds2"],
        seeds=tuple(summary["seeds"]),
        score=score_of(summary.get("metric") or "accuracy"),
        notes=tuple(summary["notes"]),
        algorithms=tuple(
            AlgorithmResult(
                row["algorithm"],
                estimates(row),
                row["objective"],
                row["mode"],
                row.get("diverged", 0),
                row.get("p_behind_best"),
            )
            for row in summary["algorithms"]
        ),
    )


def _timelines(folder: Path, run: RunResults) -> dict[tuple[str, int], Timeline]:
    if not (folder / "timeline.npz").is_file():
        return {}
    timelines = load_timelines(folder)
    if list(timelines) == [""]:
        return {(run.algorithms[0].name, run.seeds[0]): timelines[""]}
    return {(name.rpartition("/")[0], int(name.rpartition("/")[2])): timeline for name, timeline in timelines.items()}
