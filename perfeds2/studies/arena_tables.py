"""What did each method need to get to the target, how good is it at the end, how fair, and who is better than whom?

One row per task, cell, method and seed (arena.csv) is all that the rest follows from: intervals over seeds, and paired
tests between any two methods of a bout, corrected by Holm's method (arena.json).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfeds2 import __version__
from perfeds2.files import write_text
from perfeds2.learning.metrics import METRICS
from perfeds2.runs.statistics import censored_median, jain, mean_over_time, pairwise_p, statistic, worst_decile
from perfeds2.runs.summary import COSTS
from perfeds2.runs.table import write_csv
from perfeds2.spec.build import metric_of
from perfeds2.studies.arena_plan import Bout, Plan
from perfeds2.studies.tune_space import Settings

Row = dict[str, Any]
TO_TARGET = ("seconds_to_target", "rounds_to_target", "bits_to_target", "joules_to_target")
AT_END = ("accuracy", "accuracy_global", "accuracy_over_time", "worst_decile", "jain", "rounds", "merges", "staleness_mean")  # fmt: skip
BETTER = {"seconds_to_target": min, "accuracy": max, "worst_decile": max}  # what methods are compared by


@dataclass(frozen=True)
class Outcome:
    """What came out of one method in one bout."""

    bout: Bout
    method: str
    settings: Settings  # that tuning found
    tuning: Mapping[str, Any]  # … and what it says about them; empty if it was not tuned
    results: list[dict[str, Any]]  # one a seed, in the order of the seeds; one that failed is missing


def score(result: Mapping[str, Any], target: float) -> Row:
    """One method and seed in numbers. Who never met the target has no seconds; what diverged has an accuracy of 0."""
    metrics: Sequence[Mapping[str, Any]] = result["metrics"]
    first = next((row for row in metrics if row["test_accuracy_personal"] >= target), None)
    seen = [row[key] for row in metrics for key in ("test_accuracy", "test_accuracy_personal")]
    worst = min(
        [0.0, *(value for value in seen if math.isfinite(value))]
    )  # what stands for the accuracy may be negative
    last, ues = metrics[-1], [_finite(value, worst) for value in result["ue_accuracy_personal"]]
    return {
        "seconds_to_target": None if first is None else first["time_s"],
        "rounds_to_target": None if first is None else first["round"],
        "bits_to_target": None if first is None else first["round"] * result["quorum"] * result["upload_bits"],
        "joules_to_target": None if first is None else first.get("joules"),
        "accuracy": _finite(last["test_accuracy_personal"], worst),
        "accuracy_global": _finite(last["test_accuracy"], worst),
        "accuracy_over_time": mean_over_time(metrics),
        "worst_decile": worst_decile(ues),
        "jain": jain(ues),
        "rounds": result["rounds"],
        "merges": result["merges"],
        "staleness_mean": result["staleness_mean"],
        "diverged": int(not math.isfinite(last["train_loss"])),
    }


def _finite(value: float, otherwise: float) -> float:
    return float(value) if math.isfinite(value) else otherwise


def summarise_method(rows: Sequence[Row]) -> dict[str, Any]:
    """One method over its seeds: medians of what it took to the target, means with intervals of the rest."""
    reached = sum(row["seconds_to_target"] is not None for row in rows)
    return {
        "seeds": len(rows),
        "reached": reached,
        "diverged": sum(row["diverged"] for row in rows),
        **{
            name: {"median": censored_median([row[name] for row in rows]), **statistic([row[name] for row in rows])}
            for name in TO_TARGET
        },
        **{name: statistic([row[name] for row in rows]) for name in AT_END},
    }


def verdicts(rows: Mapping[str, Sequence[Row]], measure: str, horizon_s: float) -> list[dict[str, Any]]:
    """Every two methods by one measure, with the adjusted p-value and the mean difference over the seeds both have.

    A seed that never met the target counts as if it had at the horizon.
    """
    seeds = [{row["seed"] for row in of_method} for of_method in rows.values()]
    both = set.intersection(*seeds) if seeds else set()
    values: dict[str, list[float]] = {
        name: [horizon_s if row[measure] is None else float(row[measure]) for row in of_method if row["seed"] in both]
        for name, of_method in rows.items()
    }
    found = []
    for (one, other), p in pairwise_p(values).items():
        difference = float(np.mean(np.subtract(values[one], values[other])))
        first, second = (one, other) if BETTER[measure]((difference, -difference)) == difference else (other, one)
        found.append({"better": first, "worse": second, "difference": abs(difference), "p": p})
    return found


def describe_bout(outcomes: Sequence[Outcome]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a bout, and what they say together. Methods none of whose seeds is there are named."""
    bout, spec = outcomes[0].bout, outcomes[0].bout.spec
    run, there = spec.run, [outcome for outcome in outcomes if outcome.results]
    assert run.horizon_s is not None
    where = {"task": bout.task, "cell": bout.cell}
    rows = {
        one.method: [
            {**where, "method": one.method, "mode": result["mode"], "seed": result["seed"], "target_accuracy": run.target_accuracy}
            | score(result, run.target_accuracy)
            for result in one.results
        ]
        for one in there
    }  # fmt: skip
    described = {
        **where,
        "ues": spec.cell.ues,
        "horizon_s": run.horizon_s,
        "eval_every_s": run.eval_every_s,
        "metric": metric_of(spec),
        "target_accuracy": run.target_accuracy,
        "tuning": None if bout.search is None else {"seeds": len(bout.search.seeds), "rungs": bout.search.rungs},
        "missing": [one.method for one in outcomes if not one.results],
        "methods": [
            {
                "method": one.method,
                "mode": one.results[0]["mode"],
                "tried": 0 if bout.search is None or not one.tuning else len(bout.search.candidates(one.method)),
                "settings": one.settings,
                "edges": one.tuning.get("edges", []),
                **summarise_method(rows[one.method]),
            }
            for one in there
        ],
        "compared": {measure: verdicts(rows, measure, run.horizon_s) for measure in BETTER},
    }
    return [row for of_method in rows.values() for row in of_method], described


def write_tables(path: Path, plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """arena.csv and arena_metrics.csv, of what is there; arena.json last, so that a folder that has it has everything."""
    of_bouts = [[one for one in outcomes if one.bout is bout] for bout in plan.bouts]
    found = [describe_bout(own) for own in of_bouts]
    rows = [row for of_bout, _ in found for row in of_bout]
    heads = ["task", "cell", "method", "mode", "seed", "target_accuracy", *TO_TARGET, *AT_END, "diverged"]
    write_csv(path / "arena.csv", heads, rows)
    where = ["task", "cell", "method", "seed"]
    every = (
        dict(zip(where, (one.bout.task, one.bout.cell, one.method, result["seed"]), strict=True)) | row
        for one in outcomes
        for result in one.results
        for row in result["metrics"]
    )
    write_csv(path / "arena_metrics.csv", [*where, "round", "time_s", *METRICS, *COSTS], every)
    said = {
        "perfeds2": __version__,
        "tasks": list(dict.fromkeys(bout.task for bout in plan.bouts)),
        "cells": list(plan.cells),
        "methods": list(plan.bouts[0].methods),
        "mine": [name for name, named in plan.bouts[0].methods.items() if named.source],
        "seeds": list(plan.seeds),
        "tune": plan.tries,
        "bouts": [described for _, described in found],
    }
    write_text(path / "arena.json", json.dumps(said, indent=1) + "\n")
